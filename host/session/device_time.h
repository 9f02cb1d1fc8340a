// SPDX-License-Identifier: Apache-2.0
// host/session/device_time.h: how long a session's kernels ran, measured on the device by samples.
//
// Two events around a launch cost as much as the launch, so of each kernel the first launch is
// measured and then, each kLaunchesPerSample launches, some that follow each other directly, or one
// where they do not; each launch in between counts as long as the latest measured one. Once what it
// takes alone is known well, it is each kKnownPerSample, and of a kernel shorter than kShortNanos
// each kShortPerSample with kShortPause in between: being measured makes a launch 4 to 6 us later
// (an H200), and of those that a program waits for one by one few are to be late. Time in which a
// kernel shares the device with others counts in full, and so does time between the events in which
// the device did something else: this is occupation, not use. Owned by the session loop; calls need
// the worker's context.
#ifndef CONSORT_HOST_SESSION_DEVICE_TIME_H_
#define CONSORT_HOST_SESSION_DEVICE_TIME_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "base/units.h"
#include "gen/device/driver_table.h"
#include "host/session/event_pool.h"
#include "vmsock/deadline.h"

namespace consort::host {

class DeviceTime {
 public:
  static constexpr uint64_t kLaunchesPerSample = 32;
  static constexpr uint64_t kKnownPerSample = 128;
  static constexpr uint64_t kShortPerSample = 512;
  static constexpr uint64_t kShortNanos = 20'000;  // chosen: some four times what a sample adds
  static constexpr Nanos kShortPause = 20 * kMillisecond;  // chosen: some 2,000 such launches
  // Where launches go as chains (launch_chain.h), each of which a sample would break up.
  static constexpr uint64_t kChainedPerSample = 512;
  // Launches of one sample, so that what events add is little beside short kernels.
  static constexpr uint32_t kSampleLaunches = 4;
  // A kernel whose launches did not follow each other is measured one by one so many times.
  static constexpr uint32_t kSingleSamples = 8;
  // Samples whose kernels have not finished; beyond it launches are not measured.
  static constexpr size_t kSamplesInFlightMax = 16;
  // Launches whose mean is what a kernel takes alone; later ones count like the last of them.
  static constexpr uint32_t kAloneSamples = 16;
  // Samples that also say how far apart two events are that have nothing between them.
  static constexpr uint32_t kGapSamples = 8;

  // What is known of one kernel. Shared: a sample may end after the kernel was unloaded.
  struct Kernel {
    uint64_t launches = 0;
    uint64_t chained = 0;       // as part of chains, since one was to be measured
    uint64_t latest_nanos = 0;  // of the latest measured launch
    Nanos sampled = 0;          // when that was
    // By the number of threads, the mean of launches for which the device had no other
    // application's work, each divided by the application's own streams that were busy then. Those
    // of the latest sizes that were measured so.
    struct Alone {
      uint64_t threads = 0;
      uint64_t nanos = 0;
      uint32_t samples = 0;  // up to kAloneSamples
    };
    std::array<Alone, 8> alone = {};
    size_t alone_next = 0;
    uint32_t singles_left = 1;  // samples of one launch, before several are tried again

    // 0: not known.
    uint64_t AloneNanos(uint64_t threads) const;
    // By kAloneSamples of them.
    bool AloneKnown(uint64_t threads) const;
    void LearnAlone(uint64_t threads, uint64_t nanos);
  };

  // `resident_threads`: that the device runs at once.
  DeviceTime(const device::DriverTable& driver, uint64_t resident_threads)
      : driver_(driver), resident_threads_(resident_threads), events_(driver, 0) {}
  ~DeviceTime();
  DeviceTime(const DeviceTime&) = delete;
  DeviceTime& operator=(const DeviceTime&) = delete;

  // Whether the kernel's next launch, of so many threads, is measured, where that may be.
  static bool SamplesNext(const Kernel& kernel, uint64_t threads) {
    if (kernel.chained >= kChainedPerSample) return true;
    if (kernel.launches % kLaunchesPerSample != 0) return false;
    if (!kernel.AloneKnown(threads)) return true;
    if (kernel.latest_nanos >= kShortNanos) return kernel.launches % kKnownPerSample == 0;
    return kernel.launches % kShortPerSample == 0 && MonotonicNow() - kernel.sampled >= kShortPause;
  }
  // Whether it is to be, and a chain (launch_chain.h) must not take it in.
  static bool SamplesNextOfChain(const Kernel& kernel) {
    return kernel.launches == 0 || kernel.chained >= kChainedPerSample;
  }
  // Around a launch of so many threads on `stream`. `may_sample` is false where events between
  // launches would change what the program asked for; `beside`: streams that are busy, if no other
  // application has work; else 0. End only after a launch that succeeded; Begin again forgets the
  // one before.
  void BeginLaunch(const std::shared_ptr<Kernel>& kernel, CUstream stream, uint64_t threads,
                   bool may_sample, uint32_t beside);
  struct Launched {
    uint64_t nanos = 0;        // how long it runs, as far as known
    uint64_t alone_nanos = 0;  // how long it would run alone; 0: not known
    bool fills = false;        // it has at least as many threads as the device runs at once
  };
  // What is known of the launch.
  Launched EndLaunch(CUstream stream);
  // A launch that is part of a chain and not measured; not while sampling.
  Launched CountChained(Kernel* kernel, uint64_t threads);
  // A sample waits for launches that follow directly on the latest one.
  bool sampling() const { return taken_.has_value(); }

  // Something else than a launch comes: what is launched after it does not follow directly on what
  // was launched before. Gives up a sample that waits for that.
  void Interrupt();

  // Takes in samples that are finished. `alone`: no other application has had work since.
  // Interrupts.
  void Poll(bool alone);

  // How long the kernel of the latest launch runs, as far as known; 0: not at all.
  uint64_t latest_nanos() const { return current_ != nullptr ? current_->latest_nanos : 0; }
  // Of the launch that was made since this was last asked, if there was one.
  Launched TakeLaunched() { return std::exchange(launched_, {}); }

  uint64_t launches() const { return launches_; }
  uint64_t nanos() const { return nanos_; }

 private:
  struct Sample {
    std::shared_ptr<Kernel> kernel;
    CUevent before;  // `begin`, with nothing between; null: none
    CUevent begin;
    CUevent end;  // null: more launches are to come
    CUstream stream;
    uint64_t threads;
    uint32_t beside;
    uint32_t launches_most;
    uint32_t launches = 0;
  };
  Launched WhatIsKnown(const Kernel& kernel, uint64_t threads) const {
    return {kernel.latest_nanos, kernel.AloneNanos(threads), threads >= resident_threads_};
  }
  // Records a new event; null if that fails.
  CUevent Record(CUstream stream);
  void Return(CUevent* event);
  // From one to the other; nothing if that is not known.
  std::optional<uint64_t> NanosBetween(CUevent begin, CUevent end);
  void ReturnEvents(Sample* sample);

  const device::DriverTable& driver_;
  const uint64_t resident_threads_;
  EventPool events_;  // with timing
  std::deque<Sample> in_flight_;
  std::shared_ptr<Kernel> current_;
  uint64_t current_threads_ = 0;
  std::optional<Sample> taken_;  // of the current kernel
  Launched launched_;
  uint64_t launches_ = 0;
  uint64_t nanos_ = 0;
  uint32_t gaps_ = 0;       // measured
  uint64_t gap_nanos_ = 0;  // the least of them: what events add to what is between them
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_DEVICE_TIME_H_
