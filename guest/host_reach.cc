// SPDX-License-Identifier: Apache-2.0
#include "guest/host_reach.h"

#include <string.h>

#include "guest/call.h"
#include "guest/log.h"
#include "guest/peers.h"
#include "guest/runtime.h"
#include "guest/shared_memory.h"
#include "guest/shared_pages.h"

namespace consort::guest {
namespace {

uint64_t Bit(const Device* device) { return uint64_t{1} << device->ordinal; }

bool IsShared(MemoryKind kind) {
  return kind == MemoryKind::kSharedHost || kind == MemoryKind::kManaged ||
         kind == MemoryKind::kRegisteredView;
}

bool IsForAll(const Allocation& range) {
  return range.kind == MemoryKind::kManaged ||
         (range.kind == MemoryKind::kSharedHost && (range.flags & CU_MEMHOSTALLOC_PORTABLE) != 0);
}

// Whether `device` has to be told of what `range` is.
bool Lacks(const Device* device, const Allocation& range) {
  return IsShared(range.kind) && (range.mapped_by & Bit(device)) == 0 &&
         DeviceOfAddress(range.start) != device;
}

// What the address lies in; false: nothing that `device` has to be told of. `*result`: a failure is
// not tried again.
bool FindToReach(const Device* device, uint64_t address, Allocation* range, CUresult* result) {
  if (!GetRuntime()->allocations.Find(address, range) || !Lacks(device, *range)) return false;
  if ((range->refused_by & Bit(device)) == 0) return true;
  *result = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  return false;
}

CUresult Pass(Device* owner, uint64_t start, Device* device) {
  wire::HostReachRequest request;
  CUresult result = KeepHostAddresses(device, owner, &request.session);
  if (result != CUDA_SUCCESS) return result;
  result = PassSharedMemory(owner->session, start, device->session, &request);
  if (result != CUDA_SUCCESS) {
    LogLine("device %d does not reach the host memory at 0x%llx of device %d (error %d)",
            device->ordinal, static_cast<unsigned long long>(start), owner->ordinal,
            static_cast<int>(result));
  }
  return result;
}

}  // namespace

CUresult ReachHostMemory(Device* device, uint64_t address) {
  Runtime* runtime = GetRuntime();
  if (runtime->device_count == 1) return CUDA_SUCCESS;
  Allocation range;
  CUresult result = CUDA_SUCCESS;
  if (!FindToReach(device, address, &range, &result)) return result;
  MutexLock lock(&runtime->host_reach_mutex);
  // Again, now that no other thread does the same.
  if (!FindToReach(device, address, &range, &result)) return result;
  Device* owner = DeviceOfAddress(range.start);
  if (owner == nullptr) return CUDA_ERROR_INVALID_VALUE;
  result = Pass(owner, range.start, device);
  runtime->allocations.SetReached(range.start, Bit(device), result == CUDA_SUCCESS);
  return result;
}

void ReachParameters(Device* device, std::span<const std::byte> parameters) {
  Runtime* runtime = GetRuntime();
  for (int i = 0; i < runtime->device_count; ++i) {
    const Device* other = &runtime->devices[i];
    if (other == device || !other->in_use.load(std::memory_order_acquire)) continue;
    const wire::Welcome& welcome = other->session->welcome();
    for (size_t at = 0; at + sizeof(uint64_t) <= parameters.size(); at += sizeof(uint64_t)) {
      uint64_t value = 0;
      memcpy(&value, parameters.data() + at, sizeof(value));
      if (value - welcome.shared_host_base < welcome.shared_host_bytes)
        ReachHostMemory(device, value);
    }
  }
}

void ShowHostMemory(const Allocation& allocation) {
  Runtime* runtime = GetRuntime();
  if (runtime->device_count == 1 || !IsForAll(allocation)) return;
  for (int i = 0; i < runtime->device_count; ++i) {
    Device* device = &runtime->devices[i];
    if (device->in_use.load()) ReachHostMemory(device, allocation.start);
  }
}

void ReachPortableMemory(Device* device) {
  Runtime* runtime = GetRuntime();
  // First this, then a look at what there is; ShowHostMemory is called the other way round.
  if (device->in_use.exchange(true) || runtime->device_count == 1) return;
  for (uint64_t start : runtime->allocations.Starts(IsForAll)) ReachHostMemory(device, start);
}

void LeaveHostMemory(const Allocation& removed) {
  if (removed.mapped_by == 0 || !IsShared(removed.kind)) return;
  // Without the lock: launches of other threads, which this may wait for, can need it.
  Runtime* runtime = GetRuntime();
  for (int i = 0; i < runtime->device_count; ++i) {
    Device* device = &runtime->devices[i];
    if ((removed.mapped_by & Bit(device)) == 0) continue;
    wire::HostLeaveRequest request;
    wire::EmptyReply reply;
    request.session = HostAddressesOf(device, DeviceOfAddress(removed.start));
    request.address = removed.start / kPageBytes * kPageBytes;
    // What fails there is told to whoever asks there.
    device->session->Ask(0, request, &reply);
  }
}

}  // namespace consort::guest
