// SPDX-License-Identifier: Apache-2.0
// vmsock/wire/decoder_fuzz.cc: walks a body by a script that is part of the input, without a
// schema.
//
//   byte 0      number of fields n
//   1 .. n      kind of each field, modulo 5: U64, U32, I32, F32, Bytes
//   the rest    the body
//
// Checks what every generated decoder relies on: nothing outside the body, errors are for good, and
// what was decoded, encoded again, gives the bytes that were read.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "vmsock/wire/decoder.h"
#include "vmsock/wire/encoder.h"

namespace {

void Require(bool condition) {
  if (!condition) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using consort::wire::Decoder;
  using consort::wire::Encoder;
  if (size == 0) return 0;
  const size_t fields = data[0] < size - 1 ? data[0] : size - 1;
  const uint8_t* const script = data + 1;
  // A copy of its own, so that the address sanitizer sees every step outside.
  const std::vector<std::byte> body(reinterpret_cast<const std::byte*>(script + fields),
                                    reinterpret_cast<const std::byte*>(data + size));
  std::vector<std::byte> again(body.size());
  Decoder decoder(body);
  Encoder encoder(again.data(), again.size());
  // Positions of padding, which need not be zero in the input.
  std::vector<std::pair<size_t, size_t>> padding;
  for (size_t index = 0; index < fields; ++index) {
    const bool was_ok = decoder.ok();
    uint64_t word = 0;
    switch (script[index] % 5) {
      case 0:
        word = decoder.U64();
        break;
      case 1:
        word = decoder.U32();
        break;
      case 2:
        word = static_cast<uint64_t>(static_cast<int64_t>(decoder.I32()));
        break;
      case 3: {
        const float value = decoder.F32();
        uint32_t bits;
        std::memcpy(&bits, &value, 4);
        word = bits;
        break;
      }
      default: {
        const std::span<const std::byte> bytes = decoder.Bytes();
        Require(decoder.ok() || bytes.empty());
        if (!decoder.ok()) break;
        Require(bytes.data() >= body.data() &&
                bytes.data() + bytes.size() <= body.data() + body.size());
        encoder.PutBytes(bytes.data(), bytes.size());
        const size_t end = static_cast<size_t>(encoder.at() - again.data());
        const size_t pad = (8 - bytes.size() % 8) % 8;
        if (pad != 0) padding.emplace_back(end - pad, pad);
        continue;
      }
    }
    Require(was_ok || !decoder.ok());
    if (!decoder.ok()) {
      Require(word == 0);
      break;
    }
    encoder.PutU64(word);
  }
  const size_t read = static_cast<size_t>(encoder.at() - again.data());
  for (const auto& [at, count] : padding) std::memcpy(&again[at], &body[at], count);
  Require(read == 0 || std::memcmp(again.data(), body.data(), read) == 0);
  if (decoder.ok()) Require(decoder.Done() == (body.size() - read < 8));
  return 0;
}
