// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/matrix_lanes.h: products of matrices on a CPU with AVX-512.
//
// Pure; any thread. The bits of the results are those of MultiplyPlainly (matrix.h): sums are made
// in the same order.
#ifndef CONSORT_DEVICE_CPU_ENGINE_MATRIX_LANES_H_
#define CONSORT_DEVICE_CPU_ENGINE_MATRIX_LANES_H_

#include "device/cpu/engine/matrix.h"

namespace consort::cpu {

// False, and nothing was done, if the CPU is another one or it is a kind of product that is made
// plainly: of elements of less than a byte.
bool MultiplyByLanes(const MatrixOperation& operation, WarpMatrices& warp);

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_ENGINE_MATRIX_LANES_H_
