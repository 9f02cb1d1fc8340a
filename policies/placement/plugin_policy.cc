// SPDX-License-Identifier: Apache-2.0
#include "policies/placement/plugin_policy.h"

#include <optional>
#include <vector>

namespace consort::placement {
namespace {

namespace plugin = consort_placement;

static_assert(plugin::kNobody == kNoGid);

plugin::Gpu Seen(const GpuState& state) {
  return {
      .gid = state.gpu.gid,
      .node = state.gpu.node,
      .local_device = state.gpu.local_device,
      .model = state.gpu.model,
      .weight = state.gpu.weight,
      .memory_total = state.gpu.memory_total,
      .memory_free = state.free(),
      .utilisation = Part(state.load.utilisation),
      .bound = state.bound(),
      .compute = Part(state.compute),
      .transfer = Part(state.transfer),
      .bandwidth = Part(state.bandwidth),
      .runtime = static_cast<double>(state.runtime) / kSecond,
  };
}

class AskedQuestion final : public plugin::Question {
 public:
  AskedQuestion(const Pool& pool, const Request& request)
      : pool_(pool),
        request_(request),
        application_{
            .id = request.application.id,
            .program = request.application.program,
            .tenant = request.application.tenant,
            .node = request.application.node,
            .memory = request.application.memory,
            .device = request.application.device,
            .sensitivity = request.application.sensitivity,
        } {}

  const plugin::Application& application() const override { return application_; }
  size_t candidate_count() const override { return candidates().size(); }
  const plugin::Gpu& candidate(size_t i) const override { return candidates()[i]; }
  const plugin::Gpu* Find(uint32_t gid) const override {
    const GpuState* state = pool_.Find(gid);
    if (state == nullptr || !Allowed(*state)) return nullptr;
    found_ = Seen(*state);
    return &found_;
  }
  plugin::Expectation ExpectedOn(uint32_t model) const override {
    if (model >= kModelsMax) return {};
    const Profile profile = pool_.feedback().Estimate(application_.program, model, request_.now);
    return {.known = profile.known,
            .runtime = static_cast<double>(profile.runtime) / kSecond,
            .compute = Part(profile.compute),
            .transfer = Part(profile.transfer),
            .bandwidth = Part(profile.bandwidth)};
  }

  bool Allowed(const GpuState& state) const {
    return state.free() >= application_.memory && request_.application.MayUse(state.gpu.gid) &&
           (request_.scope == Scope::kAnywhere || state.gpu.node == application_.node);
  }
  const std::vector<plugin::Gpu>& candidates() const {
    if (!candidates_.has_value()) {
      candidates_.emplace();
      for (const Slot slot : pool_.AllGpus()) {
        if (Allowed(pool_.at(slot))) candidates_->push_back(Seen(pool_.at(slot)));
      }
    }
    return *candidates_;
  }

 private:
  const Pool& pool_;
  const Request& request_;
  const plugin::Application application_;
  mutable std::optional<std::vector<plugin::Gpu>> candidates_;
  mutable plugin::Gpu found_ = {};
};

Gid LeastBound(const std::vector<plugin::Gpu>& candidates, NodeId node) {
  const plugin::Gpu* best = nullptr;
  for (const plugin::Gpu& each : candidates) {
    if (best == nullptr || each.bound < best->bound ||
        (each.bound == best->bound && each.node == node && best->node != node)) {
      best = &each;
    }
  }
  return best == nullptr ? kNoGid : best->gid;
}

}  // namespace

Choice PluginPolicy::Choose(const Request& request) const {
  const AskedQuestion question(*pool_, request);
  Gid gid = kNoGid;
  try {
    gid = plugin_->Choose(question);
  } catch (...) {
    gid = kNoGid;
  }
  if (question.Find(gid) == nullptr) {
    gid = LeastBound(question.candidates(), request.application.node);
    if (gid == kNoGid) {
      return {.outcome = pool_->gpu_count() == 0 ? Decision::Outcome::kNoGpu
                                                 : Decision::Outcome::kNoMemory};
    }
    ++replaced_;
  }
  return {.slot = pool_->SlotOf(gid), .outcome = Decision::Outcome::kPlaced};
}

void PluginPolicy::GpuChanged(Slot slot, const GpuState& state) {
  if (slot >= gids_.size()) gids_.resize(slot + size_t{1}, kNoGid);
  gids_[slot] = state.gpu.gid;
  try {
    plugin_->GpuChanged(Seen(state));
  } catch (...) {
    ++replaced_;
  }
}

void PluginPolicy::GpuRemoved(Slot slot) {
  try {
    plugin_->GpuRemoved(gids_[slot]);
  } catch (...) {
    ++replaced_;
  }
}

}  // namespace consort::placement
