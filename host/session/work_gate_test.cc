// SPDX-License-Identifier: Apache-2.0
#include "host/session/work_gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "host/limits.h"
#include "host/session/session_test_support.h"
#include "vmsock/deadline.h"

namespace consort::host {
namespace {

constexpr uint64_t kGatedStream = 7;
constexpr uint64_t kSession = 17;

// Calls of cuEventRecord since the test began.
int event_records = 0;

class WorkGateTest : public ::testing::Test {
 protected:
  WorkGateTest() {
    EXPECT_EQ(driver_.cuCtxSetCurrent(CpuDevice().context()), CUDA_SUCCESS);
    EXPECT_EQ(streams_.Create(1, kGatedStream, {.flags = CU_STREAM_NON_BLOCKING}), CUDA_SUCCESS);
    EXPECT_EQ(driver_.cuMemHostAlloc(reinterpret_cast<void**>(&over_), sizeof *over_, 0),
              CUDA_SUCCESS);
    *over_ = 0;
    event_records = 0;
    gate_.Join("one", 1, kSession);
  }
  ~WorkGateTest() override { EXPECT_EQ(driver_.cuMemFreeHost(over_), CUDA_SUCCESS); }

  // A piece of work that takes until `over_` is not 0.
  void Work(const RequestWork& work = {.estimate = 1}, RequestCost cost = RequestCost::kKernel) {
    ASSERT_TRUE(gate_.Admit(cost));
    gate_.BeginRequest(cost);
    PutWait();
    gate_.EndRequest(cost, work);
  }
  void PutWait() {
    Stream* stream = nullptr;
    ASSERT_EQ(streams_.Use(1, kGatedStream, &stream), CUDA_SUCCESS);
    ASSERT_EQ(driver_.cuStreamWaitValue32_v2(stream->driver, reinterpret_cast<CUdeviceptr>(over_),
                                             1, CU_STREAM_WAIT_VALUE_GEQ),
              CUDA_SUCCESS);
  }
  void EndWork() {
    std::atomic_ref(*over_).store(1);
    ASSERT_EQ(driver_.cuCtxSynchronize(), CUDA_SUCCESS);
  }
  void TurnUntil(const std::function<bool()>& done) {
    while (!done()) {
      gate_.Turn(/*quiet=*/true, /*awaited=*/false);
      absl::SleepFor(absl::Microseconds(100));
    }
  }
  struct Beside {
    int event_records = 0;  // until its work was let go; what has ended may go idle, by one more
    Nanos after = 0;        // from then until all of it was seen to have ended
  };
  // Puts work on the device while another application is active, and lets it go after 10 ms.
  Beside BesideAnother(const std::function<void()>& put) {
    const Scheduler::Id other = scheduler_.Join("other", 1, MonotonicNow(), kSession + 1);
    scheduler_.SetActive(other, true);
    put();
    const Nanos until = MonotonicNow() + 10 * kMillisecond;
    TurnUntil([&] { return !gate_.measures() && MonotonicNow() > until; });
    Beside seen = {.event_records = event_records};
    const Nanos let_go = MonotonicNow();
    EndWork();
    TurnUntil([&] { return State().in_flight == 0; });
    seen.after = MonotonicNow() - let_go;
    scheduler_.Leave(other, MonotonicNow());
    return seen;
  }
  // What the policy is charged of this session for a batch of two requests, the first of which
  // fills the device, beside another's work that does, too: its part of device time, and time
  // alone.
  schedule::Service Charged(bool second_fills) {
    std::unique_ptr<schedule::Policy> policy;
    EXPECT_TRUE(MakeSchedulerPolicy("tfs", &policy));
    scheduler_.StartTrace("tfs", std::move(policy), MonotonicNow());
    const Scheduler::Id other = scheduler_.Join("other", 1, MonotonicNow(), kSession + 1);
    scheduler_.SetActive(other, true);
    // More than anything here takes, so that all of it goes on at full speed.
    constexpr Nanos kAlone = 1000 * kSecond;
    // So that it is known what the other's work was of late, however late its end is told.
    const auto before = scheduler_.Began(other, 0, schedule::Phase::kKernel, MonotonicNow());
    scheduler_.Ended(before, MonotonicNow(), {.alone = kAlone, .room = Room::kNone});
    const auto theirs = scheduler_.Began(other, 0, schedule::Phase::kKernel, MonotonicNow());
    // The second one closes the batch.
    for (const bool fills : {true, second_fills}) {
      Work({.estimate = kBatchTime / 2, .alone = kAlone, .fills = fills});
    }
    EXPECT_FALSE(gate_.measures());
    // Nobody looks before it has ended: at the first look all is known of it.
    absl::SleepFor(absl::Milliseconds(10));
    EndWork();
    TurnUntil([&] { return State().in_flight == 0; });
    scheduler_.Ended(theirs, MonotonicNow(), {.alone = kAlone, .room = Room::kNone});
    scheduler_.Poll(other, MonotonicNow(), MonotonicNow());
    bool full = false;
    const std::string trace = scheduler_.TakeTrace(&full);
    EXPECT_EQ(State().usage.batches, 1u);
    scheduler_.Leave(other, MonotonicNow());
    return ChargedIn(trace, other);
  }
  // What a trace's charges of all but `other` add up to.
  static schedule::Service ChargedIn(const std::string& trace, Scheduler::Id other) {
    std::istringstream lines(trace);
    schedule::Service sum;
    for (std::string line; std::getline(lines, line);) {
      Nanos time = 0, device = 0, alone = 0;
      unsigned application = 0;
      if (sscanf(line.c_str(), "charge %" SCNd64 " %u %" SCNd64 " %" SCNd64, &time, &application,
                 &device, &alone) != 4 ||
          application == other) {
        continue;
      }
      sum.device_time += device;
      sum.alone_time += alone;
    }
    EXPECT_GT(sum.device_time, kMillisecond);
    return sum;
  }
  ApplicationState State() {
    for (const ApplicationState& state : scheduler_.States(0)) {
      if (state.session == kSession) return state;
    }
    ADD_FAILURE();
    return {};
  }

  Nanos DeviceTime(schedule::Phase phase) {
    return State().usage.device_time[static_cast<size_t>(phase)];
  }

  // The device's, which counts.
  const device::DriverTable driver_ = [] {
    device::DriverTable table = CpuDevice().driver();
    table.cuEventRecord = [](CUevent event, CUstream stream) {
      ++event_records;
      return CpuDevice().driver().cuEventRecord(event, stream);
    };
    return table;
  }();
  Scheduler scheduler_{[] {
    std::unique_ptr<schedule::Policy> policy;
    EXPECT_TRUE(MakeSchedulerPolicy("tfs", &policy));
    return policy;
  }()};
  EventPool events_{driver_, CU_EVENT_DISABLE_TIMING};
  Streams streams_{driver_, &events_, PriorityLevel::kNormal, 0, 0};
  uint32_t* over_ = nullptr;  // pinned
  WorkGate gate_{driver_, &scheduler_, NoRate(), &streams_};
};

// What stays in flight for the scheduler holds up all others, so nobody may go to sleep with it.
TEST_F(WorkGateTest, WhatIsTrackedWhenItGoesIdleIsFinishedFirst) {
  Work();
  gate_.Turn(/*quiet=*/true, /*awaited=*/false);
  absl::SleepFor(2 * absl::Nanoseconds(kActiveFor));
  gate_.Turn(/*quiet=*/true, /*awaited=*/false);  // it would go idle, but for its work
  EndWork();
  // Another one becomes active before this one has looked again.
  const Scheduler::Id other = scheduler_.Join("other", 1, MonotonicNow(), kSession + 1);
  scheduler_.SetActive(other, true);
  TurnUntil([&] { return gate_.sleep_max() == WorkGate::kNoLimit; });
  EXPECT_EQ(State().in_flight, 0u);
  EXPECT_EQ(State().usage.batches, 0u) << "tracked, not admitted";
}

TEST_F(WorkGateTest, WorkThatFillsTheDeviceIsChargedItsDeviceTimeForItsTimeAlone) {
  const schedule::Service charged = Charged(/*second_fills=*/true);
  EXPECT_EQ(charged.alone_time, charged.device_time);
}

TEST_F(WorkGateTest, ABatchFillsTheDeviceIfAllOfItDoes) {
  const schedule::Service charged = Charged(/*second_fills=*/false);
  EXPECT_GT(charged.alone_time, charged.device_time + charged.device_time / 4);
}

// What went through before another one came: all that is known of it is when it ended.
TEST_F(WorkGateTest, AKernelThatWasLetThroughDoesNotLeaveRoomForACopyAfterIt) {
  std::unique_ptr<schedule::Policy> policy;
  ASSERT_TRUE(MakeSchedulerPolicy("tfs", &policy));
  scheduler_.StartTrace("tfs", std::move(policy), MonotonicNow());
  Work();
  ASSERT_TRUE(gate_.Admit(RequestCost::kToDevice));
  gate_.BeginRequest(RequestCost::kToDevice);
  gate_.EndRequest(RequestCost::kToDevice, {.estimate = 1, .bytes = 4096});
  const Scheduler::Id other = scheduler_.Join("other", 1, MonotonicNow(), kSession + 1);
  scheduler_.SetActive(other, true);
  // The other's work fills the device, as is known of it, so that estimates would count if this
  // session's left room.
  const auto before = scheduler_.Began(other, 0, schedule::Phase::kKernel, MonotonicNow());
  scheduler_.Ended(before, MonotonicNow(), {.alone = kMillisecond, .room = Room::kNone});
  const auto theirs = scheduler_.Began(other, 0, schedule::Phase::kKernel, MonotonicNow());
  gate_.Turn(/*quiet=*/true, /*awaited=*/false);
  const Nanos until = MonotonicNow() + 2 * kMillisecond;
  TurnUntil([&] { return MonotonicNow() > until; });
  EndWork();
  TurnUntil([&] { return gate_.sleep_max() > kGatePoll; });  // its end is told
  scheduler_.Ended(theirs, MonotonicNow(), {.alone = kMillisecond, .room = Room::kNone});
  TurnUntil([&] { return State().in_flight == 0; });
  scheduler_.Poll(other, MonotonicNow(), MonotonicNow());
  bool full = false;
  const schedule::Service charged = ChargedIn(scheduler_.TakeTrace(&full), other);
  scheduler_.Leave(other, MonotonicNow());
  EXPECT_EQ(charged.alone_time, charged.device_time);
}

// A part has no event in front of it where the one before it says when it begins.
TEST_F(WorkGateTest, APartBeginsWhereTheOneBeforeItOnItsStreamEnds) {
  const Beside seen = BesideAnother([&] {
    Work();  // until over_
    Work({.estimate = 1}, RequestCost::kToDevice);
  });
  EXPECT_EQ(seen.event_records, 2) << "one behind each";
  EXPECT_GT(DeviceTime(schedule::Phase::kKernel), 9 * kMillisecond);
  EXPECT_LE(DeviceTime(schedule::Phase::kToDevice), seen.after);
}

// What the guest lets a stream wait for takes no time of the device.
TEST_F(WorkGateTest, APartBehindSomethingElseBeginsWhenThatHasPassed) {
  const Beside seen = BesideAnother([&] {
    PutWait();
    Work();
  });
  EXPECT_EQ(seen.event_records, 2) << "one in front, one behind";
  EXPECT_LE(DeviceTime(schedule::Phase::kKernel), seen.after);
}

// Nobody looks any more at what was in flight.
TEST_F(WorkGateTest, OneThatJoinsAgainWaitsForNothingThatWasForgotten) {
  const Scheduler::Id other = scheduler_.Join("other", 1, MonotonicNow(), kSession + 1);
  scheduler_.SetActive(other, true);
  Work();
  gate_.Leave();
  EndWork();
  gate_.Join("one", 1, kSession);
  Work();
  TurnUntil([&] { return State().in_flight == 0; });
  EXPECT_EQ(State().usage.batches, 1u);
  scheduler_.Leave(other, MonotonicNow());
}

// So that the scheduler knows how long its work takes before there is anybody else.
TEST_F(WorkGateTest, OfOneThatIsAloneABatchOfManyRequestsIsMeasured) {
  const auto put = [&](uint32_t requests) {
    for (uint32_t i = 0; i < requests; ++i) {
      ASSERT_TRUE(gate_.Admit(RequestCost::kKernel));
      gate_.BeginRequest(RequestCost::kKernel);
      gate_.EndRequest(RequestCost::kKernel, {.estimate = 1});
    }
  };
  // The first one, which makes it active, does not count.
  put(512);
  EXPECT_FALSE(gate_.measures());
  put(1);
  ASSERT_TRUE(gate_.measures());
  Work();
  EndWork();
  TurnUntil([&] { return State().in_flight == 0; });
  EXPECT_GT(DeviceTime(schedule::Phase::kKernel), 0);
  EXPECT_FALSE(gate_.measures());
}

// Those that belong to it are late.
TEST_F(WorkGateTest, OfOneThatIsAloneBatchesAreMeasuredWithPauses) {
  // A batch after one that took long is closed with its first request.
  const auto put_until_measured = [&] {
    for (uint32_t requests = 1;; ++requests) {
      EXPECT_TRUE(gate_.Admit(RequestCost::kKernel));
      gate_.BeginRequest(RequestCost::kKernel);
      const bool measured = gate_.measures();
      gate_.EndRequest(RequestCost::kKernel, {.estimate = 1});
      if (!measured) continue;
      Work();
      EndWork();
      TurnUntil([&] { return State().in_flight == 0; });
      return requests;
    }
  };
  const Nanos before = MonotonicNow();
  put_until_measured();
  EXPECT_GE(put_until_measured(), 512u);
  EXPECT_GE(MonotonicNow() - before, 20 * kMillisecond);
  // Where there was a pause anyway, it is as many requests as ever; and one that makes it active
  // again, if this took so long that it was not any more.
  absl::SleepFor(absl::Milliseconds(25));
  EXPECT_LE(put_until_measured(), 513u);
}

// Their work would be in front of it, and nobody would know.
TEST_F(WorkGateTest, NoBatchIsMeasuredBesideOthersWithoutAPolicy) {
  scheduler_.SetPolicy(kNoScheduler, nullptr, MonotonicNow());
  const Scheduler::Id other = scheduler_.Join("other", 1, MonotonicNow(), kSession + 1);
  scheduler_.SetActive(other, true);
  for (int i = 0; i < 2000; ++i) {
    ASSERT_TRUE(gate_.Admit(RequestCost::kKernel));
    ASSERT_FALSE(gate_.measures());
  }
  scheduler_.SetActive(other, false);
  ASSERT_TRUE(gate_.Admit(RequestCost::kKernel));
  EXPECT_TRUE(gate_.measures());
  scheduler_.Leave(other, MonotonicNow());
}

TEST_F(WorkGateTest, IsNotAloneWhereOthersWorkWithoutAPolicy) {
  scheduler_.SetPolicy(kNoScheduler, nullptr, MonotonicNow());
  Work();
  EXPECT_TRUE(gate_.alone());
  const Scheduler::Id other = scheduler_.Join("other", 1, MonotonicNow(), kSession + 1);
  scheduler_.SetActive(other, true);
  EXPECT_FALSE(gate_.alone());
  EXPECT_FALSE(gate_.measures());
  EndWork();
}

}  // namespace
}  // namespace consort::host
