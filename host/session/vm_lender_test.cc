// SPDX-License-Identifier: Apache-2.0
#include "host/session/vm_lender.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "host/control/control_socket.h"
#include "vmsock/vm_memory.h"

namespace consort::host {
namespace {

constexpr uint64_t kSession = 17;
constexpr Bytes kPart = 2 * kVmMemoryUnit;
constexpr Bytes kFileBytes = 8 * kVmMemoryUnit;
// Of a consortd that answers, however busy the machine is; and of one that does not.
constexpr Nanos kPatience = 600 * kSecond;
constexpr Nanos kNone = 0;

// consortd's end is here.
class VmLenderTest : public ::testing::Test {
 protected:
  void SetUp() override { Begin(kPatience); }

  // A lender that waits so long for an answer.
  void Begin(Nanos answer_max) {
    auto pair = ControlSocket::MakePair();
    ASSERT_TRUE(pair.ok());
    workers_end_ = std::make_unique<ControlSocket>(std::move(pair->first));
    consortds_end_ = std::make_unique<ControlSocket>(std::move(pair->second));
    file_.Reset(memfd_create("vm-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(ftruncate(file_.get(), kFileBytes), 0);
    lender_ = std::make_unique<VmLender>(kSession, answer_max);
    lender_->set_consortd(workers_end_.get());
    lender_->set_file(UniqueFd(dup(file_.get())));
  }

  // Asks for memory; once consortd has the question, it does `answer` beside the asker.
  std::optional<Bytes> Lend(Bytes bytes, const std::function<void(const VmMemoryWanted&)>& answer) {
    std::thread consortd([&] {
      ControlPacket packet;
      VmMemoryWanted wanted;
      ASSERT_TRUE(consortds_end_->Receive(/*wait=*/true, &packet).ok());
      ASSERT_TRUE(packet.As(&wanted));
      EXPECT_EQ(wanted.session, kSession);
      EXPECT_EQ(wanted.bytes, bytes);
      answer(wanted);
    });
    const std::optional<Bytes> offset = lender_->Lend(bytes);
    consortd.join();
    return offset;
  }
  static VmMemoryLent Answer(const VmMemoryWanted& wanted, Bytes offset, Bytes bytes) {
    VmMemoryLent lent;
    lent.session = wanted.session;
    lent.number = wanted.number;
    lent.offset = offset;
    lent.bytes = bytes;
    return lent;
  }
  std::optional<Bytes> LendAt(Bytes offset) {
    return Lend(
        kPart, [&](const VmMemoryWanted& wanted) { lender_->Take(Answer(wanted, offset, kPart)); });
  }
  // A question that has come to consortd and that nobody has taken.
  VmMemoryWanted Question() {
    ControlPacket packet;
    VmMemoryWanted wanted;
    EXPECT_TRUE(consortds_end_->Receive(/*wait=*/false, &packet).ok());
    EXPECT_TRUE(packet.As(&wanted));
    return wanted;
  }
  // Where the parts are that consortd has been given back and has not heard of. There is no other
  // packet.
  std::vector<Bytes> GivenBack() {
    std::vector<Bytes> offsets;
    ControlPacket packet;
    while (consortds_end_->Receive(/*wait=*/false, &packet).ok()) {
      VmMemoryBack back;
      if (!packet.As(&back)) {
        ADD_FAILURE() << "packet of kind " << static_cast<uint64_t>(packet.kind());
        continue;
      }
      EXPECT_EQ(back.session, kSession);
      offsets.push_back(back.offset);
    }
    return offsets;
  }

  void Write(Bytes offset, const std::string& text) {
    ASSERT_EQ(pwrite(file_.get(), text.data(), text.size(), static_cast<off_t>(offset)),
              static_cast<ssize_t>(text.size()));
  }
  std::string Read(Bytes offset, Bytes bytes) {
    std::string text(bytes, '?');
    EXPECT_EQ(pread(file_.get(), text.data(), bytes, static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes));
    return text;
  }
  // What the file costs the host.
  Bytes HostBytes() {
    struct stat status = {};
    EXPECT_EQ(fstat(file_.get(), &status), 0);
    return static_cast<Bytes>(status.st_blocks) * 512;
  }

  std::unique_ptr<ControlSocket> workers_end_;
  std::unique_ptr<ControlSocket> consortds_end_;
  UniqueFd file_;  // the lender has another descriptor of it
  std::unique_ptr<VmLender> lender_;
};

using Offsets = std::vector<Bytes>;

TEST_F(VmLenderTest, LendsClearedPagesThatAreThere) {
  Write(0, std::string(kFileBytes, 'x'));
  EXPECT_EQ(LendAt(kPart), kPart);
  EXPECT_EQ(Read(0, kFileBytes), std::string(kPart, 'x') + std::string(kPart, '\0') +
                                     std::string(kFileBytes - 2 * kPart, 'x'));
  EXPECT_EQ(HostBytes(), kFileBytes);
  EXPECT_EQ(GivenBack(), Offsets());
}

TEST_F(VmLenderTest, RoomThatIsGivenBackCostsNothingAndIsLentAgain) {
  ASSERT_EQ(LendAt(kPart), kPart);
  Write(kPart, std::string(kPart, 'x'));
  EXPECT_EQ(HostBytes(), kPart);
  lender_->TakeBack(kPart, kPart);
  EXPECT_EQ(HostBytes(), 0u);
  EXPECT_EQ(GivenBack(), Offsets({kPart}));
  EXPECT_EQ(LendAt(kPart), kPart);
  EXPECT_EQ(HostBytes(), kPart);
  EXPECT_EQ(Read(kPart, kPart), std::string(kPart, '\0'));
  EXPECT_EQ(GivenBack(), Offsets());
}

TEST_F(VmLenderTest, ARefusedRequestLeavesNothing) {
  EXPECT_EQ(Lend(kPart, [&](const VmMemoryWanted& wanted) { lender_->Take(Answer(wanted, 0, 0)); }),
            std::nullopt);
  EXPECT_EQ(HostBytes(), 0u);
  EXPECT_EQ(GivenBack(), Offsets());
  // The next one is a question of its own.
  EXPECT_EQ(LendAt(0), 0u);
}

TEST_F(VmLenderTest, APartThatCannotBeClearedGoesBack) {
  // As where the host has no pages left: the file cannot have any there.
  ASSERT_EQ(fcntl(file_.get(), F_ADD_SEALS, F_SEAL_GROW), 0);
  EXPECT_EQ(LendAt(kFileBytes), std::nullopt);
  EXPECT_EQ(GivenBack(), Offsets({kFileBytes}));
}

TEST_F(VmLenderTest, WhenConsortdSaysNothingTheAskerGoesWithout) {
  Begin(kNone);
  EXPECT_EQ(lender_->Lend(kPart), std::nullopt);
  EXPECT_EQ(Question().bytes, kPart);
  EXPECT_EQ(GivenBack(), Offsets());
}

TEST_F(VmLenderTest, AnAnswerThatComesTooLateGoesBack) {
  Begin(kNone);
  ASSERT_EQ(lender_->Lend(kPart), std::nullopt);
  const VmMemoryWanted first = Question();
  ASSERT_EQ(lender_->Lend(kPart), std::nullopt);
  const VmMemoryWanted second = Question();
  EXPECT_NE(first.number, second.number);
  lender_->Take(Answer(first, kPart, kPart));
  EXPECT_EQ(GivenBack(), Offsets({kPart}));
  lender_->Take(Answer(second, 2 * kPart, kPart));
  EXPECT_EQ(GivenBack(), Offsets({2 * kPart}));
  // Nothing is no part.
  lender_->Take(Answer(second, 0, 0));
  EXPECT_EQ(GivenBack(), Offsets());
  EXPECT_EQ(HostBytes(), 0u);
}

TEST_F(VmLenderTest, AnAnswerToAnEarlierQuestionIsNotTheNextOnes) {
  ASSERT_EQ(LendAt(0), 0u);
  EXPECT_EQ(Lend(kPart,
                 [&](const VmMemoryWanted& wanted) {
                   VmMemoryWanted earlier = wanted;
                   --earlier.number;
                   lender_->Take(Answer(earlier, kPart, kPart));
                   lender_->Take(Answer(wanted, 2 * kPart, kPart));
                 }),
            2 * kPart);
  EXPECT_EQ(GivenBack(), Offsets({kPart}));
}

TEST_F(VmLenderTest, ASecondAnswerGoesBack) {
  VmMemoryWanted question;
  ASSERT_EQ(Lend(kPart,
                 [&](const VmMemoryWanted& wanted) {
                   question = wanted;
                   lender_->Take(Answer(wanted, 0, kPart));
                 }),
            0u);
  lender_->Take(Answer(question, kPart, kPart));
  EXPECT_EQ(GivenBack(), Offsets({kPart}));
}

TEST_F(VmLenderTest, StopEndsTheWaitAndLaterAnswersGoBack) {
  VmMemoryWanted question;
  EXPECT_EQ(Lend(kPart,
                 [&](const VmMemoryWanted& wanted) {
                   question = wanted;
                   lender_->Stop();
                 }),
            std::nullopt);
  lender_->Take(Answer(question, kPart, kPart));
  EXPECT_EQ(GivenBack(), Offsets({kPart}));
  // Nothing is asked any more.
  EXPECT_EQ(lender_->Lend(kPart), std::nullopt);
  EXPECT_EQ(GivenBack(), Offsets());
}

TEST_F(VmLenderTest, NobodyWaitsForAConsortdThatIsGone) {
  ASSERT_EQ(LendAt(kPart), kPart);
  consortds_end_.reset();
  EXPECT_EQ(lender_->Lend(kPart), std::nullopt);
  lender_->TakeBack(kPart, kPart);
  EXPECT_EQ(HostBytes(), 0u);
}

TEST_F(VmLenderTest, WithoutSharedMemoryNothingIsAsked) {
  lender_->set_file(UniqueFd());
  EXPECT_EQ(lender_->file(), -1);
  EXPECT_EQ(lender_->Lend(kPart), std::nullopt);
  EXPECT_EQ(GivenBack(), Offsets());
}

}  // namespace
}  // namespace consort::host
