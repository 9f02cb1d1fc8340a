// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/report.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "host/ctl/status_table.h"

namespace consort::host {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr double kGiBHour = 1024.0 * 1024.0 * 1024.0 * 3600.0;

struct Column {
  const char* key;  // of the account's line
  double ReportRow::*number;
};
constexpr Column kColumns[] = {
    {"device_seconds", &ReportRow::device_seconds},
    {"queued_seconds", &ReportRow::queued_seconds},
    {"kernel_seconds", &ReportRow::kernel_seconds},
    {"memory_byte_seconds", &ReportRow::memory_byte_seconds},
    {"bytes_to_device", &ReportRow::bytes_to_device},
    {"bytes_to_host", &ReportRow::bytes_to_host},
    {"kernel_launches", &ReportRow::kernel_launches},
    {"calls", &ReportRow::calls},
};

struct Period {
  std::string name;
  int64_t end;  // seconds since 1970
};

Period PeriodAt(const std::string& kind, int64_t at) {
  if (kind == "all") return {"all", std::numeric_limits<int64_t>::max()};
  const time_t seconds = at;
  tm parts = {};
  gmtime_r(&seconds, &parts);
  char name[32];
  strftime(name, sizeof(name),
           kind == "hour" ? "%Y-%m-%dT%H" : (kind == "day" ? "%Y-%m-%d" : "%Y-%m"), &parts);
  parts.tm_min = parts.tm_sec = 0;
  if (kind == "hour") {
    ++parts.tm_hour;
  } else {
    parts.tm_hour = 0;
    if (kind == "day") {
      ++parts.tm_mday;
    } else {
      parts.tm_mday = 1;
      ++parts.tm_mon;
    }
  }
  return {name, timegm(&parts)};
}

double DoubleOf(const OrderedJson& line, const char* key) {
  const auto it = line.find(key);
  return it != line.end() && it->is_number() ? it->get<double>() : 0;
}

std::string TextOf(const OrderedJson& line, const std::string& key) {
  const auto it = line.find(key);
  return it != line.end() && it->is_string() ? it->get<std::string>() : "unknown";
}

std::string Count(double number) { return absl::StrFormat("%.0f", number); }

}  // namespace

absl::StatusOr<int64_t> ParseTime(const std::string& text) {
  for (const char* format : {"%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ"}) {
    tm parts = {};
    const char* end = strptime(text.c_str(), format, &parts);
    if (end != nullptr && *end == '\0') return timegm(&parts);
  }
  return absl::InvalidArgumentError(
      absl::StrCat(text, " is no time, such as 2026-03-01 or 2026-03-01T12:00:00Z (UTC)"));
}

void Report::AddLine(std::string_view text) {
  if (text.empty()) return;
  const OrderedJson line = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto started =
      line.is_object() ? ParseTime(TextOf(line, "started")) : absl::InvalidArgumentError("");
  if (!started.ok()) {
    ++unreadable_;
    return;
  }
  if (!options_.tenant.empty() && TextOf(line, "tenant") != options_.tenant) return;
  std::string who = TextOf(line, options_.by);
  if (options_.by == "device") {
    who = absl::StrCat(static_cast<int64_t>(DoubleOf(line, "device_index")), " ", who);
  }
  const double length = std::max(DoubleOf(line, "seconds"), 1e-6);
  const double end = static_cast<double>(*started) + length;
  double at = static_cast<double>(*started);
  while (at < end) {
    const Period period = PeriodAt(options_.period, static_cast<int64_t>(std::floor(at)));
    const double until = std::min(end, static_cast<double>(period.end));
    const double from = std::max(at, static_cast<double>(options_.since));
    const double to = std::min(until, static_cast<double>(options_.until));
    if (from < to) {
      // A line that is not split counts to the byte.
      const bool whole = from == static_cast<double>(*started) && to == end;
      const double part = whole ? 1 : (to - from) / length;
      ReportRow& row = rows_[{period.name, who}];
      for (const Column& column : kColumns) {
        row.*column.number += DoubleOf(line, column.key) * part;
      }
      if (to == end && TextOf(line, "end") != "open") ++row.sessions;
    }
    at = until;
  }
}

void Report::AddFile(std::istream& file) {
  std::string line;
  while (std::getline(file, line)) AddLine(line);
}

std::string Report::Table() const {
  std::vector<std::vector<std::string>> table;
  const auto add = [&table](const std::string& period, const std::string& who,
                            const ReportRow& row) {
    table.push_back({period, who, Count(row.sessions), absl::StrFormat("%.3f", row.device_seconds),
                     absl::StrFormat("%.3f", row.queued_seconds),
                     absl::StrFormat("%.3f", row.memory_byte_seconds / kGiBHour),
                     HumanBytes(static_cast<uint64_t>(row.bytes_to_device)),
                     HumanBytes(static_cast<uint64_t>(row.bytes_to_host)),
                     Count(row.kernel_launches), Count(row.calls)});
  };
  ReportRow sum;
  for (const auto& [key, row] : rows_) {
    add(key.first, key.second, row);
    sum.sessions += row.sessions;
    for (const Column& column : kColumns) sum.*column.number += row.*column.number;
  }
  if (rows_.size() > 1) add("sum", "", sum);
  std::string who = options_.by;
  for (char& c : who) c = static_cast<char>(toupper(c));
  return consort::host::Table({"PERIOD", who, "SESSIONS ", "DEVICE S ", "QUEUED S ",
                               "MEMORY GIB H ", "TO DEVICE ", "TO HOST ", "KERNELS ", "CALLS "},
                              table);
}

OrderedJson Report::Json() const {
  OrderedJson out;
  out["period"] = options_.period;
  out["by"] = options_.by;
  out["unreadable_lines"] = unreadable_;
  out["rows"] = OrderedJson::array();
  for (const auto& [key, row] : rows_) {
    OrderedJson& entry = out["rows"].emplace_back();
    entry["period"] = key.first;
    entry[options_.by] = key.second;
    entry["sessions"] = row.sessions;
    for (const Column& column : kColumns) entry[column.key] = row.*column.number;
  }
  return out;
}

absl::StatusOr<std::vector<std::string>> AccountFiles(const std::string& path,
                                                      std::vector<std::string>* left_out) {
  const std::filesystem::path account = path;
  const std::string name = account.filename();
  std::error_code error;
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(
           account.has_parent_path() ? account.parent_path() : ".", error)) {
    const std::string other = entry.path().filename();
    const bool rotated = other.size() > name.size() && other.starts_with(name) &&
                         (other[name.size()] == '.' || other[name.size()] == '-');
    if (other != name && !rotated) continue;
    const std::string end = entry.path().extension();
    (end == ".gz" || end == ".xz" || end == ".zst" ? *left_out : files).push_back(entry.path());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    const std::string text = absl::StrCat(account.parent_path().string(), ": ", error.message());
    return error == std::errc::permission_denied
               ? absl::PermissionDeniedError(text +
                                             ": be root, or a member of the group of that folder")
               : absl::UnavailableError(text);
  }
  if (files.empty()) {
    return absl::NotFoundError(
        absl::StrCat("there is no account ", path,
                     ": consortd writes one with --account FILE; --account names another here"));
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace consort::host
