// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/virtual_memory_api.cc: addresses and memory managed apart (cuMemAddressReserve
// ...).
//
// None of these needs a context.
#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "device/cpu/driver/limits.h"
#include "device/cpu/driver/state.h"

namespace consort::cpu {
namespace {

bool Granular(uint64_t value) { return value % kGranularity == 0; }

// The device that `location` names, or null.
Device* DeviceAt(State& state, const CUmemLocation& location) {
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE || location.id < 0 ||
      static_cast<size_t>(location.id) >= state.devices.size()) {
    return nullptr;
  }
  return state.devices[location.id].get();
}

// Checks `prop` and finds its device. Memory on the host and on NUMA nodes is not offered
// (attributes 141 to 145 are 0).
CUresult CheckProperties(State& state, const CUmemAllocationProp* prop, Device** device) {
  if (prop == nullptr || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return prop->location.type == CU_MEM_LOCATION_TYPE_HOST ||
                   prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
                   prop->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
               ? CUDA_ERROR_NOT_SUPPORTED
               : CUDA_ERROR_INVALID_VALUE;
  }
  *device = DeviceAt(state, prop->location);
  if (*device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE &&
      prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (prop->allocFlags.compressionType != CU_MEM_ALLOCATION_COMP_NONE) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

}  // namespace

}  // namespace consort::cpu

using consort::Bytes;
using namespace consort::cpu;  // the entry points are global: their prototypes are cuda.h's

extern "C" {

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop,
                                               CUmemAllocationGranularity_flags option) {
  return WithState([&](State& state) {
    Device* device = nullptr;
    if (granularity == nullptr || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
                                   option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult result = CheckProperties(state, prop, &device); result != CUDA_SUCCESS) {
      return result;
    }
    *granularity = kGranularity;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment,
                                     CUdeviceptr addr, unsigned long long flags) {
  return WithState([&](State& state) {
    const bool alignment_valid = (alignment & (alignment - 1)) == 0;  // 0: the default
    if (ptr == nullptr || size == 0 || !Granular(size) || !alignment_valid || flags != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    uintptr_t base = 0;
    const CUresult result =
        state.address_space.Reserve(size, std::max<Bytes>(alignment, kGranularity), addr, &base);
    if (result == CUDA_SUCCESS) *ptr = base;
    return result;
  });
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr ptr, size_t size) {
  return WithState([&](State& state) { return state.address_space.Unreserve(ptr, size); });
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                             const CUmemAllocationProp* prop, unsigned long long flags) {
  return WithState([&](State& state) {
    Device* device = nullptr;
    if (handle == nullptr || size == 0 || !Granular(size) || flags != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (const CUresult result = CheckProperties(state, prop, &device); result != CUDA_SUCCESS) {
      return result;
    }
    const bool exportable = prop->requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return state.physical_memory.Create(device, size, exportable, handle);
  });
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
  return WithState([&](State& state) {
    return state.physical_memory.Release(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult CUDAAPI cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
                          CUmemGenericAllocationHandle handle, unsigned long long flags) {
  return WithState([&](State& state) {
    if (size == 0 || !Granular(ptr) || !Granular(size) || flags != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (!Granular(offset)) return CUDA_ERROR_NOT_SUPPORTED;  // as NVIDIA's driver 580
    std::shared_ptr<PhysicalMemory> memory = state.physical_memory.Find(handle);
    if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return state.address_space.Map(ptr, size, offset, std::move(memory));
  });
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr ptr, size_t size) {
  return WithState([&](State& state) { return state.address_space.Unmap(ptr, size); });
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc,
                                size_t count) {
  return WithState([&](State& state) {
    if (desc == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
      const Device* device = DeviceAt(state, desc[i].location);
      if (device == nullptr) {
        return desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE ? CUDA_ERROR_INVALID_DEVICE
                                                                    : CUDA_ERROR_NOT_SUPPORTED;
      }
      if (desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
          desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
          desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      const CUresult result = state.address_space.SetAccess(ptr, size, *device, desc[i].flags);
      if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemExportToShareableHandle(void* shareableHandle,
                                              CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType handleType,
                                              unsigned long long flags) {
  return WithState([&](State& state) {
    if (shareableHandle == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    const std::shared_ptr<PhysicalMemory> memory = state.physical_memory.Find(handle);
    if (memory == nullptr || !memory->exportable()) return CUDA_ERROR_INVALID_VALUE;
    const int fd = fcntl(memory->fd(), F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    *static_cast<int*>(shareableHandle) = fd;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle,
                                                void* osHandle,
                                                CUmemAllocationHandleType shHandleType) {
  return WithState([&](State& state) {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
    const int fd = static_cast<int>(reinterpret_cast<intptr_t>(osHandle));
    return state.physical_memory.Import(state.devices, fd, handle);
  });
}

CUresult CUDAAPI cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
  return WithState([&](State& state) {
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const auto range = state.address_space.Find(reinterpret_cast<uintptr_t>(addr));
    if (!range.has_value() || range->physical == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *handle = state.physical_memory.Retain(range->physical);
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
