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

TEST(StatusTable, AnIdleDaemonHasNoEmptyTables) {
  const std::string text = StatusTables({{"version", "0.1.0"}}, 5);
  EXPECT_THAT(text, Not(HasSubstr("TENANT")));
  EXPECT_THAT(text, Not(HasSubstr("SESSION ")));
}

}  // namespace
}  // namespace consort::host
