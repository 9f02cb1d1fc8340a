// SPDX-License-Identifier: Apache-2.0
// tests/ptx/kernel_text.h: PTX of the kernel that runs instances with their operands. Pure; any
// thread.
#ifndef CONSORT_TESTS_PTX_KERNEL_TEXT_H_
#define CONSORT_TESTS_PTX_KERNEL_TEXT_H_

#include <cstddef>
#include <span>
#include <string>

#include "tests/ptx/instruction_rows.h"

namespace consort::ptx_suite {

// Of this thread in global and in shared memory, for instances that name it.
inline constexpr size_t kThreadBytes = 256;

// A module with the kernel `run(in, out, memory)`, one thread a tuple of operands. `in` holds u64
// values: those of the first source for all tuples, then the second's (SourceValues). `out` gets
// those of the first instance's result, `count` a tuple, then the second's. `memory` is
// kThreadBytes a thread. Where instances use images (images.h), their handles follow as another
// array, in the order of ImagesOf. All instances have the same signature.
std::string KernelText(std::span<const Instance> instances);

// The instance as a block `{...}` that declares what it names and may stand in any body.
std::string BlockText(const Instance& instance);

}  // namespace consort::ptx_suite

#endif  // CONSORT_TESTS_PTX_KERNEL_TEXT_H_
