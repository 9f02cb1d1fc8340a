// SPDX-License-Identifier: Apache-2.0
#include "host/session/session_record.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <vector>

#include "base/unique_fd.h"

namespace consort::host {
namespace {

std::vector<std::byte> State(size_t bytes, int value) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(value));
}

UniqueFd Copy(int fd) { return UniqueFd(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

TEST(SessionRecord, SaysNothingAtWorkAndEverythingAtRest) {
  auto record = SessionRecord::Create();
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(CheckAtRest((*record)->fd()).message(), "it had work in flight");
  ASSERT_TRUE((*record)->Write(State(10'000, 1)).ok());
  EXPECT_FALSE(ReadRecord((*record)->fd()).ok());
  (*record)->Rest({80, 160, 700});
  auto read = ReadRecord((*record)->fd());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->position.received, 80u);
  EXPECT_EQ(read->position.sent, 160u);
  EXPECT_EQ(read->position.deferred_error, 700u);
  EXPECT_EQ(read->state, State(10'000, 1));
  (*record)->BeginWork();
  EXPECT_FALSE((*record)->at_rest());
  EXPECT_FALSE(ReadRecord((*record)->fd()).ok());
  // Only positions have changed.
  (*record)->Rest({88, 168, 0});
  read = ReadRecord((*record)->fd());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->position.received, 88u);
  EXPECT_EQ(read->state, State(10'000, 1));
}

TEST(SessionRecord, GivesBackWhatAShorterStateNeedsNot) {
  auto record = SessionRecord::Create();
  ASSERT_TRUE(record.ok());
  ASSERT_TRUE((*record)->Write(State(1 << 20, 1)).ok());
  ASSERT_TRUE((*record)->Write(State(10, 2)).ok());
  struct stat about;
  ASSERT_EQ(fstat((*record)->fd(), &about), 0);
  EXPECT_LT(about.st_blocks * 512, 64 * 1024);
  (*record)->Rest({});
  const auto read = ReadRecord((*record)->fd());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->state, State(10, 2));
}

TEST(SessionRecord, IsTakenUpAndGoneOnWith) {
  UniqueFd file;
  {
    auto record = SessionRecord::Create();
    ASSERT_TRUE(record.ok());
    file = Copy((*record)->fd());
    EXPECT_FALSE(SessionRecord::TakeUp(Copy(file.get())).ok());
    ASSERT_TRUE((*record)->Write(State(100, 3)).ok());
    (*record)->Rest({8, 16, 0});
  }
  auto taken = SessionRecord::TakeUp(Copy(file.get()));
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_TRUE((*taken)->at_rest());
  // Until it begins to work the next one could take it up as well.
  EXPECT_TRUE(CheckAtRest(file.get()).ok());
  (*taken)->BeginWork();
  EXPECT_FALSE(CheckAtRest(file.get()).ok());
}

TEST(SessionRecord, TellsWhyASessionCannotBeKept) {
  auto record = SessionRecord::Create();
  ASSERT_TRUE(record.ok());
  (*record)->Explain("it has arrays, textures or surfaces");
  EXPECT_EQ(CheckAtRest((*record)->fd()).message(), "it has arrays, textures or surfaces");
  (*record)->Explain("");
  EXPECT_EQ(CheckAtRest((*record)->fd()).message(), "it had work in flight");
  (*record)->Explain(std::string(1000, 'x'));
  EXPECT_EQ(CheckAtRest((*record)->fd()).message(), std::string(255, 'x'));
}

TEST(SessionRecord, RefusesWhatIsNoneAndWhatWasCutOff) {
  UniqueFd other(memfd_create("other", MFD_CLOEXEC));
  EXPECT_EQ(CheckAtRest(other.get()).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CheckAtRest(-1).code(), absl::StatusCode::kInvalidArgument);
  auto record = SessionRecord::Create();
  ASSERT_TRUE(record.ok());
  ASSERT_TRUE((*record)->Write(State(5000, 4)).ok());
  (*record)->Rest({});
  for (const off_t bytes : {4096 + 4999, 4096 + 1, 4096}) {
    ASSERT_EQ(ftruncate((*record)->fd(), bytes), 0);
    EXPECT_EQ(ReadRecord((*record)->fd()).status().code(), absl::StatusCode::kDataLoss) << bytes;
  }
}

// A process writes states, each of one value in all its bytes and its position, as fast as it can
// and is killed: what it leaves is one of them, whole, or says that it was at work.
TEST(SessionRecord, IsWholeWhereverItsWriterIsKilled) {
  for (int kill_after = 0; kill_after < 30; ++kill_after) {
    auto record = SessionRecord::Create();
    ASSERT_TRUE(record.ok());
    int begun[2];
    ASSERT_EQ(pipe(begun), 0);
    const pid_t writer = fork();
    if (writer == 0) {
      for (uint64_t round = 1;; ++round) {
        (*record)->BeginWork();
        if (!(*record)->Write(State(1 + round * 7919 % 30'000, static_cast<int>(round % 251))).ok())
          _exit(1);
        (*record)->Rest({round, round, static_cast<uint32_t>(round)});
        const char byte = 1;
        if (write(begun[1], &byte, 1) != 1) _exit(1);
      }
    }
    close(begun[1]);
    char byte;
    for (int i = 0; i <= kill_after; ++i) ASSERT_EQ(read(begun[0], &byte, 1), 1);
    ASSERT_EQ(kill(writer, SIGKILL), 0);
    int status;
    ASSERT_EQ(waitpid(writer, &status, 0), writer);
    close(begun[0]);
    const auto read = ReadRecord((*record)->fd());
    if (!read.ok()) {
      EXPECT_EQ(read.status().code(), absl::StatusCode::kFailedPrecondition) << read.status();
      continue;
    }
    const uint64_t round = read->position.received;
    EXPECT_EQ(read->position.sent, round);
    EXPECT_EQ(read->position.deferred_error, round);
    EXPECT_EQ(read->state, State(1 + round * 7919 % 30'000, static_cast<int>(round % 251)));
  }
}

}  // namespace
}  // namespace consort::host
