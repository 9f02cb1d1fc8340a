// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/cuda_api.h: cuda.h under the names that the driver library really exports.
//
// With the header's internal-version macro no name is redefined (cuMemAlloc_v2 is declared and
// stays itself), and every definition is checked against its prototype. The prototypes are made
// visible: everything else in the library is hidden.
#ifndef CONSORT_DEVICE_CPU_DRIVER_CUDA_API_H_
#define CONSORT_DEVICE_CPU_DRIVER_CUDA_API_H_

#define __CUDA_API_VERSION_INTERNAL
#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

#endif  // CONSORT_DEVICE_CPU_DRIVER_CUDA_API_H_
