// SPDX-License-Identifier: Apache-2.0
#include "memmgr/packed_frame.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace consort::memmgr {
namespace {

std::vector<std::byte> Some(size_t bytes) {
  std::vector<std::byte> data(bytes);
  uint32_t state = 1;
  for (std::byte& byte : data) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<std::byte>(state >> 24 & (state & 1 ? 0xff : 0x03));
  }
  return data;
}

TEST(PackedFrame, ComesBackAsItWas) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4096}, size_t{300'000}}) {
    const auto data = Some(bytes);
    const auto frame = PackFrame(data);
    ASSERT_TRUE(frame.ok());
    EXPECT_EQ(UnpackedBytes(*frame), bytes);
    std::vector<std::byte> back(bytes);
    EXPECT_TRUE(UnpackFrame(*frame, back).ok());
    EXPECT_EQ(back, data);
  }
}

TEST(PackedFrame, IsRefusedAtEveryOtherLengthAndSize) {
  const auto data = Some(200);
  const auto frame = PackFrame(data);
  ASSERT_TRUE(frame.ok());
  std::vector<std::byte> back(data.size());
  for (size_t length = 0; length < frame->size(); ++length) {
    EXPECT_FALSE(UnpackFrame(std::span(*frame).first(length), back).ok()) << length;
  }
  for (const size_t bytes : {data.size() - 1, data.size() + 1}) {
    back.resize(bytes);
    EXPECT_FALSE(UnpackFrame(*frame, back).ok()) << bytes;
  }
}

// Some bits change nothing: those that the format does not use, and ways to say the same.
TEST(PackedFrame, NeverGivesOtherContentsForAFlippedBit) {
  const auto data = Some(200);
  auto frame = PackFrame(data);
  ASSERT_TRUE(frame.ok());
  size_t refused = 0;
  for (size_t bit = 0; bit < frame->size() * 8; ++bit) {
    const auto flip = static_cast<std::byte>(1 << bit % 8);
    (*frame)[bit / 8] ^= flip;
    std::vector<std::byte> back(data.size());
    const bool taken = UnpackFrame(*frame, back).ok();
    if (taken) {
      EXPECT_EQ(back, data) << bit;
    }
    refused += !taken;
    (*frame)[bit / 8] ^= flip;
  }
  EXPECT_GT(refused, frame->size() * 8 * 19 / 20);
}

TEST(PackedFrame, ChecksumTellsContentsApart) {
  const auto one = PackFrame(Some(200));
  auto other_data = Some(200);
  other_data[100] ^= std::byte{1};
  const auto other = PackFrame(other_data);
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_EQ(FrameChecksum(*one), FrameChecksum(*PackFrame(Some(200))));
  EXPECT_NE(FrameChecksum(*one), FrameChecksum(*other));
  EXPECT_FALSE(FrameChecksum({}).has_value());
}

}  // namespace
}  // namespace consort::memmgr
