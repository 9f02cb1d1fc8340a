// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/page.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
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

template <typename Values, typename Text>
void AppendList(const Values& values, std::string* out, Text text) {
  absl::StrAppend(out, "[");
  const char* comma = "";
  for (const auto& value : values) absl::StrAppend(out, std::exchange(comma, ","), text(value));
  absl::StrAppend(out, "]");
}

// Text at once: a day of a full host is some megabytes of it.
std::string SamplesText(const std::deque<HistorySample>& samples, uint64_t seen) {
  std::map<std::string, std::string> quoted;  // names of tenants
  std::string out = "[";
  for (const HistorySample& sample : samples) {
    if (sample.number <= seen) continue;
    absl::StrAppend(&out, out.size() == 1 ? "" : ",", "{\"number\":", sample.number,
                    ",\"time_ms\":", sample.unix_millis, ",\"tenants\":{");
    const char* comma = "";
    for (const auto& [tenant, share] : sample.tenants) {
      std::string& name = quoted[tenant];
      if (name.empty()) name = Json(tenant).dump();
      absl::StrAppend(&out, std::exchange(comma, ","), name, ":[", Rounded(share.used), ",",
                      Rounded(share.target), "]");
    }
    absl::StrAppend(&out, "},\"devices\":");
    AppendList(sample.devices, &out, &Rounded);
    absl::StrAppend(&out, ",\"memory_bytes\":");
    AppendList(sample.memory_bytes, &out, [](uint64_t bytes) { return bytes; });
    absl::StrAppend(&out, "}");
  }
  return out + "]";
}

bool IsAskedFor(const SessionStatus& session, const PageRequest& request) {
  if (request.device.has_value() && session.device != *request.device) return false;
  if (request.find.empty()) return true;
  const std::string wanted = absl::AsciiStrToLower(request.find);
  for (const std::string& name : {session.application, session.tenant, session.vm}) {
    if (absl::StrContains(absl::AsciiStrToLower(PrintableName(name)), wanted)) return true;
  }
  return std::to_string(session.pid) == wanted;
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

std::optional<PageRequest> ParsePagePath(const std::string& path) {
  absl::string_view rest = path;
  if (!absl::ConsumePrefix(&rest, "/api/v1/page")) return std::nullopt;
  PageRequest request;
  if (rest.empty()) return request;
  // The text may have slashes of its own.
  const std::vector<std::string> parts = absl::StrSplit(rest, absl::MaxSplits('/', 5));
  if ((parts.size() != 4 && parts.size() != 6) || !parts[0].empty() ||
      !absl::SimpleAtoi(parts[1], &request.fine) || !absl::SimpleAtoi(parts[2], &request.coarse) ||
      !absl::SimpleAtoi(parts[3], &request.event)) {
    return std::nullopt;
  }
  if (parts.size() == 4) return request;
  if (parts[4] != "all" && !absl::SimpleAtoi(parts[4], &request.device.emplace())) {
    return std::nullopt;
  }
  request.find = parts[5];
  return request;
}

std::optional<HttpResponse> PageFile(const std::string& path) {
  for (const File& file : kFiles) {
    if (path == file.path) return HttpResponse{200, file.content_type, std::string(file.bytes)};
  }
  return std::nullopt;
}

std::string PageJson(DaemonStatus status, const History& history, const EventLog& events,
                     const PageRequest& request, uint64_t unix_millis) {
  Json out;
  out["now_ms"] = unix_millis;
  std::vector<SessionStatus>& sessions = status.sessions;
  out["sessions_open"] =
      std::count_if(sessions.begin(), sessions.end(),
                    [](const SessionStatus& session) { return session.held_in.empty(); });
  std::erase_if(sessions,
                [&](const SessionStatus& session) { return !IsAskedFor(session, request); });
  out["sessions_found"] = sessions.size();
  const auto busier = [](const SessionStatus& a, const SessionStatus& b) {
    return std::tie(b.share, b.usage.device_nanos, a.id) <
           std::tie(a.share, a.usage.device_nanos, b.id);
  };
  if (sessions.size() > kPageSessionsMax) {
    std::partial_sort(sessions.begin(), sessions.begin() + kPageSessionsMax, sessions.end(),
                      busier);
    sessions.resize(kPageSessionsMax);
  }
  out["events"] = EventsJson(events, request.event);
  // History and state are text already.
  std::string text = out.dump();
  text.back() = ',';
  const std::string state = StatusJson(status);
  absl::StrAppend(&text, "\"fine\":", SamplesText(history.fine(), request.fine),
                  ",\"coarse\":", SamplesText(history.coarse(), request.coarse),
                  ",\"status\":", absl::string_view(state).substr(0, state.size() - 1), "}\n");
  return text;
}

}  // namespace consort::host
