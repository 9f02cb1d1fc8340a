// SPDX-License-Identifier: Apache-2.0
#include "guest/runtime.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <atomic>
#include <new>

#include "guest/call.h"
#include "guest/config.h"
#include "guest/entry.h"
#include "guest/host_reach.h"
#include "guest/log.h"
#include "guest/modules.h"
#include "guest/peers.h"
#include "guest/pool.h"
#include "guest/shared_memory.h"
#include "guest/unsupported.h"
#include "vmsock/dial.h"

namespace consort::guest {
namespace {

std::atomic<Runtime*> runtime{nullptr};
// Set in a child that was forked from an initialised process.
std::atomic<bool> forked{false};
std::atomic<Session*> first_session{nullptr};
Mutex init_mutex;
std::atomic<uint32_t> next_context_wire_id{1};

// What the daemon is asked for in one query, and what it calls its answer. Written by it only.
wire::DeviceSnapshot snapshots[kDevicesMax];
uint64_t assembly = 0;
// What this virtual machine shares with its host, or null. Written before the first session.
const VmMemory* vm_memory = nullptr;

void InForkedChild() {
  if (runtime.load(std::memory_order_relaxed) != nullptr)
    forked.store(true, std::memory_order_relaxed);
}

const char* ApplicationName() {
  static char name[128];
  if (name[0] == '\0') {
    char path[512];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length < 0 ? 0 : length] = '\0';
    const char* slash = strrchr(path, '/');
    snprintf(name, sizeof name, "%.127s", slash != nullptr ? slash + 1 : path);
  }
  return name;
}

DialOptions Options(uint32_t device) {
  DialOptions options;
  options.endpoint = GetConfig().endpoint;
  options.description_hash = wire::kDescriptionHash;
  options.device = device;
  options.assembly = assembly;
  options.application = ApplicationName();
  options.rings = GetConfig().rings;
  options.vm_memory = vm_memory;
  options.connect_timeout = GetConfig().connect_timeout_ms * kMillisecond;
  return options;
}

void FormatUuid(const uint8_t* uuid, char* text /* 41 bytes */) {
  char* at = text + sprintf(text, "GPU-");
  for (int i = 0; i < 16; ++i) {
    at += sprintf(at, "%02x", uuid[i]);
    if (i == 3 || i == 5 || i == 7 || i == 9) *at++ = '-';
  }
  *at = '\0';
}

// The host's index of one item of CUDA_VISIBLE_DEVICES: an index or the beginning of a UUID; -1 for
// what names no device, which ends the list. Source: CUDA C++ Programming Guide, environment
// variables.
int MatchVisible(const char* item, int host_count) {
  if (strncasecmp(item, "GPU-", 4) == 0) {
    for (int i = 0; i < host_count; ++i) {
      char text[64];
      FormatUuid(snapshots[i].uuid, text);
      if (strncasecmp(text, item, strlen(item)) == 0) return i;
    }
    return -1;
  }
  char* end = nullptr;
  const long index = strtol(item, &end, 10);
  return end != item && *end == '\0' && index >= 0 && index < host_count ? static_cast<int>(index)
                                                                         : -1;
}

// Fills `order` with the host indices that the program may see; returns how many.
int VisibleDevices(int host_count, uint32_t* order) {
  if (!GetConfig().visible_set) {
    for (int i = 0; i < host_count; ++i) order[i] = i;
    return host_count;
  }
  char list[512];
  snprintf(list, sizeof list, "%s", GetConfig().visible);
  int count = 0;
  char* rest = nullptr;
  for (char* item = strtok_r(list, ", ", &rest); item != nullptr;
       item = strtok_r(nullptr, ", ", &rest)) {
    const int index = MatchVisible(item, host_count);
    if (index < 0 || count == kDevicesMax) break;
    for (int i = 0; i < count; ++i) {
      if (order[i] == static_cast<uint32_t>(index))
        return 0;  // a device named twice: none are visible
    }
    order[count++] = index;
  }
  return count;
}

// Attributes that describe what a program may do through this library, not what the GPU can do.
void MaskAttributes(wire::DeviceSnapshot* snapshot, bool vm_memory_agreed) {
  static constexpr int kAbsent[] = {
      CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
      CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
      CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
      CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
      CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
      CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
      CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES,
      CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS,
      CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED,
  };
  for (int attribute : kAbsent) snapshot->attributes[attribute] = 0;
  // Only a UNIX socket can pass the pages that host and guest would share; a virtual machine may
  // have some that it shares with its host.
  const bool passes_pages = strncmp(GetConfig().endpoint, "unix:", 5) == 0;
  if (!passes_pages && !vm_memory_agreed)
    snapshot->attributes[CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY] = 0;
  // Memory of the host is the process's own, which the device then reaches.
  static constexpr int kOfSharedPages[] = {
      CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
  };
  for (int attribute : kOfSharedPages) {
    snapshot->attributes[attribute] =
        passes_pages ? snapshot->attributes[CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY] : 0;
    snapshot->attribute_known[attribute] = 1;
  }
  // Where device and process share pages of the host, those are managed memory. Both may use it at
  // a time only if atomics of the one are atomic for the other: to a program that is the same.
  if (snapshot->attributes[CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY] != 0) {
    snapshot->attributes[CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY] = 1;
    snapshot->attribute_known[CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY] = 1;
    snapshot->attributes[CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS] =
        snapshot->attributes[CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED];
    snapshot->attribute_known[CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS] = 1;
  }
  // Pools are this library's own, and what processes share is the worker's: they need nothing of
  // the device.
  static constexpr int kPresent[] = {
      CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
      CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED,
  };
  for (int attribute : kPresent) {
    snapshot->attributes[attribute] = 1;
    snapshot->attribute_known[attribute] = 1;
  }
  snapshot->attributes[CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES] =
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  snapshot->attribute_known[CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES] = 1;
}

// What this virtual machine shares with its host, where it is reached by vsock.
void FindMemoryOfVm() {
  if (vm_memory != nullptr || strncmp(GetConfig().endpoint, "vsock:", 6) != 0 ||
      GetConfig().rings == RingsWish::kNever) {
    return;
  }
  auto* found = new VmMemory;
  char why[200];
  if (FindVmMemory(kPciDevicesFolder, found, why, sizeof why)) {
    vm_memory = found;  // for good
  } else {
    delete found;
    if (GetConfig().log_errors) LogLine("this machine shares no memory with its host: %s", why);
  }
}

CUresult InitialiseLocked() {
  if (GetConfig().problem[0] != '\0') LogLine("%s", GetConfig().problem);
  FindMemoryOfVm();
  DialResult result;
  QueryDevices(Options(0), &result, snapshots);
  if (result.error != DialError::kNone) {
    LogLine("no GPU: %s (endpoint %s; set CONSORT_ENDPOINT or /etc/consort/guest.toml)",
            result.text, GetConfig().endpoint);
    return result.error == DialError::kVersionMismatch ? CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
                                                       : CUDA_ERROR_NO_DEVICE;
  }
  assembly = result.welcome.assembly;
  uint32_t order[kDevicesMax];
  const int host_count =
      result.welcome.device_count < kDevicesMax ? result.welcome.device_count : kDevicesMax;
  const int count = VisibleDevices(host_count, order);
  if (count == 0) {
    if (host_count == 0) LogLine("no GPU: the host at %s offers no device", GetConfig().endpoint);
    return CUDA_ERROR_NO_DEVICE;
  }
  auto* made = new Runtime;
  for (int i = 0; i < count; ++i) {
    Device& device = made->devices[i];
    device.ordinal = i;
    device.host_index = order[i];
    device.snapshot = snapshots[order[i]];
    MaskAttributes(&device.snapshot, (result.welcome.features & wire::kFeatureVmMemory) != 0);
  }
  made->device_count = count;
  for (int i = 0; i < count; ++i) {
    made->devices[i].primary_id = made->contexts.Create([&](Context* context, uint64_t id) {
      context->id = id;
      context->wire_id = next_context_wire_id.fetch_add(1, std::memory_order_relaxed);
      context->device = &made->devices[i];
      context->primary = true;
    });
  }
  pthread_atfork(nullptr, nullptr, InForkedChild);
  runtime.store(made, std::memory_order_release);  // pairs with GetRuntime
  return CUDA_SUCCESS;
}

}  // namespace

const VmMemory* GetVmMemory() { return vm_memory; }

Runtime* GetRuntime() { return runtime.load(std::memory_order_acquire); }

CUresult Initialise() {
  if (forked.load(std::memory_order_relaxed)) return CUDA_ERROR_NOT_INITIALIZED;
  if (GetRuntime() != nullptr) return CUDA_SUCCESS;
  MutexLock lock(&init_mutex);
  return GetRuntime() != nullptr ? CUDA_SUCCESS : InitialiseLocked();
}

CUresult EnterCall() {
  if (runtime.load(std::memory_order_acquire) == nullptr ||
      forked.load(std::memory_order_relaxed)) {
    return CUDA_ERROR_NOT_INITIALIZED;
  }
  return CUDA_SUCCESS;
}

Session* OpenDevice(Device* device, CUresult* result) {
  Runtime* state = GetRuntime();
  MutexLock lock(&state->device_mutex);
  if (device->session != nullptr) return device->session;
  DialResult dialled;
  std::unique_ptr<Channel> channel;
  OpenSession(Options(device->host_index), &dialled, &channel);
  if (dialled.error != DialError::kNone) {
    LogLine("device %d: %s", device->ordinal, dialled.text);
    *result = CUDA_ERROR_DEVICE_UNAVAILABLE;
    return nullptr;
  }
  auto* session = new Session(std::move(channel), dialled.welcome, Options(device->host_index),
                              GetConfig().resume_seconds);
  if (!session->window_reserved()) {
    LogLine("device %d: addresses 0x%llx and up, which the device uses, are taken in this process",
            device->ordinal, static_cast<unsigned long long>(dialled.welcome.window_base));
    *result = CUDA_ERROR_OUT_OF_MEMORY;
    delete session;
    return nullptr;
  }
  if (!dialled.welcome.resume_token.empty() && !session->StartStandby()) {
    LogLine("device %d: no thread to be had; it cannot follow this machine when that is moved",
            device->ordinal);
  }
  device->session = session;
  Session* none = nullptr;
  if (first_session.compare_exchange_strong(none, session, std::memory_order_acq_rel)) {
    ReportUnsupportedSoFar(session);
  }
  return session;
}

Session* FirstSession() {
  return forked.load(std::memory_order_relaxed) ? nullptr
                                                : first_session.load(std::memory_order_acquire);
}

uint64_t NewContext(Device* device, bool primary, uint32_t flags) {
  if (!primary) device->several_contexts.store(true, std::memory_order_relaxed);
  return GetRuntime()->contexts.Create([&](Context* context, uint64_t id) {
    context->id = id;
    context->wire_id = next_context_wire_id.fetch_add(1, std::memory_order_relaxed);
    context->device = device;
    context->primary = primary;
    context->flags = flags;
    context->active = true;
  });
}

namespace {

// Lets go of memory of another process, when the context that opened it ends.
void ForgetOpened(Context* context, uint64_t address) {
  Runtime* state = GetRuntime();
  MutexLock lock(&state->memory_mutex);
  for (size_t i = 0; i < state->opened_memory.size(); ++i) {
    if (state->opened_memory[i].address != address) continue;
    state->opened_memory.erase(state->opened_memory.begin() + i);
    break;
  }
  wire::SharedMemoryCloseRequest request;
  wire::EmptyReply reply;
  request.address = address;
  context->device->session->Ask(0, request, &reply);
}

}  // namespace

void EndLocals(Context* context) {
  for (const ContextLocal& local : context->locals.TakeAll()) {
    if (local.destructor != nullptr) local.destructor(ToHandle(context), local.key, local.value);
  }
}

CUresult EmptyContext(Context* context) {
  Runtime* state = GetRuntime();
  // Locals first: their destructors, in the runtimes that made them, may still look at the context.
  EndLocals(context);
  if (context->device->session == nullptr) return CUDA_SUCCESS;
  ForgetPeerAccess(context);
  AwaitPeersOf(context->device);
  context->device->freed_memory.Forget(context->id);
  wire::ContextDestroyRequest request;
  wire::EmptyReply reply;
  const CUresult result = Ask(context, request, &reply);
  // A primary context comes back empty under its old handle; on the wire it is a new one.
  context->wire_id = next_context_wire_id.fetch_add(1, std::memory_order_relaxed);

  std::vector<uint64_t> ids;
  if (context->primary) ForgetGreenContexts(context->device);
  const uint64_t owner = context->id;
  state->streams.ForEach([&](Stream* stream, uint64_t id) {
    if (stream->context_id == owner) ids.push_back(id);
  });
  for (uint64_t id : ids) state->streams.Destroy(id);
  ids.clear();
  state->events.ForEach([&](Event* event, uint64_t id) {
    if (event->context_id == owner) ids.push_back(id);
  });
  for (uint64_t id : ids) state->events.Destroy(id);
  ids.clear();
  state->arrays.ForEach([&](Array* array, uint64_t id) {
    if (array->context_id == owner) ids.push_back(id);
  });
  for (uint64_t id : ids) state->arrays.Destroy(id);
  ids.clear();
  state->texture_objects.Forget(owner);
  {
    MutexLock lock(&state->library_mutex);
    state->modules.ForEach([&](Module* module, uint64_t id) {
      if (module->context_id == owner) ids.push_back(id);
    });
    for (uint64_t id : ids) state->modules.Destroy(id);
    ForgetContext(owner);
  }
  Allocation removed;
  while (state->allocations.RemoveIf(
      [&](const Allocation& range) { return range.context_id == owner && OnDevice(range.kind); },
      &removed)) {
    if (removed.kind == MemoryKind::kDevice && removed.pool_id != 0)
      ReleasePoolBlock(context, removed);
    if (removed.kind == MemoryKind::kManaged) {
      LeaveHostMemory(removed);
      state->managed_advice.Forget(removed.start, removed.bytes);
      FreeSharedMemory(context->device->session, removed.start, removed.bytes);
    }
    if (removed.kind == MemoryKind::kOpened) ForgetOpened(context, removed.start);
  }
  PoolsAfterSynchronise(context, 0);
  return result == CUDA_ERROR_DEVICE_UNAVAILABLE ? CUDA_SUCCESS : result;
}

}  // namespace consort::guest
