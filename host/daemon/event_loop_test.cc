// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/event_loop.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <string>
#include <thread>

namespace consort::host {
namespace {

class EventLoopTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loop = EventLoop::Create();
    ASSERT_TRUE(loop.ok()) << loop.status();
    loop_ = std::move(*loop);
    ASSERT_EQ(pipe(ends_), 0);
  }
  void TearDown() override {
    close(ends_[0]);
    close(ends_[1]);
  }
  std::unique_ptr<EventLoop> loop_;
  int ends_[2];
};

TEST_F(EventLoopTest, RunsTimersInOrderOfTheirTimesAndNotCancelledOnes) {
  std::string order;
  loop_->After(3 * kMillisecond, [&] {
    order += 'c';
    loop_->Stop();
  });
  loop_->After(1 * kMillisecond, [&] { order += 'a'; });
  const EventLoop::TimerId timer = loop_->After(2 * kMillisecond, [&] { order += 'b'; });
  loop_->Cancel(timer);
  loop_->Run();
  EXPECT_EQ(order, "ac");
}

TEST_F(EventLoopTest, RunsCallsPostedByAnotherThread) {
  std::thread other([&] { loop_->Post([&] { loop_->Stop(); }); });
  loop_->Run();
  other.join();
}

TEST_F(EventLoopTest, ReportsReadableDescriptorsUntilTheyAreUnwatched) {
  ASSERT_TRUE(loop_
                  ->Watch(ends_[0], EPOLLIN,
                          [&](uint32_t events) {
                            EXPECT_TRUE(events & EPOLLIN);
                            loop_->Unwatch(ends_[0]);
                            // Still readable: a second report would fail the expectation above by
                            // running after Unwatch.
                            loop_->Post([&] { loop_->Stop(); });
                          })
                  .ok());
  ASSERT_EQ(write(ends_[1], "x", 1), 1);
  loop_->Run();
}

TEST_F(EventLoopTest, DoesNotReportToANewWatchWhatWasMeantForTheOld) {
  // Both ends become ready in one turn; the first callback replaces the other's watch.
  int second[2];
  ASSERT_EQ(pipe(second), 0);
  int reports = 0;
  auto on_ready = [&](int other) {
    return [&, other](uint32_t) {
      if (++reports > 1) return;
      loop_->Unwatch(other);
      ASSERT_TRUE(loop_->Watch(other, 0, [&](uint32_t) { ADD_FAILURE() << "stale event"; }).ok());
      loop_->Post([&] { loop_->Stop(); });
    };
  };
  ASSERT_TRUE(loop_->Watch(ends_[0], EPOLLIN, on_ready(second[0])).ok());
  ASSERT_TRUE(loop_->Watch(second[0], EPOLLIN, on_ready(ends_[0])).ok());
  ASSERT_EQ(write(ends_[1], "x", 1), 1);
  ASSERT_EQ(write(second[1], "x", 1), 1);
  loop_->Run();
  EXPECT_EQ(reports, 1);
  close(second[0]);
  close(second[1]);
}

}  // namespace
}  // namespace consort::host
