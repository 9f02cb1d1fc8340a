// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/status_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "host/ctl/json_fields.h"

namespace consort::host {
namespace {

using Json = nlohmann::ordered_json;

std::string Duration(uint64_t seconds) {
  if (seconds < 60) return absl::StrFormat("%ds", seconds);
  if (seconds < 3600) return absl::StrFormat("%dm%02ds", seconds / 60, seconds % 60);
  if (seconds < 86400) return absl::StrFormat("%dh%02dm", seconds / 3600, seconds / 60 % 60);
  return absl::StrFormat("%dd%02dh", seconds / 86400, seconds / 3600 % 24);
}

std::string Percent(const Json& object, const char* key) {
  return object.contains(key) ? absl::StrFormat("%.1f %%", 100 * object.value(key, 0.0)) : "-";
}

std::vector<std::string> Usage(const Json& object) {
  return {absl::StrCat(NumberOf(object, "calls")), HumanBytes(NumberOf(object, "bytes_to_device")),
          HumanBytes(NumberOf(object, "bytes_to_host")),
          absl::StrCat(NumberOf(object, "kernel_launches")),
          absl::StrFormat("%.1f s", object.value("kernel_seconds", 0.0))};
}

std::vector<std::string> Join(std::vector<std::string> row, const std::vector<std::string>& more) {
  row.insert(row.end(), more.begin(), more.end());
  return row;
}

const std::vector<std::string> UsageHeadings() {
  return {"CALLS ", "TO DEVICE ", "TO HOST ", "KERNELS ", "KERNEL TIME "};
}

}  // namespace

std::string Table(const std::vector<std::string>& headings,
                  const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  std::vector<bool> right;
  std::vector<std::string> titles = headings;
  for (std::string& title : titles) {
    right.push_back(title.ends_with(' '));
    if (right.back()) title.pop_back();
    widths.push_back(title.size());
  }
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  const auto add = [&](const std::vector<std::string>& row) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - row[i].size(), ' ');
      absl::StrAppend(&line, i == 0 ? "" : "  ", right[i] ? pad + row[i] : row[i] + pad);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&out, line, "\n");
  };
  add(titles);
  for (const auto& row : rows) add(row);
  return out;
}

std::string HumanBytes(uint64_t bytes) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1000 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  const int decimals = unit == 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return absl::StrFormat("%.*f %s", decimals, value, units[unit]);
}

std::string StatusTables(const Json& status, uint64_t now) {
  const uint64_t started = NumberOf(status, "started");
  std::string out = absl::StrCat("consortd ", TextOf(status, "version"), ", up ",
                                 Duration(now > started ? now - started : 0), "\n\n");
  std::vector<std::vector<std::string>> rows;
  for (const Json& device : status.value("devices", Json::array())) {
    rows.push_back({absl::StrCat(NumberOf(device, "index")), TextOf(device, "model"),
                    device.contains("memory_total_bytes")
                        ? HumanBytes(NumberOf(device, "memory_total_bytes"))
                        : "-",
                    TextOf(device, "state"), absl::StrCat(NumberOf(device, "sessions")),
                    absl::StrCat(NumberOf(device, "worker_starts"))});
  }
  absl::StrAppend(
      &out, Table({"DEVICE ", "MODEL", "MEMORY ", "STATE", "SESSIONS ", "WORKER STARTS "}, rows));

  rows.clear();
  for (const Json& tenant : status.value("tenants", Json::array())) {
    rows.push_back(Join({TextOf(tenant, "tenant"), absl::StrCat(NumberOf(tenant, "sessions"))},
                        Usage(tenant)));
  }
  if (!rows.empty()) {
    absl::StrAppend(&out, "\n", Table(Join({"TENANT", "SESSIONS "}, UsageHeadings()), rows));
  }

  rows.clear();
  for (const Json& session : status.value("sessions", Json::array())) {
    const uint64_t began = NumberOf(session, "started");
    rows.push_back(Join(
        {absl::StrCat(NumberOf(session, "id")), TextOf(session, "tenant"), TextOf(session, "vm"),
         TextOf(session, "application"), absl::StrCat(NumberOf(session, "pid")),
         absl::StrCat(NumberOf(session, "device")), Duration(now > began ? now - began : 0)},
        Usage(session)));
  }
  if (!rows.empty()) {
    absl::StrAppend(
        &out, "\n",
        Table(Join({"SESSION ", "TENANT", "VM", "APPLICATION", "PID ", "DEVICE ", "AGE "},
                   UsageHeadings()),
              rows));
  }
  rows.clear();
  for (const Json& session : status.value("sessions", Json::array())) {
    if (session.value("state", "") != "held") continue;
    rows.push_back({absl::StrCat(NumberOf(session, "id")), TextOf(session, "application"),
                    TextOf(session, "folder")});
  }
  if (!rows.empty()) {
    absl::StrAppend(&out, "\n", Table({"HELD SESSION ", "APPLICATION", "CHECKPOINT"}, rows));
  }
  if (status.value("reload_failed", false)) {
    absl::StrAppend(&out, "\nA file of the VMs has a mistake: see journalctl -u consortd\n");
  }
  return out;
}

std::string TopTables(const Json& status) {
  std::string out = absl::StrCat("policy ", TextOf(status, "policy"), "\n");
  std::vector<std::vector<std::string>> rows;
  for (const Json& share : status.value("shares", Json::array())) {
    rows.push_back({TextOf(share, "tenant"), absl::StrCat(NumberOf(share, "device")),
                    absl::StrCat(NumberOf(share, "weight")), Percent(share, "share"),
                    Percent(share, "target"), absl::StrCat(NumberOf(share, "waiting"))});
  }
  if (rows.empty()) return absl::StrCat(out, "\nno application is here\n");
  absl::StrAppend(&out, "\n",
                  Table({"TENANT", "DEVICE ", "WEIGHT ", "SHARE ", "TARGET ", "WAITING "}, rows));

  rows.clear();
  for (const Json& session : status.value("sessions", Json::array())) {
    rows.push_back({absl::StrCat(NumberOf(session, "id")), TextOf(session, "tenant"),
                    TextOf(session, "application"), absl::StrCat(NumberOf(session, "device")),
                    Percent(session, "share"), TextOf(session, "phase"),
                    absl::StrCat(NumberOf(session, "waiting"), "+", NumberOf(session, "in_flight")),
                    HumanBytes(NumberOf(session, "bytes_to_device")),
                    HumanBytes(NumberOf(session, "bytes_to_host")),
                    absl::StrFormat("%.1f s", session.value("device_seconds", 0.0)),
                    absl::StrFormat("%.1f s", session.value("queued_seconds", 0.0))});
  }
  absl::StrAppend(&out, "\n",
                  Table({"SESSION ", "TENANT", "APPLICATION", "DEVICE ", "SHARE ", "PHASE",
                         "QUEUE ", "TO DEVICE ", "TO HOST ", "DEVICE TIME ", "QUEUED "},
                        rows));
  return out;
}

Json TopJson(const Json& status) {
  Json out;
  for (const char* key : {"policy", "shares", "sessions"}) {
    if (status.contains(key)) out[key] = status[key];
  }
  return out;
}

}  // namespace consort::host
