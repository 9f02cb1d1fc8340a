// SPDX-License-Identifier: Apache-2.0
// guest/jit_options.h: the options that programs give to the compiler and the linker: some are for
// the host's driver, and some say where in this process its answers go.
//
// Plain state; used by the thread of the call. Source: CUDA Driver API, CUjit_option.
#ifndef CONSORT_GUEST_JIT_OPTIONS_H_
#define CONSORT_GUEST_JIT_OPTIONS_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace consort::guest {

// A buffer of the program for text, and the option value that has its size before and the text's
// after.
struct JitLog {
  char* buffer = nullptr;
  void** bytes = nullptr;
  uint32_t capacity = 0;

  bool wanted() const { return buffer != nullptr && bytes != nullptr && capacity != 0; }
  // What the host may answer with.
  uint32_t reply_bytes() const;
  // Writes as much of `text` as fits, a NUL, and the length.
  void Deliver(std::span<const std::byte> text) const;
};

struct JitOptions {
  std::vector<std::byte> forwarded;  // u32 number, u64 value, packed
  JitLog info_log;
  JitLog error_log;
  void** wall_time = nullptr;  // null: not asked for

  // Writes a float where the program has the time.
  void DeliverWallTime(float milliseconds) const;
};

// Sorts a program's options. Outputs go into `values` later. CUDA_ERROR_INVALID_VALUE: arrays
// missing.
CUresult ReadJitOptions(unsigned count, const CUjit_option* options, void** values,
                        JitOptions* sorted);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_JIT_OPTIONS_H_
