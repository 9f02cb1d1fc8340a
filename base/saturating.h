// SPDX-License-Identifier: Apache-2.0
// base/saturating.h: sizes computed from numbers that nobody has checked. Results that do not fit
// stay at the largest or smallest value instead of wrapping, so that a check against a bound cannot
// be got round. Plain values; needs no library.
#ifndef CONSORT_BASE_SATURATING_H_
#define CONSORT_BASE_SATURATING_H_

#include <cstdint>

namespace consort {

class Saturating {
 public:
  constexpr Saturating(uint64_t value) : value_(value) {}  // NOLINT: numbers mix freely with it
  constexpr uint64_t value() const { return value_; }
  constexpr explicit operator bool() const { return value_ != 0; }

  friend constexpr Saturating operator+(Saturating a, Saturating b) {
    uint64_t sum = 0;
    return __builtin_add_overflow(a.value_, b.value_, &sum) ? UINT64_MAX : sum;
  }
  friend constexpr Saturating operator-(Saturating a, Saturating b) {
    return a.value_ > b.value_ ? a.value_ - b.value_ : 0;
  }
  friend constexpr Saturating operator*(Saturating a, Saturating b) {
    uint64_t product = 0;
    return __builtin_mul_overflow(a.value_, b.value_, &product) ? UINT64_MAX : product;
  }

 private:
  uint64_t value_;
};

}  // namespace consort

#endif  // CONSORT_BASE_SATURATING_H_
