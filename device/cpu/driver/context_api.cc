// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/context_api.cc: primary contexts, contexts, the stack of current contexts.
#include <utility>

#include "device/cpu/driver/limits.h"
#include "device/cpu/driver/state.h"
#include "device/cpu/driver/thread_state.h"

namespace consort::cpu {
namespace {

constexpr unsigned int kContextFlagsKnown =
    CU_CTX_SCHED_MASK | CU_CTX_MAP_HOST | CU_CTX_LMEM_RESIZE_TO_MAX | CU_CTX_SYNC_MEMOPS;
constexpr unsigned int kContextApiVersion = 3020;

Device* FindDevice(State& state, CUdevice ordinal) {
  if (ordinal < 0 || static_cast<size_t>(ordinal) >= state.devices.size()) return nullptr;
  return state.devices[ordinal].get();
}

bool FlagsValid(unsigned int flags) {
  const unsigned int schedule = flags & CU_CTX_SCHED_MASK;
  return (flags & ~kContextFlagsKnown) == 0 &&
         (schedule == CU_CTX_SCHED_AUTO || schedule == CU_CTX_SCHED_SPIN ||
          schedule == CU_CTX_SCHED_YIELD || schedule == CU_CTX_SCHED_BLOCKING_SYNC);
}

// Puts a fresh context under the device's primary handle and gives back the one that was there.
std::shared_ptr<Context> ReplacePrimary(State& state, Device& device, unsigned int flags,
                                        bool active) {
  std::shared_ptr<Context> old = state.contexts.Find(device.primary);
  state.contexts.Replace(device.primary,
                         std::make_shared<Context>(&device, device.primary, flags, active));
  return old;
}

CUresult CreateContext(CUcontext* out, unsigned int flags, CUdevice dev) {
  return WithState([&](State& state) {
    Device* device = FindDevice(state, dev);
    if (out == nullptr || !FlagsValid(flags)) return CUDA_ERROR_INVALID_VALUE;
    if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    const CUcontext handle = state.contexts.Insert(nullptr);
    state.contexts.Replace(handle,
                           std::make_shared<Context>(device, handle, flags, /*active=*/true));
    ThisThread().Push(handle);
    *out = handle;
    return CUDA_SUCCESS;
  });
}

}  // namespace

}  // namespace consort::cpu

using namespace consort::cpu;  // the entry points are global: their prototypes are cuda.h's

extern "C" {

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
  return WithState([&](State& state) {
    Device* device = FindDevice(state, dev);
    if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
    absl::MutexLock lock(&device->primary_mutex);
    if (device->primary_retain_count++ == 0) {
      ReplacePrimary(state, *device, device->primary_flags, /*active=*/true);
    }
    *pctx = device->primary;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  return WithState([&](State& state) {
    Device* device = FindDevice(state, dev);
    if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    std::shared_ptr<Context> old;
    {
      absl::MutexLock lock(&device->primary_mutex);
      if (device->primary_retain_count == 0) return CUDA_ERROR_INVALID_CONTEXT;
      if (--device->primary_retain_count > 0) return CUDA_SUCCESS;
      old = ReplacePrimary(state, *device, 0, /*active=*/false);
    }
    DestroyContext(state, old);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  return WithState([&](State& state) {
    Device* device = FindDevice(state, dev);
    if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    std::shared_ptr<Context> old;
    {
      // Those who retain it still do, so it is active again at once, with nothing in it.
      absl::MutexLock lock(&device->primary_mutex);
      if (device->primary_retain_count == 0) return CUDA_SUCCESS;
      old = ReplacePrimary(state, *device, device->primary_flags, /*active=*/true);
    }
    DestroyContext(state, old);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int* flags, int* active) {
  return WithState([&](State& state) {
    Device* device = FindDevice(state, dev);
    if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
    absl::MutexLock lock(&device->primary_mutex);
    *flags = device->primary_flags;
    *active = device->primary_retain_count > 0;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
  return WithState([&](State& state) {
    Device* device = FindDevice(state, dev);
    if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    if (!FlagsValid(flags)) return CUDA_ERROR_INVALID_VALUE;
    absl::MutexLock lock(&device->primary_mutex);
    device->primary_flags = flags;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  return CreateContext(pctx, flags, dev);
}

CUresult CUDAAPI cuCtxCreate_v4(CUcontext* pctx, CUctxCreateParams* ctxCreateParams,
                                unsigned int flags, CUdevice dev) {
  // Parameters ask for execution affinity or graphics sharing, which this device has not.
  if (ctxCreateParams != nullptr &&
      (ctxCreateParams->numExecAffinityParams != 0 || ctxCreateParams->cigParams != nullptr)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CreateContext(pctx, flags, dev);
}

CUresult CUDAAPI cuCtxDestroy_v2(CUcontext ctx) {
  return WithState([&](State& state) {
    for (const auto& device : state.devices) {
      if (device->primary == ctx) return CUDA_ERROR_INVALID_CONTEXT;
    }
    const std::shared_ptr<Context> context = state.contexts.Remove(ctx);
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (ThisThread().current() == ctx) ThisThread().Pop();
    DestroyContext(state, context);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext ctx) {
  return WithState([&](State& state) {
    if (ctx != nullptr && state.contexts.Find(ctx) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    ThisThread().SetCurrent(ctx);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext* pctx) {
  return WithState([&](State&) {
    if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pctx = ThisThread().current();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext ctx) {
  return WithState([&](State& state) {
    if (ctx == nullptr || state.contexts.Find(ctx) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    ThisThread().Push(ctx);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext* pctx) {
  return WithState([&](State&) {
    const CUcontext popped = ThisThread().Pop();
    if (popped == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (pctx != nullptr) *pctx = popped;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice* device) {
  return WithState([&](State& state) {
    // Also of a context that has failed, or that nobody retains.
    const std::shared_ptr<Context> context = state.contexts.Find(ThisThread().current());
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = context->device().index();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxGetFlags(unsigned int* flags) {
  return WithContext([&](State&, const std::shared_ptr<Context>& context) {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = context->flags();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxSynchronize(void) {
  return WithContext(
      [](State&, const std::shared_ptr<Context>& context) { return context->Synchronize(); });
}

CUresult CUDAAPI cuCtxGetApiVersion(CUcontext ctx, unsigned int* version) {
  return WithState([&](State& state) {
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUcontext named = ctx != nullptr ? ctx : ThisThread().current();
    if (state.contexts.Find(named) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    *version = kContextApiVersion;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxGetLimit(size_t* pvalue, CUlimit limit) {
  return WithContext([&](State&, const std::shared_ptr<Context>& context) {
    if (pvalue == nullptr) return CUDA_ERROR_INVALID_VALUE;
    switch (limit) {
      case CU_LIMIT_STACK_SIZE:
        *pvalue = context->stack_bytes;
        return CUDA_SUCCESS;
      case CU_LIMIT_PRINTF_FIFO_SIZE:
        *pvalue = context->printf_bytes;
        return CUDA_SUCCESS;
      case CU_LIMIT_MALLOC_HEAP_SIZE:
        *pvalue = context->heap_bytes;
        return CUDA_SUCCESS;
      default:
        return limit < CU_LIMIT_MAX ? CUDA_ERROR_UNSUPPORTED_LIMIT : CUDA_ERROR_INVALID_VALUE;
    }
  });
}

CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, size_t value) {
  return WithContext([&](State&, const std::shared_ptr<Context>& context) {
    switch (limit) {
      case CU_LIMIT_STACK_SIZE:
        context->stack_bytes = value;
        return CUDA_SUCCESS;
      case CU_LIMIT_PRINTF_FIFO_SIZE:
        context->printf_bytes = value;
        return CUDA_SUCCESS;
      case CU_LIMIT_MALLOC_HEAP_SIZE:
        context->heap_bytes = value;
        return CUDA_SUCCESS;
      default:
        return limit < CU_LIMIT_MAX ? CUDA_ERROR_UNSUPPORTED_LIMIT : CUDA_ERROR_INVALID_VALUE;
    }
  });
}

CUresult CUDAAPI cuCtxGetCacheConfig(CUfunc_cache* pconfig) {
  return WithContext([&](State&, const std::shared_ptr<Context>& context) {
    if (pconfig == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pconfig = context->cache_config;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxSetCacheConfig(CUfunc_cache config) {
  return WithContext([&](State&, const std::shared_ptr<Context>& context) {
    if (config < CU_FUNC_CACHE_PREFER_NONE || config > CU_FUNC_CACHE_PREFER_EQUAL) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    context->cache_config = config;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
  return WithContext([&](State&, const std::shared_ptr<Context>&) {
    if (leastPriority != nullptr) *leastPriority = kStreamPriorityLeast;
    if (greatestPriority != nullptr) *greatestPriority = kStreamPriorityGreatest;
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
