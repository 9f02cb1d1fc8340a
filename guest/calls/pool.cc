// SPDX-License-Identifier: Apache-2.0
// guest/calls/pool.cc: stream-ordered allocation; see guest/pool.h. Source: CUDA Driver API, Stream
// Ordered Memory Allocator.
#include "guest/pool.h"

#include "gen/guest/calls.h"
#include "guest/capture.h"
#include "guest/graph.h"
#include "guest/log.h"
#include "guest/opened_memory.h"
#include "guest/peers.h"
#include "guest/runtime.h"
#include "guest/unsupported.h"

namespace consort::guest {
namespace {

constexpr uint64_t kPoolAlignment = 512;
constexpr uint64_t kAnyStream = 0;

// What a stream is called in blocks: legacy default streams of several contexts share one wire id.
uint64_t StreamKey(const Context* context, uint64_t stream) {
  return stream == kLegacyStreamId ? context->wire_id : stream;
}

uint64_t BlockBytes(const Allocation& allocation) {
  return AlignUp(allocation.bytes, kPoolAlignment);
}

void SendFree(Session* session, uint64_t address) {
  wire::MemFreeRequest request;
  request.address = address;
  session->Post(0, request);  // a lost connection has given the memory back already
}

// Takes from the pool what it holds beyond `keep` bytes, the longest held first. pool_mutex held.
void TakeSurplus(Pool* pool, uint64_t keep, std::vector<uint64_t>* surplus) {
  size_t taken = 0;
  while (taken < pool->blocks.size() && pool->used + pool->held > keep) {
    pool->held -= pool->blocks[taken].bytes;
    surplus->push_back(pool->blocks[taken].address);
    ++taken;
  }
  pool->blocks.erase(pool->blocks.begin(), pool->blocks.begin() + taken);
  GetRuntime()->pool_blocks.fetch_sub(taken, std::memory_order_relaxed);
}

void NoteHighs(Pool* pool) {
  if (pool->used > pool->used_high) pool->used_high = pool->used;
  if (pool->used + pool->held > pool->reserved_high) pool->reserved_high = pool->used + pool->held;
}

Pool* FindPool(CUmemoryPool handle) {
  return GetRuntime()->pools.Find(reinterpret_cast<uint64_t>(handle));
}

// The default pool; made at its first use. pool_mutex held.
Pool* DefaultPool(Device* device) {
  Runtime* runtime = GetRuntime();
  if (device->default_pool == 0)
    device->default_pool = CreatePool(device, 0, CU_MEM_HANDLE_TYPE_NONE, false);
  return runtime->pools.Find(device->default_pool);
}

// Gives everything back that pools of `device` hold, since memory has run out.
bool ReleaseHeld(Device* device) {
  Runtime* runtime = GetRuntime();
  std::vector<uint64_t> surplus;
  {
    MutexLock lock(&runtime->pool_mutex);
    runtime->pools.ForEach([&](Pool* pool, uint64_t) {
      if (pool->device == device) TakeSurplus(pool, pool->used, &surplus);
    });
  }
  for (uint64_t address : surplus) SendFree(device->session, address);
  return !surplus.empty();
}

Device* FindPoolDevice(CUdevice dev) {
  Runtime* runtime = GetRuntime();
  return dev >= 0 && dev < runtime->device_count ? &runtime->devices[dev] : nullptr;
}

// Whether a pool of that location and type may be asked for. CUDA_ERROR_NOT_SUPPORTED: there is
// none, since pools are of devices' memory.
CUresult CheckPoolPlace(const char* call, const CUmemLocation* location, CUmemAllocationType type) {
  const bool managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
  if (location == nullptr || (type != CU_MEM_ALLOCATION_TYPE_PINNED && !managed))
    return CUDA_ERROR_INVALID_VALUE;
  switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      if (!managed) return CUDA_SUCCESS;
      break;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      break;
    case CU_MEM_LOCATION_TYPE_NONE:
      if (managed) break;
      return CUDA_ERROR_INVALID_VALUE;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  NoteUnsupported(call, "pools of memory of the host, and of managed memory");
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace

uint64_t CreatePool(Device* device, uint64_t bytes_max, CUmemAllocationHandleType handle_types,
                    bool imported) {
  return GetRuntime()->pools.Create([&](Pool* pool, uint64_t id) {
    pool->id = id;
    pool->device = device;
    pool->bytes_max = bytes_max;
    pool->handle_types = handle_types;
    pool->imported = imported;
  });
}

Pool* CurrentPool(Device* device) {
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->pool_mutex);
  Pool* pool = runtime->pools.Find(device->current_pool);
  return pool != nullptr ? pool : DefaultPool(device);
}

CUresult AllocateFromPool(Pool* pool, const StreamRef& stream, uint64_t bytes,
                          CUdeviceptr* address) {
  Runtime* runtime = GetRuntime();
  Context* context = stream.context;
  if (pool->device != context->device || pool->imported) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t block = AlignUp(bytes, kPoolAlignment);
  if (block < bytes) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t key = StreamKey(context, stream.id);
  uint64_t found = 0;
  {
    MutexLock lock(&runtime->pool_mutex);
    if (pool->bytes_max != 0 && (block > pool->bytes_max || pool->used > pool->bytes_max - block))
      return CUDA_ERROR_OUT_OF_MEMORY;
    // The latest freed first: its contents may still be in the device's cache.
    for (size_t i = pool->blocks.size(); i-- > 0;) {
      const Pool::Block& held = pool->blocks[i];
      if (held.bytes != block || (held.stream != key && held.stream != kAnyStream)) continue;
      found = held.address;
      pool->held -= block;
      pool->blocks.erase(pool->blocks.begin() + i);
      runtime->pool_blocks.fetch_sub(1, std::memory_order_relaxed);
      break;
    }
    pool->used += block;
  }
  if (found == 0) {
    GiveBackFreed(context->device);
    wire::MemAllocRequest request;
    wire::MemAllocReply reply;
    request.bytes = block;
    // Of no context on the host: a pool belongs to the device.
    CUresult result = context->device->session->Ask(0, request, &reply);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && ReleaseHeld(context->device))
      result = context->device->session->Ask(0, request, &reply);
    if (result != CUDA_SUCCESS) {
      MutexLock lock(&runtime->pool_mutex);
      pool->used -= block;
      return result;
    }
    found = reply.address;
  }
  {
    MutexLock lock(&runtime->pool_mutex);
    NoteHighs(pool);
  }
  Allocation allocation;
  allocation.start = found;
  allocation.bytes = bytes;
  allocation.kind = MemoryKind::kDevice;
  allocation.context_id = context->id;
  allocation.pool_id = pool->id;
  if (!runtime->allocations.Add(allocation)) {
    LogLine("the host gave address 0x%llx twice", static_cast<unsigned long long>(found));
    return CUDA_ERROR_UNKNOWN;
  }
  *address = found;
  return CUDA_SUCCESS;
}

void ReleasePoolBlock(Context* context, const Allocation& removed) {
  Runtime* runtime = GetRuntime();
  {
    MutexLock lock(&runtime->pool_mutex);
    Pool* pool = runtime->pools.Find(removed.pool_id);
    if (pool != nullptr) pool->used -= BlockBytes(removed);
  }
  SendFree(context->device->session, removed.start);
}

void PoolsAfterSynchronise(Context* context, uint64_t stream) {
  Runtime* runtime = GetRuntime();
  if (runtime->pool_blocks.load(std::memory_order_relaxed) == 0) return;
  const uint64_t key = stream == kAllStreams ? 0 : StreamKey(context, stream);
  std::vector<uint64_t> surplus;
  {
    MutexLock lock(&runtime->pool_mutex);
    runtime->pools.ForEach([&](Pool* pool, uint64_t) {
      if (pool->device != context->device || pool->blocks.empty()) return;
      for (Pool::Block& block : pool->blocks) {
        const bool done =
            stream == kAllStreams ? block.context == context->id : block.stream == key;
        if (done) block.stream = kAnyStream;
      }
      TakeSurplus(pool, pool->threshold, &surplus);
    });
  }
  for (uint64_t address : surplus) SendFree(context->device->session, address);
}

namespace calls {
namespace {

// An allocation in a captured stream is a node, whose memory has its address from now on.
CUresult CaptureAllocation(CUdeviceptr* dptr, size_t bytes, const StreamRef& stream,
                           bool* captured) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult asked = cuStreamIsCapturing(stream.handle, &status, DefaultStream::kLegacy);
  if (asked != CUDA_SUCCESS || status == CU_STREAM_CAPTURE_STATUS_NONE) return asked;
  *captured = true;
  GraphWork work;
  work.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  work.context_id = stream.context->id;
  work.bytes = bytes;
  if (CUresult result = AllocateGraphMemory(stream, bytes, &work.address); result != CUDA_SUCCESS)
    return result;
  const CUresult result = CaptureWork(stream.context, stream.id, &work, captured);
  if (result == CUDA_SUCCESS) {
    *dptr = work.address;
  } else {
    FreeGraphMemory(work.address);
  }
  return result;
}

CUresult Allocate(CUdeviceptr* dptr, size_t bytes, Pool* pool, const StreamRef& stream) {
  if (dptr == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (MaybeCapturing()) {
    bool captured = false;
    const CUresult result = CaptureAllocation(dptr, bytes, stream, &captured);
    if (captured || result != CUDA_SUCCESS) return result;
  }
  return AllocateFromPool(pool, stream, bytes, dptr);
}

uint64_t* Counter(Pool* pool, CUmemPool_attribute attr) {
  switch (attr) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
      return &pool->threshold;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
      return &pool->reserved_high;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
      return &pool->used_high;
    default:
      return nullptr;
  }
}

int* ReusePolicy(Pool* pool, CUmemPool_attribute attr) {
  switch (attr) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
      return &pool->reuse[0];
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
      return &pool->reuse[1];
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
      return &pool->reuse[2];
    default:
      return nullptr;
  }
}

}  // namespace

CUresult cuMemAllocAsync(CUdeviceptr* dptr, size_t bytesize, CUstream hStream,
                         DefaultStream default_stream) {
  StreamRef stream;
  if (CUresult result = FindStream(hStream, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  Pool* pool = CurrentPool(stream.context->device);
  if (pool == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  return Allocate(dptr, bytesize, pool, stream);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* dptr, size_t bytesize, CUmemoryPool pool,
                                 CUstream hStream, DefaultStream default_stream) {
  StreamRef stream;
  if (CUresult result = FindStream(hStream, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  Pool* found = FindPool(pool);
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Allocate(dptr, bytesize, found, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream hStream, DefaultStream default_stream) {
  Runtime* runtime = GetRuntime();
  StreamRef stream;
  if (CUresult result = FindStream(hStream, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  if (dptr == 0) return CUDA_SUCCESS;
  if (MaybeCapturing()) {
    GraphWork work;
    work.type = CU_GRAPH_NODE_TYPE_MEM_FREE;
    work.context_id = stream.context->id;
    work.address = dptr;
    bool captured = false;
    const CUresult result = CaptureWork(stream.context, stream.id, &work, &captured);
    if (captured || result != CUDA_SUCCESS) return result;
  }
  if (FreeGraphMemory(dptr)) return CUDA_SUCCESS;
  Allocation removed;
  if (!runtime->allocations.Remove(dptr, 1u << static_cast<uint32_t>(MemoryKind::kDevice),
                                   &removed)) {
    return IsImportedFromPool(dptr) ? CloseOpenedMemory(dptr) : CUDA_ERROR_INVALID_VALUE;
  }
  Context* owner = runtime->contexts.Find(removed.context_id);
  if (owner == nullptr) owner = stream.context;
  if (removed.pool_id == 0) {
    // Of cuMemAlloc: freed after all work so far, this stream's included.
    wire::MemFreeRequest request;
    request.address = dptr;
    return Post(owner, request);
  }
  {
    MutexLock lock(&runtime->pool_mutex);
    Pool* pool = runtime->pools.Find(removed.pool_id);
    // A pool that was destroyed keeps nothing. A stream of another device orders nothing here.
    if (pool != nullptr && stream.context->device == pool->device) {
      const uint64_t bytes = BlockBytes(removed);
      pool->used -= bytes;
      pool->held += bytes;
      pool->blocks.push_back(
          {removed.start, bytes, StreamKey(stream.context, stream.id), stream.context->id});
      runtime->pool_blocks.fetch_add(1, std::memory_order_relaxed);
      return CUDA_SUCCESS;
    }
  }
  ReleasePoolBlock(owner, removed);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* poolProps) {
  if (pool == nullptr || poolProps == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (poolProps->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if ((poolProps->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0 ||
      poolProps->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    NoteUnsupported(
        "cuMemPoolCreate",
        "a pool of host memory, or for other processes by anything but file descriptors");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  Device* device = FindPoolDevice(poolProps->location.id);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const uint64_t id = CreatePool(device, poolProps->maxSize, poolProps->handleTypes, false);
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *pool = reinterpret_cast<CUmemoryPool>(id);
  return CUDA_SUCCESS;
}

// What is still in use stays so until it is freed.
CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  Runtime* runtime = GetRuntime();
  std::vector<uint64_t> surplus;
  Session* session = nullptr;
  {
    MutexLock lock(&runtime->pool_mutex);
    Pool* found = FindPool(pool);
    if (found == nullptr || found->device->default_pool == found->id)
      return CUDA_ERROR_INVALID_VALUE;
    session = found->device->session;
    TakeSurplus(found, 0, &surplus);
    runtime->pools.Destroy(found->id);
  }
  for (uint64_t address : surplus) SendFree(session, address);
  ForgetPoolAccess(reinterpret_cast<uint64_t>(pool));
  return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t minBytesToKeep) {
  Runtime* runtime = GetRuntime();
  std::vector<uint64_t> surplus;
  Session* session = nullptr;
  {
    MutexLock lock(&runtime->pool_mutex);
    Pool* found = FindPool(pool);
    if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
    session = found->device->session;
    TakeSurplus(found, minBytesToKeep, &surplus);
  }
  for (uint64_t address : surplus) SendFree(session, address);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  MutexLock lock(&GetRuntime()->pool_mutex);
  Pool* found = FindPool(pool);
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (int* policy = ReusePolicy(found, attr); policy != nullptr) {
    *policy = *static_cast<int*>(value) != 0;
    return CUDA_SUCCESS;
  }
  uint64_t* counter = Counter(found, attr);
  if (counter == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t given = *static_cast<cuuint64_t*>(value);
  // "High" marks can only be reset.
  if (attr != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD && given != 0) return CUDA_ERROR_INVALID_VALUE;
  *counter = given;
  if (attr != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) NoteHighs(found);
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attr, void* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  MutexLock lock(&GetRuntime()->pool_mutex);
  Pool* found = FindPool(pool);
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const int* policy = ReusePolicy(found, attr); policy != nullptr) {
    *static_cast<int*>(value) = *policy;
    return CUDA_SUCCESS;
  }
  if (const uint64_t* counter = Counter(found, attr); counter != nullptr) {
    *static_cast<cuuint64_t*>(value) = *counter;
    return CUDA_SUCCESS;
  }
  switch (attr) {
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
      *static_cast<cuuint64_t*>(value) = found->used + found->held;
      return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
      *static_cast<cuuint64_t*>(value) = found->used;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* map, size_t count) {
  if (map == nullptr && count != 0) return CUDA_ERROR_INVALID_VALUE;
  Device* owner = nullptr;
  {
    MutexLock lock(&GetRuntime()->pool_mutex);
    const Pool* found = FindPool(pool);
    if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
    owner = found->device;
  }
  for (size_t i = 0; i < count; ++i) {
    if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    Device* device = FindPoolDevice(map[i].location.id);
    if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    const bool all = map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    // A device always reaches its own pools, and another one all of a pool or nothing.
    if (!all && (device == owner || map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE))
      return CUDA_ERROR_INVALID_VALUE;
    if (device == owner) continue;
    const CUresult result = SetPoolAccess(reinterpret_cast<uint64_t>(pool), owner, device, all);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool memPool,
                            CUmemLocation* location) {
  if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Device* owner = nullptr;
  {
    MutexLock lock(&GetRuntime()->pool_mutex);
    const Pool* found = FindPool(memPool);
    if (found == nullptr || location->type != CU_MEM_LOCATION_TYPE_DEVICE)
      return CUDA_ERROR_INVALID_VALUE;
    owner = found->device;
  }
  const Device* device = FindPoolDevice(location->id);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const bool all = device == owner || HasPoolAccess(reinterpret_cast<uint64_t>(memPool), device);
  *flags = all ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool_out, CUdevice dev) {
  if (pool_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Device* device = FindPoolDevice(dev);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  MutexLock lock(&GetRuntime()->pool_mutex);
  const Pool* pool = DefaultPool(device);
  if (pool == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *pool_out = reinterpret_cast<CUmemoryPool>(pool->id);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice dev) {
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Device* device = FindPoolDevice(dev);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const Pool* current = CurrentPool(device);
  if (current == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *pool = reinterpret_cast<CUmemoryPool>(current->id);
  return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool) {
  Device* device = FindPoolDevice(dev);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  MutexLock lock(&GetRuntime()->pool_mutex);
  const Pool* found = FindPool(pool);
  if (found == nullptr || found->device != device || found->imported)
    return CUDA_ERROR_INVALID_VALUE;
  device->current_pool = found->id;
  return CUDA_SUCCESS;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool* pool_out, CUmemLocation* location,
                                CUmemAllocationType type) {
  if (pool_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = CheckPoolPlace("cuMemGetDefaultMemPool", location, type);
      result != CUDA_SUCCESS) {
    return result;
  }
  return calls::cuDeviceGetDefaultMemPool(pool_out, location->id);
}

CUresult cuMemGetMemPool(CUmemoryPool* pool, CUmemLocation* location, CUmemAllocationType type) {
  if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = CheckPoolPlace("cuMemGetMemPool", location, type); result != CUDA_SUCCESS)
    return result;
  return calls::cuDeviceGetMemPool(pool, location->id);
}

// "The location and allocation type specified must match those of the pool", which are all of
// devices.
CUresult cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool) {
  if (location == nullptr || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
      type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return calls::cuDeviceSetMemPool(location->id, pool);
}

}  // namespace calls
}  // namespace consort::guest
