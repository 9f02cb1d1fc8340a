// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/tenants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "host/limits.h"

namespace consort::host {
namespace {

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
socket = "/run/consort/web-1.sock"
[[tenant]]
name = "cid-3"
)");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->scheduler, "las");
  ASSERT_EQ(file->tenants.size(), 2u);
  EXPECT_EQ(file->tenants[0].socket_path, "/run/consort/web-1.sock");
  EXPECT_EQ(file->WeightOf("web-1"), 2u);
  EXPECT_EQ(file->WeightOf("cid-3"), 1u);
  EXPECT_EQ(file->WeightOf("nobody"), 1u);
}

TEST(Tenants, AnEmptyFileIsAFile) {
  const auto file = ParseTenants("t.toml", "# nobody yet\n");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->WeightOf("local"), 1u);
}

TEST(Tenants, WeightsReachTheirBoundAndNoFurther) {
  const std::string line = "[[tenant]]\nname = \"a\"\nweight = ";
  const auto most = ParseTenants("t.toml", line + std::to_string(kTenantWeightMax));
  ASSERT_TRUE(most.ok()) << most.status();
  EXPECT_EQ(most->WeightOf("a"), kTenantWeightMax);
  for (const std::string& weight : {std::to_string(kTenantWeightMax + 1), std::string("0"),
                                    std::string("-1"), std::string("1.5"), std::string("\"2\"")}) {
    EXPECT_THAT(ErrorOf(line + weight), StartsWith("t.toml:3:10: weight wants a whole number"));
  }
}

TEST(Tenants, ErrorsSayWhereAndWhatToDo) {
  EXPECT_THAT(ErrorOf("[[tenant]\n"), StartsWith("t.toml:1:"));
  EXPECT_THAT(ErrorOf("wieght = 1\n"), HasSubstr("t.toml:1:1: unknown key wieght; known: sch"));
  EXPECT_THAT(ErrorOf("[[tenant]]\nweight = 1\n"),
              HasSubstr("t.toml:1:1: a tenant without a name"));
  EXPECT_THAT(ErrorOf("[[tenant]]\nname = \"a\"\ncolour = 1\n"),
              HasSubstr("t.toml:3:1: unknown key colour"));
  EXPECT_THAT(ErrorOf("[tenant]\nname = \"a\"\n"), HasSubstr("[[tenant]]"));
  EXPECT_THAT(ErrorOf("scheduler = \"fairest\"\n"),
              HasSubstr("t.toml:1:13: there is no scheduler fairest; known: none, tfs, las"));
  EXPECT_THAT(ErrorOf("[[tenant]]\nname = \"a\"\n[[tenant]]\nname = \"a\"\n"),
              HasSubstr("t.toml:4:8: there are two tenants a"));
  EXPECT_THAT(ErrorOf("[[tenant]]\nname = \"a\"\nsocket = \"relative\"\n"),
              HasSubstr("t.toml:3:10: socket wants a path from /"));
  EXPECT_THAT(ErrorOf("[[tenant]]\nname = \"" + std::string(64, 'n') + "\"\n"),
              HasSubstr("t.toml:2:8: name wants at most 63 bytes"));
}

TEST(Tenants, AMissingFileIsNoBadFile) {
  EXPECT_EQ(ReadTenants("/nonexistent/tenants.toml").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace consort::host
