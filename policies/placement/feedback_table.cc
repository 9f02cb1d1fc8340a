// SPDX-License-Identifier: Apache-2.0
#include "policies/placement/feedback_table.h"

#include <algorithm>
#include <cmath>

namespace consort::placement {
namespace {

// A clock that differs a little between runtime and device time is forgiven, no more.
constexpr double kMostOverlap = 4;

bool Sane(const Feedback& feedback) {
  const auto runtime = static_cast<double>(feedback.runtime);
  return feedback.runtime > 0 && feedback.runtime <= kRuntimeMax && feedback.model < kModelsMax &&
         feedback.gpu_time >= 0 && feedback.transfer_time >= 0 &&
         static_cast<double>(feedback.gpu_time) <= kMostOverlap * runtime &&
         static_cast<double>(feedback.transfer_time) <= kMostOverlap * runtime &&
         feedback.bandwidth >= 0 && feedback.bandwidth <= kBandwidthMax &&
         feedback.sensitivity >= -1 && feedback.sensitivity <= kSensitivityMax;
}

Ppm Share(double part, double whole) {
  if (whole <= 0) return 0;
  return static_cast<Ppm>(std::clamp(part / whole, 0.0, 1.0) * kWhole);
}

}  // namespace

double FeedbackTable::WeightNow(const Entry& entry, Nanos now) const {
  const auto age = static_cast<double>(std::max<Nanos>(0, now - entry.latest));
  return entry.weight * std::exp2(-age / static_cast<double>(options_.half_life));
}

void FeedbackTable::Add(Entry* entry, const Feedback& feedback, Nanos now) const {
  const double old = std::min(WeightNow(*entry, now), options_.weight_max - 1);
  const double all = old + 1;
  const auto mean = [&](double* value, double measured) {
    *value = (*value * old + measured) / all;
  };
  mean(&entry->means.runtime, static_cast<double>(feedback.runtime));
  mean(&entry->means.gpu_time, static_cast<double>(feedback.gpu_time));
  mean(&entry->means.transfer_time, static_cast<double>(feedback.transfer_time));
  mean(&entry->means.bandwidth, feedback.bandwidth);
  if (feedback.sensitivity >= 0) mean(&entry->means.sensitivity, feedback.sensitivity);
  entry->weight = all;
  entry->latest = std::max(entry->latest, now);
}

bool FeedbackTable::Record(const Feedback& feedback, Nanos now) {
  if (!Sane(feedback)) return false;
  const auto [found, is_new] = programs_.try_emplace(feedback.program);
  Program& program = found->second;
  if (!is_new) by_age_.erase(program.age);
  program.age = by_age_.insert(by_age_.begin(), feedback.program);
  auto entry = std::find_if(program.entries.begin(), program.entries.end(),
                            [&](const Entry& each) { return each.model == feedback.model; });
  if (entry == program.entries.end()) {
    ++entries_;
    program.entries.push_back(Entry{.model = feedback.model, .latest = now});
    entry = program.entries.end() - 1;
  }
  Add(&*entry, feedback, now);
  Add(&all_, feedback, now);
  double& seen = bandwidth_seen_[feedback.model];
  seen = std::max(seen, feedback.bandwidth);
  while (entries_ > kHistoriesMax) {
    const auto oldest = programs_.find(by_age_.back());
    entries_ -= oldest->second.entries.size();
    programs_.erase(oldest);
    by_age_.pop_back();
  }
  return true;
}

bool FeedbackTable::Knows(ProgramId program, Nanos now) const {
  const auto found = programs_.find(program);
  if (found == programs_.end()) return false;
  double weight = 0;
  for (const Entry& entry : found->second.entries) weight += WeightNow(entry, now);
  return weight >= options_.enough;
}

double FeedbackTable::BandwidthOf(ModelId model) const {
  return models_[model].memory_bandwidth > 0 ? models_[model].memory_bandwidth
                                             : bandwidth_seen_[model];
}

Profile FeedbackTable::ProfileOf(const Entry& entry, ModelId model) const {
  const Means& means = entry.means;
  const double slower = models_[entry.model].weight / models_[model].weight;
  const double gpu_time = means.gpu_time * slower;
  const double runtime = std::max(means.runtime - means.gpu_time + gpu_time, 1.0);
  return Profile{
      .runtime = static_cast<Nanos>(runtime),
      .compute = Share(gpu_time, runtime),
      .transfer = Share(means.transfer_time, runtime),
      // As part of what its own model has: that is the program's kind, and goes with it.
      .bandwidth = Share(means.bandwidth, BandwidthOf(entry.model)),
      .sensitivity = means.sensitivity,
  };
}

Profile FeedbackTable::Estimate(ProgramId program, ModelId model, Nanos now) const {
  const auto found = programs_.find(program);
  if (found == programs_.end() || !Knows(program, now)) {
    if (all_.weight == 0) return Profile{};
    Profile mean = ProfileOf(all_, all_.model);
    mean.sensitivity = 0;  // of others: says nothing of this one
    return mean;
  }
  const Entry* best = nullptr;
  double best_weight = -1;
  for (const Entry& entry : found->second.entries) {
    const double weight = WeightNow(entry, now);
    if (entry.model == model && weight >= 0.5) {
      best = &entry;
      break;
    }
    if (weight > best_weight) {
      best = &entry;
      best_weight = weight;
    }
  }
  Profile profile = ProfileOf(*best, model);
  profile.known = true;
  return profile;
}

}  // namespace consort::placement
