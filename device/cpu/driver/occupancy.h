// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/occupancy.h: how many blocks fit a multiprocessor of this shape of device.
//
// The CPU does not work in multiprocessors of 2048 threads, but programs size their grids by these
// answers, so they are those of the device that we claim to be. They also bound the grids of
// cooperative launches. Pure; any thread.
// Source: CUDA C++ Programming Guide, occupancy; register allocation in units of 256 a warp.
#ifndef CONSORT_DEVICE_CPU_DRIVER_OCCUPANCY_H_
#define CONSORT_DEVICE_CPU_DRIVER_OCCUPANCY_H_

#include <cstddef>
#include <cstdint>

#include "device/cpu/program.h"

namespace consort::cpu {

// Blocks of `threads` threads with `dynamic_shared_bytes` that fit a multiprocessor; 0 if none
// does.
int BlocksPerMultiprocessor(const KernelInfo& info, uint32_t threads, size_t dynamic_shared_bytes);

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_DRIVER_OCCUPANCY_H_
