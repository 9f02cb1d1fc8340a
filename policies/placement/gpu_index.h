// SPDX-License-Identifier: Apache-2.0
// policies/placement/gpu_index.h: the best GPU of a group that has enough free memory, in
// O(log GPUs), under several keys at once.
//
// A treap a group, ordered by (free memory, gid); each node knows the best of its subtree under
// each key. Less is better, and of equal keys the lower gid. Priorities come from the slot, so the
// same calls always make the same trees. Thread compatible.
#ifndef CONSORT_POLICIES_PLACEMENT_GPU_INDEX_H_
#define CONSORT_POLICIES_PLACEMENT_GPU_INDEX_H_

#include <cstdint>
#include <span>
#include <vector>

#include "policies/placement/types.h"

namespace consort::placement {

class GpuIndex {
 public:
  // Small numbers, chosen by the caller, one a GPU.
  using Slot = uint32_t;
  static constexpr Slot kNone = UINT32_MAX;

  explicit GpuIndex(uint32_t keys) : keys_(keys) {}

  // Puts the GPU in, or changes what is known of it. `keys` has as many as the constructor said.
  void Set(Slot slot, uint32_t group, Bytes free, Gid gid, std::span<const double> keys);
  // No effect on one that is not there.
  void Remove(Slot slot);

  // kNone: no GPU of the group has that much free memory.
  Slot Min(uint32_t group, Bytes need, uint32_t key) const;
  double KeyOf(Slot slot, uint32_t key) const { return key_values_[slot * keys_ + key]; }

 private:
  struct Node {
    Bytes free = 0;
    Gid gid = kNoGid;
    uint32_t group = 0;
    uint32_t priority = 0;
    Slot left = kNone;
    Slot right = kNone;
    bool present = false;
  };

  bool Before(const Node& a, const Node& b) const {
    return a.free != b.free ? a.free < b.free : a.gid < b.gid;
  }
  Slot Better(Slot a, Slot b, uint32_t key) const;
  void Update(Slot slot);
  // `under` goes into all that is before `at`, and the rest.
  void Split(Slot under, const Node& at, Slot* before, Slot* after);
  Slot Merge(Slot before, Slot after);
  void Insert(Slot* root, Slot slot);
  void Erase(Slot* root, Slot slot);
  void UpdatePath(Slot root, Slot slot);

  const uint32_t keys_;
  std::vector<Node> nodes_;         // by slot
  std::vector<double> key_values_;  // slot * keys_ + key
  std::vector<Slot> best_;          // of the subtree, likewise
  std::vector<Slot> roots_;         // by group
};

}  // namespace consort::placement

#endif  // CONSORT_POLICIES_PLACEMENT_GPU_INDEX_H_
