// SPDX-License-Identifier: Apache-2.0
// tests/ptx/operand_values.h: the operands that an instance is run with, and what its results are
// worth.
//
// All values are bits in 64, whatever their type. Pure functions of the signature: every run, on
// every machine, has the same operands. Any thread.
#ifndef CONSORT_TESTS_PTX_OPERAND_VALUES_H_
#define CONSORT_TESTS_PTX_OPERAND_VALUES_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/ptx/instruction_rows.h"

namespace consort::ptx_suite {

// Threads of a block; tuples of operands come in whole blocks, so that every warp is whole.
inline constexpr uint32_t kBlockThreads = 128;

// Bits of the register that holds an operand of `type`; 1 for predicates.
uint32_t RegisterBits(std::string_view type);

// How many tuples of operands instances with these sources get.
uint32_t TupleCount(std::span<const Operand> sources);

// By source; of a source the values of tuple 0 first, `count` of them, then those of tuple 1.
using SourceValues = std::vector<std::vector<uint64_t>>;
SourceValues MakeValues(const Instance& instance);

// The result without what the ISA leaves open: the bits of NaNs and of what a tf32 has no room for.
uint64_t Canonical(std::string_view type, uint64_t bits);

// Parts of a value: two of packed halves, else one.
uint32_t Parts(std::string_view type);
// The number that a part of a floating point value is.
double Number(std::string_view type, uint64_t bits, uint32_t part);
// A unit in the last place of the part's type, at `value`.
double Ulp(std::string_view type, double value);
// The smallest normal and the largest number of the part's type.
double SmallestNormal(std::string_view type);
double Largest(std::string_view type);

}  // namespace consort::ptx_suite

#endif  // CONSORT_TESTS_PTX_OPERAND_VALUES_H_
