// SPDX-License-Identifier: Apache-2.0
// host/ctl/report.h: who used how much, by period, from consortd's account (host/daemon/account.h).
//
// A line that reaches over the border of two periods is split between them by time. Periods are
// those of UTC. Lines that cannot be read are counted and left out. Value types and pure functions,
// but for reading the files.
#ifndef CONSORT_HOST_CTL_REPORT_H_
#define CONSORT_HOST_CTL_REPORT_H_

#include <cstdint>
#include <istream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace consort::host {

struct ReportOptions {
  std::string period = "day";  // hour, day, month or all
  std::string by = "tenant";   // tenant, vm, application or device: a key of the account's lines
  std::string tenant;          // of this one only; empty: of all
  int64_t since = std::numeric_limits<int64_t>::min();  // seconds since 1970: what was used before
  int64_t until = std::numeric_limits<int64_t>::max();  // and from then on is left out
};

// "2026-03-01" or "2026-03-01T12:00:00Z" as seconds since 1970. kInvalidArgument: neither.
absl::StatusOr<int64_t> ParseTime(const std::string& text);

struct ReportRow {
  double sessions = 0;  // that ended
  double device_seconds = 0;
  double queued_seconds = 0;
  double kernel_seconds = 0;
  double memory_byte_seconds = 0;
  double bytes_to_device = 0;
  double bytes_to_host = 0;
  double kernel_launches = 0;
  double calls = 0;
};

class Report {
 public:
  explicit Report(const ReportOptions& options) : options_(options) {}

  void AddLine(std::string_view line);
  void AddFile(std::istream& file);

  // By period ("2026-03-01T13", "2026-03-01", "2026-03", "all") and user.
  const std::map<std::pair<std::string, std::string>, ReportRow>& rows() const { return rows_; }
  uint64_t unreadable() const { return unreadable_; }

  std::string Table() const;
  nlohmann::ordered_json Json() const;

 private:
  const ReportOptions options_;
  std::map<std::pair<std::string, std::string>, ReportRow> rows_;
  uint64_t unreadable_ = 0;
};

// The account and what was rotated away from it: files of its folder that are named like it and
// then "." or "-" and more, the oldest name last. Compressed ones go to `left_out`. kNotFound:
// there is none.
absl::StatusOr<std::vector<std::string>> AccountFiles(const std::string& path,
                                                      std::vector<std::string>* left_out);

}  // namespace consort::host

#endif  // CONSORT_HOST_CTL_REPORT_H_
