// SPDX-License-Identifier: Apache-2.0
// guest/calls/managed.cc: managed memory, for devices that share pages of the host with this
// process.
//
// There it is shared host memory (guest/shared_memory.h): program and kernels read and write the
// same pages, at any time, so nothing ever moves, and advice and prefetches have nothing to do. A
// GPU goes to its host for every access that its caches do not answer: right, and as slow as that.
// Which devices those are says the snapshot's CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, set in
// guest/runtime.cc. For others these calls are refused.
// Source: CUDA Driver API, Memory Management, Unified Addressing, Stream Management.
#include "gen/guest/calls.h"
#include "guest/call.h"
#include "guest/runtime.h"
#include "guest/shared_memory.h"
#include "guest/unsupported.h"

namespace consort::guest::calls {
namespace {

bool HasManagedMemory(const Device* device) {
  return device->snapshot.attributes[CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY] != 0;
}

// CUDA_SUCCESS if all of the range is managed memory.
CUresult CheckManaged(CUdeviceptr address, size_t bytes) {
  Allocation range;
  if (bytes == 0 || !GetRuntime()->allocations.Find(address, &range) || !IsManaged(range.kind) ||
      bytes > range.start + range.bytes - address) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

// Where memory may be wanted: the host or a device.
CUresult CheckLocation(const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return location.id >= 0 && location.id < static_cast<int>(GetRuntime()->device_count)
                 ? CUDA_SUCCESS
                 : CUDA_ERROR_INVALID_DEVICE;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

CUresult cuMemAllocManaged(CUdeviceptr* dptr, size_t bytesize, unsigned int flags) {
  if (dptr == nullptr || bytesize == 0 ||
      (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  if (CUresult result = RefuseUnsafeCall(); result != CUDA_SUCCESS) return result;
  Session* session = context->device->session;
  if (!HasManagedMemory(context->device) || !session->shares_memory()) {
    NoteUnsupported("cuMemAllocManaged", "managed memory of this device");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  Allocation allocation;
  allocation.bytes = bytesize;
  allocation.context_id = context->id;
  allocation.kind = MemoryKind::kManaged;
  allocation.flags = flags;
  if (CUresult result = AllocateSharedMemory(session, bytesize, CU_MEMHOSTALLOC_PORTABLE,
                                             &allocation.start, nullptr);
      result != CUDA_SUCCESS) {
    return result;
  }
  if (!GetRuntime()->allocations.Add(allocation)) return CUDA_ERROR_UNKNOWN;
  *dptr = allocation.start;
  return CUDA_SUCCESS;
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr devPtr, size_t count, CUmemLocation location,
                               unsigned int flags, CUstream hStream, DefaultStream default_stream) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  StreamRef stream;
  if (CUresult result = FindStream(hStream, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  if (CUresult result = CheckManaged(devPtr, count); result != CUDA_SUCCESS) return result;
  return CheckLocation(location);
}

CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice,
                        CUmemLocation location) {
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  if (CUresult result = CheckManaged(devPtr, count); result != CUDA_SUCCESS) return result;
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      return CUDA_SUCCESS;  // the location is ignored
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
      return CheckLocation(location);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuStreamAttachMemAsync(CUstream hStream, CUdeviceptr dptr, size_t length,
                                unsigned int flags, DefaultStream default_stream) {
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
    return CUDA_ERROR_INVALID_VALUE;
  StreamRef stream;
  if (CUresult result = FindStream(hStream, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  // All of an allocation, whose length may be left out.
  Allocation range;
  if (!GetRuntime()->allocations.Find(dptr, &range) || !IsManaged(range.kind) ||
      range.start != dptr || (length != 0 && length != range.bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Memory can belong to one stream, but not to the default stream, which stands for all.
  if (flags == CU_MEM_ATTACH_SINGLE && stream.id == kLegacyStreamId)
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

}  // namespace consort::guest::calls
