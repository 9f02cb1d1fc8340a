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
#include "guest/runtime.h"
#include "guest/unsupported.h"

namespace consort::guest::calls {
namespace {

enum class SharedKind : uint32_t { kMemory = 1, kEvent = 2, kPhysicalMemory = 3 };

// What a handle holds; the rest of its 64 bytes is 0.
//   0 magic, 4 kind, 8 token, 24 UUID of the device
struct SharedHandle {
  uint32_t magic = 0;
  SharedKind kind = SharedKind::kMemory;
  uint64_t token_high = 0;
  uint64_t token_low = 0;
  uint8_t uuid[16] = {};
  uint8_t zero[24] = {};
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
  memcpy(handle.uuid, device->snapshot.uuid, sizeof(handle.uuid));
  return handle;
}

bool IsFor(const SharedHandle& handle, SharedKind kind, const Device* device) {
  return handle.magic == kMagic && handle.kind == kind &&
         memcmp(handle.uuid, device->snapshot.uuid, sizeof(handle.uuid)) == 0;
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

constexpr uint32_t Bit(MemoryKind kind) { return 1u << static_cast<uint32_t>(kind); }

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
  if (!IsFor(shared, SharedKind::kMemory, context->device)) return CUDA_ERROR_INVALID_HANDLE;
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->memory_mutex);
  for (OpenedMemory& opened : runtime->opened_memory) {
    if (opened.token_high == shared.token_high && opened.token_low == shared.token_low) {
      ++opened.count;
      *pdptr = opened.address;
      return CUDA_SUCCESS;
    }
  }
  wire::SharedMemoryOpenRequest request;
  wire::SharedMemoryOpenReply reply;
  request.token_high = shared.token_high;
  request.token_low = shared.token_low;
  if (CUresult result = Ask(context, request, &reply); result != CUDA_SUCCESS) return result;
  Allocation range;
  range.start = reply.address;
  range.bytes = reply.bytes;
  range.kind = MemoryKind::kOpened;
  range.context_id = context->id;
  if (!runtime->allocations.Add(range)) return CUDA_ERROR_UNKNOWN;
  runtime->opened_memory.push_back({shared.token_high, shared.token_low, reply.address, 1});
  *pdptr = reply.address;
  return CUDA_SUCCESS;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr) {
  Runtime* runtime = GetRuntime();
  Allocation range;
  if (!runtime->allocations.Find(dptr, &range) || range.kind != MemoryKind::kOpened ||
      range.start != dptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Context* context = nullptr;
  if (CUresult result = FindContext(reinterpret_cast<CUcontext>(range.context_id), &context);
      result != CUDA_SUCCESS) {
    return result;
  }
  // Work that uses it ends first, as with cuMemFree.
  wire::ContextSynchronizeRequest synchronise;
  wire::EmptyReply reply;
  if (CUresult result = Ask(context, synchronise, &reply); result != CUDA_SUCCESS) return result;
  MutexLock lock(&runtime->memory_mutex);
  for (size_t i = 0; i < runtime->opened_memory.size(); ++i) {
    if (runtime->opened_memory[i].address != dptr) continue;
    if (--runtime->opened_memory[i].count != 0) return CUDA_SUCCESS;
    runtime->opened_memory.erase(runtime->opened_memory.begin() + i);
    Allocation removed;
    runtime->allocations.Remove(dptr, Bit(MemoryKind::kOpened), &removed);
    wire::SharedMemoryCloseRequest request;
    request.address = dptr;
    return Ask(context, request, &reply);
  }
  return CUDA_ERROR_INVALID_VALUE;
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
  if (!IsFor(shared, SharedKind::kEvent, context->device)) return CUDA_ERROR_INVALID_HANDLE;
  Runtime* runtime = GetRuntime();
  const uint64_t id = runtime->events.Create([&](Event* event, uint64_t new_id) {
    event->id = new_id;
    event->context_id = context->id;
    event->flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
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
  const int fd = memfd_create("consort-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  if (write(fd, &shared, sizeof(shared)) != sizeof(shared) ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0) {
    close(fd);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  *static_cast<int*>(shareableHandle) = fd;
  return CUDA_SUCCESS;
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
  if (pread(fd, &shared, sizeof(shared), 0) != sizeof(shared)) return CUDA_ERROR_INVALID_VALUE;
  Runtime* runtime = GetRuntime();
  Device* device = nullptr;
  for (int i = 0; i < runtime->device_count && device == nullptr; ++i) {
    if (IsFor(shared, SharedKind::kPhysicalMemory, &runtime->devices[i]))
      device = &runtime->devices[i];
  }
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = CUDA_SUCCESS;
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

}  // namespace consort::guest::calls
