// SPDX-License-Identifier: Apache-2.0
#include "policies/placement/indexed_policy.h"

namespace consort::placement {
namespace {

struct Best {
  Slot slot = GpuIndex::kNone;
  Gid gid = kNoGid;
  double score = 0;

  void Consider(Slot other, Gid other_gid, double other_score) {
    if (slot != GpuIndex::kNone &&
        (other_score > score || (other_score == score && other_gid > gid))) {
      return;
    }
    slot = other;
    gid = other_gid;
    score = other_score;
  }
};

}  // namespace

void IndexedPolicy::GpuChanged(Slot slot, const GpuState& state) {
  std::array<double, kKeysMax> keys;
  const std::span<double> used(keys.data(), keys_);
  FillKeys(state, used);
  index_.Set(slot, state.gpu.model, state.free(), state.gpu.gid, used);
}

Choice IndexedPolicy::Choose(const Request& request) const {
  const Application& application = request.application;
  const auto profile_on = [&](ModelId model) {
    return by_feedback() ? pool_->feedback().Estimate(application.program, model, request.now)
                         : Profile{};
  };
  Best local;
  for (const Slot slot : pool_->GpusOf(application.node)) {
    const GpuState& state = pool_->at(slot);
    if (state.free() < application.memory || !application.MayUse(state.gpu.gid)) continue;
    const Profile profile = profile_on(state.gpu.model);
    local.Consider(slot, state.gpu.gid,
                   Score(index_.KeyOf(slot, KeyFor(profile)), profile, /*slowdown=*/1));
  }
  Best best;
  const double slowdown = 1 + application.sensitivity;
  if (request.scope == Scope::kAnywhere && !application.only.empty()) {
    for (const Gid gid : application.only) {
      const Slot slot = pool_->SlotOf(gid);
      if (slot == GpuIndex::kNone || pool_->at(slot).free() < application.memory) continue;
      const Profile profile = profile_on(pool_->at(slot).gpu.model);
      best.Consider(slot, gid, Score(index_.KeyOf(slot, KeyFor(profile)), profile, slowdown));
    }
  } else if (request.scope == Scope::kAnywhere) {
    for (const ModelId model : pool_->models()) {
      const Profile profile = profile_on(model);
      const uint32_t key = KeyFor(profile);
      const Slot slot = index_.Min(model, application.memory, key);
      if (slot == GpuIndex::kNone) continue;
      best.Consider(slot, pool_->at(slot).gpu.gid,
                    Score(index_.KeyOf(slot, key), profile, slowdown));
    }
  }
  if (local.slot != GpuIndex::kNone &&
      (best.slot == GpuIndex::kNone || local.score <= best.score)) {
    best = local;
  }
  Choice choice{
      .slot = best.slot, .score = best.score, .local_best = local.slot, .local_score = local.score};
  if (best.slot != GpuIndex::kNone) {
    choice.outcome = Decision::Outcome::kPlaced;
  } else if (pool_->gpu_count() != 0) {
    choice.outcome = Decision::Outcome::kNoMemory;
  }
  return choice;
}

}  // namespace consort::placement
