// SPDX-License-Identifier: Apache-2.0
// When the record of a session that may outlive its worker says that it is at rest.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "host/control/control_socket.h"
#include "host/session/session_record.h"
#include "host/session/session_test_support.h"
#include "vmsock/deadline.h"

namespace consort::host {
namespace {

class KeepTest : public ::testing::Test {
 protected:
  explicit KeepTest(std::pair<UniqueFd, UniqueFd> line = MakeLine())
      : consortd_(std::move(line.first)), worker_(std::move(line.second)) {}

  static std::pair<UniqueFd, UniqueFd> MakeLine() {
    auto pair = ControlSocket::MakePair();
    CHECK(pair.ok()) << pair.status();
    return *std::move(pair);
  }
  // Takes in what the session has given to consortd.
  void TakeKept() {
    ControlPacket packet;
    while (consortd_.Receive(/*wait=*/false, &packet).ok()) {
      Keep keep;
      if (packet.As(&keep) && keep.role == KeptRole::kRecord) {
        record_ = std::move(packet.descriptor());
      }
    }
  }
  bool AtRest() {
    TakeKept();
    return record_.valid() && CheckAtRest(record_.get()).ok();
  }
  bool Becomes(bool at_rest) {
    const Deadline deadline(10 * kSecond);
    while (AtRest() != at_rest) {
      if (deadline.Left() == 0) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
    return true;
  }

  ControlSocket consortd_;
  ControlSocket worker_;
  UniqueFd record_;
};

// What a worker has read of a stream is gone with it: half a request that came while nothing went
// on must not be missing in the next worker.
TEST_F(KeepTest, ASessionThatHasReadHalfARequestIsAtWork) {
  SessionPeer peer({.rings = false, .keeps_by = &worker_});
  EXPECT_EQ(peer.Synchronize(), CUDA_SUCCESS);
  ASSERT_TRUE(Becomes(/*at_rest=*/true));

  const wire::StreamSynchronizeRequest request{.stream = kLegacy};
  constexpr uint32_t kCall = 1000;
  std::vector<std::byte> frame(wire::FrameBytes(static_cast<uint32_t>(request.BodyBytes())));
  const wire::FrameHeader header{static_cast<uint32_t>(frame.size()),
                                 static_cast<uint16_t>(wire::StreamSynchronizeRequest::kOpcode), 0,
                                 kCall, 1};
  std::memcpy(frame.data(), &header, sizeof(header));
  wire::Encoder encoder(frame.data() + sizeof(header), request.BodyBytes());
  request.Encode(encoder);

  ChannelHandover guest;
  ASSERT_TRUE(peer.channel()->Describe(&guest));
  const size_t half = sizeof(header) - 4;
  ASSERT_EQ(write(guest.socket, frame.data(), half), static_cast<ssize_t>(half));
  ASSERT_TRUE(Becomes(/*at_rest=*/false));
  for (const Deadline soon(50 * kMillisecond); soon.Left() > 0;) {
    EXPECT_FALSE(AtRest()) << "half a request is in the worker";
    absl::SleepFor(absl::Milliseconds(1));
  }
  ASSERT_EQ(write(guest.socket, frame.data() + half, frame.size() - half),
            static_cast<ssize_t>(frame.size() - half));
  EXPECT_EQ(peer.Await(kCall), CUDA_SUCCESS);
  EXPECT_TRUE(Becomes(/*at_rest=*/true));
}

// Rings outlive the worker, with what nobody has taken from them.
TEST_F(KeepTest, ASessionOverRingsIsAtRestBetweenRequests) {
  SessionPeer peer({.keeps_by = &worker_});
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(peer.Synchronize(), CUDA_SUCCESS);
    EXPECT_TRUE(Becomes(/*at_rest=*/true));
  }
}

// Whoever is to take it may be slow, and until then it serves as ever.
TEST_F(KeepTest, ASessionThatIsToBeSavedOrMovedIsAtRestBetweenRequests) {
  for (const uint32_t stays : {1, 0}) {
    SessionPeer peer({.keeps_by = &worker_});
    EXPECT_EQ(peer.Synchronize(), CUDA_SUCCESS);
    ASSERT_TRUE(Becomes(/*at_rest=*/true));
    // Nobody there says anything.
    auto link = MakeLine();
    MoveOut out;
    out.stays = stays;
    std::string ended;
    peer.MoveOut(std::move(link.first), out,
                 [&](const MoveEnded& how) { ended = GetText(how.text); });
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(peer.Synchronize(), CUDA_SUCCESS);
      EXPECT_TRUE(Becomes(/*at_rest=*/true)) << "stays " << stays;
    }
    peer.Close();
    SessionEnded session;
    ASSERT_TRUE(peer.AwaitEnd(&session));
    EXPECT_EQ(ended, "the application has ended") << "it was over before";
    record_.Reset();
  }
}

}  // namespace
}  // namespace consort::host
