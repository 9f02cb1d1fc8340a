// SPDX-License-Identifier: Apache-2.0
// tests/ptx/image_rows.h: rows of the instructions that read and write textures and surfaces.
// Immutable; any thread. Source: PTX ISA 9.0, 9.7.11 and 9.7.12.
#ifndef CONSORT_TESTS_PTX_IMAGE_ROWS_H_
#define CONSORT_TESTS_PTX_IMAGE_ROWS_H_

#include <span>

#include "tests/ptx/instruction_rows.h"

namespace consort::ptx_suite {

std::span<const Row> ImageRows();

}  // namespace consort::ptx_suite

#endif  // CONSORT_TESTS_PTX_IMAGE_ROWS_H_
