// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/task_threads.h"

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"

namespace consort::host {
namespace {

TEST(TaskThreads, BringResultsToTheLoop) {
  auto loop = EventLoop::Create();
  ASSERT_TRUE(loop.ok());
  TaskThreads tasks(loop->get());
  const auto here = std::this_thread::get_id();
  int sum = 0;
  // A result need not copy.
  using Result = std::unique_ptr<int>;
  for (int i = 1; i <= 3; ++i) {
    tasks.Start<Result>(
        [i, here] {
          EXPECT_NE(std::this_thread::get_id(), here);
          return std::make_unique<int>(i);
        },
        [&](Result result) {
          EXPECT_EQ(std::this_thread::get_id(), here);
          sum += *result;
          if (tasks.running() == 0) (*loop)->Stop();
        });
  }
  EXPECT_EQ(tasks.running(), 3u);
  (*loop)->Run();
  EXPECT_EQ(sum, 6);
}

TEST(TaskThreads, WaitForWhatIsAtWorkAndSayNothingOfIt) {
  auto loop = EventLoop::Create();
  ASSERT_TRUE(loop.ok());
  absl::Notification begun;
  bool worked = false;
  {
    TaskThreads tasks(loop->get());
    tasks.Start<bool>(
        [&] {
          begun.Notify();
          return worked = true;
        },
        [](bool) { FAIL() << "its owner is gone"; });
    begun.WaitForNotification();
  }
  EXPECT_TRUE(worked);
  (*loop)->Post([&] { (*loop)->Stop(); });
  (*loop)->Run();
}

}  // namespace
}  // namespace consort::host
