// SPDX-License-Identifier: Apache-2.0
// vmsock/spin.h: waiting on memory that another processor writes. Stateless; any thread. Needs no
// library.
#ifndef CONSORT_VMSOCK_SPIN_H_
#define CONSORT_VMSOCK_SPIN_H_

#include "base/units.h"
#include "vmsock/channel.h"
#include "vmsock/deadline.h"
#include "vmsock/spin_budget.h"

namespace consort {

// Tells the processor that this thread spins.
inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A wait of a channel whose memory has just been looked at in vain. Calls `look` until it says
// something other than kAgain, for as much of `spin` > 0 as `budget` gives, but not past
// `deadline`; then `sleep`, whose word is final.
template <typename Look, typename Sleep>
ChannelStatus SpinThenSleep(SpinBudget* budget, Nanos spin, const Deadline& deadline,
                            const Look& look, const Sleep& sleep) {
  // Between two looks at the clock: one costs about as much as 16 pauses.
  constexpr int kPausesPerLook = 16;
  const Nanos begin = MonotonicNow();
  const Nanos allowed = budget->Allow(spin);
  const Deadline spin_deadline(allowed);
  ChannelStatus status = ChannelStatus::kAgain;
  while (status == ChannelStatus::kAgain && spin_deadline.Left() > 0 && deadline.Left() > 0) {
    for (int pause = 0; pause < kPausesPerLook && status == ChannelStatus::kAgain; ++pause) {
      Pause();
      status = look();
    }
  }
  if (status == ChannelStatus::kAgain) status = sleep();
  budget->Learn(spin, allowed, MonotonicNow() - begin);
  return status;
}

}  // namespace consort

#endif  // CONSORT_VMSOCK_SPIN_H_
