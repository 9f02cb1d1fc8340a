// SPDX-License-Identifier: Apache-2.0
// tests/programs/check.h: how a test program says what went wrong.
//
// The programs of this folder are ordinary CUDA programs: they know nothing of Consort, are built
// by plain nvcc, and run natively too. Each compares what the device computed with a reference
// computed by the CPU, prints "PASS" last and exits 0; or says what differs and exits 1. Everything
// here may be called from any host thread.
#ifndef TESTS_PROGRAMS_CHECK_H_
#define TESTS_PROGRAMS_CHECK_H_

#include <cuda_runtime.h>

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace programs {

// Prints the message and ends the process with status 1. Runs no exit handlers: other threads may
// be inside CUDA.
[[noreturn]] inline void Fail(const char* file, int line, const char* format, ...) {
  std::fflush(stdout);
  std::fprintf(stderr, "%s:%d: ", file, line);
  va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fprintf(stderr, "\nFAIL\n");
  std::fflush(stderr);
  std::_Exit(1);
}

inline void CheckResult(cudaError_t got, cudaError_t expected, const char* call, const char* file,
                        int line) {
  if (got == expected) return;
  Fail(file, line, "%s returned %s (%d, %s), expected %s (%d)", call, cudaGetErrorName(got),
       static_cast<int>(got), cudaGetErrorString(got), cudaGetErrorName(expected),
       static_cast<int>(expected));
}

// The same numbers on every machine (std::rand is not), 32 bits each. Source: Marsaglia, "Xorshift
// RNGs", 2003.
class Random {
 public:
  explicit Random(uint32_t seed) : state_(seed * 2654435761u + 1) {}
  uint32_t Next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 17;
    state_ ^= state_ << 5;
    return state_;
  }
  // In [low, high).
  float NextFloat(float low, float high) {
    return low + (high - low) * static_cast<float>(Next() >> 8) / 16777216.0f;
  }

 private:
  uint32_t state_;
};

inline int Pass() {
  std::printf("PASS\n");
  std::fflush(stdout);
  return 0;
}

}  // namespace programs

// The runtime call must succeed.
#define CUDA_OK(call) ::programs::CheckResult((call), cudaSuccess, #call, __FILE__, __LINE__)
// The runtime call must return exactly this error.
#define CUDA_ERROR_IS(call, expected) \
  ::programs::CheckResult((call), (expected), #call, __FILE__, __LINE__)
// The condition must hold; what follows is a printf message with the values.
#define EXPECT(condition, ...)                                                           \
  do {                                                                                   \
    if (!(condition)) ::programs::Fail(__FILE__, __LINE__, #condition ": " __VA_ARGS__); \
  } while (false)

#endif  // TESTS_PROGRAMS_CHECK_H_
