// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/status_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "host/control/control_socket.h"

namespace consort::host {
namespace {

TEST(StatusJson, SumsATenantOverItsApplicationsAndDevices) {
  DaemonStatus status;
  status.usage[{"a", "x", 0}].used.calls = 1;
  status.usage[{"a", "y", 1}].used.calls = 2;
  status.usage[{"a", "y", 1}].sessions_open = 1;
  status.usage[{"b", "x", 0}].used.calls = 4;
  const auto json = nlohmann::json::parse(StatusJson(status));
  ASSERT_EQ(json["tenants"].size(), 2u);
  EXPECT_EQ(json["tenants"][0]["tenant"], "a");
  EXPECT_EQ(json["tenants"][0]["calls"], 3);
  EXPECT_EQ(json["tenants"][0]["sessions"], 1);
  EXPECT_EQ(json["tenants"][1]["calls"], 4);
  EXPECT_EQ(json["devices"].size(), 0u);
}

TEST(StatusJson, TextOfGuestsIsAlwaysValid) {
  DaemonStatus status;
  SessionStatus& session = status.sessions.emplace_back();
  session.id = 7;
  session.application = "\xff\"\n";
  session.usage.kernel_nanos = 1'500'000'000;
  const auto json = nlohmann::json::parse(StatusJson(status));
  EXPECT_EQ(json["sessions"][0]["application"], "?\"?");
  EXPECT_EQ(json["sessions"][0]["kernel_seconds"], 1.5);
}

TEST(StatusJson, ADeviceWithoutAWorkerHasNoModel) {
  DaemonStatus status;
  status.devices.emplace_back().state = "starting";
  DeviceStatus& known = status.devices.emplace_back();
  known.index = 1;
  known.info.emplace();
  SetText(known.info->snapshot.name, "M");
  const auto json = nlohmann::json::parse(StatusJson(status));
  EXPECT_FALSE(json["devices"][0].contains("model"));
  EXPECT_FALSE(json["devices"][0].contains("worker_pid"));
  EXPECT_EQ(json["devices"][1]["model"], "M");
}

}  // namespace
}  // namespace consort::host
