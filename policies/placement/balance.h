// SPDX-License-Identifier: Apache-2.0
// policies/placement/balance.h: which application of a host should go to a device that is idle.
//
// One that would get on faster there: the device is faster than its own, or its own is full and it
// has a part of it only. Nobody is slowed by that: the device must have been idle for kBalanceIdle,
// and who shared the old one has more of it. Applications that hardly use their device stay, and so
// do those that came or were asked of late, so that nothing goes back and forth. After: Becchi et
// al., "A Virtual Memory Based Runtime to Support Multi-tenancy in Clusters with GPUs" (HPDC 2012):
// jobs go from slower to faster GPUs as these become idle. The numbers below are chosen, not
// measured. Pure.
#ifndef CONSORT_POLICIES_PLACEMENT_BALANCE_H_
#define CONSORT_POLICIES_PLACEMENT_BALANCE_H_

#include <cstdint>
#include <optional>
#include <span>

#include "base/units.h"

namespace consort::placement {

// A device counts as idle then; a pause between two of a program's phases is no reason to move.
inline constexpr Nanos kBalanceIdle = 2 * kSecond;
// What moves it costs a program some milliseconds, and its caches.
inline constexpr Nanos kBalanceSettled = 10 * kSecond;
// Parts of the last second in which an application's kernels ran. With less it has no use of a
// faster device, where its own is not full:
inline constexpr double kBalanceUse = 0.25;
// A device where all together had as much is full.
inline constexpr double kBalanceFull = 0.8;
// With less it is none of those that share a full one.
inline constexpr double kBalanceWorks = 0.05;
// How many times as fast it must get.
inline constexpr double kBalanceGain = 1.25;

struct BalanceDevice {
  double speed = 1;    // beside the others'; above 0
  bool takes = false;  // new applications
  Nanos idle = 0;      // nobody has used it for so long
};

struct BalanceApplication {
  uint64_t session = 0;
  uint32_t device = 0;   // index of the devices
  uint64_t allowed = 0;  // bit N: it may go to device N
  double use = 0;        // part of the last second in which its kernels ran
  Nanos settled = 0;     // since it came there, or was last told to go
};

struct BalanceMove {
  uint64_t session = 0;
  uint32_t to = 0;
  bool operator==(const BalanceMove&) const = default;
};

// The move that gains most; of equal ones the one of the application with the most use, then of the
// lowest number, to the lowest device. None is due: nothing. O(devices * applications).
std::optional<BalanceMove> ChooseMove(std::span<const BalanceDevice> devices,
                                      std::span<const BalanceApplication> applications);

}  // namespace consort::placement

#endif  // CONSORT_POLICIES_PLACEMENT_BALANCE_H_
