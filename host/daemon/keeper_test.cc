// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/keeper.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "host/limits.h"
#include "host/session/redo_log.h"
#include "host/session/session_record.h"

namespace consort::host {
namespace {

UniqueFd File() { return UniqueFd(memfd_create("kept", MFD_CLOEXEC)); }

UniqueFd CopyOf(int fd) { return UniqueFd(dup(fd)); }

ino_t Inode(int fd) {
  struct stat about = {};
  EXPECT_EQ(fstat(fd, &about), 0);
  return about.st_ino;
}

class KeeperTest : public ::testing::Test {
 protected:
  KeeperTest() : loop_(*EventLoop::Create()), keeper_(loop_.get()) {}

  void Hold(uint64_t session, KeptRole role, uint64_t key, UniqueFd descriptor) {
    Keep keep;
    keep.session = session;
    keep.role = role;
    keep.key = key;
    keeper_.Hold(keep, std::move(descriptor));
  }
  void Drop(uint64_t session, KeptRole role, uint64_t key) {
    LetGo let_go;
    let_go.session = session;
    let_go.role = role;
    let_go.key = key;
    keeper_.Drop(let_go);
  }

  std::unique_ptr<EventLoop> loop_;
  Keeper keeper_;
};

TEST_F(KeeperTest, ASessionGoesOnWhileItsRecordIsAtRest) {
  auto record = SessionRecord::Create();
  ASSERT_TRUE(record.ok());
  EXPECT_EQ(keeper_.CheckGoesOn(1).message(), "nothing of it is kept");
  Hold(1, KeptRole::kRings, 0, File());
  EXPECT_EQ(keeper_.CheckGoesOn(1).message(), "it had work in flight");
  Hold(1, KeptRole::kRecord, 0, CopyOf((*record)->fd()));
  EXPECT_EQ(keeper_.CheckGoesOn(1).message(), "it had work in flight");
  (*record)->Rest({});
  EXPECT_TRUE(keeper_.CheckGoesOn(1).ok());
  keeper_.Rename(1, 2);
  EXPECT_FALSE(keeper_.CheckGoesOn(1).ok());
  EXPECT_TRUE(keeper_.CheckGoesOn(2).ok());
  (*record)->BeginWork();
  EXPECT_FALSE(keeper_.CheckGoesOn(2).ok());
  (*record)->Rest({});
  // A piece that did not arrive.
  Hold(2, KeptRole::kMemory, 1 << 21, UniqueFd());
  EXPECT_EQ(keeper_.CheckGoesOn(2).message(), "consortd has no descriptors left for its memory");
}

TEST_F(KeeperTest, WhatIsReplacedLetGoOrEndedIsClosed) {
  Hold(1, KeptRole::kMemory, 8, File());
  Hold(1, KeptRole::kMemory, 8, File());
  Hold(1, KeptRole::kMemory, 16, File());
  EXPECT_EQ(keeper_.descriptors(), 2u);
  Drop(1, KeptRole::kMemory, 8);
  Drop(1, KeptRole::kMemory, 8);
  Drop(7, KeptRole::kMemory, 8);
  EXPECT_EQ(keeper_.descriptors(), 1u);
  keeper_.End(1);
  EXPECT_EQ(keeper_.descriptors(), 0u);
}

TEST_F(KeeperTest, AtMostSoManyDescriptorsASessionAreKept) {
  const UniqueFd file = File();
  auto record = SessionRecord::Create();
  ASSERT_TRUE(record.ok());
  (*record)->Rest({});
  Hold(1, KeptRole::kRecord, 0, CopyOf((*record)->fd()));
  for (uint64_t key = 1; key < kKeptDescriptorsPerSession; ++key) {
    UniqueFd copy = CopyOf(file.get());
    if (!copy.valid()) GTEST_SKIP() << "this host allows too few descriptors";
    Hold(1, KeptRole::kMemory, key, std::move(copy));
  }
  EXPECT_TRUE(keeper_.CheckGoesOn(1).ok());
  Hold(1, KeptRole::kMemory, kKeptDescriptorsPerSession, CopyOf(file.get()));
  EXPECT_FALSE(keeper_.CheckGoesOn(1).ok());
  EXPECT_EQ(keeper_.descriptors(), kKeptDescriptorsPerSession);
}

TEST_F(KeeperTest, TheEndOfASessionEndsItsChannel) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd guest(ends[0]);
  Hold(1, KeptRole::kSocket, 0, UniqueFd(ends[1]));
  const UniqueFd elsewhere = CopyOf(ends[1]);
  keeper_.End(1);
  char byte;
  EXPECT_EQ(recv(guest.get(), &byte, 1, MSG_DONTWAIT), 0);
}

// More than a link holds at a time, to one worker and then to the next.
TEST_F(KeeperTest, EverythingIsPassedOnAndStaysHere) {
  constexpr uint64_t kPieces = 700;
  std::set<std::pair<uint64_t, ino_t>> expected;
  for (uint64_t key = 1; key <= kPieces; ++key) {
    UniqueFd file = File();
    ASSERT_TRUE(file.valid());
    expected.emplace(key, Inode(file.get()));
    Hold(1, KeptRole::kMemory, key, std::move(file));
  }
  const auto take = [&] {
    auto link = ControlSocket::MakePair();
    ASSERT_TRUE(link.ok());
    loop_->Post([&] { EXPECT_TRUE(keeper_.PassOn(1, std::move(link->first)).ok()); });
    ControlSocket socket(std::move(link->second));
    std::set<std::pair<uint64_t, ino_t>> got;
    ControlPacket packet;
    KeptEnd end;
    while (socket.Receive(/*wait=*/true, &packet).ok() && !packet.As(&end)) {
      Keep keep;
      ASSERT_TRUE(packet.As(&keep));
      EXPECT_EQ(keep.role, KeptRole::kMemory);
      got.emplace(keep.key, Inode(packet.descriptor().get()));
    }
    EXPECT_EQ(got, expected);
  };
  std::thread reader([&] {
    take();
    take();
    loop_->Post([this] { loop_->Stop(); });
  });
  loop_->Run();
  reader.join();
  EXPECT_EQ(keeper_.descriptors(), kPieces);
}

// Who takes nothing any more is not waited for.
TEST_F(KeeperTest, ALinkThatEndsIsForgotten) {
  Hold(1, KeptRole::kMemory, 1, File());
  auto link = ControlSocket::MakePair();
  ASSERT_TRUE(link.ok());
  link->second.Reset();
  ASSERT_TRUE(keeper_.PassOn(1, std::move(link->first)).ok());
  loop_->After(kMillisecond, [this] { loop_->Stop(); });
  loop_->Run();
  EXPECT_EQ(keeper_.descriptors(), 1u);
}

TEST_F(KeeperTest, LendsWhatASessionIsComputedAgainFrom) {
  Hold(7, KeptRole::kSocket, 0, File());
  Hold(7, KeptRole::kRings, 0, File());
  Hold(7, KeptRole::kRecord, 0, File());
  Hold(7, KeptRole::kMemory, 4096, File());
  Hold(7, KeptRole::kSharedHost, 3, File());
  EXPECT_EQ(keeper_.CheckRedo(7).message(), "its channel has no shared memory");
  EXPECT_TRUE(absl::IsFailedPrecondition(keeper_.Lend(7).status()));
  const auto log = *RedoLog::Create();
  Hold(7, KeptRole::kRedo, 0, CopyOf(log->fd()));
  EXPECT_EQ(keeper_.CheckRedo(7).message(), "there is no checkpoint of it yet");
  log->Announce({1});
  log->Begin({1}, 0);
  EXPECT_TRUE(keeper_.CheckRedo(7).ok());
  const auto lost = keeper_.Lend(7);
  ASSERT_TRUE(lost.ok()) << lost.status();
  EXPECT_EQ(Inode(lost->redo.get()), Inode(log->fd()));
  EXPECT_TRUE(lost->shared_host.at(3).valid());
  keeper_.DropMemory(7);
  EXPECT_EQ(keeper_.descriptors(), 4u);
  EXPECT_TRUE(keeper_.Lend(7).ok());
}

}  // namespace
}  // namespace consort::host
