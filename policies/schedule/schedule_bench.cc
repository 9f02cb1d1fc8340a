// SPDX-License-Identifier: Apache-2.0
// What a decision costs, and a whole turn: somebody finishes, pays, waits again, and the next is
// chosen.
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "policies/schedule/policy.h"

namespace consort::schedule {
namespace {

// Applications that always wait, of weights 1 to 8 and jobs of 1 to 5 ms.
class Crowd {
 public:
  Crowd(std::string_view policy, int64_t applications) : policy_(MakePolicy(policy, Options{})) {
    for (ApplicationId id = 0; id < static_cast<ApplicationId>(applications); ++id) {
      policy_->Join({id, id, 1 + id % 8}, now_);
      Wait(id);
    }
  }

  // The decision: whose turn it is. That one has left the queue.
  ApplicationId Choose() {
    const ApplicationId id = *policy_->Choose(now_, /*stalled=*/true);
    policy_->Start(id, now_);
    return id;
  }

  // Its turn of 100 us, after which it waits again.
  void Serve(ApplicationId id) {
    policy_->Expect(id, 100 * kMicrosecond, now_);
    now_ += 100 * kMicrosecond;
    policy_->Charge(id, ServedAlone(100 * kMicrosecond), now_);
    policy_->Expect(id, 0, now_);
    policy_->Finish(id, now_);
    Wait(id);
  }

 private:
  void Wait(ApplicationId id) {
    policy_->Wait(id, {Phase::kKernel, (1 + id % 5) * kMillisecond}, now_);
  }

  std::unique_ptr<Policy> policy_;
  Nanos now_ = kSecond;
};

void Turn(benchmark::State& state, std::string_view policy) {
  Crowd crowd(policy, state.range(0));
  for (auto _ : state) crowd.Serve(crowd.Choose());
}

// With what it costs to read the clock.
void Decision(benchmark::State& state, std::string_view policy) {
  Crowd crowd(policy, state.range(0));
  for (auto _ : state) {
    const auto began = std::chrono::steady_clock::now();
    const ApplicationId id = crowd.Choose();
    state.SetIterationTime(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
    crowd.Serve(id);
  }
}

const int registered = [] {
  const std::vector<std::vector<int64_t>> applications = {{2, 64, 512, 4096}};
  for (const std::string_view name : PolicyNames()) {
    benchmark::RegisterBenchmark(("turn_of_applications/" + std::string(name)).c_str(),
                                 [name](benchmark::State& state) { Turn(state, name); })
        ->ArgsProduct(applications);
    benchmark::RegisterBenchmark(("decision_among/" + std::string(name)).c_str(),
                                 [name](benchmark::State& state) { Decision(state, name); })
        ->ArgsProduct(applications)
        ->UseManualTime();
  }
  return 0;
}();

}  // namespace
}  // namespace consort::schedule
