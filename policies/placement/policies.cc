// SPDX-License-Identifier: Apache-2.0
#include "policies/placement/policies.h"

#include <algorithm>
#include <cmath>

namespace consort::placement {
namespace {

// Time on the device as part of the program's time.
double OnDevice(const Profile& profile) { return Part(profile.compute + profile.transfer); }

// How much of its time on the device the program copies.
double Copying(const Profile& profile) {
  const Ppm all = profile.compute + profile.transfer;
  return all == 0 ? 0 : Part(profile.transfer) / Part(all);
}

// How full that would be which the program uses of the device; `used`: by others, as part of their
// time. And how long it takes there alone, by its root: that of a slower GPU it uses more counts
// already.
double Filled(const Profile& profile, double slowdown, double used) {
  return std::sqrt(static_cast<double>(profile.runtime)) * slowdown * (used + OnDevice(profile));
}

uint32_t Step(double part, uint32_t steps) {
  return static_cast<uint32_t>(std::lround(std::clamp(part, 0.0, 1.0) * steps));
}

}  // namespace

Choice Static::Choose(const Request& request) const {
  // Who may use only some counts those.
  const bool counts = !request.application.only.empty();
  uint32_t ordinal = 0;
  for (const Slot slot : pool_->GpusOf(request.application.node)) {
    const GpuState& state = pool_->at(slot);
    if (!request.application.MayUse(state.gpu.gid)) continue;
    if ((counts ? ordinal++ : state.gpu.local_device) != request.application.device) continue;
    if (state.free() < request.application.memory) {
      return Choice{.outcome = Decision::Outcome::kNoMemory};
    }
    return Choice{.slot = slot, .outcome = Decision::Outcome::kPlaced, .local_best = slot};
  }
  return Choice{.outcome = Decision::Outcome::kNoGpu};
}

void RoundRobin::FillKeys(const GpuState& state, std::span<double> keys) const {
  keys[0] = static_cast<double>(state.turn);
}

void LeastBound::FillKeys(const GpuState& state, std::span<double> keys) const {
  keys[0] = state.bound();
}

void LeastWeighted::FillKeys(const GpuState& state, std::span<double> keys) const {
  keys[0] = (state.bound() + 1.0) / state.gpu.weight;
}

void RuntimeFeedback::FillKeys(const GpuState& state, std::span<double> keys) const {
  keys[0] = static_cast<double>(state.runtime);
}

double RuntimeFeedback::Score(double key, const Profile& profile, double slowdown) const {
  return key + static_cast<double>(profile.runtime) * slowdown;
}

void UtilisationFeedback::FillKeys(const GpuState& state, std::span<double> keys) const {
  keys[0] = Part(std::max(state.compute, state.load.utilisation));
}

double UtilisationFeedback::Score(double key, const Profile& profile, double slowdown) const {
  return (key + Part(profile.compute)) * slowdown;
}

void TransferFeedback::FillKeys(const GpuState& state, std::span<double> keys) const {
  for (uint32_t i = 0; i < kKeys; ++i) {
    const double copying = static_cast<double>(i) / (kKeys - 1);
    keys[i] = copying * Part(state.transfer) + (1 - copying) * Part(state.compute);
  }
}

uint32_t TransferFeedback::KeyFor(const Profile& profile) const {
  return Step(Copying(profile), kKeys - 1);
}

double TransferFeedback::Score(double key, const Profile& profile, double slowdown) const {
  return Filled(profile, slowdown, key);
}

void BandwidthFeedback::FillKeys(const GpuState& state, std::span<double> keys) const {
  const double memory = Part(state.bandwidth);
  const double issuing = Part(state.compute) - kLeftByMemory * Part(state.bandwidth);
  for (uint32_t c = 0; c < 2; ++c) {
    for (uint32_t b = 0; b < 3; ++b) {
      const double kernels = b / 2.0 * memory + (1 - b / 2.0) * issuing;
      keys[3 * c + b] = c / 2.0 * Part(state.transfer) + (1 - c / 2.0) * kernels;
    }
  }
  keys[kKeys - 1] = Part(state.transfer);
}

uint32_t BandwidthFeedback::KeyFor(const Profile& profile) const {
  const uint32_t copying = Step(Copying(profile), 2);
  return copying == 2 ? kKeys - 1 : 3 * copying + Step(Part(profile.bandwidth), 2);
}

double BandwidthFeedback::Score(double key, const Profile& profile, double slowdown) const {
  return Filled(profile, slowdown, key);
}

}  // namespace consort::placement
