// SPDX-License-Identifier: Apache-2.0
#include "host/control/control_socket.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

namespace consort::host {
namespace {

class ControlSocketTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto pair = ControlSocket::MakePair();
    ASSERT_TRUE(pair.ok()) << pair.status();
    near_ = std::make_unique<ControlSocket>(std::move(pair->first));
    far_ = std::make_unique<ControlSocket>(std::move(pair->second));
  }
  std::unique_ptr<ControlSocket> near_, far_;
};

TEST_F(ControlSocketTest, CarriesAMessageAndItsDescriptor) {
  OpenSession sent;
  sent.session = 7;
  SetText(sent.tenant, "vm-a");
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  ASSERT_TRUE(near_->Send(sent, pipe_ends[1]).ok());
  close(pipe_ends[1]);

  ControlPacket packet;
  ASSERT_TRUE(far_->Receive(true, &packet).ok());
  OpenSession got;
  ASSERT_TRUE(packet.As(&got));
  EXPECT_EQ(got.session, 7u);
  EXPECT_EQ(GetText(got.tenant), "vm-a");
  // The descriptor is the pipe's write end: what goes in comes out of the read end.
  ASSERT_TRUE(packet.descriptor().valid());
  ASSERT_EQ(write(packet.descriptor().get(), "x", 1), 1);
  char byte = 0;
  ASSERT_EQ(read(pipe_ends[0], &byte, 1), 1);
  EXPECT_EQ(byte, 'x');
  close(pipe_ends[0]);
}

TEST_F(ControlSocketTest, RefusesToReadOneKindAsAnother) {
  ASSERT_TRUE(near_->Send(Shutdown{}).ok());
  ControlPacket packet;
  ASSERT_TRUE(far_->Receive(true, &packet).ok());
  Retired retired;
  EXPECT_FALSE(packet.As(&retired));
  Shutdown shutdown;
  EXPECT_TRUE(packet.As(&shutdown));
}

TEST_F(ControlSocketTest, SaysWhenNothingIsThereAndWhenTheOtherEndIsGone) {
  ControlPacket packet;
  EXPECT_EQ(far_->Receive(false, &packet).code(), absl::StatusCode::kDeadlineExceeded);
  near_.reset();
  EXPECT_EQ(far_->Receive(true, &packet).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(far_->Send(Shutdown{}).code(), absl::StatusCode::kUnavailable);
}

TEST_F(ControlSocketTest, NeverBlocksOnAFullQueue) {
  absl::Status status;
  for (int i = 0; i < 100000 && status.ok(); ++i) status = near_->Send(Ready{});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
}

TEST(SetText, CutsToFitAndTerminates) {
  char array[4];
  SetText(array, "abcdef");
  EXPECT_STREQ(array, "abc");
  const char full[3] = {'a', 'b', 'c'};
  EXPECT_EQ(GetText(full), "abc");
}

}  // namespace
}  // namespace consort::host
