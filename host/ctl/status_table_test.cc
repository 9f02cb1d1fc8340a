// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/status_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace consort::host {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(StatusTable, AlignsColumns) {
  EXPECT_EQ(Table({"NAME", "COUNT "}, {{"a", "5"}, {"longer", "1234567"}}),
            "NAME      COUNT\n"
            "a             5\n"
            "longer  1234567\n");
}

TEST(StatusTable, WritesBytesForPeople) {
  EXPECT_EQ(HumanBytes(0), "0 B");
  EXPECT_EQ(HumanBytes(999), "999 B");
  EXPECT_EQ(HumanBytes(1536), "1.50 KiB");
  EXPECT_EQ(HumanBytes(uint64_t{80} << 30), "80.0 GiB");
  EXPECT_EQ(HumanBytes(uint64_t{640} << 20), "640 MiB");
}

TEST(StatusTable, ShowsDevicesTenantsAndSessions) {
  const auto status = nlohmann::ordered_json::parse(R"({
    "version": "0.1.0", "started": 1000,
    "devices": [{"index": 0, "state": "ready", "model": "M", "memory_total_bytes": 1073741824},
                {"index": 1, "state": "starting"}],
    "tenants": [{"tenant": "research", "sessions": 1, "calls": 41}],
    "sessions": [{"id": 7, "tenant": "research", "vm": "web-1", "application": "python3",
                  "pid": 812, "device": 0, "started": 1001, "kernel_seconds": 2.5}]})");
  const std::string text = StatusTables(status, 1000 + 3 * 3600);
  EXPECT_THAT(text, HasSubstr("up 3h00m"));
  EXPECT_THAT(text, HasSubstr("1.00 GiB"));
  EXPECT_THAT(text, HasSubstr("starting"));
  EXPECT_THAT(text, HasSubstr("web-1"));
  EXPECT_THAT(text, HasSubstr("2.5 s"));
}

TEST(StatusTable, TopShowsSharesBesideTargets) {
  const auto status = nlohmann::ordered_json::parse(R"({
    "policy": "tfs",
    "shares": [{"tenant": "research", "device": 0, "weight": 2, "share": 0.651, "target": 0.6667,
                "waiting": 1},
               {"tenant": "idle", "device": 0, "weight": 1, "share": 0.0, "waiting": 0}],
    "sessions": [{"id": 7, "tenant": "research", "application": "python3", "device": 0,
                  "share": 0.651, "phase": "to_host", "waiting": 1, "in_flight": 2,
                  "bytes_to_device": 1536, "queued_seconds": 1.25}], "version": "x"})");
  const std::string text = TopTables(status);
  EXPECT_THAT(text, HasSubstr("policy tfs\n"));
  EXPECT_THAT(text, HasSubstr("research       0       2  65.1 %  66.7 %        1\n"));
  EXPECT_THAT(text, HasSubstr("idle           0       1   0.0 %       -        0\n"));
  EXPECT_THAT(text, HasSubstr("to_host    1+2   1.50 KiB"));
  EXPECT_EQ(TopJson(status)["sessions"][0]["phase"], "to_host");
  EXPECT_FALSE(TopJson(status).contains("version"));
  EXPECT_THAT(TopTables({{"policy", "las"}}), HasSubstr("no application"));
}

TEST(StatusTable, AnIdleDaemonHasNoEmptyTables) {
  const std::string text = StatusTables({{"version", "0.1.0"}}, 5);
  EXPECT_THAT(text, Not(HasSubstr("TENANT")));
  EXPECT_THAT(text, Not(HasSubstr("SESSION ")));
}

}  // namespace
}  // namespace consort::host
