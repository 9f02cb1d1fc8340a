// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/memory_api.cc: device allocations and pinned host memory.
#include <sys/mman.h>

#include <utility>

#include "device/cpu/driver/limits.h"
#include "device/cpu/driver/state.h"

namespace consort::cpu {
namespace {

constexpr unsigned int kHostAllocFlagsKnown =
    CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
constexpr unsigned int kHostRegisterFlagsKnown =
    CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY |
    CU_MEMHOSTREGISTER_READ_ONLY;

CUresult AllocateHost(void** out, size_t bytes, unsigned int flags) {
  return WithContext([&](State& state, const std::shared_ptr<Context>& context) {
    if (out == nullptr || bytes == 0 || (flags & ~kHostAllocFlagsKnown) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    uintptr_t base = 0;
    const CUresult result = state.address_space.AllocateHost(*context, bytes, flags, &base);
    if (result == CUDA_SUCCESS) *out = reinterpret_cast<void*>(base);
    return result;
  });
}

// True if every page of the range is mapped. Source: msync(2), ENOMEM.
bool Mapped(uintptr_t base, Bytes bytes) {
  const uintptr_t start = base / kAllocationUnit * kAllocationUnit;
  const uintptr_t end = AlignUp(base + bytes, kAllocationUnit);
  return end > start && msync(reinterpret_cast<void*>(start), end - start, MS_ASYNC) == 0;
}

}  // namespace

}  // namespace consort::cpu

using consort::AlignUp;
using consort::Bytes;
using namespace consort::cpu;  // the entry points are global: their prototypes are cuda.h's

extern "C" {

CUresult CUDAAPI cuMemGetInfo_v2(size_t* free, size_t* total) {
  return WithContext([&](State&, const std::shared_ptr<Context>& context) {
    if (free != nullptr) *free = context->device().free_bytes();
    if (total != nullptr) *total = context->device().memory_bytes();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytesize) {
  return WithContext([&](State& state, const std::shared_ptr<Context>& context) {
    if (dptr == nullptr || bytesize == 0) return CUDA_ERROR_INVALID_VALUE;
    uintptr_t base = 0;
    const CUresult result = state.address_space.Allocate(*context, bytesize, &base);
    if (result == CUDA_SUCCESS) *dptr = base;
    return result;
  });
}

CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr* dptr, size_t* pPitch, size_t WidthInBytes,
                                    size_t Height, unsigned int ElementSizeBytes) {
  return WithContext([&](State& state, const std::shared_ptr<Context>& context) {
    const bool element_valid =
        ElementSizeBytes == 4 || ElementSizeBytes == 8 || ElementSizeBytes == 16;
    if (dptr == nullptr || pPitch == nullptr || WidthInBytes == 0 || Height == 0 ||
        !element_valid || WidthInBytes > kPitchMax) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const Bytes pitch = AlignUp(WidthInBytes, kPitchAlignment);
    Bytes bytes = 0;
    if (__builtin_mul_overflow(pitch, Height, &bytes)) return CUDA_ERROR_INVALID_VALUE;
    uintptr_t base = 0;
    const CUresult result = state.address_space.Allocate(*context, bytes, &base);
    if (result != CUDA_SUCCESS) return result;
    *dptr = base;
    *pPitch = pitch;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemFree_v2(CUdeviceptr dptr) {
  return WithContext([&](State& state, const std::shared_ptr<Context>& context) {
    if (dptr == 0) return CUDA_SUCCESS;
    const auto range = state.address_space.Find(dptr);
    if (!range.has_value() || range->base != dptr || range->kind != RangeKind::kDevice) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    // Work in flight may use it; CUDA's free waits for the context too.
    if (const CUresult error = context->Synchronize(); error != CUDA_SUCCESS) return error;
    return state.address_space.Remove(dptr, RangeKind::kDevice) ? CUDA_SUCCESS
                                                                : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr* pbase, size_t* psize, CUdeviceptr dptr) {
  return WithContext([&](State& state, const std::shared_ptr<Context>&) {
    const auto range = state.address_space.Find(dptr);
    if (!range.has_value()) return CUDA_ERROR_NOT_FOUND;
    if (pbase != nullptr) *pbase = range->base;
    if (psize != nullptr) *psize = range->bytes;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemHostAlloc(void** pp, size_t bytesize, unsigned int Flags) {
  return AllocateHost(pp, bytesize, Flags);
}

CUresult CUDAAPI cuMemAllocHost_v2(void** pp, size_t bytesize) {
  return AllocateHost(pp, bytesize, 0);
}

CUresult CUDAAPI cuMemFreeHost(void* p) {
  return WithContext([&](State& state, const std::shared_ptr<Context>& context) {
    if (p == nullptr) return CUDA_SUCCESS;
    const uintptr_t base = reinterpret_cast<uintptr_t>(p);
    const auto range = state.address_space.Find(base);
    if (!range.has_value() || range->base != base || range->kind != RangeKind::kHost) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult error = context->Synchronize(); error != CUDA_SUCCESS) return error;
    return state.address_space.Remove(base, RangeKind::kHost) ? CUDA_SUCCESS
                                                              : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult CUDAAPI cuMemHostRegister_v2(void* p, size_t bytesize, unsigned int Flags) {
  return WithContext([&](State& state, const std::shared_ptr<Context>& context) {
    if (p == nullptr || bytesize == 0 || (Flags & ~kHostRegisterFlagsKnown) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if ((Flags & CU_MEMHOSTREGISTER_IOMEMORY) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    Range range;
    range.base = reinterpret_cast<uintptr_t>(p);
    range.bytes = bytesize;
    if (range.base + range.bytes < range.base || !Mapped(range.base, range.bytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    range.kind = RangeKind::kRegistered;
    range.device = &context->device();
    range.context = context->handle();
    range.context_id = context->id();
    range.flags = Flags;
    range.writable = (Flags & CU_MEMHOSTREGISTER_READ_ONLY) == 0;
    return state.address_space.Enter(std::move(range));
  });
}

CUresult CUDAAPI cuMemHostUnregister(void* p) {
  return WithContext([&](State& state, const std::shared_ptr<Context>& context) {
    if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const uintptr_t base = reinterpret_cast<uintptr_t>(p);
    const auto range = state.address_space.Find(base);
    if (!range.has_value() || range->base != base || range->kind != RangeKind::kRegistered) {
      return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    }
    if (const CUresult error = context->Synchronize(); error != CUDA_SUCCESS) return error;
    return state.address_space.Remove(base, RangeKind::kRegistered)
               ? CUDA_SUCCESS
               : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  });
}

CUresult CUDAAPI cuMemHostGetDevicePointer_v2(CUdeviceptr* pdptr, void* p, unsigned int Flags) {
  return WithContext([&](State& state, const std::shared_ptr<Context>&) {
    if (pdptr == nullptr || Flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const uintptr_t address = reinterpret_cast<uintptr_t>(p);
    const auto range = state.address_space.Find(address);
    if (!range.has_value() || range->on_device()) return CUDA_ERROR_INVALID_VALUE;
    *pdptr = address;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemHostGetFlags(unsigned int* pFlags, void* p) {
  return WithContext([&](State& state, const std::shared_ptr<Context>&) {
    if (pFlags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto range = state.address_space.Find(reinterpret_cast<uintptr_t>(p));
    if (!range.has_value() || range->kind != RangeKind::kHost) return CUDA_ERROR_INVALID_VALUE;
    // With unified addressing all pinned memory is mapped and portable.
    *pFlags = range->flags | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE;
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
