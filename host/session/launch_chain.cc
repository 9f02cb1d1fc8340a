// SPDX-License-Identifier: Apache-2.0
#include "host/session/launch_chain.h"

#include <algorithm>
#include <utility>

namespace consort::host {

uint32_t LaunchChains::LengthOf(size_t count) {
  for (const uint32_t length : kLengths) {
    if (count >= length) return length;
  }
  return 0;
}

bool LaunchChains::InFlight(Chain* chain) {
  if (chain->ended == nullptr) return false;
  if (driver_.cuEventQuery(chain->ended) == CUDA_ERROR_NOT_READY) return true;
  events_->Return(std::exchange(chain->ended, nullptr));
  return false;
}

uint64_t LaunchChains::HashOf(std::span<const PlainLaunch> items) {
  uint64_t hash = 0;
  for (const PlainLaunch& item : items) {
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

std::unique_ptr<LaunchChains::Chain> LaunchChains::Make(int priority,
                                                        std::span<const PlainLaunch> items) {
  auto chain = std::make_unique<Chain>();
  chain->priority = priority;
  chain->nodes.resize(items.size());
  CUresult result = driver_.cuGraphCreate(&chain->graph, 0);
  const KernelNode* before = nullptr;
  for (size_t i = 0; i < items.size() && result == CUDA_SUCCESS; ++i) {
    result = chain->nodes[i].Add(driver_, context_, chain->graph, before, priority, items[i]);
    before = &chain->nodes[i];
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

bool LaunchChains::Prepare(int priority, std::span<const PlainLaunch> items) {
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
    if (prepared_->nodes[i].Become(driver_, context_, prepared_->exec, items[i]) == CUDA_SUCCESS) {
      continue;
    }
    refused_.insert(items[i].kernel);
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
