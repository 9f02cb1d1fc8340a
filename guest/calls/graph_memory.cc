// SPDX-License-Identifier: Apache-2.0
// guest/calls/graph_memory.cc: memory of allocation nodes, and what is told of it.
#include "guest/calls/graph_memory.h"

#include <algorithm>

#include "gen/guest/calls.h"
#include "guest/pool.h"
#include "guest/runtime.h"

namespace consort::guest {
namespace {

// Frees memory that no graph knows any more, unless the program still has it. graph_mutex held;
// what is posted to the host needs no answer.
void ForgetMemory(GraphMemory* memory) {
  Runtime* runtime = GetRuntime();
  Allocation removed;
  if (runtime->allocations.Remove(memory->address, 1u << static_cast<uint32_t>(MemoryKind::kDevice),
                                  &removed)) {
    Context* context = runtime->contexts.Find(removed.context_id);
    if (context != nullptr && context->device->session != nullptr)
      ReleasePoolBlock(context, removed);
  }
  runtime->graph_memory.erase(runtime->graph_memory.begin() +
                              (memory - runtime->graph_memory.data()));
}

// The places in `graph.nodes` of the nodes that come before one after `dependencies`.
std::vector<bool> Ancestors(const Graph& graph, const std::vector<uint64_t>& dependencies) {
  Runtime* runtime = GetRuntime();
  std::vector<bool> found(graph.nodes.size(), false);
  std::vector<uint64_t> open = dependencies;
  while (!open.empty()) {
    const uint64_t id = open.back();
    open.pop_back();
    const size_t place =
        std::find(graph.nodes.begin(), graph.nodes.end(), id) - graph.nodes.begin();
    if (place == graph.nodes.size() || found[place]) continue;
    found[place] = true;
    const GraphNode* node = runtime->graph_nodes.Find(id);
    open.insert(open.end(), node->dependencies.begin(), node->dependencies.end());
  }
  return found;
}

struct MemorySums {
  uint64_t used = 0;
  uint64_t reserved = 0;
};

// Of one device's. graph_mutex held.
MemorySums SumsOf(CUdevice device) {
  Runtime* runtime = GetRuntime();
  MemorySums sums;
  for (const GraphMemory& memory : runtime->graph_memory) {
    const Context* context = runtime->contexts.Find(memory.context_id);
    if (context == nullptr || context->device != &runtime->devices[device]) continue;
    sums.reserved += memory.bytes;
    if (memory.used) sums.used += memory.bytes;
  }
  return sums;
}

// Whether every allocation of `address` by nodes of the graph is followed by its free, and the
// frees are all among `done`.
bool IsFreed(const Graph& graph, const std::vector<bool>& done, CUdeviceptr address) {
  size_t allocations = 0;
  size_t frees = 0;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const GraphWork& work = GetRuntime()->graph_nodes.Find(graph.nodes[i])->work;
    if (work.address != address) continue;
    if (work.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) ++allocations;
    if (work.type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
      if (!done[i]) return false;
      ++frees;
    }
  }
  return allocations != 0 && frees == allocations;
}

}  // namespace

void ReuseMemory(const Graph& graph, const std::vector<uint64_t>& dependencies, GraphWork* work) {
  if (work->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || dependencies.empty()) return;
  GraphMemory* made = FindMemory(work->address);
  if (made == nullptr || made->references != 0) return;
  const std::vector<bool> done = Ancestors(graph, dependencies);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const GraphWork& freed = GetRuntime()->graph_nodes.Find(graph.nodes[i])->work;
    if (!done[i] || freed.type != CU_GRAPH_NODE_TYPE_MEM_FREE) continue;
    const GraphMemory* memory = FindMemory(freed.address);
    if (memory == nullptr || memory == made || memory->bytes < made->bytes ||
        memory->context_id != made->context_id || !IsFreed(graph, done, freed.address)) {
      continue;
    }
    work->address = freed.address;
    ForgetMemory(made);
    return;
  }
}

GraphMemory* FindMemory(CUdeviceptr address) {
  for (GraphMemory& memory : GetRuntime()->graph_memory) {
    if (memory.address == address) return &memory;
  }
  return nullptr;
}

void KeepMemory(const GraphWork& work) {
  if (work.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return;
  if (GraphMemory* memory = FindMemory(work.address); memory != nullptr) ++memory->references;
}

void DropMemory(const GraphWork& work) {
  if (work.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return;
  GraphMemory* memory = FindMemory(work.address);
  if (memory != nullptr && --memory->references == 0 && !memory->live) ForgetMemory(memory);
}

CUresult MarkMemory(const GraphExec& exec) {
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->graph_mutex);
  const bool frees_before = (exec.flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
  for (const GraphExec::Step& step : exec.steps) {
    if (step.work.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) continue;
    const GraphMemory* memory = FindMemory(step.work.address);
    if (memory != nullptr && memory->live && !frees_before) return CUDA_ERROR_INVALID_VALUE;
  }
  for (const GraphExec::Step& step : exec.steps) {
    const bool allocates = step.work.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    if (!allocates && step.work.type != CU_GRAPH_NODE_TYPE_MEM_FREE) continue;
    GraphMemory* memory = FindMemory(step.work.address);
    if (memory == nullptr) continue;
    memory->live = allocates;
    memory->used = true;
  }
  return CUDA_SUCCESS;
}

CUresult AllocateGraphMemory(const StreamRef& stream, uint64_t bytes, CUdeviceptr* address) {
  Runtime* runtime = GetRuntime();
  Pool* pool = CurrentPool(stream.context->device);
  if (pool == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  if (CUresult result = AllocateFromPool(pool, stream, bytes, address); result != CUDA_SUCCESS)
    return result;
  MutexLock lock(&runtime->graph_mutex);
  runtime->graph_memory.push_back({*address, bytes, stream.context->id});
  return CUDA_SUCCESS;
}

bool FreeGraphMemory(CUdeviceptr address) {
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->graph_mutex);
  GraphMemory* memory = FindMemory(address);
  if (memory == nullptr) return false;
  memory->live = false;
  if (memory->references == 0) ForgetMemory(memory);
  return true;
}

namespace calls {

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void* value) {
  Runtime* runtime = GetRuntime();
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0 || device >= runtime->device_count) return CUDA_ERROR_INVALID_DEVICE;
  MutexLock lock(&runtime->graph_mutex);
  const MemorySums sums = SumsOf(device);
  // The marks rise when they are asked for: what they are for is a hint of sizes.
  uint64_t* const used_high = &runtime->graph_used_high[device];
  uint64_t* const reserved_high = &runtime->graph_reserved_high[device];
  *used_high = std::max(*used_high, sums.used);
  *reserved_high = std::max(*reserved_high, sums.reserved);
  auto* out = static_cast<cuuint64_t*>(value);
  switch (attr) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT:
      *out = sums.used;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
      *out = *used_high;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT:
      *out = sums.reserved;
      return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
      *out = *reserved_high;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void* value) {
  Runtime* runtime = GetRuntime();
  if (value == nullptr || *static_cast<cuuint64_t*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0 || device >= runtime->device_count) return CUDA_ERROR_INVALID_DEVICE;
  MutexLock lock(&runtime->graph_mutex);
  if (attr == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) {
    runtime->graph_used_high[device] = 0;
  } else if (attr == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) {
    runtime->graph_reserved_high[device] = 0;
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

// Memory goes with the last graph that has it, whose address it keeps until then: a trim is no more
// than noted.
CUresult cuDeviceGraphMemTrim(CUdevice device) {
  Runtime* runtime = GetRuntime();
  if (device < 0 || device >= runtime->device_count) return CUDA_ERROR_INVALID_DEVICE;
  MutexLock lock(&runtime->graph_mutex);
  for (GraphMemory& memory : runtime->graph_memory) {
    const Context* context = runtime->contexts.Find(memory.context_id);
    if (context == nullptr || context->device != &runtime->devices[device]) continue;
    memory.used = memory.live;
  }
  return CUDA_SUCCESS;
}

}  // namespace calls
}  // namespace consort::guest
