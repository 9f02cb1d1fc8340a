// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/window_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "host/limits.h"

namespace consort::host {
namespace {

TEST(WindowPool, GivesEachSlotOnceAndThenNothing) {
  WindowPool pool({0x1000, 0x100, 2});
  EXPECT_EQ(pool.Take(0x100), (Window{0x1000, 0x100}));
  EXPECT_EQ(pool.Take(0x100), (Window{0x1100, 0x100}));
  EXPECT_EQ(pool.Take(0x100), std::nullopt);
  EXPECT_EQ(pool.free_slots(), 0u);
}

TEST(WindowPool, UsesAReturnedWindowLast) {
  WindowPool pool({kWindowBase, kWindowSlotBytes, 3});
  const Window first = *pool.Take(1);
  pool.Return(first);
  EXPECT_NE(pool.Take(1), first);
  EXPECT_NE(pool.Take(1), first);
  EXPECT_EQ(pool.Take(1), first);
}

TEST(WindowPool, GivesLargeWindowsWhileHalfOfTheSpaceIsFree) {
  WindowPool pool({0x1000, 0x100, 12});
  EXPECT_EQ(pool.Take(0x201), (Window{0x1000, 0x300}));
  const Window second = *pool.Take(0x300);
  EXPECT_EQ(second, (Window{0x1300, 0x300}));
  // Six are free, and would be fewer than half.
  EXPECT_EQ(pool.Take(0x300), (Window{0x1600, 0x100}));
  pool.Return(second);
  EXPECT_EQ(pool.free_slots(), 8u);
  EXPECT_EQ(pool.Take(0x200), (Window{0x1700, 0x200}));
}

// 8 free slots, none beside each other where a window of 3 would have to lie.
TEST(WindowPool, GivesASmallWindowWhereNoLargeOneFits) {
  WindowPool pool({0x1000, 0x100, 12});
  std::vector<Window> taken;
  for (int i = 0; i < 12; ++i) taken.push_back(*pool.Take(1));
  for (int i = 0; i < 12; ++i) {
    if (i % 3 != 2) pool.Return(taken[i]);
  }
  EXPECT_EQ(pool.free_slots(), 8u);
  EXPECT_EQ(pool.Take(0x200), (Window{0x1000, 0x200}));
  pool.Return({0x1000, 0x200});
  EXPECT_EQ(pool.Take(0x300)->bytes, 0x100u);
}

TEST(WindowPool, PassesOverWhatItIsToldTo) {
  const WindowLayout layout = {0x1000, 0x100, 200};
  WindowPool pool(layout);
  SlotSet taken = {};
  layout.Add({0x1000, 0x200}, &taken);                // 0 and 1
  layout.Add({0x1000 + 63 * 0x100, 0x200}, &taken);   // 63 and 64
  layout.Add({0x1000 + 199 * 0x100, 0x900}, &taken);  // 199 and what there is not
  layout.Add({0x500, 0x100}, &taken);
  layout.Add({~uint64_t{0} - 0x80, 0x100}, &taken);
  // Two slots in a row do not reach over one that is taken.
  EXPECT_EQ(pool.Take(0x200, taken), (Window{0x1200, 0x200}));
  std::vector<uint64_t> got;
  while (const auto window = pool.Take(1, taken)) got.push_back((window->base - 0x1000) / 0x100);
  EXPECT_EQ(got.size(), 193u);
  for (const uint64_t slot : {0, 1, 63, 64, 199}) {
    EXPECT_EQ(std::count(got.begin(), got.end(), slot), 0) << slot;
  }
  EXPECT_EQ(pool.free_slots(), 5u);
  EXPECT_TRUE(pool.Take(1).has_value());  // to another application
}

TEST(WindowPool, PassesOverWhatItRatherNotGivesWhileThereIsAnother) {
  const WindowLayout layout = {0x1000, 0x100, 8};
  WindowPool pool(layout);
  SlotSet rather_not = {};
  layout.Add({0x1000, 0x600}, &rather_not);  // 0 to 5
  EXPECT_EQ(pool.Take(0x200, {}, rather_not), (Window{0x1600, 0x200}));
  // As large as it would be without.
  EXPECT_EQ(pool.Take(0x200, {}, rather_not), (Window{0x1000, 0x200}));
}

TEST(WindowPool, GivesTheVeryWindowThatIsAskedForIfItIsFree) {
  WindowPool pool({0x1000, 0x100, 12});
  EXPECT_TRUE(pool.IsFree({0x1300, 0x200}));
  EXPECT_TRUE(pool.TakeAt({0x1300, 0x200}));
  EXPECT_EQ(pool.free_slots(), 10u);
  EXPECT_FALSE(pool.TakeAt({0x1400, 0x200}));
  EXPECT_FALSE(pool.TakeAt({0x1200, 0x200}));
  EXPECT_FALSE(pool.IsFree({0x1300, 0x100}));
  EXPECT_TRUE(pool.TakeAt({0x1500, 0x100}));
  pool.Return({0x1300, 0x200});
  EXPECT_TRUE(pool.TakeAt({0x1200, 0x300}));
}

TEST(WindowLayout, HasWholeSlotsOfItsOwnOnly) {
  const WindowLayout layout{0x1000, 0x100, 4};
  EXPECT_TRUE(layout.Has({0x1000, 0x100}));
  EXPECT_TRUE(layout.Has({0x1100, 0x300}));
  for (const Window& window : {Window{0x1100, 0x400}, Window{0x0f00, 0x100}, Window{0x1400, 0x100},
                               Window{0x1080, 0x100}, Window{0x1000, 0x180}, Window{0x1000, 0},
                               Window{0x1100, UINT64_MAX - 0xff}, Window{0, UINT64_MAX}}) {
    EXPECT_FALSE(layout.Has(window)) << window.base << " " << window.bytes;
  }
}

// As if the others were of this device: one tenant gets of all devices what it would of one.
TEST(WindowPool, CountsWhatASessionMayNotHaveAsUsed) {
  const WindowLayout layout = {0x1000, 0x100, 12};
  WindowPool pool(layout);
  SlotSet others = {};
  layout.Add({0x1600, 0x400}, &others);
  EXPECT_EQ(pool.Take(0x200, others), (Window{0x1000, 0x200}));
  EXPECT_EQ(pool.Take(0x200, others), (Window{0x1200, 0x100}));
  EXPECT_EQ(pool.Take(0x200), (Window{0x1300, 0x200}));
}

TEST(WindowPool, BeginsWhereItIsTold) {
  WindowPool pool({0x1000, 0x100, 3}, 5);
  EXPECT_EQ(pool.Take(1)->base, 0x1200u);
  EXPECT_EQ(pool.Take(1)->base, 0x1000u);
  EXPECT_EQ(pool.Take(1)->base, 0x1100u);
}

}  // namespace
}  // namespace consort::host
