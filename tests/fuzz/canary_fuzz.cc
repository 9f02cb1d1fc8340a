// SPDX-License-Identifier: Apache-2.0
// tests/fuzz/canary_fuzz.cc: a small decoder with one planted bug that the fuzzing rig must find.
//
// ./dev fuzz fails when this program does NOT crash: then coverage feedback, the sanitizers or the
// runner do not work, and the other fuzzers' silence means nothing. The bug is behind three
// conditions that random bytes without coverage feedback practically never meet together, and only
// AddressSanitizer sees it.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

namespace consort {
namespace {

constexpr uint8_t kTag[] = {'C', 'S', 'T', '1'};
constexpr size_t kFieldBytesMax = 8;

// A record by offset: 0 tag[4], 4 kind u8, 5 field_bytes u8, 6 field[field_bytes]. Returns the sum
// of the field.
uint32_t DecodeRecord(const uint8_t* data, size_t bytes) {
  if (bytes < 6 || std::memcmp(data, kTag, sizeof(kTag)) != 0) return 0;
  const uint8_t kind = data[4];
  const size_t field_bytes = data[5];
  if (bytes - 6 < field_bytes) return 0;
  // The planted bug: kind 7 skips the check of the bound.
  if (kind != 7 && field_bytes > kFieldBytesMax) return 0;
  auto field = std::make_unique<uint8_t[]>(kFieldBytesMax);
  std::memcpy(field.get(), data + 6, field_bytes);
  uint32_t sum = 0;
  for (size_t i = 0; i < kFieldBytesMax; ++i) sum += field[i];
  return sum;
}

}  // namespace
}  // namespace consort

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  // A result that is used, so that the compiler keeps the decoder.
  return consort::DecodeRecord(data, bytes) == UINT32_MAX ? -1 : 0;
}
