// SPDX-License-Identifier: Apache-2.0
#include "host/session/partition.h"

#include <gtest/gtest.h>

#include <string>

namespace consort::host {
namespace {

TEST(Partition, IsRefusedClearlyWhereTheDriverHasNone) {
  const device::DriverTable driver = {};
  const auto partition = CreatePartition(driver, 0, {0, kPartitionWhole});
  EXPECT_EQ(partition.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(
      std::string(partition.status().message()),
      "isolation = \"partition\" is not supported: this device's driver has no green contexts; "
      "\"process\" needs none");
}

}  // namespace
}  // namespace consort::host
