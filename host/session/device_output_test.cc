// SPDX-License-Identifier: Apache-2.0
#include "host/session/device_output.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "host/limits.h"

namespace consort::host {
namespace {

TEST(DeviceOutput, KeepsDescriptorsApartAndGivesEachTextOnce) {
  DeviceOutput output;
  EXPECT_TRUE(output.Take().empty());
  DeviceOutput::Write(&output, 1, "one\n", 4);
  DeviceOutput::Write(&output, 2, "failed\n", 7);
  DeviceOutput::Write(&output, 1, "two\n", 4);
  const std::vector<DeviceOutput::Text> taken = output.Take();
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].descriptor, 1);
  EXPECT_EQ(taken[0].bytes, "one\ntwo\n");
  EXPECT_EQ(taken[1].descriptor, 2);
  EXPECT_EQ(taken[1].bytes, "failed\n");
  EXPECT_TRUE(output.Take().empty());
}

TEST(DeviceOutput, LosesTheOldestWholeLinesBeyondItsBound) {
  DeviceOutput output;
  const auto line = [](size_t number) {
    std::string text = std::to_string(number);
    text.insert(0, 63 - text.size(), '0');
    return text + "\n";
  };
  const size_t lines = kDeviceOutputBytesMax / 64;
  for (size_t i = 0; i < lines; ++i) output.Append(1, line(i));
  std::vector<DeviceOutput::Text> taken = output.Take();
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].bytes.size(), kDeviceOutputBytesMax);  // at the bound: all of it
  for (size_t i = 0; i <= lines; ++i) output.Append(1, line(i));
  taken = output.Take();
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_LT(taken[0].bytes.size(), kDeviceOutputBytesMax);
  EXPECT_GE(taken[0].bytes.size(), kDeviceOutputBytesMax / 2);
  const size_t first = lines + 1 - taken[0].bytes.size() / 64;
  EXPECT_EQ(taken[0].bytes.substr(0, 64), line(first));
  EXPECT_EQ(taken[0].bytes.substr(taken[0].bytes.size() - 64), line(lines));
}

TEST(DeviceOutput, TakesTextsOfManyThreadsWhole) {
  DeviceOutput output;
  constexpr int kLines = 2000;
  std::vector<std::thread> threads;
  for (const char* text : {"aaaa\n", "bbbb\n", "cccc\n"}) {
    threads.emplace_back([&output, text] {
      for (int i = 0; i < kLines; ++i) output.Append(1, text);
    });
  }
  std::string all;
  while (all.size() < 3 * 5 * kLines) {
    for (const DeviceOutput::Text& text : output.Take()) all += text.bytes;
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t at = 0; at < all.size(); at += 5) {
    EXPECT_EQ(all.substr(at, 5), std::string(4, all[at]) + "\n");
  }
}

}  // namespace
}  // namespace consort::host
