// SPDX-License-Identifier: Apache-2.0
// vmsock/wire/encoder.h: writes the body of a frame into memory that a channel has reserved.
//
// Each scalar takes 8 bytes; each byte string takes 8 bytes of length and its bytes padded to 8.
// The caller has reserved enough (the generated requests state their size); writing past the end is
// a bug and traps. Thread compatible. Needs no library.
#ifndef CONSORT_VMSOCK_WIRE_ENCODER_H_
#define CONSORT_VMSOCK_WIRE_ENCODER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace consort::wire {

// Bytes that `PutBytes` of `count` bytes takes.
constexpr uint64_t EncodedBytes(uint64_t count) { return 8 + ((count + 7) & ~uint64_t{7}); }

class Encoder {
 public:
  // Writes from `at` (8-aligned) up to `at + capacity`; borrows the memory.
  Encoder(std::byte* at, size_t capacity) : at_(at), end_(at + capacity) {}

  void PutU64(uint64_t value) { std::memcpy(Take(8), &value, 8); }
  void PutI64(int64_t value) { PutU64(static_cast<uint64_t>(value)); }
  void PutF32(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    PutU64(bits);
  }
  void PutBytes(const void* data, uint64_t count) {
    PutU64(count);
    std::byte* to = Take((count + 7) & ~uint64_t{7});
    if (count != 0) std::memcpy(to, data, count);
  }
  // As PutBytes, but the caller fills the returned `count` bytes itself.
  std::byte* PutBytesInPlace(uint64_t count) {
    PutU64(count);
    return Take((count + 7) & ~uint64_t{7});
  }

  // Where the next field would go: what has been written ends here.
  std::byte* at() const { return at_; }

 private:
  std::byte* Take(uint64_t bytes) {
    if (bytes > static_cast<uint64_t>(end_ - at_)) __builtin_trap();
    std::byte* here = at_;
    at_ += bytes;
    return here;
  }

  std::byte* at_;
  std::byte* end_;
};

}  // namespace consort::wire

#endif  // CONSORT_VMSOCK_WIRE_ENCODER_H_
