// SPDX-License-Identifier: Apache-2.0
#include "policies/placement/mapper.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace consort::placement {

std::unique_ptr<Mapper> Mapper::Make(const MapperOptions& options) {
  if (options.leave > options.enter || options.feedback.half_life <= 0 ||
      !(options.feedback.enough > 0) || !(options.feedback.weight_max >= 1)) {
    return nullptr;
  }
  std::unique_ptr<Mapper> mapper(new Mapper(options));
  mapper->policy_ = MakePolicy(options.policy, &mapper->pool_);
  if (mapper->policy_ == nullptr) return nullptr;
  if (!options.feedback_policy.empty()) {
    mapper->feedback_policy_ = MakePolicy(options.feedback_policy, &mapper->pool_);
    if (mapper->feedback_policy_ == nullptr) return nullptr;
  }
  return mapper;
}

void Mapper::Install(std::unique_ptr<Policy> policy) {
  std::unique_ptr<Policy>& place =
      policy->by_feedback() && feedback_policy_ != nullptr ? feedback_policy_ : policy_;
  pool_.StopWatching(place.get());
  pool_.Watch(policy.get());
  place = std::move(policy);
}

std::string_view Mapper::Know(std::string_view policy) {
  for (const std::string_view name : PolicyNames()) {
    if (name != policy) continue;
    std::unique_ptr<Policy>& made = tenants_policies_[name];
    if (made == nullptr) made = MakePolicy(name, &pool_);
    return name;
  }
  return {};
}

void Mapper::RecordTo(MapperRecorder* recorder) {
  recorder_ = recorder;
  if (recorder_ != nullptr) recorder_->Begin(options_);
}

bool Mapper::AddGpu(const Gpu& gpu) {
  if (!pool_.AddGpu(gpu)) return false;
  if (recorder_ != nullptr) recorder_->GpuAdded(gpu);
  return true;
}

std::vector<ApplicationId> Mapper::RemoveGpu(Gid gid) {
  if (recorder_ != nullptr && pool_.Find(gid) != nullptr) recorder_->GpuGone(gid);
  return pool_.RemoveGpu(gid);
}

bool Mapper::SetLoad(Gid gid, const Load& load) {
  if (!pool_.SetLoad(gid, load)) return false;
  if (recorder_ != nullptr) recorder_->LoadSet(gid, load);
  return true;
}

bool Mapper::SetWeight(Gid gid, double weight) {
  if (!pool_.SetWeight(gid, weight)) return false;
  if (recorder_ != nullptr) recorder_->WeightSet(gid, weight);
  return true;
}

bool Mapper::Record(const Feedback& feedback, Nanos now) {
  if (!pool_.Record(feedback, now)) return false;
  if (recorder_ != nullptr) recorder_->Recorded(feedback, now);
  return true;
}

bool Mapper::Unbind(ApplicationId id) {
  if (!pool_.Unbind(id)) return false;
  if (recorder_ != nullptr) recorder_->Unbound(id);
  return true;
}

Ppm Mapper::Coverage(Nanos now) const {
  const auto looked_at = static_cast<uint32_t>(std::min<uint64_t>(arrival_count_, kArrivals));
  if (looked_at < kArrivalsMin) return 0;
  uint32_t known = 0;
  for (uint32_t i = 0; i < looked_at; ++i) known += pool_.feedback().Knows(arrivals_[i], now);
  return kWhole * known / looked_at;
}

bool Mapper::FeedbackDecides(Ppm coverage) const {
  if (feedback_policy_ == nullptr || policy_->by_feedback()) return false;
  return coverage >= (by_feedback_ ? options_.leave : options_.enter);
}

Scope Mapper::ScopeOf(const Application& application) const {
  bool fits = false;
  bool short_queue = false;
  for (const Slot slot : pool_.GpusOf(application.node)) {
    const GpuState& state = pool_.at(slot);
    if (state.free() < application.memory || !application.MayUse(state.gpu.gid)) continue;
    fits = true;
    short_queue |= state.bound() < options_.offload_threshold;
  }
  if (fits && application.sensitivity > options_.sensitivity_max) return Scope::kNodeSensitive;
  return short_queue ? Scope::kNodeShortQueue : Scope::kAnywhere;
}

Decision Mapper::PlaceWith(const Policy& policy, const Application& application, Nanos now) const {
  Application filled = application;
  if (!(filled.sensitivity >= 0)) {
    filled.sensitivity = pool_.feedback().Estimate(application.program, 0, now).sensitivity;
  }
  const Request request{.application = filled, .scope = ScopeOf(filled), .now = now};
  const Choice choice = policy.Choose(request);
  Decision decision{.outcome = choice.outcome,
                    .policy = policy.name(),
                    .scope = request.scope,
                    .score = choice.score};
  if (choice.local_best != GpuIndex::kNone) {
    decision.local_best = pool_.at(choice.local_best).gpu.gid;
    decision.local_score = choice.local_score;
  }
  if (choice.outcome != Decision::Outcome::kPlaced) return decision;
  const GpuState& state = pool_.at(choice.slot);
  decision.gid = state.gpu.gid;
  decision.node = state.gpu.node;
  decision.local_device = state.gpu.local_device;
  decision.local = state.gpu.node == application.node;
  decision.bound = state.bound();
  decision.profile = pool_.feedback().Estimate(application.program, state.gpu.model, now);
  return decision;
}

Decision Mapper::Place(const Application& application, Nanos now) const {
  const Ppm coverage = Coverage(now);
  const auto own = tenants_policies_.find(application.policy);
  const bool is_own = own != tenants_policies_.end();
  const bool by_feedback = !is_own && FeedbackDecides(coverage);
  const Policy& policy = is_own ? *own->second : by_feedback ? *feedback_policy_ : *policy_;
  Decision decision = PlaceWith(policy, application, now);
  decision.by_feedback = by_feedback || policy.by_feedback();
  decision.coverage = coverage;
  if (recorder_ != nullptr) recorder_->Placed(application, now, decision);
  return decision;
}

std::optional<Decision> Mapper::PlaceBy(std::string_view name, const Application& application,
                                        Nanos now) {
  const std::unique_ptr<Policy> policy = MakePolicy(name, &pool_);
  if (policy == nullptr) return std::nullopt;
  Decision decision = PlaceWith(*policy, application, now);
  decision.by_feedback = policy->by_feedback();
  decision.coverage = Coverage(now);
  pool_.StopWatching(policy.get());
  for (const std::string_view known : PolicyNames()) {
    if (known == name) decision.policy = known;
  }
  return decision;
}

bool Mapper::Bind(const Application& application, Gid gid, Nanos now) {
  const bool moves = pool_.FindApplication(application.id) != nullptr;
  if (!pool_.Bind(application, gid, now)) return false;
  if (!moves) arrivals_[arrival_count_++ % kArrivals] = application.program;
  by_feedback_ = FeedbackDecides(Coverage(now));
  if (recorder_ != nullptr) recorder_->Bound(application, gid, now);
  return true;
}

std::string Explain(const Decision& decision, const Application& application) {
  char text[512];
  if (decision.outcome != Decision::Outcome::kPlaced) {
    snprintf(text, sizeof(text), "Not placed by %.*s: %s.",
             static_cast<int>(decision.policy.size()), decision.policy.data(),
             decision.outcome == Decision::Outcome::kNoGpu
                 ? "there is no such GPU"
                 : "no GPU that it may use has the memory free");
    return text;
  }
  const char* scope = "";
  if (decision.scope == Scope::kNodeSensitive) {
    scope = " It stays on its node, as a remote GPU would slow it down too much.";
  } else if (decision.scope == Scope::kNodeShortQueue) {
    scope = " It stays on its node, whose queue is short.";
  }
  int length =
      snprintf(text, sizeof(text),
               "GPU %u (node %u, device %u, %s) by %.*s, score %.6g, beside %u applications.%s",
               decision.gid, decision.node, decision.local_device,
               decision.local ? "local" : "remote", static_cast<int>(decision.policy.size()),
               decision.policy.data(), decision.score, decision.bound, scope);
  std::string said(text, static_cast<size_t>(length));
  if (!decision.local && decision.local_best != kNoGid) {
    snprintf(text, sizeof(text), " The best of node %u is GPU %u with score %.6g.",
             application.node, decision.local_best, decision.local_score);
    said += text;
  }
  if (decision.by_feedback) {
    snprintf(text, sizeof(text),
             " %s: %.3f s, %.0f %% computing, %.0f %% copying, %.0f %% of the bandwidth.",
             decision.profile.known ? "Known from feedback" : "Not known, expected as the others",
             static_cast<double>(decision.profile.runtime) / kSecond,
             static_cast<double>(decision.profile.compute) / 1e4,
             static_cast<double>(decision.profile.transfer) / 1e4,
             static_cast<double>(decision.profile.bandwidth) / 1e4);
    said += text;
  }
  return said;
}

}  // namespace consort::placement
