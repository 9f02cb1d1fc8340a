// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/vm_memory_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "host/limits.h"

namespace consort::host {
namespace {

using ::testing::HasSubstr;

constexpr Bytes kBytes = kVmMemoryBytesMin;

class VmMemoryFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/consort-vm-memory-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
    path_ = folder_ + "/consort-web-1";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  absl::StatusOr<std::unique_ptr<VmMemoryFile>> Create() {
    return VmMemoryFile::Create({path_, kBytes, {}});
  }
  std::string folder_, path_;
};

TEST_F(VmMemoryFileTest, BeginsWithATokenThatIsNeverTheSame) {
  wire::Token before;
  for (int round = 0; round < 3; ++round) {
    auto file = Create();
    ASSERT_TRUE(file.ok()) << file.status();
    wire::VmMemoryHead head;
    const UniqueFd seen(open(path_.c_str(), O_RDONLY));
    ASSERT_EQ(pread(seen.get(), &head, sizeof head, 0), static_cast<ssize_t>(sizeof head));
    EXPECT_EQ(head.mark, wire::VmMemoryHead::kMark);
    EXPECT_EQ(head.token, (*file)->token());
    EXPECT_FALSE(head.token == before);
    before = head.token;
    struct stat info;
    ASSERT_EQ(fstat(seen.get(), &info), 0);
    EXPECT_EQ(static_cast<Bytes>(info.st_size), kBytes);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(VmMemoryFileTest, IsOfTheGroupThatMayOpenIt) {
  auto file = VmMemoryFile::Create({path_, kBytes, getgid()});
  ASSERT_TRUE(file.ok()) << file.status();
  struct stat info;
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0660u);
  EXPECT_EQ(info.st_gid, getgid());
}

TEST_F(VmMemoryFileTest, ReplacesWhatADeadDaemonLeftAndNothingElse) {
  std::ofstream(path_) << "left over";
  {
    auto file = Create();
    ASSERT_TRUE(file.ok()) << file.status();
    const auto second = Create();
    EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
    EXPECT_THAT(std::string(second.status().message()), HasSubstr("another consortd's"));
  }
  std::filesystem::create_symlink("/dev/null", path_);
  EXPECT_EQ(Create().status().code(), absl::StatusCode::kFailedPrecondition);
  std::filesystem::remove(path_);
  path_ = folder_ + "/nothing/consort-web-1";
  const auto nowhere = Create();
  EXPECT_THAT(std::string(nowhere.status().message()), HasSubstr(path_));
}

TEST_F(VmMemoryFileTest, LeavesAPathAloneThatLeadsElsewhereByNow) {
  {
    auto file = Create();
    ASSERT_TRUE(file.ok()) << file.status();
    std::filesystem::remove(path_);
    std::ofstream(path_) << "another's";
  }
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(VmMemoryFileTest, LendsAllOfItOnceAndTakesItBack) {
  auto made = Create();
  ASSERT_TRUE(made.ok()) << made.status();
  const std::shared_ptr<VmMemoryFile> file = *std::move(made);
  auto one = std::make_shared<VmLoan>(file);
  auto copy = one;
  VmLoan other(file);
  const auto first = one->Take(kBytes / 2);
  ASSERT_TRUE(first.has_value());
  EXPECT_GE(*first, kVmMemoryUnit) << "the head is nobody's";
  EXPECT_FALSE(other.Take(kBytes / 2).has_value()) << "the head's unit is missing";
  const auto second = other.Take(kBytes / 2 - kVmMemoryUnit - 1);  // whole units all the same
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(file->lent_bytes(), kBytes - kVmMemoryUnit);
  EXPECT_FALSE(other.Take(1).has_value());
  EXPECT_FALSE(other.Take(UINT64_MAX).has_value());
  EXPECT_FALSE(other.Return(*first)) << "another's";
  EXPECT_FALSE(other.TakeAt(*first, kVmMemoryUnit));
  EXPECT_TRUE(other.Return(*second));
  EXPECT_FALSE(other.Return(*second)) << "twice";
  EXPECT_TRUE(other.TakeAt(*second, kVmMemoryUnit));
  EXPECT_FALSE(other.TakeAt(*second + 1, kVmMemoryUnit));
  one.reset();
  EXPECT_FALSE(other.TakeAt(*first, kVmMemoryUnit)) << "a session that moves is two";
  copy.reset();
  EXPECT_TRUE(other.TakeAt(*first, kVmMemoryUnit));
}

TEST_F(VmMemoryFileTest, GoesOnInTheNextImageOfTheProcess) {
  auto made = Create();
  ASSERT_TRUE(made.ok()) << made.status();
  auto next = VmMemoryFile::Adopt(path_, kBytes, UniqueFd(dup((*made)->fd())));
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ((*next)->token(), (*made)->token());
  EXPECT_FALSE(VmMemoryFile::Adopt(path_, 2 * kBytes, UniqueFd(dup((*made)->fd()))).ok());
  EXPECT_FALSE(VmMemoryFile::Adopt(path_, kBytes, UniqueFd()).ok());
}

TEST(VmMemorySize, IsThatOfABaseAddressRegister) {
  EXPECT_TRUE(IsVmMemorySize(kVmMemoryBytesMin));
  EXPECT_TRUE(IsVmMemorySize(kVmMemoryBytesMax));
  EXPECT_FALSE(IsVmMemorySize(kVmMemoryBytesMin / 2));
  EXPECT_FALSE(IsVmMemorySize(kVmMemoryBytesMax * 2));
  EXPECT_FALSE(IsVmMemorySize(kVmMemoryBytesMin + kVmMemoryUnit));
  EXPECT_FALSE(IsVmMemorySize(0));
}

}  // namespace
}  // namespace consort::host
