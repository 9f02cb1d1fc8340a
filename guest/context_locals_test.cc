// SPDX-License-Identifier: Apache-2.0
#include "guest/context_locals.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace consort::guest {
namespace {

int keys[64];
int values[64];

void Nothing(CUcontext, void*, void*) {}

TEST(ContextLocalsTest, EachKeyHasItsLatestValue) {
  ContextLocals locals;
  void* value = nullptr;
  EXPECT_FALSE(locals.Get(&keys[0], &value));
  locals.Put({&keys[0], &values[0], nullptr});
  locals.Put({&keys[1], &values[1], nullptr});
  locals.Put({&keys[0], &values[2], nullptr});
  ASSERT_TRUE(locals.Get(&keys[0], &value));
  EXPECT_EQ(value, &values[2]);
  ASSERT_TRUE(locals.Get(&keys[1], &value));
  EXPECT_EQ(value, &values[1]);
}

TEST(ContextLocalsTest, WhatIsRemovedCanComeAgain) {
  ContextLocals locals;
  EXPECT_FALSE(locals.Remove(&keys[0]));
  locals.Put({&keys[0], &values[0], nullptr});
  EXPECT_TRUE(locals.Remove(&keys[0]));
  EXPECT_FALSE(locals.Remove(&keys[0]));
  void* value = nullptr;
  EXPECT_FALSE(locals.Get(&keys[0], &value));
  locals.Put({&keys[0], &values[1], nullptr});
  ASSERT_TRUE(locals.Get(&keys[0], &value));
  EXPECT_EQ(value, &values[1]);
}

TEST(ContextLocalsTest, AllAreTakenInTheirOrder) {
  ContextLocals locals;
  for (int i = 0; i < 4; ++i) locals.Put({&keys[i], &values[i], i % 2 == 0 ? &Nothing : nullptr});
  locals.Remove(&keys[1]);
  const std::vector<ContextLocal> taken = locals.TakeAll();
  ASSERT_EQ(taken.size(), 3u);
  EXPECT_EQ(taken[0].key, &keys[0]);
  EXPECT_EQ(taken[0].destructor, &Nothing);
  EXPECT_EQ(taken[1].key, &keys[2]);
  EXPECT_EQ(taken[2].value, &values[3]);
  EXPECT_EQ(taken[2].destructor, nullptr);
  EXPECT_TRUE(locals.TakeAll().empty());
  void* value = nullptr;
  EXPECT_FALSE(locals.Get(&keys[0], &value));
}

TEST(ContextLocalsTest, ReadersSeeTheirOwnWhileOthersCome) {
  ContextLocals locals;
  locals.Put({&keys[0], &values[0], nullptr});
  std::atomic<bool> done{false};
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 3; ++reader) {
    readers.emplace_back([&] {
      do {
        void* value = nullptr;
        ASSERT_TRUE(locals.Get(&keys[0], &value));
        ASSERT_EQ(value, &values[0]);
        // Each of the others has one value, if it is there.
        for (int i = 1; i < 64; ++i) {
          if (locals.Get(&keys[i], &value)) {
            ASSERT_EQ(value, &values[i]);
          }
        }
      } while (!done);
    });
  }
  for (int round = 0; round < 200; ++round) {
    for (int i = 1; i < 64; ++i) locals.Put({&keys[i], &values[i], nullptr});
    for (int i = 1; i < 64; ++i) EXPECT_TRUE(locals.Remove(&keys[i]));
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace consort::guest
