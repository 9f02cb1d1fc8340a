// SPDX-License-Identifier: Apache-2.0
// guest/calls/memory.cc: allocating device and pinned host memory, and what pointers are. Source:
// CUDA Driver API, Memory Management, Unified Addressing.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

#include "gen/guest/calls.h"
#include "guest/call.h"
#include "guest/host_reach.h"
#include "guest/log.h"
#include "guest/opened_memory.h"
#include "guest/peers.h"
#include "guest/pool.h"
#include "guest/runtime.h"
#include "guest/shared_memory.h"
#include "guest/shared_pages.h"
#include "guest/unsupported.h"

namespace consort::guest::calls {
namespace {

// Pitches of cuMemAllocPitch; what GPUs since Fermi use
// (CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT is smaller, rows of a multiple of 512 coalesce at
// any element size).
constexpr uint64_t kPitchAlignment = 512;

constexpr uint32_t Bit(MemoryKind kind) { return 1u << static_cast<uint32_t>(kind); }

// Says once why pinned memory is not what it was.
void NoteVmMemoryFull() {
  static std::atomic<bool> told{false};
  if (told.exchange(true, std::memory_order_relaxed)) return;
  LogLine(
      "the memory that this machine shares with its host is full: pinned memory that comes now "
      "is slower, and kernels cannot reach it (the host's operator sets its size, --vm-memory)");
}

CUresult AllocateDevice(Context* context, uint64_t bytes, CUdeviceptr* address) {
  Allocation allocation;
  allocation.start = context->device->freed_memory.Take(context->id, bytes);
  allocation.may_keep = true;
  if (allocation.start == 0) {
    GiveBackFreed(context->device);
    Session* session = context->device->session;
    wire::MemAllocRequest request;
    wire::MemAllocReply reply;
    request.bytes = bytes;
    const Session::Sent before = session->sent();
    if (CUresult result = Ask(context, request, &reply); result != CUDA_SUCCESS) return result;
    if ((reply.flags & wire::kAllocationIdle) != 0)
      session->SetQuiet(context->wire_id, kAllStreams, before);
    allocation.start = reply.address;
    allocation.may_keep = (reply.flags & wire::kAllocationMayKeep) != 0;
  }
  allocation.bytes = bytes;
  allocation.kind = MemoryKind::kDevice;
  allocation.context_id = context->id;
  if (!GetRuntime()->allocations.Add(allocation)) {
    LogLine("the host gave address 0x%llx twice",
            static_cast<unsigned long long>(allocation.start));
    return CUDA_ERROR_UNKNOWN;
  }
  *address = allocation.start;
  return CUDA_SUCCESS;
}

// Keeps what the program frees. False: the host has to know, since work, of other contexts,
// processes or devices, too, may still use it, or there is no room for it.
bool KeepFreed(const Context* owner, const Allocation& freed) {
  Device* device = owner->device;
  return freed.may_keep && !freed.shared &&
         device->reached_by.load(std::memory_order_relaxed) == 0 &&
         !device->several_contexts.load(std::memory_order_relaxed) &&
         device->session->failure() == CUDA_SUCCESS &&
         device->session->IsIdle(owner->wire_id, kAllStreams) &&
         device->freed_memory.Keep({freed.start, freed.bytes, freed.context_id});
}

CUresult AllocatePinned(uint64_t bytes, uint64_t* address) {
  void* at = mmap(nullptr, AlignUp(bytes, kPageBytes), PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = reinterpret_cast<uint64_t>(at);
  return CUDA_SUCCESS;
}

CUresult SynchroniseContext(Context* context) {
  wire::ContextSynchronizeRequest request;
  wire::EmptyReply reply;
  return Ask(context, request, &reply);
}

// Until no copy that was submitted can touch guest memory any more. Host functions may submit
// copies.
CUresult Quiesce(Context* context, uint64_t start, uint64_t bytes) {
  Session* session = context->device->session;
  if (!session->TransferOverlaps(reinterpret_cast<void*>(start), bytes) &&
      !session->HostFunctionsOutstanding()) {
    return CUDA_SUCCESS;
  }
  return SynchroniseContext(context);
}

// The whole pages that a range touches.
struct PageRange {
  explicit PageRange(const Allocation& range)
      : start(range.start / kPageBytes * kPageBytes),
        bytes(AlignUp(range.start + range.bytes, kPageBytes) - start),
        exact(start == range.start && bytes == range.bytes) {}
  uint64_t start;
  uint64_t bytes;
  bool exact;  // nothing else is on them
};

// Shared memory with what the device must reach: `shared` is its address there. A file's pages stay
// as they are; a process's own become those of new shared host memory.
CUresult SharePages(Session* session, const PageRange& pages, uint64_t* shared) {
  wire::HostAdoptRequest adopt;
  adopt.bytes = pages.bytes;
  if (const int file = OpenSharedFile(pages.start, pages.bytes, &adopt.offset); file >= 0) {
    const CUresult result = AdoptSharedMemory(session, file, adopt, shared);
    close(file);
    return result;
  }
  if (!IsOrdinaryMemory(pages.start, pages.bytes)) {
    NoteUnsupported("cuMemHostGetDevicePointer",
                    "registered memory that is a stack or of a file that cannot be opened");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (!pages.exact && HasThreads()) {
    // Another thread may write what else is on those pages.
    NoteUnsupported("cuMemHostGetDevicePointer",
                    "registered memory that begins or ends within a page, in a process with "
                    "threads,");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  int memory = -1;
  if (CUresult result = AllocateSharedMemory(session, pages.bytes, 0, shared, &memory);
      result != CUDA_SUCCESS) {
    return result;
  }
  if (!ReplaceWithShared(pages.start, pages.bytes, memory, reinterpret_cast<void*>(*shared))) {
    FreeSharedMemory(session, *shared, pages.bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

// Brings registered memory within the device's reach, the first time that a program asks for its
// device pointer, at another address (CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
// is 0).
CUresult ShareRegistered(Context* context, Allocation* range) {
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->register_mutex);
  const uint64_t start = range->start;
  // Again, now that no other thread does the same or ends the registration.
  if (!runtime->allocations.Find(start, range) || range->kind != MemoryKind::kRegisteredHost)
    return CUDA_ERROR_INVALID_VALUE;
  if (range->other_start != 0) return CUDA_SUCCESS;
  if (!context->device->session->shares_files()) {
    NoteUnsupported("cuMemHostGetDevicePointer",
                    "memory that the device cannot reach over this channel");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const PageRange pages(*range);
  if (CUresult result = Quiesce(context, range->start, range->bytes); result != CUDA_SUCCESS)
    return result;
  uint64_t shared = 0;
  if (CUresult result = SharePages(context->device->session, pages, &shared);
      result != CUDA_SUCCESS) {
    return result;
  }
  Allocation view = *range;
  view.kind = MemoryKind::kRegisteredView;
  view.start = shared + (range->start - pages.start);
  view.other_start = range->start;
  runtime->allocations.Add(view);
  runtime->allocations.SetOtherStart(range->start, view.start);
  range->other_start = view.start;
  return CUDA_SUCCESS;
}

// The end of ShareRegistered, when all work that may touch the memory has finished.
CUresult UnshareRegistered(const Allocation& range) {
  // The device whose pointer was asked for first, whatever context it was registered in.
  const Device* device = DeviceOfAddress(range.other_start);
  const CUresult result = SynchroniseDevice(device);
  Allocation view;
  GetRuntime()->allocations.Remove(range.other_start, Bit(MemoryKind::kRegisteredView), &view);
  LeaveHostMemory(view);
  const PageRange pages(range);
  ReplaceWithPrivate(pages.start);
  const CUresult freed = FreeSharedMemory(
      device->session, range.other_start - (range.start - pages.start), pages.bytes);
  return result != CUDA_SUCCESS ? result : freed;
}

// The device of memory that belongs to no context: what a program maps may be another's than the
// addresses.
int Ordinal(const Allocation& range) {
  if (range.kind == MemoryKind::kVirtual) {
    MutexLock lock(&GetRuntime()->memory_mutex);
    const PhysicalMemory* memory = GetRuntime()->physical_memory.Find(range.memory_id);
    if (memory != nullptr) return memory->device->ordinal;
  }
  const Device* device = DeviceOfAddress(range.start);
  return device != nullptr ? device->ordinal : 0;
}

// The kinds of handle by which the memory can go to other processes.
unsigned long long HandleTypes(const Allocation& range) {
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->memory_mutex);
  const PhysicalMemory* memory = runtime->physical_memory.Find(range.memory_id);
  return memory != nullptr
             ? static_cast<unsigned long long>(memory->properties.requestedHandleTypes)
             : 0;
}

// Truth values are 32 bits wide, as driver 580 writes them (seen on an H200): the runtime reads
// that many of IS_MANAGED.
CUresult Attribute(CUpointer_attribute attribute, const Allocation& range, uint64_t address,
                   void* data) {
  Runtime* runtime = GetRuntime();
  const Context* context = runtime->contexts.Find(range.context_id);
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *static_cast<CUcontext*>(data) = reinterpret_cast<CUcontext>(range.context_id);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(data) =
          OnDevice(range.kind) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *static_cast<CUdeviceptr*>(data) =
          range.kind == MemoryKind::kRegisteredHost && range.other_start != 0
              ? range.other_start + (address - range.start)
              : address;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (OnDevice(range.kind) && !IsManaged(range.kind)) return CUDA_ERROR_INVALID_VALUE;
      if (range.kind == MemoryKind::kRegisteredView)
        address = range.other_start + (address - range.start);
      *static_cast<void**>(data) = reinterpret_cast<void*>(address);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      *static_cast<unsigned*>(data) = range.sync_memops ? 1 : 0;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      *static_cast<unsigned long long*>(data) = range.buffer_id;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      *static_cast<unsigned*>(data) = range.kind == MemoryKind::kDevice && range.pool_id == 0;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      *static_cast<unsigned*>(data) = IsManaged(range.kind);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      *static_cast<unsigned*>(data) = 0;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      *static_cast<unsigned long long*>(data) = HandleTypes(range);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = context != nullptr ? context->device->ordinal : Ordinal(range);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *static_cast<CUdeviceptr*>(data) = range.start;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *static_cast<size_t*>(data) = range.bytes;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      *static_cast<unsigned*>(data) = 1;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      *static_cast<unsigned*>(data) = CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      *static_cast<CUmemoryPool*>(data) = reinterpret_cast<CUmemoryPool>(range.pool_id);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      *static_cast<size_t*>(data) = range.bytes;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      *static_cast<CUdeviceptr*>(data) = range.start;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      *static_cast<unsigned long long*>(data) = range.buffer_id;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// What cuPointerGetAttributes writes for an attribute of memory that CUDA does not know: zeros of
// the attribute's size, and no ordinal.
void UnknownAttribute(CUpointer_attribute attribute, void* data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = -2;
      break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
      *static_cast<unsigned*>(data) = 0;
      break;
    default:
      *static_cast<uint64_t*>(data) = 0;
  }
}

}  // namespace

CUresult cuMemGetInfo_v2(size_t* free, size_t* total) {
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  GiveBackFreed(context->device);
  wire::MemGetInfoRequest request;
  wire::MemGetInfoReply reply;
  if (CUresult result = Ask(context, request, &reply); result != CUDA_SUCCESS) return result;
  if (free != nullptr) *free = reply.free;
  if (total != nullptr) *total = reply.total;
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytesize) {
  if (dptr == nullptr || bytesize == 0) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  if (CUresult result = RefuseUnsafeCall(); result != CUDA_SUCCESS) return result;
  return AllocateDevice(context, bytesize, dptr);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr* dptr, size_t* pPitch, size_t WidthInBytes, size_t Height,
                            unsigned int ElementSizeBytes) {
  if (dptr == nullptr || pPitch == nullptr || WidthInBytes == 0 || Height == 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (ElementSizeBytes != 4 && ElementSizeBytes != 8 && ElementSizeBytes != 16)
    return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  const uint64_t pitch = AlignUp(WidthInBytes, kPitchAlignment);
  uint64_t bytes = 0;
  if (pitch < WidthInBytes || __builtin_mul_overflow(pitch, Height, &bytes))
    return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = AllocateDevice(context, bytes, dptr); result != CUDA_SUCCESS) return result;
  *pPitch = pitch;
  return CUDA_SUCCESS;
}

CUresult cuMemFree_v2(CUdeviceptr dptr) {
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  if (dptr == 0 || FreeGraphMemory(dptr)) return CUDA_SUCCESS;
  Allocation removed;
  if (!GetRuntime()->allocations.Remove(dptr, Bit(MemoryKind::kDevice) | Bit(MemoryKind::kManaged),
                                        &removed)) {
    return IsImportedFromPool(dptr) ? CloseOpenedMemory(dptr) : CUDA_ERROR_INVALID_VALUE;
  }
  if (removed.pool_id != 0) {
    ReleasePoolBlock(context, removed);
    return CUDA_SUCCESS;
  }
  wire::MemFreeRequest request;
  request.address = dptr;
  // In the context that owns it, which may be another than the current one.
  Context* owner = GetRuntime()->contexts.Find(removed.context_id);
  if (removed.kind == MemoryKind::kManaged) {
    if (owner == nullptr || owner->device->session == nullptr) owner = context;
    // The program's side ends at once, so what still uses it must be over.
    const CUresult result = SynchroniseContext(owner);
    LeaveHostMemory(removed);
    GetRuntime()->managed_advice.Forget(removed.start, removed.bytes);
    const CUresult freed = FreeSharedMemory(owner->device->session, removed.start, removed.bytes);
    return result != CUDA_SUCCESS ? result : freed;
  }
  if (owner == nullptr) owner = context;
  if (KeepFreed(owner, removed)) return CUDA_SUCCESS;
  AwaitPeersOf(owner->device);
  return Post(owner, request);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr* pbase, size_t* psize, CUdeviceptr dptr) {
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  Allocation range;
  if (!GetRuntime()->allocations.Find(dptr, &range)) return CUDA_ERROR_NOT_FOUND;
  if (pbase != nullptr) *pbase = range.start;
  if (psize != nullptr) *psize = range.bytes;
  return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void** pp, size_t bytesize, unsigned int Flags) {
  constexpr unsigned kFlags =
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if (pp == nullptr || bytesize == 0 || (Flags & ~kFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  Allocation allocation;
  allocation.bytes = bytesize;
  allocation.context_id = context->id;
  // Under unified addressing all pinned memory is mapped and portable. Source: Unified Addressing.
  allocation.flags = Flags;
  Session* session = context->device->session;
  bool shared = session->shares_memory();
  CUresult result = CUDA_SUCCESS;
  if (shared) {
    result = AllocateSharedMemory(session, bytesize, Flags, &allocation.start, nullptr);
    // Then it is as if this machine shared nothing with its host.
    shared = !(result == CUDA_ERROR_OUT_OF_MEMORY && session->in_vm_memory());
    if (!shared) NoteVmMemoryFull();
  }
  if (!shared) result = AllocatePinned(bytesize, &allocation.start);
  allocation.kind = shared ? MemoryKind::kSharedHost : MemoryKind::kPinnedHost;
  if (result != CUDA_SUCCESS) return result;
  if (!GetRuntime()->allocations.Add(allocation)) return CUDA_ERROR_UNKNOWN;
  ShowHostMemory(allocation);
  *pp = reinterpret_cast<void*>(allocation.start);
  return CUDA_SUCCESS;
}

CUresult cuMemAllocHost_v2(void** pp, size_t bytesize) { return cuMemHostAlloc(pp, bytesize, 0); }

CUresult cuMemFreeHost(void* p) {
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Runtime* runtime = GetRuntime();
  Allocation removed;
  if (!runtime->allocations.Remove(reinterpret_cast<uint64_t>(p),
                                   Bit(MemoryKind::kSharedHost) | Bit(MemoryKind::kPinnedHost),
                                   &removed)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Context* owner = runtime->contexts.Find(removed.context_id);
  if (owner == nullptr || owner->device->session == nullptr) owner = context;
  if (removed.kind == MemoryKind::kPinnedHost) {
    const CUresult result = Quiesce(owner, removed.start, removed.bytes);
    munmap(p, AlignUp(removed.bytes, kPageBytes));
    return result;
  }
  LeaveHostMemory(removed);
  return FreeSharedMemory(owner->device->session, removed.start, removed.bytes);
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* pdptr, void* p, unsigned int Flags) {
  if (pdptr == nullptr || Flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  Allocation range;
  if (!GetRuntime()->allocations.Find(reinterpret_cast<uint64_t>(p), &range) ||
      OnDevice(range.kind)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t address = reinterpret_cast<uint64_t>(p);
  switch (range.kind) {
    case MemoryKind::kRegisteredHost: {
      const uint64_t offset = address - range.start;
      if (CUresult result = ShareRegistered(context, &range); result != CUDA_SUCCESS) return result;
      *pdptr = range.other_start + offset;
      return ReachHostMemory(context->device, *pdptr);
    }
    case MemoryKind::kPinnedHost:
      NoteUnsupported("cuMemHostGetDevicePointer",
                      "memory that the device cannot reach over this channel");
      return CUDA_ERROR_NOT_SUPPORTED;
    default:
      *pdptr = address;
      return ReachHostMemory(context->device, address);
  }
}

CUresult cuMemHostGetFlags(unsigned int* pFlags, void* p) {
  if (pFlags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  Allocation range;
  if (!GetRuntime()->allocations.Find(reinterpret_cast<uint64_t>(p), &range) ||
      OnDevice(range.kind)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // All pinned memory is portable and mapped under unified addressing.
  *pFlags = range.flags | CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP;
  return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void* p, size_t bytesize, unsigned int Flags) {
  constexpr unsigned kFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                              CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
  if (p == nullptr || bytesize == 0 || (Flags & ~kFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((Flags & CU_MEMHOSTREGISTER_IOMEMORY) != 0) return CUDA_ERROR_NOT_PERMITTED;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  Allocation allocation;
  allocation.start = reinterpret_cast<uint64_t>(p);
  allocation.bytes = bytesize;
  allocation.kind = MemoryKind::kRegisteredHost;
  allocation.context_id = context->id;
  allocation.flags = Flags;
  return GetRuntime()->allocations.Add(allocation) ? CUDA_SUCCESS
                                                   : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

CUresult cuMemHostUnregister(void* p) {
  Context* context = nullptr;
  if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->register_mutex);
  Allocation removed;
  if (!runtime->allocations.Remove(reinterpret_cast<uint64_t>(p), Bit(MemoryKind::kRegisteredHost),
                                   &removed)) {
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  if (removed.other_start == 0) return Quiesce(context, removed.start, removed.bytes);
  // Kernels may still write it.
  return UnshareRegistered(removed);
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  Allocation range;
  if (!GetRuntime()->allocations.Find(ptr, &range)) return CUDA_ERROR_INVALID_VALUE;
  return Attribute(attribute, range, ptr, data);
}

CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute* attributes,
                                void** data, CUdeviceptr ptr) {
  if (attributes == nullptr || data == nullptr || numAttributes == 0)
    return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  Allocation range;
  const bool known = GetRuntime()->allocations.Find(ptr, &range);
  for (unsigned i = 0; i < numAttributes; ++i) {
    if (data[i] == nullptr) continue;
    if (!known || Attribute(attributes[i], range, ptr, data[i]) != CUDA_SUCCESS)
      UnknownAttribute(attributes[i], data[i]);
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr ptr) {
  if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
    return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  const bool on = *static_cast<const unsigned*>(value) != 0;
  return GetRuntime()->allocations.SetSyncMemops(ptr, on) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace consort::guest::calls
