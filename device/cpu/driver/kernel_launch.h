// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/kernel_launch.h: one launch of a kernel, checked and with its own copy of the
// parameters: work for a stream or for a node of a graph.
#ifndef CONSORT_DEVICE_CPU_DRIVER_KERNEL_LAUNCH_H_
#define CONSORT_DEVICE_CPU_DRIVER_KERNEL_LAUNCH_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "device/cpu/driver/context.h"
#include "device/cpu/driver/cuda_api.h"
#include "device/cpu/driver/module.h"
#include "device/cpu/program.h"

namespace consort::cpu {

struct State;

// As callers describe it, in either form that the parameters have.
// Source: CUDA driver API, cuLaunchKernel.
struct LaunchRequest {
  CUfunction function;
  LaunchShape shape;
  void** params;
  void** extra;
};

LaunchShape Shape(const unsigned int (&grid)[3], const unsigned int (&block)[3],
                  unsigned int shared_bytes);

// An Operation (stream.h).
struct KernelLaunch {
  Context* context = nullptr;  // which runs it, and so is there as long
  Kernel kernel;
  LaunchShape shape;
  std::vector<std::byte> packed;
  int multiprocessors = 0;  // 0: all
  LaunchOutput output;

  void operator()(CUresult status) const;
};

// Of a request in `context`, whose parameters are copied. CUDA_ERROR_INVALID_HANDLE: no such
// kernel there. CUDA_ERROR_INVALID_VALUE: a shape or parameters that do not fit it.
// CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE.
CUresult MakeLaunch(State& state, const std::shared_ptr<Context>& context,
                    const LaunchRequest& request, KernelLaunch* launch);

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_DRIVER_KERNEL_LAUNCH_H_
