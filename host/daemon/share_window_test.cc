// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/share_window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "host/limits.h"

namespace consort::host {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Used = std::pair<const uint64_t, uint64_t>;

TEST(ShareWindow, TellsWhatWasUsedWithinTheWindowOnly) {
  ShareWindow window;
  EXPECT_THAT(window.Used(), IsEmpty());
  EXPECT_EQ(window.span(), 0);
  window.Add(0, {{1, 100}});
  EXPECT_THAT(window.Used(), UnorderedElementsAre(Used{1, 100}));
  EXPECT_EQ(window.span(), 0);
  window.Add(kShareWindow / 2, {{1, 150}, {2, 10}});
  EXPECT_THAT(window.Used(), UnorderedElementsAre(Used{1, 50}, Used{2, 10}));
  window.Add(kShareWindow, {{1, 170}, {2, 30}});
  EXPECT_THAT(window.Used(), UnorderedElementsAre(Used{1, 70}, Used{2, 30}));
  window.Add(kShareWindow * 3 / 2, {{1, 170}, {2, 50}});
  EXPECT_THAT(window.Used(), UnorderedElementsAre(Used{1, 20}, Used{2, 40}));
  window.Add(kShareWindow * 2, {{1, 170}, {2, 50}});
  EXPECT_THAT(window.Used(), UnorderedElementsAre(Used{2, 20})) << "1 did nothing in it";
  EXPECT_EQ(window.span(), kShareWindow);
}

TEST(ShareWindow, ForgetsSessionsThatAreGone) {
  ShareWindow window;
  window.Add(0, {{1, 100}});
  window.Add(kShareWindow, {});
  EXPECT_THAT(window.Used(), IsEmpty());
}

}  // namespace
}  // namespace consort::host
