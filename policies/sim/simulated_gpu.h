// SPDX-License-Identifier: Apache-2.0
// policies/sim/simulated_gpu.h: one GPU of the pool simulation: what runs on its engines, what
// waits for them, and how time on it is divided. It says when something will be over; the
// simulation's clock brings it there. Thread compatible.
//
// Kernels share one speed, so they are kept by the virtual time (time at full speed since the
// GPU began) at which they end: a change of speed moves no kernel.
#ifndef CONSORT_POLICIES_SIM_SIMULATED_GPU_H_
#define CONSORT_POLICIES_SIM_SIMULATED_GPU_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/units.h"
#include "policies/schedule/policy.h"
#include "policies/sim/service_meter.h"

namespace consort::sim {

class SimulatedGpu {
 public:
  // Of an application on this GPU: small, used again.
  using Guest = uint32_t;
  static constexpr Nanos kNever = INT64_MAX;

  struct Settings {
    bool packed = true;
    uint32_t copy_engines = 1;
    uint32_t kernels_max = 16;
    Nanos context_switch = 0;
  };
  struct Work {
    schedule::Phase phase = schedule::Phase::kKernel;
    double length = 0;  // nanoseconds, alone
    double sms = 0;     // kernels: parts of the device
    double bandwidth = 0;
  };

  // `policy` null: first come first served, as far as there is room.
  SimulatedGpu(const Settings& settings, std::unique_ptr<schedule::Policy> policy)
      : settings_(settings), policy_(std::move(policy)) {}

  Guest Join(uint32_t tenant, uint32_t weight, Nanos now);
  void Leave(Guest guest, Nanos now);
  // Device time of a guest that is here, up to the latest call with a time.
  double DeviceTime(Guest guest) const { return guests_[guest].device_time; }
  // Nothing happens up to `now`, which is at most NextEnd().
  void Idle(Nanos now) { PassTo(now); }

  // The guest has work, and none other on the way.
  void Submit(Guest guest, const Work& work, Nanos now);
  // When the next work will be over if nothing is submitted before; kNever: nothing runs.
  Nanos NextEnd() const;
  // Whose work is over at `now` == NextEnd(). More may be over at the same time: ask again. Nothing
  // new begins before Continue: the guest may have more work at once, and competes with it.
  Guest Finish(Nanos now);
  void Continue(Nanos now) { StartWhatMay(now); }

  double busy() const { return busy_; }

 private:
  struct Running {
    Guest guest = 0;
    double end = 0;  // kernels: virtual time; others: time
    Work work;
  };
  struct GuestState {
    double device_time = 0;
    ServiceMeter meter;
    Work work;  // waits, or is on its way
  };
  static constexpr int kKernels = 0;  // engines
  static constexpr int kToDevice = 1;
  static constexpr int kToHost = 2;

  int EngineOf(schedule::Phase phase) const;
  double Speed() const;
  void PassTo(Nanos now);
  void StartWhatMay(Nanos now);
  void Begin(Guest guest, Nanos now);
  void FillEngine(int engine, Nanos now);

  const Settings settings_;
  const std::unique_ptr<schedule::Policy> policy_;
  std::vector<GuestState> guests_;
  std::vector<Guest> free_guests_;
  std::deque<Guest> waiting_;                // without a policy, and where it is not their turn
  std::array<std::deque<Guest>, 3> queued_;  // begun, but the engine has no room
  std::array<std::vector<Running>, 3> running_;
  size_t running_count_ = 0;
  double virtual_now_ = 0;
  double sms_ = 0;  // asked for by running kernels
  double bandwidth_ = 0;
  Nanos last_ = 0;
  double busy_ = 0;
  Guest last_guest_ = UINT32_MAX;  // whose context is on the device
};

}  // namespace consort::sim

#endif  // CONSORT_POLICIES_SIM_SIMULATED_GPU_H_
