// SPDX-License-Identifier: Apache-2.0
// policies/placement/pool.h: the GPUs of all nodes and what is bound to them: the device status
// table (DST) beside the feedback table (SFT). The state that policies decide from.
//
// What an application is expected to use is fixed when it is bound, so that sums go back to what
// they were when it leaves. Every change of a GPU is told to the watchers: policies keep their
// orders in step with it. Thread compatible.
#ifndef CONSORT_POLICIES_PLACEMENT_POOL_H_
#define CONSORT_POLICIES_PLACEMENT_POOL_H_

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "policies/placement/feedback_table.h"
#include "policies/placement/gpu_index.h"
#include "policies/placement/types.h"

namespace consort::placement {

using Slot = GpuIndex::Slot;

struct GpuState {
  bool present = false;
  Gpu gpu = {};
  Load load = {};
  // Of the applications bound here.
  std::vector<ApplicationId> applications = {};
  Bytes reserved = 0;    // needs that are known
  uint64_t runtime = 0;  // nanoseconds; unsigned, as thousands that run for months may wrap it
  Ppm compute = 0;
  Ppm transfer = 0;
  Ppm bandwidth = 0;  // bandwidth * compute each
  // Of the latest binding, or of its own arrival: no two GPUs have the same.
  uint64_t turn = 0;

  uint32_t bound() const { return static_cast<uint32_t>(applications.size()); }
  Bytes free() const {
    const Bytes taken = reserved > load.memory_used ? reserved : load.memory_used;
    return taken < gpu.memory_total ? gpu.memory_total - taken : 0;
  }
};

class PoolWatcher {
 public:
  virtual ~PoolWatcher() = default;
  virtual void GpuChanged(Slot slot, const GpuState& state) = 0;
  virtual void GpuRemoved(Slot slot) = 0;
};

class Pool {
 public:
  struct Binding {
    Application application = {};
    Slot slot = 0;
    uint32_t position = 0;  // in the GPU's list
    Profile profile = {};   // as expected when it was bound
  };

  explicit Pool(const FeedbackOptions& options) : feedback_(options) {}
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Told at once of every GPU that is there, then of every change; borrowed.
  void Watch(PoolWatcher* watcher);
  void StopWatching(PoolWatcher* watcher);

  // False: the gid is taken, a bound is reached, or a field is out of its range.
  bool AddGpu(const Gpu& gpu);
  // The applications that were bound there and are bound nowhere now, in the order of their ids.
  std::vector<ApplicationId> RemoveGpu(Gid gid);
  bool SetLoad(Gid gid, const Load& load);
  bool SetWeight(Gid gid, double weight);

  // Binds, or moves one that is bound. False: no such GPU, or too many applications. Memory is
  // not judged here: whoever binds has decided.
  bool Bind(const Application& application, Gid gid, Nanos now);
  bool Unbind(ApplicationId id);
  bool Record(const Feedback& feedback, Nanos now) { return feedback_.Record(feedback, now); }

  // Null: not there. Pointers hold until the next change.
  const GpuState* Find(Gid gid) const;
  Slot SlotOf(Gid gid) const;  // kNone: not there
  const Binding* FindApplication(ApplicationId id) const;
  const GpuState& at(Slot slot) const { return slots_[slot]; }
  size_t gpu_count() const { return by_gid_.size(); }
  size_t application_count() const { return applications_.size(); }
  // Slots of a node's GPUs, by local device; empty for an unknown node.
  std::span<const Slot> GpusOf(NodeId node) const;
  // Models that the pool has ever had GPUs of: ascending.
  std::span<const ModelId> models() const { return models_; }
  // Every GPU, by gid. O(GPUs log GPUs): for showing, not for deciding.
  std::vector<Slot> AllGpus() const;
  const FeedbackTable& feedback() const { return feedback_; }

 private:
  void Changed(Slot slot);
  void Charge(GpuState* state, const Binding& binding);
  void Discharge(GpuState* state, const Binding& binding);

  FeedbackTable feedback_;
  std::vector<GpuState> slots_;
  std::vector<Slot> free_slots_;
  std::unordered_map<Gid, Slot> by_gid_;
  std::unordered_map<NodeId, std::vector<Slot>> by_node_;
  std::unordered_map<ApplicationId, Binding> applications_;
  std::vector<ModelId> models_;
  std::vector<PoolWatcher*> watchers_;
  uint64_t turns_ = 0;
};

}  // namespace consort::placement

#endif  // CONSORT_POLICIES_PLACEMENT_POOL_H_
