// SPDX-License-Identifier: Apache-2.0
// vmsock/vhost_user/pace.h: whether a guest takes a stream faster than a processor of its could
// read it. Pure logic; thread compatible.
//
// What a guest reads at once is best left in the caches. One whose thread copies what comes to its
// program takes no more than that thread copies, some GB/s. Who takes more does not read it
// meanwhile: then bytes are better written past the caches, where their lines need not be had from
// the processor that wrote them last (fill_job.h; docs/PERFORMANCE.md, "Bulk data of a virtual
// machine").
#ifndef CONSORT_VMSOCK_VHOST_USER_PACE_H_
#define CONSORT_VMSOCK_VHOST_USER_PACE_H_

#include <cstdint>

#include "base/units.h"

namespace consort::vhost_user {

class Pace {
 public:
  // Bytes that it is judged by: many times what QEMU's queue holds, 478 KB, which any guest takes
  // at once.
  static constexpr uint64_t kJudgedBytes = 4 * kMiB;
  // A processor of the H200s' hosts copied 4 to 9 GB/s.
  static constexpr uint64_t kBytesPerSecondRead = 12'000'000'000;

  // So many bytes more have been taken, at `now`.
  void Took(uint64_t bytes, Nanos now) {
    bytes_ += bytes;
    if (bytes_ < kJudgedBytes) return;
    const auto as_read = static_cast<Nanos>(bytes_ * kSecond / kBytesPerSecondRead);
    faster_than_reading_ = now - since_ < as_read;
    since_ = now;
    bytes_ = 0;
  }
  // As of the last kJudgedBytes. No, before there were so many.
  bool faster_than_reading() const { return faster_than_reading_; }

 private:
  uint64_t bytes_ = 0;
  Nanos since_ = 0;  // long before the first
  bool faster_than_reading_ = false;
};

}  // namespace consort::vhost_user

#endif  // CONSORT_VMSOCK_VHOST_USER_PACE_H_
