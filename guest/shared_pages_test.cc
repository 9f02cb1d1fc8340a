// SPDX-License-Identifier: Apache-2.0
#include "guest/shared_pages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace consort::guest {
namespace {

constexpr uint64_t kBytes = 64 * kPageBytes + 256 * 1024;  // some pieces and a part of one

uint64_t Address(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

class SharedPages : public testing::Test {
 protected:
  void SetUp() override {
    words_ = static_cast<uint32_t*>(
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(words_, MAP_FAILED);
    for (uint32_t i = 0; i < kBytes / 4; ++i) words_[i] = i * 2654435761u;
    fd_ = memfd_create("consort-test", MFD_CLOEXEC);
    ASSERT_EQ(ftruncate(fd_, kBytes), 0);
    view_ =
        static_cast<uint32_t*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0));
    ASSERT_NE(view_, MAP_FAILED);
  }
  void TearDown() override {
    munmap(words_, kBytes);
    munmap(view_, kBytes);
  }
  bool Share() { return ReplaceWithShared(Address(words_), kBytes, fd_, view_); }
  bool ContentsAreWhole() const {
    for (uint32_t i = 0; i < kBytes / 4; ++i) {
      if (words_[i] != i * 2654435761u) return false;
    }
    return true;
  }
  // The exit status of a child that runs `body`.
  template <class Body>
  int InChild(Body body) {
    const pid_t child = fork();
    if (child == 0) _exit(body());
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  uint32_t* words_ = nullptr;
  uint32_t* view_ = nullptr;
  int fd_ = -1;
};

TEST_F(SharedPages, BothSidesSeeWhatTheOtherWritesUntilTheEnd) {
  EXPECT_TRUE(IsOrdinaryMemory(Address(words_), kBytes));
  ASSERT_TRUE(Share());
  EXPECT_FALSE(IsOrdinaryMemory(Address(words_), kBytes));
  EXPECT_TRUE(ContentsAreWhole());
  EXPECT_EQ(std::memcmp(words_, view_, kBytes), 0);
  view_[kBytes / 4 - 1] = 17;
  words_[0] = 18;
  EXPECT_EQ(words_[kBytes / 4 - 1], 17u);
  EXPECT_EQ(view_[0], 18u);
  ReplaceWithPrivate(Address(words_));
  EXPECT_TRUE(IsOrdinaryMemory(Address(words_), kBytes));
  EXPECT_EQ(words_[kBytes / 4 - 1], 17u);
  view_[0] = 19;
  EXPECT_EQ(words_[0], 18u);
}

TEST_F(SharedPages, ReadersOnOtherThreadsSeeTheContentsAllTheWhile) {
#if defined(__SANITIZE_THREAD__)
  close(fd_);
  GTEST_SKIP() << "ThreadSanitizer takes mapping memory for writing it";
#endif
  std::atomic<bool> stop{false};
  std::atomic<int> torn{0};
  std::thread reader([&] {
    while (!stop) torn += ContentsAreWhole() ? 0 : 1;
  });
  for (int round = 0; round < 50; ++round) {
    const int again = dup(fd_);
    EXPECT_TRUE(ReplaceWithShared(Address(words_), kBytes, again, view_));
    ReplaceWithPrivate(Address(words_));
  }
  stop = true;
  reader.join();
  close(fd_);
  EXPECT_EQ(torn, 0);
}

TEST_F(SharedPages, AChildHasCopiesOfItsOwn) {
  ASSERT_TRUE(Share());
  EXPECT_EQ(InChild([&] {
              if (!ContentsAreWhole()) return 1;
              std::memset(words_, 0, kBytes);
              return 0;
            }),
            0);
  EXPECT_TRUE(ContentsAreWhole());
  ReplaceWithPrivate(Address(words_));
}

TEST_F(SharedPages, PagesThatTheProgramHasReplacedAreLeftAlone) {
  ASSERT_TRUE(Share());
  ASSERT_EQ(munmap(words_, kBytes), 0);
  ReplaceWithPrivate(Address(words_));
  EXPECT_FALSE(IsOrdinaryMemory(Address(words_), kPageBytes));
}

TEST_F(SharedPages, OnlyPrivateAnonymousWritableMemoryIsOrdinary) {
  EXPECT_FALSE(IsOrdinaryMemory(Address(view_), kBytes)) << "a file's";
  ASSERT_EQ(mprotect(words_ + kPageBytes / 4, kPageBytes, PROT_READ), 0);
  EXPECT_TRUE(IsOrdinaryMemory(Address(words_), kPageBytes));
  EXPECT_FALSE(IsOrdinaryMemory(Address(words_), 3 * kPageBytes)) << "a page that is read only";
  char local = 0;
  EXPECT_FALSE(IsOrdinaryMemory(Address(&local) / kPageBytes * kPageBytes, kPageBytes))
      << "a stack";
  std::vector<char> heap(100);
  EXPECT_TRUE(IsOrdinaryMemory(Address(heap.data()) / kPageBytes * kPageBytes, kPageBytes));
  munmap(words_ + 2 * kPageBytes / 4, kPageBytes);
  EXPECT_FALSE(IsOrdinaryMemory(Address(words_ + kPageBytes / 4), 2 * kPageBytes)) << "a hole";
  close(fd_);
}

TEST(HasThreads, FollowsThem) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer has a thread of its own";
#endif
  EXPECT_EQ(fork() == 0 ? (_exit(HasThreads() ? 1 : 0), 0) : 0, 0);
  int status = -1;
  wait(&status);
  EXPECT_EQ(status, 0) << "one thread in a child";
  std::atomic<bool> stop{false};
  std::thread thread([&] {
    while (!stop) std::this_thread::yield();
  });
  EXPECT_TRUE(HasThreads());
  stop = true;
  thread.join();
}

TEST_F(SharedPages, FindsTheFileOfAMapping) {
  char name[] = "/tmp/consort_shared_pages_XXXXXX";
  const int file = mkstemp(name);
  ASSERT_GE(file, 0);
  ASSERT_EQ(ftruncate(file, 16 * kPageBytes), 0);
  char* const mapped = static_cast<char*>(
      mmap(nullptr, 12 * kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 4 * kPageBytes));
  ASSERT_NE(mapped, MAP_FAILED);
  uint64_t offset = 0;
  const int found = OpenSharedFile(Address(mapped) + kPageBytes, 2 * kPageBytes, &offset);
  ASSERT_GE(found, 0);
  EXPECT_EQ(offset, 5 * kPageBytes);
  mapped[kPageBytes] = 'x';
  char byte = 0;
  EXPECT_EQ(pread(found, &byte, 1, static_cast<off_t>(offset)), 1);
  EXPECT_EQ(byte, 'x');
  close(found);
  EXPECT_EQ(OpenSharedFile(Address(mapped), 64 * kPageBytes, &offset), -1) << "longer than it is";
  EXPECT_EQ(OpenSharedFile(Address(words_), kPageBytes, &offset), -1) << "no file's";
  // Another file has its name now: only who may open mappings finds the right one.
  ASSERT_EQ(unlink(name), 0);
  const int impostor = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(impostor, 0);
  if (const int right = OpenSharedFile(Address(mapped), kPageBytes, &offset); right >= 0) {
    EXPECT_EQ(pread(right, &byte, 1, static_cast<off_t>(5 * kPageBytes)), 1);
    EXPECT_EQ(byte, 'x');
    close(right);
  }
  close(impostor);
  unlink(name);
  close(file);
  munmap(mapped, 12 * kPageBytes);
}

}  // namespace
}  // namespace consort::guest
