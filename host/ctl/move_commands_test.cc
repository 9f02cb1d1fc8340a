// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/move_commands.h"

#include <gtest/gtest.h>

namespace consort::host {
namespace {

TEST(MoveCommands, FindAnApplicationByWhatNamesItAlone) {
  const auto status = nlohmann::ordered_json::parse(R"({"sessions": [
      {"id": 3, "application": "train", "pid": 100, "state": "open"},
      {"id": 4, "application": "serve", "pid": 101, "state": "open"},
      {"id": 5, "application": "serve", "pid": 103, "state": "held"},
      {"id": 100, "application": "train", "pid": 102, "state": "open"}]})");
  EXPECT_EQ(*FindApplication(status, "serve"), 4u);
  EXPECT_EQ(*FindApplication(status, "100"), 100u);
  EXPECT_EQ(*FindApplication(status, "pid:100"), 3u);
  EXPECT_EQ(*FindApplication(status, "serve", "held"), 5u);
  EXPECT_EQ(FindApplication(status, "train", "held").status().message(),
            "no application train is held");
  for (const char* wrong : {"train", "none", "5", "pid:5", "pid:train", ""}) {
    EXPECT_TRUE(absl::IsInvalidArgument(FindApplication(status, wrong).status())) << wrong;
  }
}

}  // namespace
}  // namespace consort::host
