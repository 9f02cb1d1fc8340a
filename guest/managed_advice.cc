// SPDX-License-Identifier: Apache-2.0
#include "guest/managed_advice.h"

#include "guest/shared_pages.h"

namespace consort::guest {
namespace {

bool Same(const CUmemLocation& a, const CUmemLocation& b) {
  return a.type == b.type && a.id == b.id;
}

bool Same(const PageAdvice& a, const PageAdvice& b) {
  return a.read_mostly == b.read_mostly && a.accessed_by_host == b.accessed_by_host &&
         a.accessed_by == b.accessed_by && Same(a.preferred, b.preferred) &&
         Same(a.prefetched, b.prefetched);
}

}  // namespace

// "Rounded down and rounded up respectively to be aligned to CPU page size".
ManagedAdvice::Span ManagedAdvice::Pages(uint64_t start, uint64_t bytes) {
  return {start & ~(kPageBytes - 1), (start + bytes + kPageBytes - 1) & ~(kPageBytes - 1)};
}

size_t ManagedAdvice::Separate(const Span& pages) {
  for (const uint64_t cut : {pages.start, pages.end}) {
    for (size_t i = 0; i < stretches_.size(); ++i) {
      if (stretches_[i].pages.start >= cut || stretches_[i].pages.end <= cut) continue;
      Stretch second = stretches_[i];
      stretches_[i].pages.end = second.pages.start = cut;
      stretches_.insert(stretches_.begin() + i + 1, second);
      break;
    }
  }
  size_t first = 0;
  while (first < stretches_.size() && stretches_[first].pages.end <= pages.start) ++first;
  uint64_t at = pages.start;
  for (size_t i = first; at < pages.end; ++i) {
    const bool gap = i == stretches_.size() || stretches_[i].pages.start > at;
    if (gap) {
      const bool last = i == stretches_.size() || stretches_[i].pages.start > pages.end;
      const uint64_t end = last ? pages.end : stretches_[i].pages.start;
      stretches_.insert(stretches_.begin() + i, Stretch{{at, end}, {}});
    }
    at = stretches_[i].pages.end;
  }
  return first;
}

void ManagedAdvice::Unite() {
  size_t kept = 0;
  for (const Stretch& stretch : stretches_) {
    if (Same(stretch.advice, PageAdvice{})) continue;
    if (kept != 0 && stretches_[kept - 1].pages.end == stretch.pages.start &&
        Same(stretches_[kept - 1].advice, stretch.advice)) {
      stretches_[kept - 1].pages.end = stretch.pages.end;
    } else {
      stretches_[kept++] = stretch;
    }
  }
  stretches_.erase(stretches_.begin() + kept, stretches_.end());
}

void ManagedAdvice::Forget(uint64_t start, uint64_t bytes) {
  Apply(start, bytes, [](PageAdvice* advice) { *advice = {}; });
}

}  // namespace consort::guest
