// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/page.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "host/daemon/status_json.h"
#include "host/limits.h"

namespace consort::host {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kHtml[] = {
#include "gen/host/page.html.inc"
};
constexpr char kCss[] = {
#include "gen/host/page.css.inc"
};
constexpr char kJs[] = {
#include "gen/host/page.js.inc"
};

struct File {
  const char* path;
  const char* content_type;
  std::string_view bytes;
};
constexpr std::array<File, 3> kFiles = {{
    {"/", "text/html; charset=utf-8", {kHtml, sizeof(kHtml)}},
    {"/page.css", "text/css; charset=utf-8", {kCss, sizeof(kCss)}},
    {"/page.js", "text/javascript; charset=utf-8", {kJs, sizeof(kJs)}},
}};

// Four decimals: a tenth of a millisecond in a second.
double Rounded(double value) { return std::round(value * 1e4) / 1e4; }

Json SamplesJson(const std::deque<HistorySample>& samples, uint64_t seen) {
  Json out = Json::array();
  for (const HistorySample& sample : samples) {
    if (sample.number <= seen) continue;
    Json& entry = out.emplace_back();
    entry["number"] = sample.number;
    entry["time_ms"] = sample.unix_millis;
    entry["tenants"] = Json::object();
    for (const auto& [tenant, share] : sample.tenants) {
      entry["tenants"][tenant] = {Rounded(share.used), Rounded(share.target)};
    }
    entry["devices"] = Json::array();
    for (const double busy : sample.devices) entry["devices"].push_back(Rounded(busy));
    entry["memory_bytes"] = sample.memory_bytes;
  }
  return out;
}

Json EventsJson(const EventLog& events, uint64_t seen) {
  Json out = Json::array();
  for (const Event& event : events.events()) {
    if (event.number <= seen) continue;
    out.push_back({{"number", event.number},
                   {"time", event.unix_seconds},
                   {"level", EventLevelName(event.level)},
                   {"text", event.text},
                   {"times", event.times}});
  }
  return out;
}

}  // namespace

std::optional<PageSeen> ParsePagePath(const std::string& path) {
  absl::string_view rest = path;
  if (!absl::ConsumePrefix(&rest, "/api/v1/page")) return std::nullopt;
  PageSeen seen;
  if (rest.empty()) return seen;
  const std::vector<std::string> parts = absl::StrSplit(rest, '/');
  if (parts.size() != 4 || !parts[0].empty() || !absl::SimpleAtoi(parts[1], &seen.fine) ||
      !absl::SimpleAtoi(parts[2], &seen.coarse) || !absl::SimpleAtoi(parts[3], &seen.event)) {
    return std::nullopt;
  }
  return seen;
}

std::optional<HttpResponse> PageFile(const std::string& path) {
  for (const File& file : kFiles) {
    if (path == file.path) return HttpResponse{200, file.content_type, std::string(file.bytes)};
  }
  return std::nullopt;
}

std::string PageJson(const DaemonStatus& status, const History& history, const EventLog& events,
                     const PageSeen& seen, uint64_t unix_millis) {
  DaemonStatus shown = status;
  const auto busier = [](const SessionStatus& a, const SessionStatus& b) {
    return std::tie(b.usage.device_nanos, a.id) < std::tie(a.usage.device_nanos, b.id);
  };
  if (shown.sessions.size() > kPageSessionsMax) {
    std::partial_sort(shown.sessions.begin(), shown.sessions.begin() + kPageSessionsMax,
                      shown.sessions.end(), busier);
    shown.sessions.resize(kPageSessionsMax);
  }
  Json out;
  out["now_ms"] = unix_millis;
  out["sessions_open"] = status.sessions.size();
  out["fine"] = SamplesJson(history.fine(), seen.fine);
  out["coarse"] = SamplesJson(history.coarse(), seen.coarse);
  out["events"] = EventsJson(events, seen.event);
  // The state is text already.
  std::string text = out.dump();
  text.back() = ',';
  const std::string state = StatusJson(shown);
  return text + "\"status\":" + state.substr(0, state.size() - 1) + "}\n";
}

}  // namespace consort::host
