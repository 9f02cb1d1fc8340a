// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/copy.h: copies and fills of memory as operations in streams.
//
// Every address is checked against the address space when the call is made and again, piece by
// piece, when the operation runs; memory that has gone by then fails the context with
// CUDA_ERROR_ILLEGAL_ADDRESS and is not touched. Memory that the driver knows nothing of is the
// caller's, and is trusted.
#ifndef CONSORT_DEVICE_CPU_DRIVER_COPY_H_
#define CONSORT_DEVICE_CPU_DRIVER_COPY_H_

#include <cstdint>
#include <memory>

#include "base/units.h"
#include "device/cpu/driver/cuda_api.h"
#include "device/cpu/driver/state.h"

namespace consort::cpu {

// Rows of `width` bytes, `height` of them a slice, `depth` slices, each side with its own steps.
struct CopyShape {
  uintptr_t destination = 0;
  uintptr_t source = 0;
  Bytes width = 0;
  uint64_t height = 1;
  uint64_t depth = 1;
  Bytes destination_pitch = 0;
  Bytes destination_slice = 0;
  Bytes source_pitch = 0;
  Bytes source_slice = 0;
  // True where the address was named as a device's: the driver must know it.
  bool destination_device = false;
  bool source_device = false;
};

// Waits on the calling thread and copies. CUDA_ERROR_INVALID_VALUE: an address is not what it is
// said to be.
CUresult CopyNow(State& state, const std::shared_ptr<Stream>& stream, const CopyShape& shape);

// Copies in `stream`. A copy that touches pageable host memory is done, or its source taken, when
// this returns. Source: CUDA driver API, "API synchronization behavior".
CUresult CopyInStream(State& state, const std::shared_ptr<Stream>& stream, const CopyShape& shape);

// Elements of `element_bytes` (1, 2 or 4), `width` of them a row.
struct FillShape {
  uintptr_t destination = 0;
  uint32_t value = 0;
  Bytes element_bytes = 1;
  uint64_t width = 0;
  uint64_t height = 1;
  Bytes pitch = 0;
};

// CUDA_ERROR_INVALID_VALUE: not known memory, misaligned, or a pitch less than a row.
CUresult FillInStream(State& state, const std::shared_ptr<Stream>& stream, const FillShape& shape);
CUresult FillNow(State& state, const std::shared_ptr<Stream>& stream, const FillShape& shape);

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_DRIVER_COPY_H_
