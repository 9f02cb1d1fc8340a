// SPDX-License-Identifier: Apache-2.0
#include "host/session/shared_output.h"

#include <gtest/gtest.h>
#include <stdio.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

namespace consort::host {
namespace {

std::string TextOf(DeviceOutput* output) {
  std::string all;
  for (const DeviceOutput::Text& text : output->Take()) all += text.bytes;
  return all;
}

// What gtest says of a failure while output is captured comes with the log.
class SharedOutputTest : public ::testing::Test {
 protected:
  SharedOutputTest() {
    ::testing::internal::CaptureStderr();
    auto captured = SharedOutput::Capture();
    EXPECT_TRUE(captured.ok()) << captured.status();
    shared_ = *std::move(captured);
  }
  ~SharedOutputTest() override {
    if (shared_ != nullptr) EndCapture();
  }
  // What went to the log.
  std::string EndCapture() {
    shared_ = nullptr;
    return ::testing::internal::GetCapturedStderr();
  }
  static void Print(const std::string& text, int descriptor = STDOUT_FILENO) {
    ASSERT_EQ(write(descriptor, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  std::unique_ptr<SharedOutput> shared_;
  DeviceOutput a_, b_, c_;
};

TEST_F(SharedOutputTest, GoesToWhoeverHasTheTurn) {
  ASSERT_TRUE(shared_->Take(&a_));
  Print("raw\n");
  fputs("by stdio\n", stdout);
  EXPECT_FALSE(shared_->Take(&b_));
  shared_->Drain(&b_);
  EXPECT_EQ(TextOf(&b_), "");
  shared_->Drain(&a_);
  EXPECT_EQ(TextOf(&a_), "raw\nby stdio\n");
  shared_->Pass(&a_);
  ASSERT_TRUE(shared_->Take(&b_));
  Print("of b\n");
  shared_->Drain(&b_);
  EXPECT_EQ(TextOf(&a_), "");
  EXPECT_EQ(TextOf(&b_), "of b\n");
}

TEST_F(SharedOutputTest, TakesMoreThanAPipeHolds) {
  ASSERT_TRUE(shared_->Take(&a_));
  const std::string text(1 << 20, 'x');
  for (int i = 0; i < 3; ++i) {
    Print(text);
    Print("\n");
    shared_->Drain(&a_);
    EXPECT_EQ(TextOf(&a_), text + "\n");
  }
}

TEST_F(SharedOutputTest, TurnGoesRound) {
  ASSERT_TRUE(shared_->Take(&a_));
  EXPECT_TRUE(shared_->Take(&a_));
  EXPECT_FALSE(shared_->wanted());
  EXPECT_FALSE(shared_->Take(&b_));
  EXPECT_FALSE(shared_->Take(&c_));
  EXPECT_TRUE(shared_->wanted());
  EXPECT_FALSE(shared_->Take(&a_));  // before it launches more the others have theirs
  shared_->Pass(&a_);
  EXPECT_FALSE(shared_->Take(&a_));
  EXPECT_FALSE(shared_->Take(&c_));
  EXPECT_TRUE(shared_->Take(&b_));
  EXPECT_FALSE(shared_->Take(&b_));
  shared_->Pass(&b_);
  EXPECT_TRUE(shared_->Take(&c_));
  shared_->Pass(&c_);
  EXPECT_TRUE(shared_->Take(&a_));
}

TEST_F(SharedOutputTest, WhoLeavesHoldsNobodyUp) {
  for (int i = 0; i < 3; ++i) shared_->Join();
  ASSERT_TRUE(shared_->Take(&a_));
  EXPECT_FALSE(shared_->Take(&b_));
  EXPECT_FALSE(shared_->Take(&c_));
  shared_->Leave(&b_);  // while it waits
  shared_->Leave(&a_);  // with the turn
  EXPECT_TRUE(shared_->Take(&c_));
}

TEST_F(SharedOutputTest, TextOfNobodyGoesToTheLog) {
  Print("early\n");
  ASSERT_TRUE(shared_->Take(&a_));
  Print("of a\n");
  shared_->Drain(&a_);
  shared_->Pass(&a_);
  Print("late\n");
  EXPECT_EQ(TextOf(&a_), "of a\n");
  const std::string log = EndCapture();
  EXPECT_NE(log.find("early\n"), std::string::npos);
  EXPECT_NE(log.find("late\n"), std::string::npos);
  EXPECT_EQ(log.find("of a"), std::string::npos);
}

TEST_F(SharedOutputTest, TellsOfAnAssertOnlyTheSessionThatIsAlone) {
  shared_->Join();
  Print("failed.\n", STDERR_FILENO);
  shared_->DrainErrors(&a_);
  EXPECT_EQ(TextOf(&a_), "failed.\n");
  shared_->Join();
  Print("whose?\n", STDERR_FILENO);
  shared_->DrainErrors(&a_);
  EXPECT_EQ(TextOf(&a_), "");
  EXPECT_NE(EndCapture().find("whose?\n"), std::string::npos);
}

}  // namespace
}  // namespace consort::host
