// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "host/control/control_socket.h"
#include "host/daemon/account.h"

namespace consort::host {
namespace {

using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

// A line as consortd writes it.
std::string Line(const std::string& tenant, const std::string& started, double seconds,
                 double device_seconds, const std::string& end = "closed") {
  SessionIdentity identity;
  identity.tenant = tenant;
  identity.vm = tenant + "-vm";
  identity.application = "python3";
  identity.device = "CPU";
  identity.device_index = 1;
  SessionEnded ended;
  ended.started_unix_seconds = static_cast<uint64_t>(*ParseTime(started));
  ended.lasted_nanos = static_cast<uint64_t>(seconds * 1e9);
  ended.device_nanos = static_cast<uint64_t>(device_seconds * 1e9);
  ended.bytes_to_device = 1000;
  ended.memory_byte_seconds = 3600ull << 30;
  SetText(ended.reason, end);
  return AccountLine(identity, ended);
}

TEST(Report, AddsUpWhatTenantsUsedADay) {
  Report report(ReportOptions{});
  std::istringstream file(
      Line("a", "2026-03-01T10:00:00Z", 10, 2.5) + Line("a", "2026-03-01T23:00:00Z", 10, 1) +
      Line("a", "2026-03-02T00:00:00Z", 10, 4) + Line("b", "2026-03-01T10:00:00Z", 10, 8));
  report.AddFile(file);
  ASSERT_EQ(report.rows().size(), 3u);
  const ReportRow& row = report.rows().at({"2026-03-01", "a"});
  EXPECT_DOUBLE_EQ(row.device_seconds, 3.5);
  EXPECT_DOUBLE_EQ(row.sessions, 2);
  EXPECT_DOUBLE_EQ(row.bytes_to_device, 2000);
  EXPECT_DOUBLE_EQ(report.rows().at({"2026-03-02", "a"}).device_seconds, 4);
  EXPECT_DOUBLE_EQ(report.rows().at({"2026-03-01", "b"}).device_seconds, 8);
  const std::string table = report.Table();
  EXPECT_THAT(table, HasSubstr("2026-03-01  a"));
  EXPECT_THAT(table, HasSubstr("15.500"));  // of all
  EXPECT_THAT(table, HasSubstr("2.000"));   // GiB hours
}

TEST(Report, SplitsALineOverPeriodsByTime) {
  ReportOptions options;
  options.period = "hour";
  Report report(options);
  // A quarter of it in the first hour, the rest in the second.
  report.AddLine(Line("a", "2026-12-31T23:45:00Z", 3600, 8));
  ASSERT_EQ(report.rows().size(), 2u);
  const ReportRow& first = report.rows().at({"2026-12-31T23", "a"});
  const ReportRow& second = report.rows().at({"2027-01-01T00", "a"});
  EXPECT_NEAR(first.device_seconds, 2, 1e-9);
  EXPECT_NEAR(second.device_seconds, 6, 1e-9);
  EXPECT_EQ(first.sessions, 0);  // it ended in the other
  EXPECT_EQ(second.sessions, 1);
}

TEST(Report, LeavesOutWhatWasUsedBeforeAndAfter) {
  ReportOptions options;
  options.period = "all";
  options.since = *ParseTime("2026-03-01T12:00:00Z");
  options.until = *ParseTime("2026-03-01T12:00:05Z");
  Report report(options);
  report.AddLine(Line("a", "2026-03-01T11:59:50Z", 20, 20));
  report.AddLine(Line("a", "2026-02-01", 20, 20));
  ASSERT_EQ(report.rows().size(), 1u);
  EXPECT_NEAR(report.rows().at({"all", "a"}).device_seconds, 5, 1e-9);
}

TEST(Report, GroupsByWhatIsAsked) {
  for (const auto& [by, who] : {std::pair("vm", "a-vm"), std::pair("application", "python3"),
                                std::pair("device", "1 CPU"), std::pair("tenant", "a")}) {
    ReportOptions options;
    options.by = by;
    options.tenant = "a";
    Report report(options);
    report.AddLine(Line("a", "2026-03-01", 1, 1));
    report.AddLine(Line("b", "2026-03-01", 1, 1));
    ASSERT_EQ(report.rows().size(), 1u) << by;
    EXPECT_EQ(report.rows().begin()->first.second, who);
    EXPECT_EQ(report.Json()["rows"][0][by], who);
  }
}

TEST(Report, ASessionIsCountedOnceHoweverManyLinesItHas) {
  Report report(ReportOptions{});
  report.AddLine(Line("a", "2026-03-01T10:00:00Z", 600, 1, "open"));
  report.AddLine(Line("a", "2026-03-01T10:10:00Z", 30, 1, "closed"));
  EXPECT_EQ(report.rows().begin()->second.sessions, 1);
  EXPECT_DOUBLE_EQ(report.rows().begin()->second.device_seconds, 2);
}

TEST(Report, CountsLinesThatCannotBeRead) {
  Report report(ReportOptions{});
  std::istringstream file("{\"tenant\":\"a\",\"star\n\n[]\n{\"started\":7}\n" +
                          Line("a", "2026-03-01", 1, 1));
  report.AddFile(file);
  EXPECT_EQ(report.unreadable(), 3u);
  EXPECT_EQ(report.rows().size(), 1u);
  EXPECT_EQ(report.Json()["unreadable_lines"], 3);
}

TEST(ParseTime, TakesDaysAndMoments) {
  EXPECT_EQ(*ParseTime("1970-01-02"), 86400);
  EXPECT_EQ(*ParseTime("1970-01-01T00:01:00Z"), 60);
  for (const char* text : {"", "yesterday", "1970-01-01x", "1970-01-01T00:01:00", "13:00"}) {
    EXPECT_FALSE(ParseTime(text).ok()) << text;
  }
}

TEST(AccountFiles, FindsWhatWasRotated) {
  const std::string folder = ::testing::TempDir() + "/account_files";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  std::vector<std::string> left_out;
  EXPECT_EQ(AccountFiles(folder + "/account.jsonl", &left_out).status().code(),
            absl::StatusCode::kNotFound);
  for (const char* name : {"account.jsonl", "account.jsonl.1", "account.jsonl-20260301",
                           "account.jsonl.2.gz", "account.jsonlx", "other"}) {
    std::ofstream(folder + "/" + name) << "x";
  }
  const auto files = AccountFiles(folder + "/account.jsonl", &left_out);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT(*files, ElementsAre(EndsWith("/account.jsonl"), EndsWith("/account.jsonl-20260301"),
                                  EndsWith("/account.jsonl.1")));
  EXPECT_THAT(left_out, ElementsAre(EndsWith(".gz")));
}

}  // namespace
}  // namespace consort::host
