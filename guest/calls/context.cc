// SPDX-License-Identifier: Apache-2.0
// guest/calls/context.cc: primary and created contexts and each thread's stack of them. Contexts
// live in the guest (api/cuda/context.toml). Source: CUDA Driver API, Primary Context Management,
// Context Management.
#include "gen/guest/calls.h"
#include "guest/call.h"
#include "guest/host_reach.h"
#include "guest/peers.h"
#include "guest/runtime.h"
#include "guest/thread_state.h"

namespace consort::guest::calls {
namespace {

// CU_CTX_SCHED_*, MAP_HOST, LMEM_RESIZE_TO_MAX, COREDUMP_ENABLE, USER_COREDUMP_ENABLE, SYNC_MEMOPS.
constexpr unsigned kContextFlags = CU_CTX_FLAGS_MASK;

Device* FindDevice(CUdevice dev) {
  Runtime* runtime = GetRuntime();
  return dev >= 0 && dev < runtime->device_count ? &runtime->devices[dev] : nullptr;
}

// At most one scheduling flag, and nothing unknown.
bool FlagsValid(unsigned flags) {
  const unsigned schedule = flags & CU_CTX_SCHED_MASK;
  if ((flags & ~kContextFlags) != 0) return false;
  return schedule == CU_CTX_SCHED_AUTO || schedule == CU_CTX_SCHED_SPIN ||
         schedule == CU_CTX_SCHED_YIELD || schedule == CU_CTX_SCHED_BLOCKING_SYNC;
}

Context* Primary(Device* device) { return GetRuntime()->contexts.Find(device->primary_id); }

// Empties the primary context; its handle stays. device_mutex held by nobody.
CUresult Deactivate(Device* device) {
  Context* context = Primary(device);
  if (!context->active.exchange(false)) return CUDA_SUCCESS;
  return EmptyContext(context);
}

CUresult Create(CUcontext* pctx, unsigned flags, CUdevice dev) {
  if (pctx == nullptr || !FlagsValid(flags)) return CUDA_ERROR_INVALID_VALUE;
  Device* device = FindDevice(dev);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  CUresult result = CUDA_SUCCESS;
  if (OpenDevice(device, &result) == nullptr) return result;
  const uint64_t id = NewContext(device, false, flags);
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  ReachPortableMemory(device);
  CurrentThread().contexts.push_back(id);
  *pctx = reinterpret_cast<CUcontext>(id);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev) {
  if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Device* device = FindDevice(dev);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  CUresult result = CUDA_SUCCESS;
  if (OpenDevice(device, &result) == nullptr) return result;
  ReachPortableMemory(device);
  MutexLock lock(&GetRuntime()->device_mutex);
  ++device->retain_count;
  Context* context = Primary(device);
  if (!context->active.load()) {
    context->flags = device->primary_flags;
    context->active = true;
  }
  *pctx = ToHandle(context);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
  Device* device = FindDevice(dev);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  {
    MutexLock lock(&GetRuntime()->device_mutex);
    if (device->retain_count == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--device->retain_count != 0) return CUDA_SUCCESS;
  }
  return Deactivate(device);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
  Device* device = FindDevice(dev);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return Deactivate(device);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int* flags, int* active) {
  Device* device = FindDevice(dev);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  MutexLock lock(&GetRuntime()->device_mutex);
  const Context* context = Primary(device);
  *active = context->active.load() ? 1 : 0;
  *flags = *active ? context->flags.load() : device->primary_flags;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
  Device* device = FindDevice(dev);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (!FlagsValid(flags)) return CUDA_ERROR_INVALID_VALUE;
  MutexLock lock(&GetRuntime()->device_mutex);
  device->primary_flags = flags;
  if (Context* context = Primary(device); context->active.load()) context->flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext* pctx, unsigned int flags, CUdevice dev) {
  return Create(pctx, flags, dev);
}

CUresult cuCtxCreate_v3(CUcontext* pctx, CUexecAffinityParam* paramsArray, int numParams,
                        unsigned int flags, CUdevice dev) {
  if (numParams < 0 || (numParams > 0 && paramsArray == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  if (numParams > 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
  return Create(pctx, flags, dev);
}

CUresult cuCtxCreate_v4(CUcontext* pctx, CUctxCreateParams* ctxCreateParams, unsigned int flags,
                        CUdevice dev) {
  if (ctxCreateParams != nullptr) {
    if (ctxCreateParams->numExecAffinityParams > 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    if (ctxCreateParams->cigParams != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  }
  return Create(pctx, flags, dev);
}

CUresult cuCtxDestroy_v2(CUcontext ctx) {
  Runtime* runtime = GetRuntime();
  Context* context = runtime->contexts.Find(reinterpret_cast<uint64_t>(ctx));
  if (ctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (context == nullptr || context->primary || context->green_id != 0)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->active.exchange(false)) return CUDA_ERROR_INVALID_CONTEXT;
  const CUresult result = EmptyContext(context);
  // Popped where it is current on this thread; other threads find it destroyed.
  std::vector<uint64_t>& stack = CurrentThread().contexts;
  if (!stack.empty() && stack.back() == context->id) stack.pop_back();
  runtime->contexts.Destroy(context->id);
  return result;
}

CUresult cuCtxAttach(CUcontext* pctx, unsigned int flags) {
  if (pctx == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  MutexLock lock(&GetRuntime()->device_mutex);
  ++context->attach_count;
  *pctx = ToHandle(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext ctx) {
  Context* context = nullptr;
  if (ctx == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (CUresult result = FindContext(ctx, &context); result != CUDA_SUCCESS) return result;
  {
    MutexLock lock(&GetRuntime()->device_mutex);
    if (context->primary || --context->attach_count != 0) return CUDA_SUCCESS;
  }
  return calls::cuCtxDestroy_v2(ctx);
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
  if (ctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = FindContext(ctx, &context); result != CUDA_SUCCESS) return result;
  CurrentThread().contexts.push_back(context->id);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* pctx) {
  std::vector<uint64_t>& stack = CurrentThread().contexts;
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (pctx != nullptr) *pctx = reinterpret_cast<CUcontext>(stack.back());
  stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext ctx) {
  std::vector<uint64_t>& stack = CurrentThread().contexts;
  if (ctx == nullptr) {
    if (!stack.empty()) stack.pop_back();
    return CUDA_SUCCESS;
  }
  Context* context = nullptr;
  if (CUresult result = FindContext(ctx, &context); result != CUDA_SUCCESS) return result;
  if (stack.empty()) {
    stack.push_back(context->id);
  } else {
    stack.back() = context->id;
  }
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* pctx) {
  if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::vector<uint64_t>& stack = CurrentThread().contexts;
  *pctx = stack.empty() ? nullptr : reinterpret_cast<CUcontext>(stack.back());
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) { return cuCtxGetDevice_v2(device, nullptr); }

CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext ctx) {
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = FindContext(ctx, &context); result != CUDA_SUCCESS) return result;
  *device = context->device->ordinal;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int* flags) {
  if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  *flags = context->flags.load();
  return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned int flags) {
  if (!FlagsValid(flags)) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  context->flags = flags;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext ctx, unsigned long long* ctxId) {
  if (ctxId == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = FindContext(ctx, &context); result != CUDA_SUCCESS) return result;
  *ctxId = context->wire_id;
  return CUDA_SUCCESS;
}

// 3020 for a context of this API: the version of cuCtxCreate_v2, as drivers answer.
CUresult cuCtxGetApiVersion(CUcontext ctx, unsigned int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = FindContext(ctx, &context); result != CUDA_SUCCESS) return result;
  *version = 3020;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t* pvalue, CUlimit limit) {
  if (pvalue == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  if (limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
  KnownLimit& known = context->limits[limit];
  if (const int result = known.result.load(std::memory_order_acquire);
      result != KnownLimit::kUnknown) {
    if (result == CUDA_SUCCESS) *pvalue = known.value;
    return static_cast<CUresult>(result);
  }
  wire::ContextGetLimitRequest request;
  wire::ContextGetLimitReply reply;
  request.limit = limit;
  const CUresult result = Ask(context, request, &reply);
  if (result == CUDA_SUCCESS) *pvalue = reply.value;
  // Other errors are about more than this limit.
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_UNSUPPORTED_LIMIT) {
    known.value = reply.value;
    known.result.store(result, std::memory_order_release);
  }
  return result;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  wire::ContextSetLimitRequest request;
  wire::ContextSetLimitReply reply;
  request.limit = limit;
  request.value = value;
  const CUresult result = Ask(context, request, &reply);
  if (limit >= 0 && limit < CU_LIMIT_MAX) context->limits[limit].result = KnownLimit::kUnknown;
  return result;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache* pconfig) {
  if (pconfig == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  *pconfig = static_cast<CUfunc_cache>(context->cache_config.load());
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config) {
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  if (config < CU_FUNC_CACHE_PREFER_NONE || config > CU_FUNC_CACHE_PREFER_EQUAL)
    return CUDA_ERROR_INVALID_VALUE;
  context->cache_config = config;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig* pConfig) {
  if (pConfig == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  // Banks have had one width since Maxwell, whatever was asked for.
  *pConfig = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
  return CUDA_SUCCESS;
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config) {
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  if (config < CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE ||
      config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int* leastPriority, int* greatestPriority) {
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  if (leastPriority != nullptr) *leastPriority = context->device->snapshot.stream_priority_least;
  if (greatestPriority != nullptr)
    *greatestPriority = context->device->snapshot.stream_priority_greatest;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetExecAffinity(CUexecAffinityParam* pExecAffinity, CUexecAffinityType type) {
  if (pExecAffinity == nullptr || type < 0 || type >= CU_EXEC_AFFINITY_TYPE_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
}

CUresult cuCtxSynchronize() { return cuCtxSynchronize_v2(nullptr); }

CUresult cuCtxSynchronize_v2(CUcontext ctx) {
  Context* context = nullptr;
  if (ctx == nullptr) {
    if (CUresult result = CurrentOrGreenContext(&context); result != CUDA_SUCCESS) return result;
  } else if (CUresult result = FindContext(ctx, &context); result != CUDA_SUCCESS) {
    return result;
  }
  if (!context->active.load()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (context->green_id != 0) return SynchroniseGreen(context);
  // Of before, as others may launch meanwhile.
  const uint64_t printing_launches = context->printing_launches.load(std::memory_order_relaxed);
  wire::ContextSynchronizeRequest request;
  wire::EmptyReply reply;
  const CUresult result = Ask(context, request, &reply);
  if (result == CUDA_SUCCESS) {
    context->printing_shown.store(printing_launches, std::memory_order_relaxed);
  }
  return result;
}

CUresult cuCtxResetPersistingL2Cache() {
  Context* context = nullptr;
  return CurrentContext(&context);
}

CUresult cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags) {
  Context* context = nullptr;
  if (Flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  Context* peer = nullptr;
  if (peerContext == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (CUresult result = FindHome(peerContext, &peer); result != CUDA_SUCCESS) return result;
  if (peer == context) return CUDA_ERROR_INVALID_CONTEXT;
  if (!peer->active.load()) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return EnablePeerAccess(context, peer);
}

CUresult cuCtxDisablePeerAccess(CUcontext peerContext) {
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  Context* peer = nullptr;
  if (peerContext == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (CUresult result = FindHome(peerContext, &peer); result != CUDA_SUCCESS) return result;
  return DisablePeerAccess(context, peer);
}

}  // namespace consort::guest::calls
