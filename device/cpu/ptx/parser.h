// SPDX-License-Identifier: Apache-2.0
// device/cpu/ptx/parser.h: PTX text to a Module.
//
// Safe on any input: time and memory are linear in the text, nesting is bounded. Any thread.
// Source: PTX ISA 9.0, 4 "Syntax", 11 "Directives".
#ifndef CONSORT_DEVICE_CPU_PTX_PARSER_H_
#define CONSORT_DEVICE_CPU_PTX_PARSER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "device/cpu/ptx/ast.h"

namespace consort::cpu::ptx {

// The largest PTX of NVIDIA's libraries is some tens of MB; an AST is about ten times its text.
inline constexpr size_t kPtxBytesMax = size_t{256} << 20;
// nvcc nests one block per call sequence inside the body; inline assembler adds one or two.
inline constexpr int kNestingMax = 64;
// Larger than the memory of any GPU; keeps sums of sizes inside 64 bits.
inline constexpr uint64_t kVariableBytesMax = uint64_t{1} << 40;
// The ISA asks for 4096 of a kernel; call sequences of a function stay below that as well.
inline constexpr uint64_t kParamBytesMax = 32768;
// A thread has at most 512 KiB of local memory (CUDA C++ Programming Guide, compute capabilities).
inline constexpr uint64_t kLocalBytesMax = 512 * 1024;
inline constexpr uint32_t kRegistersPerFamilyMax = 1u << 24;
inline constexpr uint32_t kAlignMax = 1u << 16;

// Parses `text`, which may end in NULs and may lack .version, .target and .address_size.
// kInvalidArgument: not PTX; kUnimplemented: a directive that this device does not know;
// kResourceExhausted: over a bound. Messages begin "line N: ".
absl::StatusOr<std::unique_ptr<Module>> ParsePtx(std::string text);

}  // namespace consort::cpu::ptx

#endif  // CONSORT_DEVICE_CPU_PTX_PARSER_H_
