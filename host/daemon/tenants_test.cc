// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/tenants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "host/limits.h"

namespace consort::host {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string ErrorOf(const std::string& text) {
  const auto file = ParseTenants("t.toml", text);
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(file.status().message());
}

TEST(Tenants, ReadsWhatTheHeaderShows) {
  const auto file = ParseTenants("t.toml", R"(
scheduler = "las"
[[tenant]]
name = "web-1"
weight = 2
stream_priority = "high"
socket = "/run/consort/web-1.sock"
[[tenant]]
name = "cid-3"
)");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->scheduler, "las");
  ASSERT_EQ(file->tenants.size(), 2u);
  EXPECT_EQ(file->tenants[0].socket_path, "/run/consort/web-1.sock");
  EXPECT_EQ(file->Find("web-1").weight, 2u);
  EXPECT_EQ(file->Find("cid-3").weight, 1u);
  EXPECT_EQ(file->Find("nobody").weight, 1u);
  EXPECT_EQ(file->Find("web-1").stream_priority, PriorityLevel::kHigh);
  EXPECT_EQ(file->Find("cid-3").stream_priority, PriorityLevel::kNormal);
}

TEST(Tenants, AnEmptyFileIsAFile) {
  const auto file = ParseTenants("t.toml", "# nobody yet\n");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->Find("local").weight, 1u);
}

TEST(Tenants, WeightsReachTheirBoundAndNoFurther) {
  const std::string line = "[[tenant]]\nname = \"a\"\nweight = ";
  const auto most = ParseTenants("t.toml", line + std::to_string(kTenantWeightMax));
  ASSERT_TRUE(most.ok()) << most.status();
  EXPECT_EQ(most->Find("a").weight, kTenantWeightMax);
  for (const std::string& weight : {std::to_string(kTenantWeightMax + 1), std::string("0"),
                                    std::string("-1"), std::string("1.5"), std::string("\"2\"")}) {
    EXPECT_THAT(ErrorOf(line + weight), StartsWith("t.toml:3:10: weight wants a whole number"));
  }
}

TEST(Tenants, PartitionsAreCutByWeightInTheOrderOfTheFile) {
  const auto file = ParseTenants("t.toml", R"(
[[tenant]]
name = "a"
isolation = "partition"
[[tenant]]
name = "own"
weight = 100
isolation = "process"
[[tenant]]
name = "b"
weight = 3
isolation = "partition"
[[tenant]]
name = "packed"
)");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tenants[1].isolation, Isolation::kProcess);
  EXPECT_EQ(file->PartitionOf("a").begin, 0u);
  EXPECT_EQ(file->PartitionOf("a").end, kPartitionWhole / 4);
  EXPECT_EQ(file->PartitionOf("b").begin, kPartitionWhole / 4);
  EXPECT_EQ(file->PartitionOf("b").end, kPartitionWhole);
  for (const char* without : {"own", "packed", "nobody"}) {
    EXPECT_TRUE(file->PartitionOf(without).empty()) << without;
  }
}

TEST(Tenants, ErrorsSayWhereAndWhatToDo) {
  EXPECT_THAT(ErrorOf("[[tenant]\n"), StartsWith("t.toml:1:"));
  EXPECT_THAT(ErrorOf("[[tenant]]\nname = \"a\"\nstream_priority = \"urgent\"\n"),
              StartsWith("t.toml:3:19: stream_priority wants \"low\", \"normal\" or \"high\""));
  EXPECT_THAT(ErrorOf("[[tenant]]\nname = \"a\"\nisolation = \"wall\"\n"),
              StartsWith("t.toml:3:13: isolation wants \"packed\", \"process\" or \"partition\""));
  EXPECT_THAT(ErrorOf("wieght = 1\n"), HasSubstr("t.toml:1:1: unknown key wieght; known: sch"));
  EXPECT_THAT(ErrorOf("[[tenant]]\nweight = 1\n"),
              HasSubstr("t.toml:1:1: a tenant without a name"));
  EXPECT_THAT(ErrorOf("[[tenant]]\nname = \"a\"\ncolour = 1\n"),
              HasSubstr("t.toml:3:1: unknown key colour"));
  EXPECT_THAT(ErrorOf("[tenant]\nname = \"a\"\n"), HasSubstr("[[tenant]]"));
  EXPECT_THAT(ErrorOf("scheduler = \"fairest\"\n"),
              HasSubstr("t.toml:1:13: there is no scheduler fairest; known: none, tfs, slowdown"));
  EXPECT_THAT(ErrorOf("[[tenant]]\nname = \"a\"\n[[tenant]]\nname = \"a\"\n"),
              HasSubstr("t.toml:4:8: there are two tenants a"));
  EXPECT_THAT(ErrorOf("[[tenant]]\nname = \"a\"\nsocket = \"relative\"\n"),
              HasSubstr("t.toml:3:10: socket wants a path from /"));
  EXPECT_THAT(ErrorOf("[[tenant]]\nname = \"" + std::string(64, 'n') + "\"\n"),
              HasSubstr("t.toml:2:8: name wants at most 63 bytes"));
}

TEST(Tenants, HaveGpusAndRates) {
  const auto file = ParseTenants("t.toml", R"(
[[tenant]]
name = "a"
gpus = [0, "GPU-01020304", "NVIDIA H200"]
max_launches_per_second = 20000
max_copy_bytes_per_second = "2GiB"
)");
  ASSERT_TRUE(file.ok()) << file.status();
  const Tenant tenant = file->Find("a");
  EXPECT_THAT(tenant.gpus.names, ElementsAre("0", "GPU-01020304", "NVIDIA H200"));
  EXPECT_EQ(tenant.rates.launches_per_second, 20000u);
  EXPECT_EQ(tenant.rates.copy_bytes_per_second, 2 * kGiB);
  EXPECT_TRUE(file->Find("b").gpus.all());
  EXPECT_EQ(file->Find("b").rates, TenantRates());
}

TEST(Tenants, RefuseGpusAndRatesThatMeanNothing) {
  const std::string tenant = "[[tenant]]\nname = \"a\"\n";
  for (const char* gpus : {"[]", "0", "\"all\""}) {
    EXPECT_THAT(ErrorOf(tenant + "gpus = " + gpus),
                StartsWith("t.toml:3:8: gpus wants a list such as [0, "));
  }
  EXPECT_THAT(ErrorOf(tenant + "gpus = [0, -1]"), StartsWith("t.toml:3:12: a GPU is a number"));
  EXPECT_THAT(ErrorOf(tenant + "gpus = [0, 1.5]"), StartsWith("t.toml:3:12: a GPU is a number"));
  EXPECT_THAT(ErrorOf(tenant + "gpus = [0, \"0\"]"), StartsWith("t.toml:3:8: gpus names 0 twice"));
  for (const char* rate : {"0", "-1", "\"10\"", "1.5"}) {
    EXPECT_THAT(ErrorOf(tenant + "max_launches_per_second = " + rate),
                StartsWith("t.toml:3:27: max_launches_per_second wants a whole number from 1 on"));
  }
  EXPECT_THAT(ErrorOf(tenant + "max_copy_bytes_per_second = 1000"),
              StartsWith("t.toml:3:29: max_copy_bytes_per_second wants a size"));
  EXPECT_THAT(ErrorOf(tenant + "max_copy_bytes_per_second = \"63KiB\""),
              StartsWith("t.toml:3:29: max_copy_bytes_per_second wants at least 64KiB"));
  EXPECT_TRUE(ParseTenants("t.toml", tenant + "max_copy_bytes_per_second = \"64KiB\"").ok());
}

TEST(Tenants, AMissingFileIsNoBadFile) {
  EXPECT_EQ(ReadTenants("/nonexistent/tenants.toml").status().code(), absl::StatusCode::kNotFound);
}

TEST(Tenants, HaveMemory) {
  const auto file = ParseTenants("t.toml", R"(
admission = "priority-mmu"
[[tenant]]
name = "a"
memory_soft = "10GiB"
memory_hard = "16 GiB"
memory_wait_seconds = 2.5
priority = 3
)");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->admission, "priority-mmu");
  const Tenant tenant = file->Find("a");
  EXPECT_EQ(tenant.memory_soft, 10 * kGiB);
  EXPECT_EQ(tenant.memory_hard, 16 * kGiB);
  EXPECT_EQ(tenant.memory_wait_ms, 2500u);
  EXPECT_EQ(tenant.priority, 3u);
  EXPECT_EQ(file->Find("b").memory_hard, 0u);
}

TEST(Tenants, RefuseMemoryThatMeansNothing) {
  for (const char* line :
       {"memory_hard = \"16GB\"", "memory_hard = 16", "memory_soft = \"0\"",
        "memory_soft = \"2GiB\"\nmemory_hard = \"1GiB\"", "memory_wait_seconds = -1",
        "memory_wait_seconds = 86401", "priority = -1", "priority = 1001"}) {
    const auto file =
        ParseTenants("t.toml", std::string("[[tenant]]\nname = \"a\"\n") + line + "\n");
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << line;
  }
  EXPECT_FALSE(ParseTenants("t.toml", "admission = \"lifo\"").ok());
}

}  // namespace
}  // namespace consort::host
