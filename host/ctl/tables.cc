// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/tables.h"

#include <time.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "host/ctl/json_fields.h"
#include "host/ctl/status_table.h"

namespace consort::host {
namespace {

using Json = nlohmann::ordered_json;

std::string Seconds(const Json& object, const char* key) {
  return absl::StrFormat("%.3f", object.value(key, 0.0));
}

// What it does; "held" if it is in a checkpoint, "unbound" if its device is not chosen yet.
std::string StateText(const Json& session) {
  if (!session.value("bound", true)) return "unbound";
  return TextOf(session, session.value("state", "open") == "held" ? "state" : "phase");
}

std::string Age(uint64_t seconds) {
  if (seconds < 60) return absl::StrCat(seconds, "s");
  if (seconds < 3600) return absl::StrCat(seconds / 60, "m");
  if (seconds < 2 * 86400) return absl::StrCat(seconds / 3600, "h");
  return absl::StrCat(seconds / 86400, "d");
}

}  // namespace

Json ApplicationsOf(const Json& status, const std::string& tenant) {
  Json out = Json::array();
  for (const Json& session : status.value("sessions", Json::array())) {
    if (tenant.empty() || TextOf(session, "tenant") == tenant) out.push_back(session);
  }
  return out;
}

std::string ApplicationTable(const Json& applications, uint64_t now) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& session : applications) {
    const uint64_t began = NumberOf(session, "started");
    rows.push_back(
        {absl::StrCat(NumberOf(session, "id")), TextOf(session, "tenant"), TextOf(session, "vm"),
         TextOf(session, "application"), absl::StrCat(NumberOf(session, "pid")),
         absl::StrCat(NumberOf(session, "device")), StateText(session),
         HumanBytes(NumberOf(session, "memory_bytes")), Seconds(session, "device_seconds"),
         Seconds(session, "queued_seconds"), Age(now > began ? now - began : 0)});
  }
  return Table({"SESSION ", "TENANT", "VM", "APPLICATION", "PID ", "DEVICE ", "PHASE", "MEMORY ",
                "DEVICE S ", "QUEUED S ", "AGE "},
               rows);
}

Json MachinesOf(const Json& status) {
  Json out = Json::array();
  for (Json vm : status.value("vms", Json::array())) {
    uint64_t open = 0;
    for (const Json& session : status.value("sessions", Json::array())) {
      if (TextOf(session, "vm") == TextOf(vm, "name")) ++open;
    }
    vm["sessions"] = open;
    out.push_back(std::move(vm));
  }
  return out;
}

std::string MachineTable(const Json& machines) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& vm : machines) {
    const std::string shared_memory =
        vm.contains("shared_memory_bytes")
            ? absl::StrCat(HumanBytes(NumberOf(vm, "shared_memory_lent_bytes")), " of ",
                           HumanBytes(NumberOf(vm, "shared_memory_bytes")))
            : "none";
    rows.push_back({TextOf(vm, "name"), TextOf(vm, "tenant"),
                    vm.contains("vgpus") ? absl::StrCat(NumberOf(vm, "vgpus")) : "all",
                    absl::StrCat(NumberOf(vm, "sessions")), shared_memory, TextOf(vm, "socket")});
  }
  return Table({"VM", "TENANT", "VGPUS ", "SESSIONS ", "SHARED MEMORY ", "SOCKET"}, rows);
}

std::string EventTable(const Json& events) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& event : events) {
    const time_t at = static_cast<time_t>(NumberOf(event, "time"));
    tm parts = {};
    gmtime_r(&at, &parts);
    char time[32];
    strftime(time, sizeof(time), "%Y-%m-%dT%H:%M:%SZ", &parts);
    const uint64_t times = NumberOf(event, "times");
    rows.push_back({time, TextOf(event, "level"),
                    absl::StrCat(TextOf(event, "text"),
                                 times > 1 ? absl::StrCat(" (", times, " times)") : "")});
  }
  return Table({"TIME", "LEVEL", "EVENT"}, rows);
}

std::string TraceTable(const nlohmann::ordered_json& trace) {
  using Json = nlohmann::ordered_json;
  const bool recording = trace.value("recording", false);
  std::vector<std::vector<std::string>> rows;
  for (const Json& file : trace.value("files", Json::array())) {
    rows.push_back({std::to_string(file.value("device", uint64_t{0})),
                    HumanBytes(file.value("bytes", uint64_t{0})),
                    file.value("ended", std::string(recording ? "recording" : "being written")),
                    file.value("path", std::string("-"))});
  }
  if (rows.empty())
    return recording ? "recording; no device has a worker\n" : "nothing is recorded\n";
  return Table({"DEVICE ", "SIZE ", "STATE", "FILE"}, rows);
}

}  // namespace consort::host
