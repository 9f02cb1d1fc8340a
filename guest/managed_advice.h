// SPDX-License-Identifier: Apache-2.0
// guest/managed_advice.h: what the program has said of its managed memory, page by page: advice,
// and where it had pages prefetched to. Nothing moves because of it (guest/calls/managed.cc); it is
// kept to be told when the program asks. Thread safe. Source: CUDA Driver API, Unified Addressing,
// cuMemAdvise, cuMemRangeGetAttribute.
#ifndef CONSORT_GUEST_MANAGED_ADVICE_H_
#define CONSORT_GUEST_MANAGED_ADVICE_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "guest/mutex.h"

namespace consort::guest {

// Of a page. As it begins: nothing was said.
struct PageAdvice {
  bool read_mostly = false;
  bool accessed_by_host = false;
  uint64_t accessed_by = 0;       // devices, by ordinal
  CUmemLocation preferred = {};   // CU_MEM_LOCATION_TYPE_INVALID: none
  CUmemLocation prefetched = {};  // to where the latest prefetch was; likewise
};

class ManagedAdvice {
 public:
  constexpr ManagedAdvice() = default;

  // Calls change(PageAdvice*) for all pages of which the range has a byte, once for each stretch of
  // pages of which the same was said.
  template <class Change>
  void Apply(uint64_t start, uint64_t bytes, Change change) {
    MutexLock lock(&mutex_);
    Span pages = Pages(start, bytes);
    for (size_t i = Separate(pages); i < stretches_.size() && stretches_[i].pages.end <= pages.end;
         ++i) {
      change(&stretches_[i].advice);
    }
    Unite();
  }
  // Calls see(const PageAdvice&) likewise, at least once if `bytes` is not 0.
  template <class See>
  void Visit(uint64_t start, uint64_t bytes, See see) {
    MutexLock lock(&mutex_);
    Span pages = Pages(start, bytes);
    for (const Stretch& stretch : stretches_) {
      if (stretch.pages.end <= pages.start || stretch.pages.start >= pages.end) continue;
      if (stretch.pages.start > pages.start) see(PageAdvice{});
      see(stretch.advice);
      pages.start = stretch.pages.end;
    }
    if (pages.start < pages.end) see(PageAdvice{});
  }
  // The range is managed memory no more.
  void Forget(uint64_t start, uint64_t bytes);

 private:
  struct Span {
    uint64_t start;
    uint64_t end;
  };
  struct Stretch {
    Span pages;
    PageAdvice advice;
  };

  static Span Pages(uint64_t start, uint64_t bytes);
  // Makes `pages` consist of whole stretches, new ones where nothing was said. Index of the first.
  size_t Separate(const Span& pages);
  // Makes one of neighbours that say the same, and none of what says nothing.
  void Unite();

  Mutex mutex_;
  std::vector<Stretch> stretches_;  // ascending, disjoint; at most one a page
};

}  // namespace consort::guest

#endif  // CONSORT_GUEST_MANAGED_ADVICE_H_
