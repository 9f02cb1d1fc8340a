// SPDX-License-Identifier: Apache-2.0
#include "host/session/launch_chain.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace consort::host {
namespace {

// What of it the driver keeps it copies. `extra` is set to refer to what the arguments refer to.
template <class Params>
void Describe(CUkernel kernel, CUcontext context, const std::array<unsigned int, 7>& shape,
              void** extra, Params* params) {
  *params = {};
  params->kern = kernel;
  params->ctx = context;
  params->gridDimX = shape[0];
  params->gridDimY = shape[1];
  params->gridDimZ = shape[2];
  params->blockDimX = shape[3];
  params->blockDimY = shape[4];
  params->blockDimZ = shape[5];
  params->sharedMemBytes = shape[6];
  params->extra = extra;
}

std::array<unsigned int, 7> ShapeOf(const LaunchChains::Item& item) {
  return {item.grid[0],  item.grid[1],  item.grid[2],     item.block[0],
          item.block[1], item.block[2], item.shared_bytes};
}

}  // namespace

bool LaunchChains::Available(const device::DriverTable& driver) {
  return driver.cuGraphKernelNodeSetAttribute != nullptr &&
         driver.cuGraphExecKernelNodeSetParams_v2 != nullptr;
}

uint32_t LaunchChains::LengthOf(size_t count) {
  for (const uint32_t length : kLengths) {
    if (count >= length) return length;
  }
  return 0;
}

bool LaunchChains::Node::Has(const Item& item) const {
  return kernel == item.kernel && shape == ShapeOf(item) &&
         argument_bytes == item.arguments.size() &&
         std::memcmp(arguments.data(), item.arguments.data(), argument_bytes) == 0;
}

void LaunchChains::Node::Take(const Item& item) {
  kernel = item.kernel;
  shape = ShapeOf(item);
  argument_bytes = static_cast<uint32_t>(item.arguments.size());
  std::memcpy(arguments.data(), item.arguments.data(), argument_bytes);
}

bool LaunchChains::InFlight(Chain* chain) {
  if (chain->ended == nullptr) return false;
  if (driver_.cuEventQuery(chain->ended) == CUDA_ERROR_NOT_READY) return true;
  events_->Return(std::exchange(chain->ended, nullptr));
  return false;
}

uint64_t LaunchChains::HashOf(std::span<const Item> items) {
  uint64_t hash = 0;
  for (const Item& item : items) {
    // A multiplier of Steele and Vigna, "Computationally Easy, Spectrally Good Multipliers for
    // Congruential Pseudorandom Number Generators" (2021).
    hash = (hash ^ reinterpret_cast<uint64_t>(item.kernel)) * 0xd1342543de82ef95;
    hash ^= hash >> 32;
  }
  return hash;
}

LaunchChains::Chain* LaunchChains::FindFree(int priority, size_t length, uint64_t kernels) {
  // Those that were used longest ago are the likeliest; each look at one in flight costs a call.
  Chain* alike = nullptr;
  Chain* other = nullptr;
  for (const auto& chain : chains_) {
    if (chain->priority != priority || chain->nodes.size() != length) continue;
    Chain*& oldest = chain->kernels == kernels ? alike : other;
    if (oldest == nullptr || chain->used < oldest->used) oldest = chain.get();
  }
  if (alike != nullptr && !InFlight(alike)) return alike;
  return other != nullptr && !InFlight(other) ? other : nullptr;
}

CUresult LaunchChains::AddNode(const Chain& chain, CUgraphNode before, const Item& item,
                               Node* node) {
  node->Take(item);
  size_t bytes = node->argument_bytes;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, node->arguments.data(),
                   CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
  CUgraphNodeParams params = {};
  params.type = CU_GRAPH_NODE_TYPE_KERNEL;
  Describe(node->kernel, context_, node->shape, bytes != 0 ? extra : nullptr, &params.kernel);
  CUresult result = driver_.cuGraphAddNode_v2(&node->handle, chain.graph, &before, nullptr,
                                              before != nullptr ? 1 : 0, &params);
  if (result != CUDA_SUCCESS) return result;
  CUkernelNodeAttrValue priority = {};
  priority.priority = chain.priority;
  return driver_.cuGraphKernelNodeSetAttribute(node->handle, CU_LAUNCH_ATTRIBUTE_PRIORITY,
                                               &priority);
}

std::unique_ptr<LaunchChains::Chain> LaunchChains::Make(int priority, std::span<const Item> items) {
  auto chain = std::make_unique<Chain>();
  chain->priority = priority;
  chain->nodes.resize(items.size());
  CUresult result = driver_.cuGraphCreate(&chain->graph, 0);
  CUgraphNode before = nullptr;
  for (size_t i = 0; i < items.size() && result == CUDA_SUCCESS; ++i) {
    result = AddNode(*chain, before, items[i], &chain->nodes[i]);
    before = chain->nodes[i].handle;
    if (result != CUDA_SUCCESS) refused_.insert(items[i].kernel);
  }
  if (result == CUDA_SUCCESS) {
    result = driver_.cuGraphInstantiateWithFlags(&chain->exec, chain->graph, 0);
    broken_ = result != CUDA_SUCCESS;
  }
  if (result == CUDA_SUCCESS) return chain;
  Destroy(chain.get());
  return nullptr;
}

bool LaunchChains::Prepare(int priority, std::span<const Item> items) {
  const uint64_t kernels = HashOf(items);
  prepared_ = FindFree(priority, items.size(), kernels);
  if (prepared_ == nullptr || prepared_->kernels != kernels) {
    if (++misses_ >= kMissesPerGraph && chains_.size() < kChainsPerSession) {
      misses_ = 0;
      std::unique_ptr<Chain> made = Make(priority, items);
      if (made == nullptr) return false;
      made->kernels = kernels;
      prepared_ = chains_.emplace_back(std::move(made)).get();
      return true;
    }
    if (prepared_ == nullptr) return false;
  }
  prepared_->kernels = kernels;
  for (size_t i = 0; i < items.size(); ++i) {
    Node& node = prepared_->nodes[i];
    if (node.Has(items[i])) continue;
    node.Take(items[i]);
    size_t bytes = node.argument_bytes;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, node.arguments.data(),
                     CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    CUDA_KERNEL_NODE_PARAMS params;
    Describe(node.kernel, context_, node.shape, bytes != 0 ? extra : nullptr, &params);
    if (driver_.cuGraphExecKernelNodeSetParams_v2(prepared_->exec, node.handle, &params) ==
        CUDA_SUCCESS) {
      continue;
    }
    refused_.insert(std::exchange(node.kernel, nullptr));
    prepared_->kernels = 0;
    return false;
  }
  return true;
}

CUresult LaunchChains::Launch(CUstream stream) {
  const CUresult result = driver_.cuGraphLaunch(prepared_->exec, stream);
  if (result != CUDA_SUCCESS) {
    broken_ = true;
    return result;
  }
  prepared_->used = ++uses_;
  // Without an event nobody knows when it may be used again.
  if (events_->Take(&prepared_->ended) != CUDA_SUCCESS ||
      driver_.cuEventRecord(prepared_->ended, stream) != CUDA_SUCCESS) {
    broken_ = true;
  }
  return CUDA_SUCCESS;
}

void LaunchChains::Destroy(Chain* chain) {
  if (chain->ended != nullptr) events_->Return(chain->ended);
  if (chain->exec != nullptr) driver_.cuGraphExecDestroy(chain->exec);
  if (chain->graph != nullptr) driver_.cuGraphDestroy(chain->graph);
}

void LaunchChains::Clear() {
  for (const auto& chain : chains_) Destroy(chain.get());
  chains_.clear();
  refused_.clear();
  prepared_ = nullptr;
  misses_ = 0;
}

}  // namespace consort::host
