// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/window_pool.h"

#include <gtest/gtest.h>

#include "host/limits.h"

namespace consort::host {
namespace {

TEST(WindowPool, GivesEachWindowOnceAndThenNothing) {
  WindowPool pool(0x1000, 0x100, 2);
  EXPECT_EQ(pool.Take(), 0x1000u);
  EXPECT_EQ(pool.Take(), 0x1100u);
  EXPECT_EQ(pool.Take(), std::nullopt);
}

TEST(WindowPool, UsesAReturnedWindowLast) {
  WindowPool pool(kWindowBase, kWindowBytes, 3);
  const uint64_t first = *pool.Take();
  pool.Return(first);
  EXPECT_NE(pool.Take(), first);
  EXPECT_NE(pool.Take(), first);
  EXPECT_EQ(pool.Take(), first);
}

}  // namespace
}  // namespace consort::host
