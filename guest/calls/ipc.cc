// SPDX-License-Identifier: Apache-2.0
// guest/calls/ipc.cc: memory and events of other processes. The worker that both processes talk to
// knows them by a token; handles hold it, and so do the files behind shareable descriptors. Source:
// CUDA Driver API, cuIpc..., cuMemExportToShareableHandle, cuMemImportFromShareableHandle.
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gen/guest/calls.h"
#include "guest/call.h"
#include "guest/host_memory.h"
#include "guest/opened_memory.h"
#include "guest/peers.h"
#include "guest/pool.h"
#include "guest/runtime.h"
#include "guest/unsupported.h"

namespace consort::guest::calls {
namespace {

enum class SharedKind : uint32_t {
  kMemory = 1,
  kEvent = 2,
  kPhysicalMemory = 3,
  kPool = 4,  // no token: what is imported from it has one
  kPoolMemory = 5,
};

// What a handle holds; the rest of its 64 bytes is 0.
//   0 magic, 4 kind, 8 token, 24 UUID of the device, 40 session of whoever exported it
struct SharedHandle {
  uint32_t magic = 0;
  SharedKind kind = SharedKind::kMemory;
  uint64_t token_high = 0;
  uint64_t token_low = 0;
  uint8_t uuid[16] = {};
  uint64_t session = 0;
  uint8_t zero[16] = {};
};
static_assert(sizeof(SharedHandle) == CU_IPC_HANDLE_SIZE);
static_assert(sizeof(CUipcMemHandle) == CU_IPC_HANDLE_SIZE);
static_assert(sizeof(CUipcEventHandle) == CU_IPC_HANDLE_SIZE);

constexpr uint32_t kMagic = 0x52485343;  // "CSHR"

template <class Reply>
SharedHandle MakeHandle(SharedKind kind, const Device* device, const Reply& reply) {
  SharedHandle handle;
  handle.magic = kMagic;
  handle.kind = kind;
  handle.token_high = reply.token_high;
  handle.token_low = reply.token_low;
  if constexpr (requires { reply.session; }) handle.session = reply.session;
  memcpy(handle.uuid, device->snapshot.uuid, sizeof(handle.uuid));
  return handle;
}

bool IsFor(const SharedHandle& handle, SharedKind kind, const Device* device) {
  return handle.magic == kMagic && handle.kind == kind &&
         memcmp(handle.uuid, device->snapshot.uuid, sizeof(handle.uuid)) == 0;
}

SharedToken TokenOf(const SharedHandle& handle) {
  return {handle.session, handle.token_high, handle.token_low};
}

// The device of this process that it is for; null: none.
Device* FindOwner(const SharedHandle& handle, SharedKind kind) {
  Runtime* runtime = GetRuntime();
  for (int i = 0; i < runtime->device_count; ++i) {
    if (IsFor(handle, kind, &runtime->devices[i])) return &runtime->devices[i];
  }
  return nullptr;
}

// A descriptor that stands for what `shared` names.
CUresult WriteDescriptor(const SharedHandle& shared, int* descriptor) {
  const int fd = memfd_create("consort-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  if (write(fd, &shared, sizeof(shared)) != sizeof(shared) ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0) {
    close(fd);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *descriptor = fd;
  return CUDA_SUCCESS;
}

// What such a descriptor stands for, and the device that it is on. CUDA_ERROR_INVALID_VALUE: it is
// none of that kind, or of a device that this process does not have.
CUresult ReadDescriptor(int fd, SharedKind kind, SharedHandle* shared, Device** device) {
  if (pread(fd, shared, sizeof(*shared), 0) != sizeof(*shared)) return CUDA_ERROR_INVALID_VALUE;
  *device = FindOwner(*shared, kind);
  return *device != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Memory of the host that another process has made.
CUresult ImportHostMemory(int fd, uint64_t bytes, CUmemGenericAllocationHandle* handle) {
  const int file = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *handle = GetRuntime()->physical_memory.Create([&](PhysicalMemory* memory, uint64_t new_id) {
    memory->id = new_id;
    memory->bytes = bytes;
    memory->holds = 1;
    memory->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    memory->properties.location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}};
    memory->properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    memory->file = file;
  });
  if (*handle != 0) return CUDA_SUCCESS;
  close(file);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace

CUresult cuIpcGetMemHandle(CUipcMemHandle* pHandle, CUdeviceptr dptr) {
  if (pHandle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Allocation range;
  if (!GetRuntime()->allocations.Find(dptr, &range) || range.kind != MemoryKind::kDevice ||
      range.pool_id != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Context* context = nullptr;
  if (CUresult result = FindContext(reinterpret_cast<CUcontext>(range.context_id), &context);
      result != CUDA_SUCCESS) {
    return result;
  }
  wire::MemoryShareRequest request;
  wire::MemoryShareReply reply;
  request.address = range.start;
  GetRuntime()->allocations.SetShared(range.start);
  if (CUresult result = AwaitGoneAhead(context->device); result != CUDA_SUCCESS) return result;
  if (CUresult result = Ask(context, request, &reply); result != CUDA_SUCCESS) return result;
  const SharedHandle handle = MakeHandle(SharedKind::kMemory, context->device, reply);
  memcpy(pHandle, &handle, sizeof(handle));
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* pdptr, CUipcMemHandle handle, unsigned int Flags) {
  if (pdptr == nullptr || Flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  SharedHandle shared;
  memcpy(static_cast<void*>(&shared), &handle, sizeof(shared));
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  const Device* owner = FindOwner(shared, SharedKind::kMemory);
  if (owner == nullptr || (owner != context->device && !CanReachPeer(context->device, owner)))
    return CUDA_ERROR_INVALID_HANDLE;
  return OpenSharedMemory(context, TokenOf(shared), 0, pdptr);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) {
  return IsImportedFromPool(dptr) ? CUDA_ERROR_INVALID_VALUE : CloseOpenedMemory(dptr);
}

CUresult cuIpcGetEventHandle(CUipcEventHandle* pHandle, CUevent event) {
  if (pHandle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  EventRef found;
  if (CUresult result = FindEvent(event, &found); result != CUDA_SUCCESS) return result;
  const Event* object = GetRuntime()->events.Find(found.id);
  if (object == nullptr || (object->flags & CU_EVENT_INTERPROCESS) == 0) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  wire::EventShareRequest request;
  wire::EventShareReply reply;
  request.event = found.id;
  if (CUresult result = Ask(found.context, request, &reply); result != CUDA_SUCCESS) return result;
  const SharedHandle handle = MakeHandle(SharedKind::kEvent, found.context->device, reply);
  memcpy(pHandle, &handle, sizeof(handle));
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent* phEvent, CUipcEventHandle handle) {
  if (phEvent == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SharedHandle shared;
  memcpy(static_cast<void*>(&shared), &handle, sizeof(shared));
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  Device* owner = FindOwner(shared, SharedKind::kEvent);
  if (owner == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Runtime* runtime = GetRuntime();
  uint64_t opened_by = 0;
  if (owner != context->device) {
    // The worker of its device has it.
    opened_by = context->id;
    CUresult result = CUDA_SUCCESS;
    if (OpenDevice(owner, &result) == nullptr) return result;
    context = runtime->contexts.Find(owner->primary_id);
  }
  const uint64_t id = runtime->events.Create([&](Event* event, uint64_t new_id) {
    event->id = new_id;
    event->context_id = context->id;
    event->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    event->opened_by = opened_by;
  });
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  wire::SharedEventOpenRequest request;
  wire::EmptyReply reply;
  request.event = id;
  request.token_high = shared.token_high;
  request.token_low = shared.token_low;
  if (CUresult result = Ask(context, request, &reply); result != CUDA_SUCCESS) {
    runtime->events.Destroy(id);
    return result;
  }
  *phEvent = reinterpret_cast<CUevent>(id);
  return CUDA_SUCCESS;
}

CUresult cuMemExportToShareableHandle(void* shareableHandle, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType handleType,
                                      unsigned long long flags) {
  if (shareableHandle == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->memory_mutex);
  const PhysicalMemory* memory = runtime->physical_memory.Find(handle);
  if (memory == nullptr || memory->holds == 0) return CUDA_ERROR_INVALID_VALUE;
  if (handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    NoteUnsupported("cuMemExportToShareableHandle", "a handle that is no file descriptor");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if ((memory->properties.requestedHandleTypes & handleType) == 0) return CUDA_ERROR_INVALID_VALUE;
  if (memory->file >= 0) {
    const int fd = fcntl(memory->file, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    *static_cast<int*>(shareableHandle) = fd;
    return CUDA_SUCCESS;
  }
  wire::PhysicalMemoryShareRequest request;
  wire::PhysicalMemoryShareReply reply;
  request.memory = handle;
  if (CUresult result = memory->device->session->Ask(0, request, &reply); result != CUDA_SUCCESS)
    return result;
  const SharedHandle shared = MakeHandle(SharedKind::kPhysicalMemory, memory->device, reply);
  return WriteDescriptor(shared, static_cast<int*>(shareableHandle));
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle* handle, void* osHandle,
                                        CUmemAllocationHandleType shHandleType) {
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (shHandleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    NoteUnsupported("cuMemImportFromShareableHandle", "a handle that is no file descriptor");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  SharedHandle shared;
  const int fd = static_cast<int>(reinterpret_cast<intptr_t>(osHandle));
  if (uint64_t bytes = 0; IsHostMemory(fd, &bytes)) return ImportHostMemory(fd, bytes, handle);
  Device* device = nullptr;
  CUresult result = ReadDescriptor(fd, SharedKind::kPhysicalMemory, &shared, &device);
  if (result != CUDA_SUCCESS) return result;
  Runtime* runtime = GetRuntime();
  Session* session = OpenDevice(device, &result);
  if (session == nullptr) return result;
  MutexLock lock(&runtime->memory_mutex);
  const uint64_t id = runtime->physical_memory.Create([&](PhysicalMemory* memory, uint64_t new_id) {
    memory->id = new_id;
    memory->device = device;
    memory->holds = 1;
    memory->properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    memory->properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device->ordinal}};
    memory->properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  });
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  wire::SharedMemoryImportRequest request;
  wire::SharedMemoryImportReply reply;
  request.memory = id;
  request.session = shared.session;
  request.token_high = shared.token_high;
  request.token_low = shared.token_low;
  if (result = session->Ask(0, request, &reply); result != CUDA_SUCCESS) {
    runtime->physical_memory.Destroy(id);
    return result;
  }
  runtime->physical_memory.Find(id)->bytes = reply.bytes;
  *handle = id;
  return CUDA_SUCCESS;
}

CUresult cuMemPoolExportToShareableHandle(void* handle_out, CUmemoryPool pool,
                                          CUmemAllocationHandleType handleType,
                                          unsigned long long flags) {
  if (handle_out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Runtime* runtime = GetRuntime();
  const Pool* found = runtime->pools.Find(reinterpret_cast<uint64_t>(pool));
  // A pool says at its making how it can be exported; an imported one cannot.
  if (found == nullptr || found->imported || handleType == CU_MEM_HANDLE_TYPE_NONE ||
      (found->handle_types & handleType) != handleType) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const wire::MemoryShareReply no_token;
  return WriteDescriptor(MakeHandle(SharedKind::kPool, found->device, no_token),
                         static_cast<int*>(handle_out));
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool_out, void* handle,
                                            CUmemAllocationHandleType handleType,
                                            unsigned long long flags) {
  if (pool_out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (handleType != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    NoteUnsupported("cuMemPoolImportFromShareableHandle", "a handle that is no file descriptor");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  SharedHandle shared;
  Device* device = nullptr;
  const int fd = static_cast<int>(reinterpret_cast<intptr_t>(handle));
  if (CUresult result = ReadDescriptor(fd, SharedKind::kPool, &shared, &device);
      result != CUDA_SUCCESS) {
    return result;
  }
  const uint64_t id = CreatePool(device, 0, CU_MEM_HANDLE_TYPE_NONE, true);
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *pool_out = reinterpret_cast<CUmemoryPool>(id);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* shareData_out, CUdeviceptr ptr) {
  static_assert(sizeof(SharedHandle) == sizeof(CUmemPoolPtrExportData));
  if (shareData_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Runtime* runtime = GetRuntime();
  Allocation range;
  if (!runtime->allocations.Find(ptr, &range) || range.kind != MemoryKind::kDevice ||
      range.start != ptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Pool* pool = runtime->pools.Find(range.pool_id);
  if (pool == nullptr || pool->handle_types == CU_MEM_HANDLE_TYPE_NONE)
    return CUDA_ERROR_INVALID_VALUE;
  wire::MemoryShareRequest request;
  wire::MemoryShareReply reply;
  request.address = ptr;
  if (CUresult result = pool->device->session->Ask(0, request, &reply); result != CUDA_SUCCESS)
    return result;
  const SharedHandle handle = MakeHandle(SharedKind::kPoolMemory, pool->device, reply);
  memcpy(shareData_out, &handle, sizeof(handle));
  return CUDA_SUCCESS;
}

CUresult cuMemPoolImportPointer(CUdeviceptr* ptr_out, CUmemoryPool pool,
                                CUmemPoolPtrExportData* shareData) {
  if (ptr_out == nullptr || shareData == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Pool* found = GetRuntime()->pools.Find(reinterpret_cast<uint64_t>(pool));
  SharedHandle shared;
  memcpy(static_cast<void*>(&shared), shareData, sizeof(shared));
  if (found == nullptr || !found->imported ||
      !IsFor(shared, SharedKind::kPoolMemory, found->device)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  if (context->device != found->device) return CUDA_ERROR_INVALID_CONTEXT;
  return OpenSharedMemory(context, TokenOf(shared), found->id, ptr_out);
}

}  // namespace consort::guest::calls
