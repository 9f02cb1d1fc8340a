// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/engine/mbarrier.h"

namespace consort::cpu {
namespace {

constexpr uint32_t kCountBits = 20;
constexpr uint64_t kCountMask = (1 << kCountBits) - 1;
constexpr uint32_t kBytesBits = 23;
constexpr uint64_t kBytesMask = (1 << kBytesBits) - 1;

}  // namespace

Mbarrier Mbarrier::Unpack(uint64_t word) {
  Mbarrier barrier;
  barrier.pending = static_cast<uint32_t>(word & kCountMask);
  barrier.expected = static_cast<uint32_t>(word >> kCountBits & kCountMask);
  // From 23 bits with a sign.
  const auto bytes = static_cast<uint32_t>(word >> (2 * kCountBits) & kBytesMask);
  barrier.bytes = static_cast<int32_t>(bytes << (32 - kBytesBits)) >> (32 - kBytesBits);
  barrier.parity = word >> 63 != 0;
  return barrier;
}

uint64_t Mbarrier::Pack() const {
  return (pending & kCountMask) | (expected & kCountMask) << kCountBits |
         (static_cast<uint64_t>(static_cast<uint32_t>(bytes)) & kBytesMask) << (2 * kCountBits) |
         uint64_t{parity} << 63;
}

void Mbarrier::Complete() {
  if (pending != 0 || bytes != 0) return;
  pending = expected;
  parity = !parity;
}

}  // namespace consort::cpu
