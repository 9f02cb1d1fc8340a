// SPDX-License-Identifier: Apache-2.0
#include "host/session/image_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <sys/stat.h>
#include <vector>

#include "host/limits.h"

namespace consort::host {
namespace {

std::vector<std::byte> Image(size_t bytes, uint8_t seed) {
  std::vector<std::byte> image(bytes);
  for (size_t i = 0; i < bytes; ++i) image[i] = static_cast<std::byte>(seed + i * 31);
  return image;
}

uint64_t AllocatedBytes(int file) {
  struct stat info;
  EXPECT_EQ(fstat(file, &info), 0);
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

TEST(ImageStore, GivesBackWhatItGot) {
  ImageStore store;
  EXPECT_EQ(store.fd(), -1);
  const auto first = Image(10'001, 1), second = Image(3, 2);
  const auto kept_first = store.Keep(first), kept_second = store.Keep(second);
  ASSERT_TRUE(kept_first.has_value() && kept_second.has_value());
  EXPECT_EQ(store.kept_bytes(), 10'004u);
  EXPECT_EQ(ReadKeptImage(store.fd(), *kept_first), first);
  EXPECT_EQ(ReadKeptImage(store.fd(), *kept_second), second);
}

TEST(ImageStore, GivesMemoryBackAndLeavesNeighboursAlone) {
  ImageStore store;
  const auto small = Image(5'000, 1), large = Image(1 << 20, 2);
  const auto before = store.Keep(small), gone = store.Keep(large), after = store.Keep(small);
  ASSERT_TRUE(before.has_value() && gone.has_value() && after.has_value());
  const uint64_t held = AllocatedBytes(store.fd());
  store.Drop(*gone);
  EXPECT_EQ(store.kept_bytes(), 10'000u);
  EXPECT_LE(AllocatedBytes(store.fd()), held - (1 << 20));
  EXPECT_EQ(ReadKeptImage(store.fd(), *before), small);
  EXPECT_EQ(ReadKeptImage(store.fd(), *after), small);
}

TEST(ImageStore, RefusesWhatIsBeyondItsBound) {
  ImageStore store;
  // Never touched: the bound comes first.
  const std::byte* const nothing = nullptr;
  EXPECT_FALSE(store.Keep({nothing, kKeptImageBytesPerSession + 1}).has_value());
  EXPECT_EQ(store.kept_bytes(), 0u);
}

TEST(ImageStore, ReadsNothingThatIsNotThere) {
  ImageStore store;
  const auto kept = store.Keep(Image(100, 1));
  ASSERT_TRUE(kept.has_value());
  EXPECT_FALSE(ReadKeptImage(store.fd(), {kept->offset, 101}).has_value());
  EXPECT_FALSE(ReadKeptImage(store.fd(), {UINT64_MAX, 1}).has_value());
  EXPECT_FALSE(ReadKeptImage(-1, *kept).has_value());
}

TEST(ImageStore, GoesOnWithTheFileOfAnother) {
  ImageStore first;
  const std::vector<std::byte> one(5000, std::byte{1});
  const std::vector<std::byte> two(70, std::byte{2});
  const auto kept_one = first.Keep(one);
  const auto kept_two = first.Keep(two);
  ASSERT_TRUE(kept_one.has_value() && kept_two.has_value());
  ImageStore second;
  second.TakeUp(UniqueFd(dup(first.fd())));
  EXPECT_EQ(second.kept_bytes(), 0u);
  second.FindNext(*kept_two);
  const auto found = second.Keep(two);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->offset, kept_two->offset);
  EXPECT_EQ(second.kept_bytes(), two.size());
  // A new one comes behind all that is there.
  const auto added = second.Keep(one);
  ASSERT_TRUE(added.has_value());
  EXPECT_GE(added->offset, kept_two->offset + kept_two->bytes);
  EXPECT_EQ(ReadKeptImage(second.fd(), *kept_one), one);
  EXPECT_EQ(ReadKeptImage(second.fd(), *found), two);
  EXPECT_EQ(ReadKeptImage(second.fd(), *added), one);
}

}  // namespace
}  // namespace consort::host
