// SPDX-License-Identifier: Apache-2.0
#include "policies/placement/sensitivity.h"

#include <algorithm>

namespace consort::placement {

double SensitivityMeter::OfBin(Nanos interval) const {
  const double seconds = static_cast<double>(interval) / kSecond;
  const double delay = static_cast<double>(network_.round_trip) / kSecond;
  return static_cast<double>(bytes_) / seconds / network_.bandwidth +
         static_cast<double>(blocking_calls_) * delay / seconds;
}

void SensitivityMeter::Add(Bytes bytes, uint64_t blocking_calls, Nanos now) {
  if (now - bin_begin_ >= kBin) {
    const Nanos closed = (now - bin_begin_) / kBin;
    // What the open bin holds belongs to the first of these; the others were empty.
    sum_ += OfBin(kBin);
    bins_ += static_cast<uint64_t>(closed);
    bin_begin_ += closed * kBin;
    bytes_ = 0;
    blocking_calls_ = 0;
  }
  bytes_ += bytes;
  blocking_calls_ += blocking_calls;
}

double SensitivityMeter::Value(Nanos now) const {
  const Nanos open = now - bin_begin_;
  if (open < kBin) {
    if (bins_ != 0) return sum_ / static_cast<double>(bins_);
    return open > 0 ? OfBin(open) : 0;
  }
  return (sum_ + OfBin(kBin)) / static_cast<double>(bins_ + static_cast<uint64_t>(open / kBin));
}

}  // namespace consort::placement
