// SPDX-License-Identifier: Apache-2.0
// vmsock/vhost_user/copy_line.h: packets of one virtqueue whose bytes are being copied, in the
// order in which they were taken from it.
//
// Owned by the device's thread. A crew (copy_crew.h) copies in any order; a guest gets its buffers
// back, and a connection its bytes, in order: a step of the line is over when its copies and those
// of all before it are done. While it is in the line its guest memory and its conduit stay mapped.
// Bound: kCopyStepsMax.
#ifndef CONSORT_VMSOCK_VHOST_USER_COPY_LINE_H_
#define CONSORT_VMSOCK_VHOST_USER_COPY_LINE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/log.h"
#include "vmsock/vhost_user/limits.h"
#include "vmsock/vhost_user/virtqueue.h"

namespace consort::vhost_user {

class Connection;

// `Job` is a CopyJob (copy_crew.h) that can be cleared.
template <class Job>
struct CopyStep {
  Job job;
  // Whose bytes are copied; null: nobody's, or it has gone.
  Connection* connection = nullptr;
  uint64_t bytes = 0;
  // What the guest gets back then.
  std::vector<UsedChain> used;
};

template <class Job>
class CopyLine {
 public:
  using Step = CopyStep<Job>;

  bool empty() const { return begin_ == end_; }
  // No more packets may be taken; a step of those that were taken still fits.
  bool full() const { return end_ - begin_ >= kCopyStepsMax - 1; }

  // A step without copies, that is not in the line yet.
  Step& Make() {
    CHECK_LT(end_ - begin_, kCopyStepsMax);
    Step& step = *steps_[end_ % kCopyStepsMax];
    step.job.Clear();
    step.connection = nullptr;
    step.bytes = 0;
    step.used.clear();
    return step;
  }
  // Puts what was made last there.
  void Append() {
    ++end_;
    // The crew has read what the next one had.
    steps_[end_ % kCopyStepsMax]->job.PrefetchForNext();
  }
  // While not empty.
  Step& first() { return *steps_[begin_ % kCopyStepsMax]; }
  Step& last() { return *steps_[(end_ - 1) % kCopyStepsMax]; }
  void RemoveFirst() { ++begin_; }
  // All their jobs are done.
  void Clear() { begin_ = end_; }
  // From the first to the last.
  template <class Visit>
  void ForEach(const Visit& visit) {
    for (uint64_t i = begin_; i != end_; ++i) visit(*steps_[i % kCopyStepsMax]);
  }

  CopyLine() {
    for (auto& step : steps_) step = std::make_unique<Step>();
  }
  CopyLine(const CopyLine&) = delete;
  CopyLine& operator=(const CopyLine&) = delete;

 private:
  std::array<std::unique_ptr<Step>, kCopyStepsMax> steps_;
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
};

}  // namespace consort::vhost_user

#endif  // CONSORT_VMSOCK_VHOST_USER_COPY_LINE_H_
