// SPDX-License-Identifier: Apache-2.0
// policies/placement/indexed_policy.h: what policies that give each GPU a score have in common: an
// index by key, the search, and ties.
//
// A score is made of a key that says how busy a GPU is, and of what is expected of the program on
// the GPU's model; it grows with the key. So the best GPU of a model is the one with the least key,
// which the index knows; models and the local GPUs are then compared by score. A policy for which
// it depends on the program what counts as busy has several keys. Thread compatible.
#ifndef CONSORT_POLICIES_PLACEMENT_INDEXED_POLICY_H_
#define CONSORT_POLICIES_PLACEMENT_INDEXED_POLICY_H_

#include <array>
#include <cstdint>
#include <span>

#include "policies/placement/gpu_index.h"
#include "policies/placement/policy.h"

namespace consort::placement {

class IndexedPolicy : public Policy {
 public:
  Choice Choose(const Request& request) const final;
  void GpuChanged(Slot slot, const GpuState& state) final;
  void GpuRemoved(Slot slot) final { index_.Remove(slot); }

 protected:
  static constexpr uint32_t kKeysMax = 8;

  IndexedPolicy(const Pool* pool, uint32_t keys) : pool_(pool), keys_(keys), index_(keys) {}

  // Fills all keys of the GPU.
  virtual void FillKeys(const GpuState& state, std::span<double> keys) const = 0;
  // Which key counts for such a program.
  virtual uint32_t KeyFor(const Profile&) const { return 0; }
  // Must not fall when the key grows. `slowdown`: of an application whose GPU is remote; else 1.
  virtual double Score(double key, const Profile& profile, double slowdown) const = 0;

 private:
  const Pool* const pool_;
  const uint32_t keys_;
  GpuIndex index_;
};

}  // namespace consort::placement

#endif  // CONSORT_POLICIES_PLACEMENT_INDEXED_POLICY_H_
