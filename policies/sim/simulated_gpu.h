// SPDX-License-Identifier: Apache-2.0
// policies/sim/simulated_gpu.h: one GPU of the pool simulation: what runs on its engines, what
// waits for them, and how time on it is divided. It says when something will be over; the
// simulation's clock brings it there. Thread compatible.
//
// Kernels beside each other share issue slots and memory bandwidth (contention.h); their speeds
// change only when one begins or ends.
#ifndef CONSORT_POLICIES_SIM_SIMULATED_GPU_H_
#define CONSORT_POLICIES_SIM_SIMULATED_GPU_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/units.h"
#include "policies/schedule/policy.h"
#include "policies/sim/contention.h"
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
    double length = 0;    // nanoseconds, alone
    Demand demand = {};   // kernels
    uint32_t thread = 0;  // the caller's name for whose it is, given back by Finish
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

  // The guest has this work too. Its works begin in the order in which they were submitted.
  void Submit(Guest guest, const Work& work, Nanos now);
  // When the next work will be over if nothing is submitted before; kNever: nothing runs.
  Nanos NextEnd() const;
  // `Work::thread` of what is over at `now` == NextEnd(). More may be over at the same time: ask
  // again. Nothing new begins before Continue: the guest may have more work at once, and competes
  // with it.
  uint32_t Finish(Nanos now);
  void Continue(Nanos now) { StartWhatMay(now); }

  double busy() const { return busy_; }

 private:
  struct Running {
    Guest guest = 0;
    double left = 0;  // nanoseconds at full speed
    double speed = 1;
    Work work;
  };
  struct GuestState {
    double device_time = 0;
    ServiceMeter meter;
    std::vector<Work> waiting;  // not begun; few
  };
  struct Queued {
    Guest guest = 0;
    Work work;
  };
  static constexpr int kKernels = 0;  // engines
  static constexpr int kToDevice = 1;
  static constexpr int kToHost = 2;

  int EngineOf(schedule::Phase phase) const;
  void PassTo(Nanos now);
  void StartWhatMay(Nanos now);
  void Wait(Guest guest, Nanos now);
  void Begin(Guest guest);
  void FillEngine(int engine);
  void SetSpeeds();

  const Settings settings_;
  const std::unique_ptr<schedule::Policy> policy_;
  std::vector<GuestState> guests_;
  std::vector<Guest> free_guests_;
  std::deque<Guest> waiting_;                 // without a policy, and where it is not their turn
  std::array<std::deque<Queued>, 3> queued_;  // begun, but the engine has no room
  std::array<std::vector<Running>, 3> running_;
  size_t running_count_ = 0;
  std::vector<Demand> demands_;  // of running kernels, for SetSpeeds only, as is the next
  std::vector<double> speeds_;
  Nanos last_ = 0;
  double busy_ = 0;
  Guest last_guest_ = UINT32_MAX;  // whose context is on the device
};

}  // namespace consort::sim

#endif  // CONSORT_POLICIES_SIM_SIMULATED_GPU_H_
