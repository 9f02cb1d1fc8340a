// SPDX-License-Identifier: Apache-2.0
// policies/placement/policies.h: the placement policies of the tree. Thread compatible.
//
// After: Sengupta et al., "Scheduling Multi-tenant Cloud Workloads on Accelerator-based Systems"
// (SC 2014). The formulas are ours: the paper describes its feedback policies in words.
#ifndef CONSORT_POLICIES_PLACEMENT_POLICIES_H_
#define CONSORT_POLICIES_PLACEMENT_POLICIES_H_

#include <span>
#include <string_view>

#include "policies/placement/indexed_policy.h"

namespace consort::placement {

// What the program itself asked for: that device of its node, or none.
class Static final : public Policy {
 public:
  explicit Static(const Pool* pool) : pool_(pool) {}
  std::string_view name() const override { return "static"; }
  bool by_feedback() const override { return false; }
  Choice Choose(const Request& request) const override;
  void GpuChanged(Slot, const GpuState&) override {}
  void GpuRemoved(Slot) override {}

 private:
  const Pool* const pool_;
};

// Global round robin: the GPU whose turn was longest ago.
class RoundRobin final : public IndexedPolicy {
 public:
  explicit RoundRobin(const Pool* pool) : IndexedPolicy(pool, 1) {}
  std::string_view name() const override { return "grr"; }
  bool by_feedback() const override { return false; }

 private:
  void FillKeys(const GpuState& state, std::span<double> keys) const override;
  double Score(double key, const Profile&, double) const override { return key; }
};

// Least applications bound.
class LeastBound final : public IndexedPolicy {
 public:
  explicit LeastBound(const Pool* pool) : IndexedPolicy(pool, 1) {}
  std::string_view name() const override { return "gmin"; }
  bool by_feedback() const override { return false; }

 private:
  void FillKeys(const GpuState& state, std::span<double> keys) const override;
  double Score(double key, const Profile&, double) const override { return key; }
};

// Least applications bound for its weight, this one included: a GPU of weight 2 gets two for one.
class LeastWeighted final : public IndexedPolicy {
 public:
  explicit LeastWeighted(const Pool* pool) : IndexedPolicy(pool, 1) {}
  std::string_view name() const override { return "gwtmin"; }
  bool by_feedback() const override { return false; }

 private:
  void FillKeys(const GpuState& state, std::span<double> keys) const override;
  double Score(double key, const Profile&, double) const override { return key; }
};

// Runtime feedback: the GPU on which the application would end first if all that is bound there
// ran one after the other, each as long as it was measured to run on that model.
class RuntimeFeedback final : public IndexedPolicy {
 public:
  explicit RuntimeFeedback(const Pool* pool) : IndexedPolicy(pool, 1) {}
  std::string_view name() const override { return "rtf"; }
  bool by_feedback() const override { return true; }

 private:
  void FillKeys(const GpuState& state, std::span<double> keys) const override;
  double Score(double key, const Profile& profile, double slowdown) const override;
};

// GPU utilisation feedback: the GPU that would be utilised least with it, so that two of high
// utilisation do not meet. What is measured counts where it is more than what is expected.
class UtilisationFeedback final : public IndexedPolicy {
 public:
  explicit UtilisationFeedback(const Pool* pool) : IndexedPolicy(pool, 1) {}
  std::string_view name() const override { return "guf"; }
  bool by_feedback() const override { return true; }

 private:
  void FillKeys(const GpuState& state, std::span<double> keys) const override;
  double Score(double key, const Profile& profile, double slowdown) const override;
};

// Data transfer feedback: copies and kernels use different engines. Like guf, but of the engine
// that the application uses itself, by how much it uses each: who copies much goes beside those who
// compute.
class TransferFeedback final : public IndexedPolicy {
 public:
  explicit TransferFeedback(const Pool* pool) : IndexedPolicy(pool, kKeys) {}
  std::string_view name() const override { return "dtf"; }
  bool by_feedback() const override { return true; }

 private:
  // Key i: for programs that copy in i / (kKeys - 1) of their time on the device.
  static constexpr uint32_t kKeys = 5;
  void FillKeys(const GpuState& state, std::span<double> keys) const override;
  uint32_t KeyFor(const Profile& profile) const override;
  double Score(double key, const Profile& profile, double slowdown) const override;
};

// Memory bandwidth feedback: like dtf, but to a kernel that is bound by memory bandwidth others are
// in the way for the bandwidth that they use: two such are kept apart, and one goes beside those
// that compute. To a kernel that computes others are in the way for the issue slots that they use;
// one that is bound by memory leaves some, which nothing measures: it is taken to leave half.
class BandwidthFeedback final : public IndexedPolicy {
 public:
  explicit BandwidthFeedback(const Pool* pool) : IndexedPolicy(pool, kKeys) {}
  std::string_view name() const override { return "mbf"; }
  bool by_feedback() const override { return true; }

 private:
  // Key 3 * c + b, for programs that copy in c / 2 of their time on the device, and whose kernels
  // use b / 2 of the bandwidth; the last one is for those that only copy.
  static constexpr uint32_t kKeys = 7;
  static constexpr double kLeftByMemory = 0.5;
  void FillKeys(const GpuState& state, std::span<double> keys) const override;
  uint32_t KeyFor(const Profile& profile) const override;
  double Score(double key, const Profile& profile, double slowdown) const override;
};

}  // namespace consort::placement

#endif  // CONSORT_POLICIES_PLACEMENT_POLICIES_H_
