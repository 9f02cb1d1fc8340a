// SPDX-License-Identifier: Apache-2.0
// What a decision costs in a pool of 10,000 GPUs of 8 models on 1,000 nodes, with 40,000
// applications bound, most GPUs partly full: deciding, and deciding with its binding and the end of
// another application.
#include <benchmark/benchmark.h>

#include <string>

#include "policies/placement/mapper.h"
#include "policies/placement/test_pools.h"

namespace consort::placement {
namespace {

constexpr uint32_t kGpus = 10'000;
constexpr uint32_t kPerNode = 10;
constexpr uint32_t kModels = 8;
constexpr uint32_t kBound = 40'000;
constexpr uint32_t kPrograms = 200;

class Filled {
 public:
  explicit Filled(std::string_view policy) : random_(1) {
    MapperOptions options;
    options.policy = std::string(policy);
    options.feedback_policy.clear();
    options.feedback.enough = 1;
    mapper_ = Mapper::Make(options);
    for (uint32_t i = 0; i < kGpus; ++i) mapper_->AddGpu(TestGpu(i, kPerNode, kModels));
    for (ProgramId program = 0; program < kPrograms; ++program) {
      for (uint32_t i = 0; i < kModels; ++i) {
        mapper_->Record(TestFeedback(program, TestGpu(i, kPerNode, kModels)), 0);
      }
    }
    while (id_ < kBound) PlaceAndBind();
  }

  Application Next() {
    return {.id = ++id_,
            .program = random_.Below(kPrograms),
            .node = static_cast<NodeId>(random_.Below(kGpus / kPerNode)),
            .memory = random_.Below(12) * kGiB,
            .device = static_cast<uint32_t>(random_.Below(kPerNode))};
  }
  void PlaceAndBind() {
    const Application application = Next();
    const Decision decision = mapper_->Place(application, 0);
    if (decision.outcome == Decision::Outcome::kPlaced) {
      mapper_->Bind(application, decision.gid, 0);
    }
  }
  void EndOldest() { mapper_->Unbind(++oldest_); }
  Mapper* mapper() { return mapper_.get(); }

 private:
  std::unique_ptr<Mapper> mapper_;
  TestRandom random_;
  ApplicationId id_ = 0;
  ApplicationId oldest_ = 0;
};

void Decide(benchmark::State& state, std::string_view policy) {
  Filled filled(policy);
  const Application application = filled.Next();
  for (auto _ : state) {
    benchmark::DoNotOptimize(filled.mapper()->Place(application, 0));
  }
}

void DecideBindAndEnd(benchmark::State& state, std::string_view policy) {
  Filled filled(policy);
  for (auto _ : state) {
    filled.PlaceAndBind();
    filled.EndOldest();
  }
}

const bool registered = [] {
  for (const std::string_view policy : PolicyNames()) {
    const std::string name(policy);
    benchmark::RegisterBenchmark(("decide/10k_gpus/" + name).c_str(), Decide, policy);
    benchmark::RegisterBenchmark(("decide_bind_end/10k_gpus/" + name).c_str(), DecideBindAndEnd,
                                 policy);
  }
  return true;
}();

}  // namespace
}  // namespace consort::placement
