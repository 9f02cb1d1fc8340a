// SPDX-License-Identifier: Apache-2.0
#include "base/pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/unique_fd.h"

namespace consort {
namespace {

constexpr Bytes kPage = 4 * kKiB;
constexpr Bytes kBytes = 5 * kMiB + kPage;

TEST(MapLargePages, IsAlignedZeroAndOfItsSize) {
  for (const Bytes bytes : {2 * kMiB, 6 * kMiB}) {
    for (std::byte* (*const map)(Bytes) : {MapAligned, MapLargePages}) {
      std::byte* const memory = map(bytes);
      ASSERT_NE(memory, nullptr);
      EXPECT_EQ(reinterpret_cast<uint64_t>(memory) % (2 * kMiB), 0u);
      EXPECT_EQ(memory[0], std::byte{0});
      memory[bytes - 1] = std::byte{1};
      EXPECT_EQ(munmap(memory, bytes), 0);
    }
  }
}

TEST(MapLargePages, MoreThanAddressesIsNone) { EXPECT_EQ(MapLargePages(Bytes{1} << 50), nullptr); }

class PopulateTest : public testing::Test {
 protected:
  void SetUp() override {
    file_ = UniqueFd(memfd_create("pages_test", MFD_CLOEXEC));
    ASSERT_TRUE(file_.valid());
    ASSERT_EQ(ftruncate(file_.get(), kBytes), 0);
    memory_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0);
    ASSERT_NE(memory_, MAP_FAILED);
  }
  void TearDown() override { munmap(memory_, kBytes); }

  // Of the first `bytes`.
  size_t PagesThere(Bytes bytes) const {
    std::vector<unsigned char> pages(bytes / kPage);
    EXPECT_EQ(mincore(memory_, bytes, pages.data()), 0);
    return static_cast<size_t>(
        std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; }));
  }

  UniqueFd file_;
  void* memory_ = nullptr;
};

TEST_F(PopulateTest, AllPagesAreThereAndWhatWasWrittenStays) {
  static_cast<char*>(memory_)[3 * kMiB] = 'x';
  ASSERT_EQ(PagesThere(kBytes), 1u);
  Populate(memory_, kBytes);
  EXPECT_EQ(PagesThere(kBytes), kBytes / kPage);
  EXPECT_EQ(static_cast<char*>(memory_)[3 * kMiB], 'x');
}

TEST_F(PopulateTest, OfAFileThatBecameShorterWhatIsLeft) {
  ASSERT_EQ(ftruncate(file_.get(), 2 * kMiB), 0);
  Populate(memory_, kBytes);
  EXPECT_EQ(PagesThere(2 * kMiB), 2 * kMiB / kPage);
}

}  // namespace
}  // namespace consort
