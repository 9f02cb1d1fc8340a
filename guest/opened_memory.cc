// SPDX-License-Identifier: Apache-2.0
#include "guest/opened_memory.h"

#include "guest/runtime.h"

namespace consort::guest {

CUresult OpenSharedMemory(Context* context, const SharedToken& token, uint64_t pool_id,
                          CUdeviceptr* address) {
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->memory_mutex);
  for (OpenedMemory& opened : runtime->opened_memory) {
    if (opened.token_high == token.high && opened.token_low == token.low &&
        opened.device == context->device) {
      ++opened.count;
      *address = opened.address;
      return CUDA_SUCCESS;
    }
  }
  wire::SharedMemoryOpenRequest request;
  wire::SharedMemoryOpenReply reply;
  request.session = token.session;
  request.token_high = token.high;
  request.token_low = token.low;
  if (CUresult result = Ask(context, request, &reply); result != CUDA_SUCCESS) return result;
  Allocation range;
  range.start = reply.address;
  range.bytes = reply.bytes;
  range.kind = MemoryKind::kOpened;
  range.context_id = context->id;
  range.pool_id = pool_id;
  if (!runtime->allocations.Add(range)) return CUDA_ERROR_UNKNOWN;
  runtime->opened_memory.push_back({token.high, token.low, context->device, reply.address, 1});
  *address = reply.address;
  return CUDA_SUCCESS;
}

CUresult CloseOpenedMemory(CUdeviceptr address) {
  Runtime* runtime = GetRuntime();
  Allocation range;
  if (!runtime->allocations.Find(address, &range) || range.kind != MemoryKind::kOpened ||
      range.start != address) {
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
    if (runtime->opened_memory[i].address != address) continue;
    if (--runtime->opened_memory[i].count != 0) return CUDA_SUCCESS;
    runtime->opened_memory.erase(runtime->opened_memory.begin() + i);
    Allocation removed;
    runtime->allocations.Remove(address, 1u << static_cast<uint32_t>(MemoryKind::kOpened),
                                &removed);
    wire::SharedMemoryCloseRequest request;
    request.address = address;
    return Ask(context, request, &reply);
  }
  return CUDA_ERROR_INVALID_VALUE;
}

bool IsImportedFromPool(CUdeviceptr address) {
  Allocation range;
  return GetRuntime()->allocations.Find(address, &range) && range.kind == MemoryKind::kOpened &&
         range.start == address && range.pool_id != 0;
}

}  // namespace consort::guest
