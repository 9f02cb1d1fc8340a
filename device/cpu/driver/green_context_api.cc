// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/green_context_api.cc: resources of a device, their partition, green contexts.
// Workers are who calls these; contexts made of green ones are theirs to imitate.
#include "device/cpu/driver/green_context.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "device/cpu/driver/limits.h"
#include "device/cpu/driver/state.h"

namespace consort::cpu {
namespace {

constexpr unsigned int kPartitionMin = 1;  // multiprocessors
constexpr unsigned int kSplitFlags = CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING |
                                     CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;

// What we keep in the part of a resource that is the driver's.
struct Origin {
  uint64_t magic;
  uint64_t split;  // of which it is an outcome; 0: of none
  int64_t device;
};
constexpr uint64_t kMagic = 0x6370'7567'7265'656e;
static_assert(sizeof(Origin) <= sizeof(CUdevResource::_internal_padding));

CUdevResource MakeResource(CUdevice device, uint64_t split, unsigned int count) {
  CUdevResource resource = {};
  if (count == 0) return resource;  // CU_DEV_RESOURCE_TYPE_INVALID
  const Origin origin = {kMagic, split, device};
  std::memcpy(resource._internal_padding, &origin, sizeof(origin));
  resource.type = CU_DEV_RESOURCE_TYPE_SM;
  resource.sm = {count, kPartitionMin, kPartitionMin};
  return resource;
}

// False: not made by us.
bool OriginOf(const CUdevResource& resource, Origin* origin) {
  if (resource.type != CU_DEV_RESOURCE_TYPE_SM) return false;
  std::memcpy(origin, resource._internal_padding, sizeof(*origin));
  return origin->magic == kMagic;
}

// A descriptor is its contents, since nothing ever frees one: tag, device, multiprocessors.
constexpr uint64_t kDescriptorTag = 0xC5DE;
CUdevResourceDesc MakeDescriptor(CUdevice device, unsigned int count) {
  return reinterpret_cast<CUdevResourceDesc>(kDescriptorTag << 48 |
                                             uint64_t{static_cast<uint16_t>(device)} << 32 | count);
}

bool IsDevice(const State& state, CUdevice device) {
  return device >= 0 && static_cast<size_t>(device) < state.devices.size();
}

}  // namespace
}  // namespace consort::cpu

using namespace consort::cpu;  // the entry points are global: their prototypes are cuda.h's

extern "C" {

CUresult CUDAAPI cuDeviceGetDevResource(CUdevice device, CUdevResource* resource,
                                        CUdevResourceType type) {
  return WithState([&](State& state) {
    if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (!IsDevice(state, device)) return CUDA_ERROR_INVALID_DEVICE;
    if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    *resource = MakeResource(device, 0, state.devices[device]->MultiprocessorCount());
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGreenCtxGetDevResource(CUgreenCtx hCtx, CUdevResource* resource,
                                          CUdevResourceType type) {
  return WithState([&](State& state) {
    const std::shared_ptr<GreenContext> green = state.green_contexts.Find(hCtx);
    if (resource == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (green == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (type != CU_DEV_RESOURCE_TYPE_SM) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    *resource = MakeResource(green->device, 0, green->multiprocessors);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDevSmResourceSplitByCount(CUdevResource* result, unsigned int* nbGroups,
                                             const CUdevResource* input, CUdevResource* remaining,
                                             unsigned int useFlags, unsigned int minCount) {
  return WithState([&](State&) {
    static std::atomic<uint64_t> last_split{0};
    if (nbGroups == nullptr || input == nullptr || (useFlags & ~kSplitFlags) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    Origin origin;
    if (!OriginOf(*input, &origin)) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    if (origin.split != 0 || minCount > input->sm.smCount) {
      return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    }
    if (result != nullptr && *nbGroups == 0) return CUDA_ERROR_INVALID_VALUE;
    const unsigned int size = std::max(minCount, kPartitionMin);
    const unsigned int possible = input->sm.smCount / size;
    const unsigned int groups = result != nullptr ? std::min(*nbGroups, possible) : possible;
    const auto device = static_cast<CUdevice>(origin.device);
    const uint64_t split = last_split.fetch_add(1, std::memory_order_relaxed) + 1;
    const unsigned int left = input->sm.smCount - groups * size;
    for (unsigned int i = 0; result != nullptr && i < groups; ++i) {
      result[i] = MakeResource(device, split, size);
    }
    if (remaining != nullptr) *remaining = MakeResource(device, split, left);
    *nbGroups = groups;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDevResourceGenerateDesc(CUdevResourceDesc* phDesc, CUdevResource* resources,
                                           unsigned int nbResources) {
  return WithState([&](State&) {
    if (phDesc == nullptr || resources == nullptr || nbResources == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    Origin first;
    unsigned int count = 0;
    for (unsigned int i = 0; i < nbResources; ++i) {
      Origin origin;
      if (!OriginOf(resources[i], &origin)) return CUDA_ERROR_INVALID_RESOURCE_TYPE;
      if (i == 0) first = origin;
      if (i != 0 && (origin.split == 0 || origin.split != first.split)) {
        return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
      }
      count += resources[i].sm.smCount;
    }
    *phDesc = MakeDescriptor(static_cast<CUdevice>(first.device), count);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGreenCtxCreate(CUgreenCtx* phCtx, CUdevResourceDesc desc, CUdevice dev,
                                  unsigned int flags) {
  return WithState([&](State& state) {
    const auto value = reinterpret_cast<uint64_t>(desc);
    const auto count = static_cast<unsigned int>(value);
    if (phCtx == nullptr || flags != CU_GREEN_CTX_DEFAULT_STREAM) return CUDA_ERROR_INVALID_VALUE;
    if (!IsDevice(state, dev)) return CUDA_ERROR_INVALID_DEVICE;
    if (desc != MakeDescriptor(dev, count)) return CUDA_ERROR_INVALID_VALUE;
    CUcontext primary = nullptr;
    if (const CUresult result = cuDevicePrimaryCtxRetain(&primary, dev); result != CUDA_SUCCESS) {
      return result;
    }
    *phCtx = state.green_contexts.Insert(
        std::make_shared<GreenContext>(GreenContext{dev, state.contexts.Find(primary), count}));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGreenCtxDestroy(CUgreenCtx hCtx) {
  return WithState([&](State& state) {
    const std::shared_ptr<GreenContext> green = state.green_contexts.Remove(hCtx);
    if (green == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    return cuDevicePrimaryCtxRelease_v2(green->device);
  });
}

CUresult CUDAAPI cuGreenCtxStreamCreate(CUstream* phStream, CUgreenCtx greenCtx, unsigned int flags,
                                        int priority) {
  return WithState([&](State& state) {
    const std::shared_ptr<GreenContext> green = state.green_contexts.Find(greenCtx);
    if (phStream == nullptr || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    if (green == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (const CUresult error = green->primary->error(); error != CUDA_SUCCESS) return error;
    const std::shared_ptr<Stream> stream = green->primary->NewStream(
        flags, std::clamp(priority, kStreamPriorityGreatest, kStreamPriorityLeast));
    stream->set_multiprocessors(static_cast<int>(green->multiprocessors));
    *phStream = state.streams.Insert(stream);
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
