// SPDX-License-Identifier: Apache-2.0
// guest/patience.h: what a thread does between two looks at a word of memory that the device is to
// write.
//
// It spins first. Where cores are spare that is for long, as the driver itself waits, which spins
// for good: on a virtual machine's processors even a sleep of 20 us ends some 60 us late. After a
// while, or where there are few cores from the beginning, it lets others have the processor who
// want it, and then it naps.
#ifndef CONSORT_GUEST_PATIENCE_H_
#define CONSORT_GUEST_PATIENCE_H_

#include <cstdint>

namespace consort::guest {

class Patience {
 public:
  // `sleeps`: the program has said that its threads sleep while they wait.
  explicit Patience(bool sleeps);

  // Before the next look. A nap is a hundredth of what has been waited, which is what it may add to
  // the wait, from 20 to 500 us.
  void Pause();

  // Nanoseconds since this was made, as of the latest look at the clock.
  int64_t waited() const { return waited_; }
  // Whether pauses are naps from now on, beside which looking at other things costs nothing.
  bool naps() const { return waited_ >= spin_nanos_; }

 private:
  const int64_t begin_;
  int64_t spin_nanos_;
  int64_t yields_after_;
  int64_t waited_ = 0;
  int looks_ = 0;
};

}  // namespace consort::guest

#endif  // CONSORT_GUEST_PATIENCE_H_
