// SPDX-License-Identifier: Apache-2.0
// tests/ptx/instruction_rows.h: which instructions are tested, with which operands.
//
// A row stands for many instances. In its code <a|b|c> is one of several texts and $1, $2, ... is
// what was chosen for the first, second, ... of them. Code without a `%` is an instruction's name,
// to which the operands are added; other code names them itself:
//
//   %d          the result; %d0 %d1 ... where the operand list says type*count
//   %a %b %c %e the sources; %a0 %a1 ... likewise
// {{a|b=>text}} is the text once for each of the two, which stands in it as #; one word may be the
// name of a list (effect_rows.cc). Words in capitals may stand for more (there, too). $1 and <> are
// chosen before.
//
//   %g %s %l    256 bytes of this thread in global, shared and local memory (64-bit addresses)
//   %n          those in shared memory of the thread whose number in the block differs by 64
//   %rw %rs     8 KiB of this warp in shared memory; the same, 16 bytes further in each lane
//   %i          where this thread's first source lies in global memory, for reading
//   %t %u .b32, %h %k .b16, %x %y .b64, %z %w .b128, %p %q .pred for use
//   %tuple      the number of this thread's operands
//   @NAME       a texture or surface (images.h)
//
// Operands are the type of the result and those of the sources, separated by blanks. $1 is what was
// chosen, T the last
// type in the name of the first instruction, S the one before it, W is T with twice the bits. Names
// that are no types are ranges: n8 (0 to 255), shift (mostly below 70), shuffle (the last operand
// of shfl), n1 (f32 from 1/2 to 2), f16x2i and the like (whole numbers up to 8), few:T (few
// different values, some warps agree), same:T (often the first source), at:texels, at:parts,
// at:direction, at:face, at:index and at:layer (coordinates of images, images.h; beside a
// coordinate of 2 or -2, two at:face are a point of a face, in steps of 1/256 of a texel).
// Immutable; any thread. Source: PTX ISA 9.0, 9.7 "Instructions".
#ifndef CONSORT_TESTS_PTX_INSTRUCTION_ROWS_H_
#define CONSORT_TESTS_PTX_INSTRUCTION_ROWS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace consort::ptx_suite {

// Results of approximate instructions may differ from the reference by so much.
struct Approximation {
  // Of the sources' values; computed in double.
  double (*reference)(const double* sources);
  double absolute = 0;  // error
  double relative = 0;  // error, in parts of the reference
  double ulps = 0;      // in units in the last place of the result's type
  // Whether the documented bound holds for these sources; null: for all.
  bool (*holds)(const double* sources) = nullptr;
  bool flushes = false;  // subnormal sources count, and results may come, as zeros
};

struct Row {
  std::string_view code;
  std::string_view operands;
  // The sources, as bits, for which the result is defined; null: for all.
  bool (*defined)(const uint64_t* sources) = nullptr;
  // Null: each bit of the result is given, but for the bits of NaNs.
  const Approximation* approximation = nullptr;
};

struct Operand {
  std::string type;
  uint32_t count = 1;
};

// One instruction with one choice of everything.
struct Instance {
  std::string name;  // as in the table, after the choices
  std::string code;  // statements, complete
  Operand result;
  std::vector<Operand> sources;
  const Row* row = nullptr;

  // Whether threads may end in it, so that no other instance can follow in the same kernel.
  bool EndsThreads() const;
  // "u32 u32 u32": instances of one signature share operands.
  std::string Signature() const;
};

// The instances of a row, which they keep a pointer to.
std::vector<Instance> InstancesOf(const Row& row);

// All instances of all rows of the table, in order.
std::vector<Instance> Instances();

}  // namespace consort::ptx_suite

#endif  // CONSORT_TESTS_PTX_INSTRUCTION_ROWS_H_
