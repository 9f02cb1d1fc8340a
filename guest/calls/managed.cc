// SPDX-License-Identifier: Apache-2.0
// guest/calls/managed.cc: managed memory, for devices that share pages of the host with this
// process.
//
// There it is shared host memory (guest/shared_memory.h): program and kernels read and write the
// same pages, at any time, so nothing ever moves. Advice and prefetches are noted
// (guest/managed_advice.h), for the program to read, and have nothing to do; discards neither. A
// GPU goes to its host for every access that its caches do not answer: right, and as slow as that.
// Which devices those are says the snapshot's CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, set in
// guest/runtime.cc. For others these calls are refused.
// Source: CUDA Driver API, Memory Management, Unified Addressing, Stream Management.
#include <sys/syscall.h>
#include <unistd.h>

#include "gen/guest/calls.h"
#include "guest/call.h"
#include "guest/host_reach.h"
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

// Where memory may be wanted: the host or a device. What depends on the calling thread becomes what
// it is now.
CUresult ResolveLocation(CUmemLocation* location) {
  switch (location->type) {
    case CU_MEM_LOCATION_TYPE_HOST:
      location->id = 0;  // "will be ignored"
      return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      return location->id >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: {
      unsigned node = 0;
      syscall(SYS_getcpu, nullptr, &node, nullptr);  // no glibc function at our floor
      location->type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
      location->id = static_cast<int>(node);
      return CUDA_SUCCESS;
    }
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return location->id >= 0 && location->id < static_cast<int>(GetRuntime()->device_count)
                 ? CUDA_SUCCESS
                 : CUDA_ERROR_INVALID_DEVICE;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// What a CUdevice is called where it may be the host.
CUmemLocation LocationOf(CUdevice device) {
  CUmemLocation location = {};
  location.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}

// The other way round; no location: CU_DEVICE_INVALID.
CUdevice DeviceOf(const CUmemLocation& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_INVALID) return CU_DEVICE_INVALID;
  return location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : CU_DEVICE_CPU;
}

void NotePrefetch(CUdeviceptr address, size_t bytes, const CUmemLocation& location) {
  GetRuntime()->managed_advice.Apply(address, bytes,
                                     [&](PageAdvice* advice) { advice->prefetched = location; });
}

// ---- Batches of ranges ----

struct RangeBatch {
  const CUdeviceptr* addresses;
  const size_t* sizes;
  size_t count;
};

// Errors of all batches. "All devices in the system must have a non-zero value for the device
// attribute CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS otherwise the API will return an error."
CUresult CheckRangeBatch(const char* call, const RangeBatch& batch, unsigned long long flags,
                         CUstream handle, DefaultStream default_stream) {
  Runtime* runtime = GetRuntime();
  StreamRef stream;
  if (CUresult result = FindStream(handle, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  for (int i = 0; i < static_cast<int>(runtime->device_count); ++i) {
    const wire::DeviceSnapshot& device = runtime->devices[i].snapshot;
    if (device.attributes[CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS] != 0) continue;
    NoteUnsupported(call, "devices without concurrent managed access");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  // "Must not be legacy NULL stream".
  if (stream.id == kLegacyStreamId || flags != 0 || batch.count == 0 ||
      batch.addresses == nullptr || batch.sizes == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < batch.count; ++i) {
    if (CUresult result = CheckManaged(batch.addresses[i], batch.sizes[i]); result != CUDA_SUCCESS)
      return result;
  }
  return CUDA_SUCCESS;
}

// Notes prefetches of the ranges of a batch that is right but for what says where to.
CUresult PrefetchBatch(const RangeBatch& batch, const CUmemLocation* locations,
                       const size_t* firsts, size_t location_count) {
  if (locations == nullptr || firsts == nullptr || location_count == 0 ||
      location_count > batch.count || firsts[0] != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (const bool note : {false, true}) {
    for (size_t i = 0; i < location_count; ++i) {
      const size_t end = i + 1 < location_count ? firsts[i + 1] : batch.count;
      if (firsts[i] >= end) return CUDA_ERROR_INVALID_VALUE;
      CUmemLocation location = locations[i];
      if (CUresult result = ResolveLocation(&location); result != CUDA_SUCCESS) return result;
      for (size_t k = firsts[i]; note && k < end; ++k)
        NotePrefetch(batch.addresses[k], batch.sizes[k], location);
    }
  }
  return CUDA_SUCCESS;
}

// ---- Attributes of ranges ----

// What is true of a location of all pages; of pages that differ, that there is none.
struct CommonLocation {
  CUmemLocation location = {};
  CUdevice device = CU_DEVICE_INVALID;  // nodes of the host count as the host

  void Add(const CUmemLocation& of_page, bool first) {
    if (first) {
      location = of_page;
      device = DeviceOf(of_page);
      return;
    }
    if (location.type != of_page.type || location.id != of_page.id) location = {};
    if (device != DeviceOf(of_page)) device = CU_DEVICE_INVALID;
  }
};

// What was said of all pages of a range.
struct RangeAdvice {
  bool read_mostly = true;
  bool accessed_by_host = true;
  uint64_t accessed_by = ~uint64_t{0};
  CommonLocation preferred;
  CommonLocation prefetched;
};

RangeAdvice AdviceOf(CUdeviceptr address, size_t bytes) {
  RangeAdvice all;
  bool first = true;
  GetRuntime()->managed_advice.Visit(address, bytes, [&](const PageAdvice& page) {
    all.read_mostly = all.read_mostly && page.read_mostly;
    all.accessed_by_host = all.accessed_by_host && page.accessed_by_host;
    all.accessed_by &= page.accessed_by;
    all.preferred.Add(page.preferred, first);
    all.prefetched.Add(page.prefetched, first);
    first = false;
  });
  return all;
}

CUresult CheckRangeAttribute(const void* data, size_t bytes, CUmem_range_attribute attribute) {
  static_assert(sizeof(CUmemLocationType) == sizeof(int));
  if (data == nullptr || attribute < CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY ||
      attribute > CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool right = attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY
                         ? bytes != 0 && bytes % sizeof(int) == 0
                         : bytes == sizeof(int);
  return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// `out` has room for `count` numbers: one, but for the list of devices.
void WriteRangeAttribute(const RangeAdvice& advice, CUmem_range_attribute attribute, int* out,
                         size_t count) {
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      *out = advice.read_mostly ? 1 : 0;
      return;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      *out = advice.preferred.device;
      return;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      *out = advice.prefetched.device;
      return;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      *out = advice.preferred.location.type;
      return;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      *out = advice.preferred.location.id;
      return;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      *out = advice.prefetched.location.type;
      return;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      *out = advice.prefetched.location.id;
      return;
    default:
      break;  // CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY
  }
  size_t next = 0;
  for (int device = 0; device < kDevicesMax && next < count; ++device) {
    if ((advice.accessed_by >> device & 1) != 0) out[next++] = device;
  }
  if (advice.accessed_by_host && next < count) out[next++] = CU_DEVICE_CPU;
  while (next < count) out[next++] = CU_DEVICE_INVALID;
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
  ShowHostMemory(allocation);
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
  if (CUresult result = ResolveLocation(&location); result != CUDA_SUCCESS) return result;
  NotePrefetch(devPtr, count, location);
  return CUDA_SUCCESS;
}

CUresult cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream,
                            DefaultStream default_stream) {
  return cuMemPrefetchAsync_v2(devPtr, count, LocationOf(dstDevice), 0, hStream, default_stream);
}

CUresult cuMemPrefetchBatchAsync(CUdeviceptr* dptrs, size_t* sizes, size_t count,
                                 CUmemLocation* prefetchLocs, size_t* prefetchLocIdxs,
                                 size_t numPrefetchLocs, unsigned long long flags, CUstream hStream,
                                 DefaultStream default_stream) {
  const RangeBatch batch = {dptrs, sizes, count};
  if (CUresult result =
          CheckRangeBatch("cuMemPrefetchBatchAsync", batch, flags, hStream, default_stream);
      result != CUDA_SUCCESS) {
    return result;
  }
  return PrefetchBatch(batch, prefetchLocs, prefetchLocIdxs, numPrefetchLocs);
}

CUresult cuMemDiscardBatchAsync(CUdeviceptr* dptrs, size_t* sizes, size_t count,
                                unsigned long long flags, CUstream hStream,
                                DefaultStream default_stream) {
  return CheckRangeBatch("cuMemDiscardBatchAsync", {dptrs, sizes, count}, flags, hStream,
                         default_stream);
}

CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr* dptrs, size_t* sizes, size_t count,
                                           CUmemLocation* prefetchLocs, size_t* prefetchLocIdxs,
                                           size_t numPrefetchLocs, unsigned long long flags,
                                           CUstream hStream, DefaultStream default_stream) {
  const RangeBatch batch = {dptrs, sizes, count};
  if (CUresult result = CheckRangeBatch("cuMemDiscardAndPrefetchBatchAsync", batch, flags, hStream,
                                        default_stream);
      result != CUDA_SUCCESS) {
    return result;
  }
  return PrefetchBatch(batch, prefetchLocs, prefetchLocIdxs, numPrefetchLocs);
}

CUresult cuMemAdvise_v2(CUdeviceptr devPtr, size_t count, CUmem_advise advice,
                        CUmemLocation location) {
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  if (CUresult result = CheckManaged(devPtr, count); result != CUDA_SUCCESS) return result;
  ManagedAdvice* pages = &GetRuntime()->managed_advice;
  // What is set or taken back. The location is ignored where it says nothing.
  const bool set = advice == CU_MEM_ADVISE_SET_READ_MOSTLY ||
                   advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ||
                   advice == CU_MEM_ADVISE_SET_ACCESSED_BY;
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
      pages->Apply(devPtr, count, [&](PageAdvice* page) { page->read_mostly = set; });
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
      if (CUresult result = ResolveLocation(&location); result != CUDA_SUCCESS) return result;
      pages->Apply(devPtr, count, [&](PageAdvice* page) { page->preferred = location; });
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      pages->Apply(devPtr, count, [&](PageAdvice* page) { page->preferred = {}; });
      return CUDA_SUCCESS;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY: {
      if (location.type == CU_MEM_LOCATION_TYPE_HOST) {
        pages->Apply(devPtr, count, [&](PageAdvice* page) { page->accessed_by_host = set; });
        return CUDA_SUCCESS;
      }
      // "All other location types are invalid."
      if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
      if (CUresult result = ResolveLocation(&location); result != CUDA_SUCCESS) return result;
      const uint64_t bit = uint64_t{1} << location.id;
      pages->Apply(devPtr, count, [&](PageAdvice* page) {
        page->accessed_by = set ? page->accessed_by | bit : page->accessed_by & ~bit;
      });
      return CUDA_SUCCESS;
    }
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device) {
  return calls::cuMemAdvise_v2(devPtr, count, advice, LocationOf(device));
}

CUresult cuMemRangeGetAttribute(void* data, size_t dataSize, CUmem_range_attribute attribute,
                                CUdeviceptr devPtr, size_t count) {
  return calls::cuMemRangeGetAttributes(&data, &dataSize, &attribute, 1, devPtr, count);
}

CUresult cuMemRangeGetAttributes(void** data, size_t* dataSizes, CUmem_range_attribute* attributes,
                                 size_t numAttributes, CUdeviceptr devPtr, size_t count) {
  if (data == nullptr || dataSizes == nullptr || attributes == nullptr || numAttributes == 0)
    return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  if (CUresult result = CheckManaged(devPtr, count); result != CUDA_SUCCESS) return result;
  for (size_t i = 0; i < numAttributes; ++i) {
    if (CUresult result = CheckRangeAttribute(data[i], dataSizes[i], attributes[i]);
        result != CUDA_SUCCESS) {
      return result;
    }
  }
  const RangeAdvice advice = AdviceOf(devPtr, count);
  for (size_t i = 0; i < numAttributes; ++i) {
    WriteRangeAttribute(advice, attributes[i], static_cast<int*>(data[i]),
                        dataSizes[i] / sizeof(int));
  }
  return CUDA_SUCCESS;
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
