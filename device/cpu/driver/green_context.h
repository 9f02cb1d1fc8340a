// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/green_context.h: streams whose kernels use some of the cores.
//
// A multiprocessor of this device is a core. A green context bounds on how many of them a launch
// runs at a time; which those are is the operating system's choice, so that contexts of disjoint
// resources do not slow each other down while there are cores for all of them, but are not tied to
// cores. Immutable. Source: CUDA driver API, Green Contexts.
#ifndef CONSORT_DEVICE_CPU_DRIVER_GREEN_CONTEXT_H_
#define CONSORT_DEVICE_CPU_DRIVER_GREEN_CONTEXT_H_

#include <memory>

#include "device/cpu/driver/context.h"
#include "device/cpu/driver/cuda_api.h"

namespace consort::cpu {

struct GreenContext {
  CUdevice device = 0;
  std::shared_ptr<Context> primary;
  unsigned int multiprocessors = 0;
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_DRIVER_GREEN_CONTEXT_H_
