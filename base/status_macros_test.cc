// SPDX-License-Identifier: Apache-2.0
#include "base/status_macros.h"

#include <gtest/gtest.h>

namespace consort {
namespace {

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) return absl::InvalidArgumentError("odd");
  return value / 2;
}

absl::StatusOr<int> Quarter(int value) {
  ASSIGN_OR_RETURN(int half, Half(value));
  return Half(half);
}

absl::Status CheckQuarter(int value) {
  RETURN_IF_ERROR(Quarter(value).status());
  return absl::OkStatus();
}

TEST(AssignOrReturn, PassesTheValueOn) { EXPECT_EQ(*Quarter(8), 2); }

TEST(AssignOrReturn, ReturnsTheFirstError) {
  EXPECT_EQ(Quarter(7).status(), absl::InvalidArgumentError("odd"));
}

TEST(ReturnIfError, StopsAtAnErrorAndPassesSuccess) {
  EXPECT_TRUE(CheckQuarter(4).ok());
  EXPECT_EQ(CheckQuarter(6).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace consort
