// SPDX-License-Identifier: Apache-2.0
// vmsock/wire/decoder.h: the only parser of bytes from the other side.
//
// A cursor over one frame's body with a sticky error: after the first field that does not fit,
// every further field reads as zero or empty and ok() is false for good. So a caller decodes all
// fields and asks once. Never reads outside the body, never allocates. Thread compatible. Needs no
// library.
#ifndef CONSORT_VMSOCK_WIRE_DECODER_H_
#define CONSORT_VMSOCK_WIRE_DECODER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace consort::wire {

class Decoder {
 public:
  // Reads `body`, which is borrowed and must not change meanwhile (shared memory: see channel.h).
  explicit Decoder(std::span<const std::byte> body)
      : at_(body.data()), end_(body.data() + body.size()) {}

  uint64_t U64() {
    if (!ok_ || end_ - at_ < 8) return Fail();
    uint64_t value;
    std::memcpy(&value, at_, 8);
    at_ += 8;
    return value;
  }
  // A scalar that must fit 32 bits, unsigned or sign-extended; anything else is an error.
  uint32_t U32() {
    const uint64_t value = U64();
    if (value > UINT32_MAX) return static_cast<uint32_t>(Fail());
    return static_cast<uint32_t>(value);
  }
  int32_t I32() {
    const int64_t value = static_cast<int64_t>(U64());
    if (value < INT32_MIN || value > INT32_MAX) return static_cast<int32_t>(Fail());
    return static_cast<int32_t>(value);
  }
  float F32() {
    const uint32_t bits = U32();
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  // The next `bytes` of scalars at once, for the ...At functions; null: the body ends before.
  const std::byte* Scalars(size_t bytes) {
    if (!ok_ || static_cast<size_t>(end_ - at_) < bytes) {
      ok_ = false;
      return nullptr;
    }
    const std::byte* const scalars = at_;
    at_ += bytes;
    return scalars;
  }
  static uint64_t U64At(const std::byte* scalar) {
    uint64_t value;
    std::memcpy(&value, scalar, 8);
    return value;
  }
  // As U32, I32 and F32.
  uint32_t U32At(const std::byte* scalar) {
    const uint64_t value = U64At(scalar);
    ok_ &= value <= UINT32_MAX;
    return static_cast<uint32_t>(value);
  }
  int32_t I32At(const std::byte* scalar) {
    const auto value = static_cast<int64_t>(U64At(scalar));
    ok_ &= value >= INT32_MIN && value <= INT32_MAX;
    return static_cast<int32_t>(value);
  }
  float F32At(const std::byte* scalar) {
    const uint32_t bits = U32At(scalar);
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  // A byte string; the span points into the body.
  std::span<const std::byte> Bytes() {
    const uint64_t count = U64();
    // Compared before rounding up, so that a count near 2^64 cannot wrap.
    if (!ok_ || count > static_cast<uint64_t>(end_ - at_)) return FailBytes();
    const uint64_t padded = (count + 7) & ~uint64_t{7};
    if (padded > static_cast<uint64_t>(end_ - at_)) return FailBytes();
    std::span<const std::byte> bytes(at_, count);
    at_ += padded;
    return bytes;
  }

  bool ok() const { return ok_; }
  // Whether everything fitted and nothing but padding of less than 8 bytes is left.
  bool Done() const { return ok_ && end_ - at_ < 8; }

 private:
  uint64_t Fail() {
    ok_ = false;
    return 0;
  }
  std::span<const std::byte> FailBytes() {
    ok_ = false;
    return {};
  }

  const std::byte* at_;
  const std::byte* end_;
  bool ok_ = true;
};

}  // namespace consort::wire

#endif  // CONSORT_VMSOCK_WIRE_DECODER_H_
