// SPDX-License-Identifier: Apache-2.0
// tests/ptx/effect_rows.h: rows of the instructions that do something rather than give a value:
// memory, control, waiting, whole matrices. Their results are what is in memory, or was read,
// afterwards. Immutable; any thread.
#ifndef CONSORT_TESTS_PTX_EFFECT_ROWS_H_
#define CONSORT_TESTS_PTX_EFFECT_ROWS_H_

#include <span>
#include <string_view>

#include "tests/ptx/instruction_rows.h"

namespace consort::ptx_suite {

std::span<const Row> EffectRows();

// The words of the list of this name, separated by |; `name` itself if there is none.
std::string_view NamedList(std::string_view name);

// The text that the word stands for; `word` itself if none.
std::string_view NamedText(std::string_view word);

}  // namespace consort::ptx_suite

#endif  // CONSORT_TESTS_PTX_EFFECT_ROWS_H_
