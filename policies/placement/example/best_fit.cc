// SPDX-License-Identifier: Apache-2.0
// A placement policy as a shared object (policies/placement/plugin.h): fill GPUs up, so that large
// ones stay free for applications that need a whole one.
//
// Of the GPUs that have the memory it takes the one with the least memory left, as long as that has
// at most so many applications as the argument says (default 4). Of equals one of the application's
// node, then the lowest gid.
#include <cstdint>
#include <cstdlib>
#include <tuple>

#include "policies/placement/plugin.h"

namespace {

using consort_placement::Application;
using consort_placement::Gpu;
using consort_placement::Question;

class BestFit : public consort_placement::Policy {
 public:
  explicit BestFit(const char* argument)
      : bound_max_(*argument == '\0' ? 4 : static_cast<uint32_t>(std::atoi(argument))) {}

  uint32_t Choose(const Question& question) const override {
    const Application& application = question.application();
    const Gpu* best = nullptr;
    for (size_t i = 0; i < question.candidate_count(); ++i) {
      const Gpu& gpu = question.candidate(i);
      if (gpu.bound >= bound_max_) continue;
      if (best == nullptr || Rank(gpu, application) < Rank(*best, application)) best = &gpu;
    }
    return best == nullptr ? consort_placement::kNobody : best->gid;
  }

 private:
  static std::tuple<uint64_t, bool, uint32_t> Rank(const Gpu& gpu, const Application& application) {
    return {gpu.memory_free, gpu.node != application.node, gpu.gid};
  }

  const uint32_t bound_max_;
};

}  // namespace

CONSORT_PLACEMENT_POLICY("best-fit", BestFit)
