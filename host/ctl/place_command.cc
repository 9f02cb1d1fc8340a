// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/place_command.h"

#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/ctl/status_table.h"

namespace consort::host {
namespace {

using Json = nlohmann::ordered_json;

std::string Text(const Json& object, const char* key) {
  return object.value(key, std::string("-"));
}

uint64_t Number(const Json& object, const char* key) { return object.value(key, uint64_t{0}); }

bool IsWanted(const Json& who, const std::string& application) {
  return application.empty() || Text(who, "application") == application ||
         absl::StrCat(Number(who, "pid")) == application;
}

Json Begin(const Json& who) {
  Json placement;
  for (const char* key : {"tenant", "vm", "application", "pid"}) placement[key] = who.at(key);
  return placement;
}

}  // namespace

absl::StatusOr<Json> PlacementsOf(const Json& status, const std::string& application) {
  Json placements = Json::array();
  const Json pool = status.value("pool", Json::object());
  std::map<uint64_t, std::string> model_of_gid;
  for (const Json& gpu : pool.value("gpus", Json::array())) {
    model_of_gid[Number(gpu, "gid")] = Text(gpu, "model");
  }
  std::map<uint64_t, std::string> model_of_device;
  for (const Json& device : status.value("devices", Json::array())) {
    model_of_device[Number(device, "index")] = Text(device, "model");
  }
  for (const Json& assembly : pool.value("assemblies", Json::array())) {
    if (!IsWanted(assembly, application)) continue;
    uint64_t index = 0;
    for (const Json& vgpu : assembly.value("vgpus", Json::array())) {
      Json placement = Begin(assembly);
      placement["vgpu"] = index++;
      for (const char* key : {"gid", "node", "device"}) placement[key] = vgpu.at(key);
      placement["model"] = model_of_gid[Number(vgpu, "gid")];
      placement["local"] = vgpu.value("local", false);
      placement["why"] = Text(vgpu, "why");
      placements.push_back(std::move(placement));
    }
  }
  for (const Json& session : status.value("sessions", Json::array())) {
    // Those of an assembly have been shown with it.
    if (session.contains("assembly") || !IsWanted(session, application)) continue;
    Json placement = Begin(session);
    if (session.contains("vgpu")) placement["vgpu"] = session.at("vgpu");
    placement["node"] = Text(pool.contains("node") ? pool : status, "node");
    placement["device"] = session.at("device");
    placement["model"] = model_of_device[Number(session, "device")];
    placement["local"] = true;
    placement["why"] = Text(session, "why");
    placements.push_back(std::move(placement));
  }
  if (placements.empty() && !application.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no open application is called ", application,
                     " or has that process id; consortctl apps shows those there are"));
  }
  return placements;
}

std::string PlacementTable(const Json& placements) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& placement : placements) {
    const auto number = [&placement](const char* key) {
      return placement.contains(key) ? absl::StrCat(Number(placement, key)) : "-";
    };
    rows.push_back({Text(placement, "tenant"), Text(placement, "application"), number("pid"),
                    number("vgpu"), Text(placement, "node"), number("device"),
                    Text(placement, "model"), placement.value("local", false) ? "here" : "remote",
                    Text(placement, "why")});
  }
  return Table(
      {"TENANT", "APPLICATION", "PID ", "VGPU ", "NODE", "DEVICE ", "MODEL", "WHERE", "WHY"}, rows);
}

}  // namespace consort::host
