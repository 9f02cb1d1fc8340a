// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/device_printf.h: printf and assert of kernels.
//
// Runs on a kernel's fiber: text of the kernel is copied first, so that a bad pointer faults before
// any lock of the C library is held.
// Source: CUDA C++ Programming Guide, "Formatted Output" and "Assertion".
#ifndef CONSORT_DEVICE_CPU_ENGINE_DEVICE_PRINTF_H_
#define CONSORT_DEVICE_CPU_ENGINE_DEVICE_PRINTF_H_

#include <cstddef>
#include <cstdint>

#include "device/cpu/engine/thread_context.h"
#include "device/cpu/program.h"

namespace consort::cpu {

// The longest line of one printf call; what is beyond is cut.
inline constexpr size_t kPrintfBytesMax = 4096;

// `arguments` holds the values in order, each aligned to its size: 4 bytes for int, 8 for long
// long, double and pointers. Returns the number of arguments, -1 for a null format.
int DevicePrintf(const LaunchOutput& output, const char* format, const uint8_t* arguments);

// The line that CUDA prints for a failed assert, to stderr.
void PrintAssertFailure(const ThreadContext& context, const char* message, const char* file,
                        uint32_t line, const char* function);

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_ENGINE_DEVICE_PRINTF_H_
