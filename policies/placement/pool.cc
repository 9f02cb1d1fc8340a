// SPDX-License-Identifier: Apache-2.0
#include "policies/placement/pool.h"

#include <algorithm>
#include <cmath>

namespace consort::placement {
namespace {

Ppm BandwidthLoad(const Profile& profile) { return profile.compute * profile.bandwidth / kWhole; }

// A need beyond the whole GPU counts as the whole: sums stay far from wrapping.
Bytes Need(const GpuState& state, const Application& application) {
  return std::min(application.memory, state.gpu.memory_total);
}

bool IsWeight(double weight) { return weight >= 1 / kWeightMax && weight <= kWeightMax; }

}  // namespace

void Pool::Watch(PoolWatcher* watcher) {
  watchers_.push_back(watcher);
  for (Slot slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot].present) watcher->GpuChanged(slot, slots_[slot]);
  }
}

void Pool::StopWatching(PoolWatcher* watcher) { std::erase(watchers_, watcher); }

void Pool::Changed(Slot slot) {
  for (PoolWatcher* watcher : watchers_) watcher->GpuChanged(slot, slots_[slot]);
}

bool Pool::AddGpu(const Gpu& gpu) {
  if (gpu.gid == kNoGid || gpu.model >= kModelsMax || !IsWeight(gpu.weight) ||
      !(gpu.memory_bandwidth >= 0 && gpu.memory_bandwidth <= kBandwidthMax) ||
      by_gid_.contains(gpu.gid) || by_gid_.size() >= kGpusMax ||
      GpusOf(gpu.node).size() >= kGpusOfNodeMax) {
    return false;
  }
  Slot slot = static_cast<Slot>(slots_.size());
  if (free_slots_.empty()) {
    slots_.emplace_back();
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  slots_[slot] = GpuState{.present = true, .gpu = gpu, .turn = ++turns_};
  by_gid_[gpu.gid] = slot;
  std::vector<Slot>& of_node = by_node_[gpu.node];
  of_node.insert(std::upper_bound(of_node.begin(), of_node.end(), gpu.local_device,
                                  [&](uint32_t device, Slot other) {
                                    return device < slots_[other].gpu.local_device;
                                  }),
                 slot);
  const auto model = std::lower_bound(models_.begin(), models_.end(), gpu.model);
  if (model == models_.end() || *model != gpu.model) models_.insert(model, gpu.model);
  feedback_.SetModel(gpu.model, {gpu.weight, gpu.memory_bandwidth});
  Changed(slot);
  return true;
}

std::vector<ApplicationId> Pool::RemoveGpu(Gid gid) {
  const auto found = by_gid_.find(gid);
  if (found == by_gid_.end()) return {};
  const Slot slot = found->second;
  std::vector<ApplicationId> orphans = std::move(slots_[slot].applications);
  std::sort(orphans.begin(), orphans.end());
  for (const ApplicationId id : orphans) applications_.erase(id);
  const auto node = by_node_.find(slots_[slot].gpu.node);
  std::erase(node->second, slot);
  if (node->second.empty()) by_node_.erase(node);
  by_gid_.erase(found);
  slots_[slot] = GpuState{};
  free_slots_.push_back(slot);
  for (PoolWatcher* watcher : watchers_) watcher->GpuRemoved(slot);
  return orphans;
}

bool Pool::SetLoad(Gid gid, const Load& load) {
  const auto found = by_gid_.find(gid);
  if (found == by_gid_.end()) return false;
  slots_[found->second].load = load;
  slots_[found->second].load.utilisation = std::clamp<Ppm>(load.utilisation, 0, kWhole);
  Changed(found->second);
  return true;
}

bool Pool::SetWeight(Gid gid, double weight) {
  const auto found = by_gid_.find(gid);
  if (found == by_gid_.end() || !IsWeight(weight)) return false;
  Gpu& gpu = slots_[found->second].gpu;
  gpu.weight = weight;
  feedback_.SetModel(gpu.model, {weight, gpu.memory_bandwidth});
  Changed(found->second);
  return true;
}

void Pool::Charge(GpuState* state, const Binding& binding) {
  state->reserved += Need(*state, binding.application);
  state->runtime += static_cast<uint64_t>(binding.profile.runtime);
  state->compute += binding.profile.compute;
  state->transfer += binding.profile.transfer;
  state->bandwidth += BandwidthLoad(binding.profile);
}

void Pool::Discharge(GpuState* state, const Binding& binding) {
  state->reserved -= Need(*state, binding.application);
  state->runtime -= static_cast<uint64_t>(binding.profile.runtime);
  state->compute -= binding.profile.compute;
  state->transfer -= binding.profile.transfer;
  state->bandwidth -= BandwidthLoad(binding.profile);
}

bool Pool::Bind(const Application& application, Gid gid, Nanos now) {
  const auto found = by_gid_.find(gid);
  if (found == by_gid_.end()) return false;
  const Slot slot = found->second;
  if (!applications_.contains(application.id) && applications_.size() >= kApplicationsMax) {
    return false;
  }
  Unbind(application.id);
  GpuState& state = slots_[slot];
  const Binding binding{
      .application = application,
      .slot = slot,
      .position = state.bound(),
      .profile = feedback_.Estimate(application.program, state.gpu.model, now),
  };
  applications_.emplace(application.id, binding);
  state.applications.push_back(application.id);
  state.turn = ++turns_;
  Charge(&state, binding);
  Changed(slot);
  return true;
}

bool Pool::Unbind(ApplicationId id) {
  const auto found = applications_.find(id);
  if (found == applications_.end()) return false;
  const Binding binding = found->second;
  applications_.erase(found);
  GpuState& state = slots_[binding.slot];
  const ApplicationId last = state.applications.back();
  state.applications[binding.position] = last;
  if (last != id) applications_.at(last).position = binding.position;
  state.applications.pop_back();
  Discharge(&state, binding);
  Changed(binding.slot);
  return true;
}

Slot Pool::SlotOf(Gid gid) const {
  const auto found = by_gid_.find(gid);
  return found == by_gid_.end() ? GpuIndex::kNone : found->second;
}

const GpuState* Pool::Find(Gid gid) const {
  const Slot slot = SlotOf(gid);
  return slot == GpuIndex::kNone ? nullptr : &slots_[slot];
}

const Pool::Binding* Pool::FindApplication(ApplicationId id) const {
  const auto found = applications_.find(id);
  return found == applications_.end() ? nullptr : &found->second;
}

std::span<const Slot> Pool::GpusOf(NodeId node) const {
  const auto found = by_node_.find(node);
  if (found == by_node_.end()) return {};
  return found->second;
}

std::vector<Slot> Pool::AllGpus() const {
  std::vector<Slot> all;
  all.reserve(by_gid_.size());
  for (Slot slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot].present) all.push_back(slot);
  }
  std::sort(all.begin(), all.end(),
            [&](Slot a, Slot b) { return slots_[a].gpu.gid < slots_[b].gpu.gid; });
  return all;
}

}  // namespace consort::placement
