// SPDX-License-Identifier: Apache-2.0
// guest/calls/virtual_memory.cc: addresses and memory managed apart. The host checks and maps; what
// is kept here is what programs ask about: whose memory lies where, and who still holds it. Source:
// CUDA Driver API, Virtual Memory Management.
#include <unistd.h>

#include <vector>

#include "gen/guest/calls.h"
#include "guest/call.h"
#include "guest/host_memory.h"
#include "guest/peers.h"
#include "guest/runtime.h"
#include "guest/unsupported.h"

namespace consort::guest::calls {
namespace {

// What device memory comes in on every GPU that the host serves; the host refuses anything else.
constexpr uint64_t kGranularity = uint64_t{2} << 20;

// Where memory of the host is; which of its nodes is not told apart.
bool IsHost(CUmemLocationType type) {
  return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

// Memory on the device of `prop`, whose session is open.
CUresult FindPlace(const CUmemAllocationProp* prop, Device** device) {
  if (prop == nullptr || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  Runtime* runtime = GetRuntime();
  if (prop->location.id < 0 || prop->location.id >= runtime->device_count)
    return CUDA_ERROR_INVALID_DEVICE;
  *device = &runtime->devices[prop->location.id];
  CUresult result = CUDA_SUCCESS;
  return OpenDevice(*device, &result) != nullptr ? CUDA_SUCCESS : result;
}

bool IsMapping(MemoryKind kind) {
  return kind == MemoryKind::kVirtual || kind == MemoryKind::kVirtualHost;
}

PhysicalMemory* FindMemory(CUmemGenericAllocationHandle handle) {
  return GetRuntime()->physical_memory.Find(handle);
}

// The current context's device, or else the first; its session is open.
CUresult CurrentDevice(Device** device) {
  Context* context = nullptr;
  *device = CurrentContext(&context) == CUDA_SUCCESS ? context->device : &GetRuntime()->devices[0];
  CUresult result = CUDA_SUCCESS;
  return OpenDevice(*device, &result) != nullptr ? CUDA_SUCCESS : result;
}

CUresult CreateOnHost(uint64_t* handle, size_t size, const CUmemAllocationProp& prop) {
  Device* device = nullptr;
  if (CUresult result = CurrentDevice(&device); result != CUDA_SUCCESS) return result;
  if (!device->session->shares_files()) {
    NoteUnsupported("cuMemCreate", "memory of the host, which the device cannot reach here,");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const int file = MakeHostMemory(size);
  if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = GetRuntime()->physical_memory.Create([&](PhysicalMemory* memory, uint64_t new_id) {
    memory->id = new_id;
    memory->bytes = size;
    memory->holds = 1;
    memory->properties = prop;
    memory->file = file;
  });
  if (*handle != 0) return CUDA_SUCCESS;
  close(file);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

// Lets go of memory that neither a handle nor a mapping holds any more. memory_mutex held; nothing
// is waited for.
void DropIfUnused(PhysicalMemory* memory) {
  if (memory->holds != 0 || memory->mappings != 0) return;
  if (memory->file >= 0) {
    close(memory->file);
  } else {
    wire::MemoryReleaseRequest request;
    request.memory = memory->id;
    memory->device->session->Post(0, request);
    Runtime* runtime = GetRuntime();
    for (int i = 0; i < runtime->device_count; ++i) {
      if ((memory->known_on >> i & 1) != 0) runtime->devices[i].session->Post(0, request);
    }
  }
  GetRuntime()->physical_memory.Destroy(memory->id);
}

// Has the session of `device` know memory of another one. memory_mutex held.
CUresult MakeKnown(PhysicalMemory* memory, Device* device) {
  if (device == memory->device || (memory->known_on >> device->ordinal & 1) != 0)
    return CUDA_SUCCESS;
  if (!CanReachPeer(device, memory->device)) return CUDA_ERROR_INVALID_VALUE;
  wire::PhysicalMemoryShareRequest share;
  wire::PhysicalMemoryShareReply shared;
  share.memory = memory->id;
  if (CUresult result = memory->device->session->Ask(0, share, &shared); result != CUDA_SUCCESS)
    return result;
  wire::SharedMemoryImportRequest import;
  wire::SharedMemoryImportReply imported;
  import.memory = memory->id;
  import.session = shared.session;
  import.token_high = shared.token_high;
  import.token_low = shared.token_low;
  const CUresult result = device->session->Ask(0, import, &imported);
  if (result == CUDA_SUCCESS) {
    memory->known_on |= uint64_t{1} << device->ordinal;
    return CUDA_SUCCESS;
  }
  // It may be unknown because its owner has gone meanwhile, who says so.
  const CUresult owner = memory->device->session->Ask(0, share, &shared);
  return owner != CUDA_SUCCESS ? owner : result;
}

uint64_t Bit(const Device* device) { return uint64_t{1} << device->ordinal; }

// The mapping in the worker of `device`, at an address of `home`'s window: mapped, and the memory
// known there. memory_mutex held.
CUresult MapForPeer(const Allocation& mapping, Device* home, Device* device) {
  PhysicalMemory* memory = FindMemory(mapping.memory_id);
  if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (memory->device != device && !CanReachPeer(device, memory->device))
    return CUDA_ERROR_INVALID_DEVICE;
  CUresult result = KeepPeerAddresses(device, home);
  if (result == CUDA_ERROR_TOO_MANY_PEERS || result == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)
    return CUDA_ERROR_NOT_SUPPORTED;
  if (result != CUDA_SUCCESS) return result;
  if (result = MakeKnown(memory, device); result == CUDA_SUCCESS) {
    wire::VirtualMapRequest request;
    wire::EmptyReply reply;
    request.address = mapping.start;
    request.bytes = mapping.bytes;
    request.memory = memory->id;
    result = device->session->Ask(0, request, &reply);
  }
  if (result != CUDA_SUCCESS) LeavePeerAddresses(device, home);
  return result;
}

// The end of MapForPeer; the device is done with it.
void UnmapForPeer(const Allocation& mapping, Device* home, Device* device) {
  wire::VirtualUnmapRequest request;
  wire::EmptyReply reply;
  request.address = mapping.start;
  request.bytes = mapping.bytes;
  device->session->Ask(0, request, &reply);
  LeavePeerAddresses(device, home);
}

CUresult AskForAccess(const Device* device, uint64_t start, uint64_t bytes, uint32_t access) {
  wire::VirtualSetAccessRequest request;
  wire::EmptyReply reply;
  request.address = start;
  request.bytes = bytes;
  request.access = access;
  return device->session->Ask(0, request, &reply);
}

// Gives or takes access of a device whose window the mappings do not lie in. memory_mutex held.
// What was mapped once stays so until it is unmapped for all.
CUresult SetPeerAccess(const std::vector<Allocation>& mappings, Device* home, Device* device,
                       uint32_t access) {
  Allocations& allocations = GetRuntime()->allocations;
  const uint64_t bit = Bit(device);
  for (const Allocation& mapping : mappings) {
    const bool mapped = (mapping.mapped_by & bit) != 0;
    if (!mapped && access == CU_MEM_ACCESS_FLAGS_PROT_NONE) continue;
    CUresult result = mapped ? CUDA_SUCCESS : MapForPeer(mapping, home, device);
    if (result != CUDA_SUCCESS) return result;
    result = AskForAccess(device, mapping.start, mapping.bytes, access);
    if (result != CUDA_SUCCESS) {
      if (!mapped) UnmapForPeer(mapping, home, device);
      return result;
    }
    allocations.SetPeerAccess(mapping.start, mapping.bytes, bit, /*mapped=*/true, access);
  }
  return CUDA_SUCCESS;
}

CUresult FindAccessDevice(const CUmemAccessDesc& desc, Device** device) {
  Runtime* runtime = GetRuntime();
  if (desc.location.id < 0 || desc.location.id >= runtime->device_count)
    return CUDA_ERROR_INVALID_DEVICE;
  if (desc.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && desc.flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
      desc.flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *device = &runtime->devices[desc.location.id];
  return CUDA_SUCCESS;
}

// Ends what SetPeerAccess mapped. memory_mutex held. What fails is told to whoever asks there: it
// goes with that device's session.
void UnmapForPeers(const std::vector<Allocation>& mappings, Device* home) {
  Runtime* runtime = GetRuntime();
  for (const Allocation& mapping : mappings) {
    for (int i = 0; i < runtime->device_count; ++i) {
      Device* device = &runtime->devices[i];
      if ((mapping.mapped_by & Bit(device)) == 0) continue;
      UnmapForPeer(mapping, home, device);
      runtime->allocations.SetPeerAccess(mapping.start, mapping.bytes, Bit(device),
                                         /*mapped=*/false, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    }
  }
}

// Devices, by ordinal, that have mapped some of it, but for that of the window.
uint64_t MappedBy(const std::vector<Allocation>& mappings) {
  uint64_t mapped_by = 0;
  for (const Allocation& mapping : mappings) mapped_by |= mapping.mapped_by;
  return mapped_by;
}

// Whether `desc` is what memory of the host may be given at addresses of `device`: all, to the
// device and to the process.
bool IsHostAccess(const CUmemAccessDesc& desc, const Device* device) {
  const bool known =
      IsHost(desc.location.type) ||
      (desc.location.type == CU_MEM_LOCATION_TYPE_DEVICE && desc.location.id == device->ordinal);
  return known && desc.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

}  // namespace

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* prop,
                                       CUmemAllocationGranularity_flags option) {
  if (granularity == nullptr || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
                                 option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (prop == nullptr || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
    return CUDA_ERROR_INVALID_VALUE;
  if (!IsHost(prop->location.type)) {
    Device* device = nullptr;
    if (CUresult result = FindPlace(prop, &device); result != CUDA_SUCCESS) return result;
  }
  *granularity = kGranularity;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment, CUdeviceptr,
                             unsigned long long flags) {
  if (ptr == nullptr || size == 0 || size % kGranularity != 0 || flags != 0 ||
      (alignment & (alignment - 1)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Addresses belong to a device's window.
  Device* device = nullptr;
  CUresult result = CurrentDevice(&device);
  if (result != CUDA_SUCCESS) return result;
  {
    MutexLock lock(&GetRuntime()->memory_mutex);
    uint64_t address = 0;
    result = ReserveForHostMemory(device, size, alignment > kGranularity ? alignment : kGranularity,
                                  &address);
    if (result != CUDA_SUCCESS) return result;
    if (address != 0) {
      *ptr = address;
      return CUDA_SUCCESS;
    }
  }
  wire::VirtualReserveRequest request;
  wire::VirtualReserveReply reply;
  request.bytes = size;
  request.alignment = alignment;
  if (result = device->session->Ask(0, request, &reply); result != CUDA_SUCCESS) return result;
  *ptr = reply.address;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
  const Device* device = DeviceOfAddress(ptr);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  {
    MutexLock lock(&GetRuntime()->memory_mutex);
    HostReservation* reservation = FindHostReservation(ptr);
    if (reservation != nullptr) return FreeHostReservation(reservation, ptr, size);
  }
  wire::VirtualFreeRequest request;
  wire::EmptyReply reply;
  request.address = ptr;
  request.bytes = size;
  return device->session->Ask(0, request, &reply);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                     const CUmemAllocationProp* prop, unsigned long long flags) {
  if (handle == nullptr || size == 0 || size % kGranularity != 0 || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (prop != nullptr && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED && IsHost(prop->location.type))
    return CreateOnHost(reinterpret_cast<uint64_t*>(handle), size, *prop);
  Device* device = nullptr;
  if (CUresult result = FindPlace(prop, &device); result != CUDA_SUCCESS) return result;
  Runtime* runtime = GetRuntime();
  const uint64_t id = runtime->physical_memory.Create([&](PhysicalMemory* memory, uint64_t new_id) {
    memory->id = new_id;
    memory->device = device;
    memory->bytes = size;
    memory->holds = 1;
    memory->properties = *prop;
  });
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  GiveBackFreed(device);
  wire::MemoryCreateRequest request;
  wire::EmptyReply reply;
  request.memory = id;
  request.bytes = size;
  if (CUresult result = device->session->Ask(0, request, &reply); result != CUDA_SUCCESS) {
    runtime->physical_memory.Destroy(id);
    return result;
  }
  *handle = id;
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  MutexLock lock(&GetRuntime()->memory_mutex);
  PhysicalMemory* memory = FindMemory(handle);
  if (memory == nullptr || memory->holds == 0) return CUDA_ERROR_INVALID_VALUE;
  --memory->holds;
  DropIfUnused(memory);
  return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  Runtime* runtime = GetRuntime();
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (offset != 0) return CUDA_ERROR_NOT_SUPPORTED;  // as driver 580
  MutexLock lock(&runtime->memory_mutex);
  PhysicalMemory* memory = FindMemory(handle);
  if (memory == nullptr || memory->holds == 0) return CUDA_ERROR_INVALID_VALUE;
  HostReservation* reservation = FindHostReservation(ptr);
  const bool on_host = memory->file >= 0;
  // Held meanwhile: another thread must not map the same addresses or release the memory.
  if (on_host) {
    if (CUresult result = MapHostMemory(reservation, ptr, size, memory); result != CUDA_SUCCESS)
      return result;
  } else {
    if (reservation != nullptr) {
      NoteUnsupported("cuMemMap", "device memory at addresses reserved for memory of the host");
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    Device* device = DeviceOfAddress(ptr);
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (CUresult result = MakeKnown(memory, device); result != CUDA_SUCCESS) return result;
    wire::VirtualMapRequest request;
    wire::EmptyReply reply;
    request.address = ptr;
    request.bytes = size;
    request.memory = handle;
    if (CUresult result = device->session->Ask(0, request, &reply); result != CUDA_SUCCESS)
      return result;
  }
  Allocation mapping;
  mapping.start = ptr;
  mapping.bytes = size;
  mapping.kind = on_host ? MemoryKind::kVirtualHost : MemoryKind::kVirtual;
  mapping.memory_id = handle;
  if (!runtime->allocations.Add(mapping)) return CUDA_ERROR_UNKNOWN;
  ++memory->mappings;
  return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
  Runtime* runtime = GetRuntime();
  Device* device = DeviceOfAddress(ptr);
  if (device == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
  // Work that uses it ends first, in every context of the process on devices that reach it.
  if (CUresult result = SynchroniseDevice(device); result != CUDA_SUCCESS) return result;
  const uint64_t mapped_by = MappedBy(runtime->allocations.Mappings(ptr, size));
  for (int i = 0; i < runtime->device_count; ++i) {
    // What fails there is told to whoever asks there.
    if ((mapped_by >> i & 1) != 0) SynchroniseDevice(&runtime->devices[i]);
  }
  MutexLock lock(&runtime->memory_mutex);
  if (HostReservation* reservation = FindHostReservation(ptr); reservation != nullptr) {
    if (!reservation->mapped || reservation->start != ptr || reservation->bytes != size)
      return CUDA_ERROR_INVALID_VALUE;
    UnmapHostMemory(reservation);
  } else {
    UnmapForPeers(runtime->allocations.Mappings(ptr, size), device);
    wire::VirtualUnmapRequest request;
    wire::EmptyReply reply;
    request.address = ptr;
    request.bytes = size;
    if (CUresult result = device->session->Ask(0, request, &reply); result != CUDA_SUCCESS)
      return result;
  }
  Allocation removed;
  while (runtime->allocations.RemoveIf(
      [&](const Allocation& range) {
        return IsMapping(range.kind) && range.start >= ptr && range.start - ptr < size;
      },
      &removed)) {
    PhysicalMemory* memory = FindMemory(removed.memory_id);
    if (memory == nullptr) continue;
    --memory->mappings;
    DropIfUnused(memory);
  }
  return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc, size_t count) {
  Device* home = DeviceOfAddress(ptr);
  if (home == nullptr || desc == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (Allocation range;
      GetRuntime()->allocations.Find(ptr, &range) && range.kind == MemoryKind::kVirtualHost) {
    if (range.start != ptr || range.bytes != size) return CUDA_ERROR_INVALID_VALUE;
    // Both have it from the mapping on.
    for (size_t i = 0; i < count; ++i) {
      if (IsHostAccess(desc[i], home)) continue;
      NoteUnsupported("cuMemSetAccess", "less than all access to memory of the host");
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
  }
  MutexLock lock(&GetRuntime()->memory_mutex);
  Allocations& allocations = GetRuntime()->allocations;
  for (size_t i = 0; i < count; ++i) {
    if (desc[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
      // The host has no access.
      if (desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) continue;
      NoteUnsupported("cuMemSetAccess", "access of the host to memory of a device");
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    const std::vector<Allocation> mappings = allocations.Mappings(ptr, size);
    if (mappings.empty()) return CUDA_ERROR_INVALID_VALUE;
    Device* device = nullptr;
    CUresult result = FindAccessDevice(desc[i], &device);
    if (result == CUDA_SUCCESS) {
      result = device == home ? AskForAccess(device, ptr, size, desc[i].flags)
                              : SetPeerAccess(mappings, home, device, desc[i].flags);
    }
    if (result != CUDA_SUCCESS) return result;
    if (device == home) allocations.SetAccess(ptr, size, desc[i].flags);
  }
  return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr ptr) {
  if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Allocation range;
  if (!GetRuntime()->allocations.Find(ptr, &range) || !IsMapping(range.kind))
    return CUDA_ERROR_INVALID_VALUE;
  const Device* home = DeviceOfAddress(ptr);
  const bool of_device = location->type == CU_MEM_LOCATION_TYPE_DEVICE;
  if (of_device && (location->id < 0 || location->id >= GetRuntime()->device_count))
    return CUDA_ERROR_INVALID_DEVICE;
  const bool own = of_device && home != nullptr && location->id == home->ordinal;
  if (range.kind == MemoryKind::kVirtualHost) {
    *flags = own || IsHost(location->type) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : 0;
  } else if (own) {
    *flags = range.flags;
  } else {
    *flags = of_device ? PeerAccessOf(range, uint64_t{1} << location->id) : 0;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* addr) {
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->memory_mutex);
  Allocation range;
  if (!runtime->allocations.Find(reinterpret_cast<uint64_t>(addr), &range) ||
      !IsMapping(range.kind)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  PhysicalMemory* memory = FindMemory(range.memory_id);
  if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ++memory->holds;
  *handle = memory->id;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                CUmemGenericAllocationHandle handle) {
  if (prop == nullptr) return CUDA_ERROR_INVALID_VALUE;
  MutexLock lock(&GetRuntime()->memory_mutex);
  const PhysicalMemory* memory = FindMemory(handle);
  if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *prop = memory->properties;
  return CUDA_SUCCESS;
}

}  // namespace consort::guest::calls
