// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/tenant_change.h"

#include <gtest/gtest.h>

namespace consort::host {
namespace {

TEST(TenantChange, ReadsWhatTheHeaderShows) {
  const auto change = ParseTenantChange(
      R"({"tenant": "web-1", "weight": 4, "gpus": [0, "NVIDIA H200"],
          "max_launches_per_second": 20000, "max_copy_bytes_per_second": "1GiB"})");
  ASSERT_TRUE(change.ok()) << change.status();
  EXPECT_EQ(change->tenant, "web-1");
  EXPECT_EQ(change->weight, Change<uint32_t>(4));
  EXPECT_EQ(change->gpus, Change<GpuList>(GpuList{{"0", "NVIDIA H200"}}));
  EXPECT_EQ(change->launches_per_second, Change<uint64_t>(20000));
  EXPECT_EQ(change->copy_bytes_per_second, Change<uint64_t>(uint64_t{1} << 30));
}

TEST(TenantChange, TellsWhatIsNotSaidFromWhatGoesBackToTheFile) {
  const auto change = ParseTenantChange(R"({"tenant": "a", "weight": null, "gpus": []})");
  ASSERT_TRUE(change.ok()) << change.status();
  ASSERT_TRUE(change->weight.has_value());
  EXPECT_FALSE(change->weight->has_value());
  EXPECT_EQ(change->gpus, Change<GpuList>(GpuList()));
  EXPECT_FALSE(change->launches_per_second.has_value());
}

TEST(TenantChange, RefusesWhatIsNone) {
  for (const char* text : {"", "[]", "{}", R"({"tenant": "a"})", R"({"weight": 4, "gpus": []})",
                           R"({"tenant": 1, "weight": 4})", R"({"tenant": "a", "weight": "4"})",
                           R"({"tenant": "a", "weight": -1})", R"({"tenant": "a", "weight": 1.5})",
                           R"({"tenant": "a", "gpus": "0"})", R"({"tenant": "a", "gpus": [null]})",
                           R"({"tenant": "a", "gpus": [-1]})", R"({"tenant": "a", "colour": 1})",
                           R"({"tenant": "a", "max_launches_per_second": "many"})",
                           R"({"tenant": "a", "max_copy_bytes_per_second": "2GB"})"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseTenantChange(text).status())) << text;
  }
}

TEST(TenantChange, ANumberThatDoesNotFitIsNoSmallOne) {
  const auto change = ParseTenantChange(R"({"tenant": "a", "weight": 4294967297})");
  ASSERT_TRUE(change.ok()) << change.status();
  EXPECT_EQ(change->weight, Change<uint32_t>(UINT32_MAX));
}

}  // namespace
}  // namespace consort::host
