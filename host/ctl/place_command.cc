// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/place_command.h"

#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/ctl/json_fields.h"
#include "host/ctl/status_table.h"

namespace consort::host {
namespace {

using Json = nlohmann::ordered_json;

bool IsWanted(const Json& who, const std::string& application) {
  return application.empty() || TextOf(who, "application") == application ||
         absl::StrCat(NumberOf(who, "pid")) == application;
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
    model_of_gid[NumberOf(gpu, "gid")] = TextOf(gpu, "model");
  }
  std::map<uint64_t, std::string> model_of_device;
  for (const Json& device : status.value("devices", Json::array())) {
    model_of_device[NumberOf(device, "index")] = TextOf(device, "model");
  }
  for (const Json& assembly : pool.value("assemblies", Json::array())) {
    if (!IsWanted(assembly, application)) continue;
    uint64_t index = 0;
    for (const Json& vgpu : assembly.value("vgpus", Json::array())) {
      Json placement = Begin(assembly);
      placement["vgpu"] = index++;
      for (const char* key : {"gid", "node", "device"}) placement[key] = vgpu.at(key);
      placement["model"] = model_of_gid[NumberOf(vgpu, "gid")];
      placement["local"] = vgpu.value("local", false);
      placement["why"] = TextOf(vgpu, "why");
      placements.push_back(std::move(placement));
    }
  }
  for (const Json& session : status.value("sessions", Json::array())) {
    // Those of an assembly have been shown with it.
    if (session.contains("assembly") || !IsWanted(session, application)) continue;
    Json placement = Begin(session);
    if (session.contains("vgpu")) placement["vgpu"] = session.at("vgpu");
    placement["node"] = TextOf(pool.contains("node") ? pool : status, "node");
    placement["device"] = session.at("device");
    placement["model"] = model_of_device[NumberOf(session, "device")];
    placement["local"] = true;
    placement["why"] = TextOf(session, "why");
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
      return placement.contains(key) ? absl::StrCat(NumberOf(placement, key)) : "-";
    };
    rows.push_back({TextOf(placement, "tenant"), TextOf(placement, "application"), number("pid"),
                    number("vgpu"), TextOf(placement, "node"), number("device"),
                    TextOf(placement, "model"), placement.value("local", false) ? "here" : "remote",
                    TextOf(placement, "why")});
  }
  return Table(
      {"TENANT", "APPLICATION", "PID ", "VGPU ", "NODE", "DEVICE ", "MODEL", "WHERE", "WHY"}, rows);
}

}  // namespace consort::host
