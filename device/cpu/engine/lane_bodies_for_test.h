// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/lane_bodies_for_test.h: what one thread does, for a kernel (nvcc) and for the
// test's reference (the host's compiler) alike: control flow in which threads of a warp part.
#ifndef CONSORT_DEVICE_CPU_ENGINE_LANE_BODIES_FOR_TEST_H_
#define CONSORT_DEVICE_CPU_ENGINE_LANE_BODIES_FOR_TEST_H_

#include <cstdint>

#ifdef __CUDACC__
#define CONSORT_TEST_BODY __device__ __forceinline__
#else
#define CONSORT_TEST_BODY inline
#endif

// Breaks, continues and returns out of nested loops whose lengths differ between threads.
CONSORT_TEST_BODY uint32_t NestedLoops(uint32_t seed, uint32_t limit) {
  uint32_t sum = seed;
  for (uint32_t i = 0; i < seed % 13 + 1; ++i) {
    if ((sum ^ i) % 7 == 3) continue;
    for (uint32_t k = i; k < limit; ++k) {
      sum = sum * 1664525u + k;
      if (sum % 11 == 5) break;
      if (sum % 97 == 1) return sum ^ 0xABCD;
      for (uint32_t turns = 0; sum % 3 != 0 && turns < 50; ++turns) {
        sum += k + i + 1;
        if (sum % 5 == 0) {
          if (limit > 8) break;
          sum ^= 1;
        }
      }
    }
    sum += limit;
  }
  return sum;
}

// A state machine: a switch in a loop.
CONSORT_TEST_BODY uint32_t StateMachine(uint32_t seed) {
  uint32_t state = seed % 5;
  uint32_t value = seed;
  for (uint32_t steps = 0; steps < 40; ++steps) {
    switch (state) {
      case 0:
        value += 17;
        state = value % 3 + 1;
        break;
      case 1:
        value ^= value << 3;
        state = value & 4 ? 2 : 0;
        break;
      case 2:
        value = value / 3 + 5;
        if (value % 2 == 0) return value + steps;
        state = 4;
        break;
      case 3:
        value -= steps * 7;
        state = 1;
        break;
      default:
        value = (value >> 5) * 31 + seed;
        state = value % 4;
        break;
    }
  }
  return value;
}

// Division by what is zero in lanes that do not divide.
CONSORT_TEST_BODY int64_t GuardedDivision(int64_t a, int64_t b) {
  int64_t result = 0;
  if (b != 0 && !(b == -1 && a == INT64_MIN)) result = a / b + a % b;
  const auto a_low = static_cast<int32_t>(a);
  const auto b_low = static_cast<int32_t>(b);
  if (b_low > 1) result += a_low / b_low;
  return result;
}

// Arrays of a thread, indexed by what differs between threads.
CONSORT_TEST_BODY uint32_t LocalArrays(uint32_t seed) {
  uint32_t words[16];
  uint8_t bytes[32];
  for (uint32_t i = 0; i < 16; ++i) words[i] = seed * (i + 1);
  for (uint32_t i = 0; i < 32; ++i) bytes[i] = static_cast<uint8_t>(seed >> (i % 24));
  uint32_t at = seed % 16;
  uint32_t sum = 0;
  for (uint32_t i = 0; i < 20; ++i) {
    words[at] += bytes[(at + seed) % 32];
    bytes[words[at] % 32] ^= static_cast<uint8_t>(i);
    at = (words[at] ^ at) % 16;
    sum += words[at] + bytes[at];
  }
  return sum;
}

// Values of all widths in memory, at addresses that lanes count up, share, or scatter over.
struct Mixed {
  uint8_t byte;
  int16_t half;
  uint32_t word;
  uint64_t wide;
};
CONSORT_TEST_BODY Mixed MixedWidths(const Mixed* in, uint32_t count, uint32_t i) {
  Mixed out = in[i];
  const Mixed& other = in[(i * 7 + 3) % count];
  out.byte = static_cast<uint8_t>(out.byte + other.half);
  if (other.byte & 1) {
    out.half = static_cast<int16_t>(out.half - other.byte);
  } else {
    out.wide ^= uint64_t{other.word} << (i % 33);
  }
  out.word += in[0].word + static_cast<uint32_t>(other.wide >> 40);
  return out;
}

#endif  // CONSORT_DEVICE_CPU_ENGINE_LANE_BODIES_FOR_TEST_H_
