// SPDX-License-Identifier: Apache-2.0
// tests/programs/mapped_memory.h: memory of a device that other processes may have, by the driver's
// calls for virtual memory. Source: CUDA driver API, Virtual Memory Management.
#ifndef TESTS_PROGRAMS_MAPPED_MEMORY_H_
#define TESTS_PROGRAMS_MAPPED_MEMORY_H_

#include <cuda.h>

#include <cstddef>
#include <vector>

#include "check.h"

#define DRIVER_OK(call) ::programs::DriverOk((call), #call, __FILE__, __LINE__)

namespace programs {

inline void DriverOk(CUresult result, const char* call, const char* file, int line) {
  const char* name = "?";
  if (result == CUDA_SUCCESS) return;
  cuGetErrorName(result, &name);
  Fail(file, line, "%s returned %s", call, name);
}

inline CUmemLocation Location(int device) {
  CUmemLocation location = {};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}

inline CUmemAllocationProp Shareable(int device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = Location(device);
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return properties;
}

// The least that is good to make and map.
inline size_t Granule() {
  const CUmemAllocationProp properties = Shareable(0);
  size_t bytes = 0;
  DRIVER_OK(
      cuMemGetAllocationGranularity(&bytes, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
  return bytes;
}

inline CUmemGenericAllocationHandle Create(int device, size_t bytes) {
  const CUmemAllocationProp properties = Shareable(device);
  CUmemGenericAllocationHandle memory = 0;
  DRIVER_OK(cuMemCreate(&memory, bytes, &properties, 0));
  return memory;
}

inline int Export(CUmemGenericAllocationHandle memory) {
  int descriptor = -1;
  DRIVER_OK(cuMemExportToShareableHandle(&descriptor, memory,
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  return descriptor;
}

inline CUmemGenericAllocationHandle Import(int descriptor) {
  CUmemGenericAllocationHandle memory = 0;
  DRIVER_OK(cuMemImportFromShareableHandle(
      &memory, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  return memory;
}

// Memory at an address of this process. To be moved from, not copied.
class Mapped {
 public:
  // `handles`, each of `bytes` (a multiple of Granule()), in a row, for the GPUs `devices`. Lets go
  // of the handles.
  Mapped(const std::vector<CUmemGenericAllocationHandle>& handles, size_t bytes,
         const std::vector<int>& devices)
      : bytes_(handles.size() * bytes) {
    DRIVER_OK(cuMemAddressReserve(&address_, bytes_, 0, 0, 0));
    for (size_t i = 0; i < handles.size(); ++i) {
      DRIVER_OK(cuMemMap(address_ + i * bytes, bytes, 0, handles[i], 0));
      DRIVER_OK(cuMemRelease(handles[i]));
    }
    std::vector<CUmemAccessDesc> access;
    for (const int device : devices) {
      access.push_back({Location(device), CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    }
    DRIVER_OK(cuMemSetAccess(address_, bytes_, access.data(), access.size()));
  }
  ~Mapped() {
    if (address_ == 0) return;
    DRIVER_OK(cuMemUnmap(address_, bytes_));
    DRIVER_OK(cuMemAddressFree(address_, bytes_));
  }
  Mapped(Mapped&& other) : bytes_(other.bytes_), address_(other.address_) { other.address_ = 0; }
  Mapped& operator=(Mapped&&) = delete;

  CUdeviceptr address() const { return address_; }
  size_t bytes() const { return bytes_; }

 private:
  const size_t bytes_;
  CUdeviceptr address_ = 0;
};

}  // namespace programs

#endif  // TESTS_PROGRAMS_MAPPED_MEMORY_H_
