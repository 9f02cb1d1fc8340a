// SPDX-License-Identifier: Apache-2.0
// tests/api/main.cc: opens the driver library and runs the cases. A child process of API_TEST_ALONE
// enters here too.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/api/driver.h"
#include "tests/api/support.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const char* error = consort::tests::api::OpenDriver();
  if (error[0] != '\0' && !testing::GTEST_FLAG(list_tests)) {
    std::fprintf(stderr, "cannot open the driver library: %s\n", error);
    return 2;
  }
  // A failure before a throw of MissingFunction counts as a failure; the skip only replaces a
  // missing verdict.
  const int failed = RUN_ALL_TESTS();
  if (failed == 0 && consort::tests::api::IsChild() &&
      testing::UnitTest::GetInstance()->skipped_test_count() > 0) {
    return 77;
  }
  return failed;
}
