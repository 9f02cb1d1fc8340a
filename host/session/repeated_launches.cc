// SPDX-License-Identifier: Apache-2.0
#include "host/session/repeated_launches.h"

#include <algorithm>

#include "host/limits.h"

namespace consort::host {

bool RepeatedLaunches::Launch(CUstream stream, int priority, const PlainLaunch& launch) {
  if (launch.arguments.size() > kNodeArgumentBytesMax) return false;
  ++seen_;
  Entry& entry = Find({stream, launch.kernel, launch.arguments.size(), priority, launch.shape});
  if (entry.graph == nullptr) {
    if (entry.missed == 0) entry.first_missed = seen_;
    if (++entry.missed < launches_per_graph_) return false;
    entry.missed = 0;
    if (!HasRoomSince(entry.first_missed)) return false;
    entry.graph = Make(priority, launch);
    if (entry.graph == nullptr) return false;
    ++graphs_;
    ++made_;
  }
  Graph* const graph = entry.graph.get();
  graph->used = seen_;
  if (graph->node.Become(driver_, context_, graph->exec, launch) != CUDA_SUCCESS ||
      driver_.cuGraphLaunch(graph->exec, stream) != CUDA_SUCCESS) {
    LetGo(&entry);
    return false;
  }
  ++graph->launches;
  ++launched_;
  return true;
}

RepeatedLaunches::Entry& RepeatedLaunches::Find(const Key& key) {
  const auto it = entries_.find(key);
  if (it != entries_.end()) return it->second;
  if (entries_.size() == kRepeatedKnownPerSession) {
    absl::erase_if(entries_, [](const auto& entry) { return entry.second.graph == nullptr; });
  }
  return entries_[key];
}

bool RepeatedLaunches::HasRoomSince(uint64_t then) {
  if (graphs_ < kRepeatedGraphsPerSession) return true;
  Entry* oldest = nullptr;
  for (auto& [key, entry] : entries_) {
    if (entry.graph == nullptr) continue;
    if (oldest == nullptr || entry.graph->used < oldest->graph->used) oldest = &entry;
  }
  if (oldest->graph->used >= then) return false;
  LetGo(oldest);
  return true;
}

void RepeatedLaunches::LetGo(Entry* entry) {
  const bool worth_it = entry->graph->launches >= kLaunchesPerGraph;
  launches_per_graph_ = worth_it ? std::max(launches_per_graph_ / 2, kLaunchesPerGraph)
                                 : std::min(launches_per_graph_ * 2, kLaunchesPerGraphMost);
  Destroy(entry->graph.get());
  entry->graph.reset();
  --graphs_;
}

std::unique_ptr<RepeatedLaunches::Graph> RepeatedLaunches::Make(int priority,
                                                                const PlainLaunch& launch) {
  auto made = std::make_unique<Graph>();
  CUresult result = driver_.cuGraphCreate(&made->graph, 0);
  if (result == CUDA_SUCCESS) {
    result = made->node.Add(driver_, context_, made->graph, nullptr, priority, launch);
  }
  if (result == CUDA_SUCCESS) {
    result = driver_.cuGraphInstantiateWithFlags(&made->exec, made->graph, 0);
  }
  if (result == CUDA_SUCCESS) return made;
  Destroy(made.get());
  return nullptr;
}

void RepeatedLaunches::Destroy(Graph* graph) {
  if (graph->exec != nullptr) driver_.cuGraphExecDestroy(graph->exec);
  if (graph->graph != nullptr) driver_.cuGraphDestroy(graph->graph);
}

void RepeatedLaunches::Forget(CUkernel kernel) {
  absl::erase_if(entries_, [this, kernel](auto& entry) {
    if (entry.first.kernel != kernel) return false;
    if (entry.second.graph != nullptr) LetGo(&entry.second);
    return true;
  });
}

void RepeatedLaunches::Clear() {
  for (auto& [key, entry] : entries_) {
    if (entry.graph != nullptr) Destroy(entry.graph.get());
  }
  entries_.clear();
  graphs_ = 0;
}

}  // namespace consort::host
