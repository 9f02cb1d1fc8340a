// SPDX-License-Identifier: Apache-2.0
#include "vmsock/vhost_user/memory_map.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "base/log.h"
#include "base/units.h"
#include "gtest/gtest.h"

namespace consort::vhost_user {
namespace {

constexpr uint64_t kPage = 4096;

UniqueFd Memory(uint64_t bytes, bool sealed = true) {
  UniqueFd fd(memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  PCHECK(ftruncate(fd.get(), static_cast<off_t>(bytes)) == 0);
  if (sealed) PCHECK(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  return fd;
}

// The same file for each region.
absl::Status Update(MemoryMap& map, const UniqueFd& memory, std::vector<MemoryRegionSpec> specs,
                    bool require_sealed = false) {
  std::vector<UniqueFd> fds;
  for (size_t i = 0; i < specs.size(); ++i) fds.emplace_back(dup(memory.get()));
  return map.Update(specs, std::move(fds), require_sealed);
}

const MemoryRegionSpec kLow{
    .guest_addr = 0, .bytes = 4 * kPage, .user_addr = kGiB, .mmap_offset = 0};
const MemoryRegionSpec kHigh{
    .guest_addr = 4 * kGiB, .bytes = 4 * kPage, .user_addr = 3 * kGiB, .mmap_offset = 4 * kPage};

TEST(MemoryMap, TranslatesBothKindsOfAddressUpToTheLastByte) {
  const UniqueFd memory = Memory(8 * kPage);
  MemoryMap map;
  ASSERT_TRUE(Update(map, memory, {kLow, kHigh}).ok());
  std::byte* const user = map.FromUser(3 * kGiB + 5, 3);
  ASSERT_NE(user, nullptr);
  EXPECT_EQ(user, map.FromGuest(4 * kGiB + 5, 3));
  std::memcpy(user, "abc", 3);
  char read_back[3];
  ASSERT_EQ(pread(memory.get(), read_back, 3, 4 * kPage + 5), 3);
  EXPECT_EQ(std::string(read_back, 3), "abc");

  EXPECT_NE(map.FromGuest(0, 4 * kPage), nullptr);
  EXPECT_EQ(map.FromGuest(0, 4 * kPage + 1), nullptr);
  EXPECT_NE(map.FromGuest(4 * kPage - 1, 1), nullptr);
  EXPECT_EQ(map.FromGuest(4 * kPage - 1, 2), nullptr);
  EXPECT_EQ(map.FromGuest(4 * kPage, 1), nullptr);
  EXPECT_EQ(map.FromGuest(4 * kGiB - 1, 2), nullptr);
  EXPECT_EQ(map.FromGuest(1, ~uint64_t{0}), nullptr);
  EXPECT_EQ(map.FromGuest(~uint64_t{0}, 2), nullptr);
  EXPECT_EQ(map.FromUser(kGiB - 1, 1), nullptr);
  EXPECT_EQ(map.FromUser(0, 1), nullptr);
}

TEST(MemoryMap, SplitsBuffersWhereAdjacentRegionsMeet) {
  const UniqueFd memory = Memory(8 * kPage);
  MemoryMap map;
  MemoryRegionSpec next = kHigh;
  next.guest_addr = kLow.bytes;
  ASSERT_TRUE(Update(map, memory, {next, kLow}).ok());
  std::vector<iovec> pieces;
  ASSERT_TRUE(map.AppendGuest(kLow.bytes - 100, 300, pieces));
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].iov_len, 100u);
  EXPECT_EQ(pieces[1].iov_len, 200u);
  EXPECT_EQ(pieces[1].iov_base, map.FromGuest(kLow.bytes, 200));
  // But a ring or a table is not split.
  EXPECT_EQ(map.FromGuest(kLow.bytes - 100, 300), nullptr);
  pieces.clear();
  EXPECT_TRUE(map.AppendGuest(0, 8 * kPage, pieces));
  EXPECT_FALSE(map.AppendGuest(0, 8 * kPage + 1, pieces));
  EXPECT_FALSE(map.AppendGuest(~uint64_t{0} - 1, 10, pieces));
  pieces.clear();
  EXPECT_TRUE(map.AppendGuest(5 * kGiB, 0, pieces));
  EXPECT_TRUE(pieces.empty());
}

TEST(MemoryMap, RepeatedTableKeepsItsMappings) {
  const UniqueFd memory = Memory(8 * kPage);
  MemoryMap map;
  ASSERT_TRUE(Update(map, memory, {kLow, kHigh}).ok());
  std::byte* const low = map.FromGuest(0, 1);
  ASSERT_TRUE(Update(map, memory, {kHigh, kLow}).ok());
  EXPECT_EQ(map.FromGuest(0, 1), low);
  EXPECT_EQ(map.mappings_made(), 2u);
  // Another place in the guest is still the same memory; another part of the file, or another file,
  // is not.
  MemoryRegionSpec moved = kLow;
  moved.guest_addr = kGiB;
  moved.user_addr = 9 * kGiB;
  ASSERT_TRUE(Update(map, memory, {moved}).ok());
  EXPECT_EQ(map.FromGuest(kGiB, 1), low);
  EXPECT_EQ(map.FromGuest(0, 1), nullptr);
  EXPECT_EQ(map.mappings_made(), 2u);
  moved.mmap_offset = kPage;
  ASSERT_TRUE(Update(map, memory, {moved}).ok());
  EXPECT_EQ(map.mappings_made(), 3u);
  ASSERT_TRUE(Update(map, Memory(8 * kPage), {moved}).ok());
  EXPECT_EQ(map.mappings_made(), 4u);
  map.Clear();
  EXPECT_EQ(map.region_count(), 0u);
  EXPECT_EQ(map.FromGuest(kGiB, 1), nullptr);
}

TEST(MemoryMap, MapsRangesThatBeginInsideAPage) {
  const UniqueFd memory = Memory(4 * kPage);
  ASSERT_EQ(pwrite(memory.get(), "x", 1, kPage + 100), 1);
  MemoryMap map;
  ASSERT_TRUE(
      Update(map, memory,
             {{.guest_addr = 0, .bytes = kPage, .user_addr = 0, .mmap_offset = kPage + 100}})
          .ok());
  EXPECT_EQ(*map.FromGuest(0, kPage), std::byte{'x'});
}

TEST(MemoryMap, RefusesBadTablesAndKeepsTheOldOne) {
  const UniqueFd memory = Memory(8 * kPage);
  MemoryMap map;
  ASSERT_TRUE(Update(map, memory, {kLow}).ok());
  std::byte* const before = map.FromGuest(0, 1);
  const auto refused = [&](std::vector<MemoryRegionSpec> specs) {
    return Update(map, memory, std::move(specs)).code() == absl::StatusCode::kInvalidArgument &&
           map.FromGuest(0, 1) == before;
  };
  MemoryRegionSpec spec = kHigh;
  spec.bytes = 0;
  EXPECT_TRUE(refused({spec}));
  spec = kHigh;
  spec.bytes = 4 * kPage + 1;  // one past the end of the file
  EXPECT_TRUE(refused({spec}));
  spec = kHigh;
  spec.mmap_offset = ~uint64_t{0} - kPage;
  EXPECT_TRUE(refused({spec}));
  spec = kHigh;
  spec.guest_addr = ~uint64_t{0} - kPage;
  EXPECT_TRUE(refused({spec}));
  spec = kHigh;
  spec.user_addr = ~uint64_t{0} - kPage;
  EXPECT_TRUE(refused({spec}));
  spec = kHigh;
  spec.guest_addr = kLow.bytes - 1;
  EXPECT_TRUE(refused({kLow, spec}));
  spec = kHigh;
  spec.user_addr = kLow.user_addr + kLow.bytes - 1;
  EXPECT_TRUE(refused({kLow, spec}));
  // The good one in front of a bad one is not taken either.
  spec = kHigh;
  spec.bytes = 5 * kPage;
  EXPECT_TRUE(refused({kHigh, spec}));
  // Something that is no file.
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd read_end(ends[0]);
  const UniqueFd write_end(ends[1]);
  EXPECT_EQ(Update(map, read_end, {kLow}).code(), absl::StatusCode::kInvalidArgument);
}

TEST(MemoryMap, TellsSealedMemoryFromMemoryThatCouldShrink) {
  MemoryMap map;
  EXPECT_TRUE(Update(map, Memory(8 * kPage, true), {kLow}, true).ok());
  EXPECT_EQ(Update(map, Memory(8 * kPage, false), {kLow}, true).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Update(map, Memory(8 * kPage, false), {kLow}, false).ok());
}

}  // namespace
}  // namespace consort::vhost_user
