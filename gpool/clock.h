// SPDX-License-Identifier: Apache-2.0
// gpool/clock.h: what time it is, for what must be able to run by a clock of a test's own.
// Implementations are thread safe.
#ifndef CONSORT_GPOOL_CLOCK_H_
#define CONSORT_GPOOL_CLOCK_H_

#include "base/units.h"

namespace consort::gpool {

class Clock {
 public:
  virtual ~Clock() = default;
  // Never goes back; means nothing beside another machine's.
  virtual Nanos Monotonic() const = 0;
  // Since 1970, as the machine's clock has it.
  virtual Nanos Unix() const = 0;

  // The machine's. Lives for ever.
  static const Clock* System();
};

}  // namespace consort::gpool

#endif  // CONSORT_GPOOL_CLOCK_H_
