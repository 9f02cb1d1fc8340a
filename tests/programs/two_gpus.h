// SPDX-License-Identifier: Apache-2.0
// tests/programs/two_gpus.h: whether there are two GPUs that can work on each other's memory.
#ifndef TESTS_PROGRAMS_TWO_GPUS_H_
#define TESTS_PROGRAMS_TWO_GPUS_H_

#include <cuda_runtime.h>

#include "check.h"

namespace programs {

enum class TwoGpus { kReachEachOther, kApart, kFewer };

// Of devices 0 and 1.
inline TwoGpus FindTwoGpus() {
  int count = 0;
  CUDA_OK(cudaGetDeviceCount(&count));
  if (count < 2) return TwoGpus::kFewer;
  int forth = 0, back = 0;
  CUDA_OK(cudaDeviceCanAccessPeer(&forth, 0, 1));
  CUDA_OK(cudaDeviceCanAccessPeer(&back, 1, 0));
  return forth != 0 && back != 0 ? TwoGpus::kReachEachOther : TwoGpus::kApart;
}

}  // namespace programs

#endif  // TESTS_PROGRAMS_TWO_GPUS_H_
