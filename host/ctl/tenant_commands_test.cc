// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/tenant_commands.h"

#include <gtest/gtest.h>

#include "host/daemon/tenant_change.h"

namespace consort::host {
namespace {

using Json = nlohmann::ordered_json;

TEST(TenantCommands, SetsWhatWasSaidAndNothingElse) {
  TenantOptions options;
  options.tenant = "web-1";
  options.gpus = {"0", "NVIDIA H200"};
  options.launches = "20000";
  const auto body = TenantSetBody(options);
  ASSERT_TRUE(body.ok()) << body.status();
  EXPECT_EQ(*body, Json::parse(R"({"tenant": "web-1", "gpus": ["0", "NVIDIA H200"],
                                   "max_launches_per_second": 20000})"));
}

TEST(TenantCommands, LiftsLimits) {
  TenantOptions options;
  options.tenant = "web-1";
  options.gpus = {"all"};
  options.launches = "none";
  options.copies = "none";
  const auto body = TenantSetBody(options);
  ASSERT_TRUE(body.ok()) << body.status();
  EXPECT_EQ(*body, Json::parse(R"({"tenant": "web-1", "gpus": [], "max_launches_per_second": 0,
                                   "max_copy_bytes_per_second": 0})"));
}

TEST(TenantCommands, RefusesWhatMeansNothing) {
  TenantOptions options;
  options.tenant = "web-1";
  EXPECT_TRUE(absl::IsInvalidArgument(TenantSetBody(options).status()));
  for (const char* launches : {"0", "-1", "many", "1.5", ""}) {
    options.launches = launches;
    EXPECT_TRUE(absl::IsInvalidArgument(TenantSetBody(options).status())) << launches;
  }
}

TEST(TenantCommands, ConsortdReadsWhatIsSent) {
  TenantOptions options;
  options.tenant = "web-1";
  options.weight = 4;
  options.copies = "2GiB";
  const auto body = TenantSetBody(options);
  ASSERT_TRUE(body.ok()) << body.status();
  const auto change = ParseTenantChange(body->dump());
  ASSERT_TRUE(change.ok()) << change.status();
  EXPECT_EQ(change->weight, Change<uint32_t>(4));
  EXPECT_EQ(change->copy_bytes_per_second, Change<uint64_t>(uint64_t{2} << 30));
  EXPECT_FALSE(change->gpus.has_value());
  const auto reset = ParseTenantChange(TenantResetBody("web-1", /*pool=*/false).dump());
  ASSERT_TRUE(reset.ok()) << reset.status();
  EXPECT_TRUE(reset->copy_bytes_per_second.has_value());
  EXPECT_FALSE(reset->copy_bytes_per_second->has_value());
}

TEST(TenantCommands, ShowsTenants) {
  EXPECT_EQ(TenantTable(Json::parse(R"({"tenants": [
      {"tenant": "local", "weight": 1, "sessions": 2},
      {"tenant": "web-1", "weight": 4, "gpus": ["0", "NVIDIA H200"], "sessions": 0,
       "placement": "mbf", "max_launches_per_second": 20000,
       "max_copy_bytes_per_second": 2147483648}]})")),
            "TENANT  WEIGHT  GPUS            PLACEMENT  LAUNCHES/S  COPIED/S  SESSIONS\n"
            "local        1  all             default             -         -         2\n"
            "web-1        4  0, NVIDIA H200  mbf             20000  2.00 GiB         0\n");
}

}  // namespace
}  // namespace consort::host
