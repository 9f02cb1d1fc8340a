// SPDX-License-Identifier: Apache-2.0
// What one turn costs: somebody finishes, pays, waits again, and the next is chosen.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <string>

#include "policies/schedule/policy.h"

namespace consort::schedule {
namespace {

void Turn(benchmark::State& state, std::string_view name) {
  const auto applications = static_cast<ApplicationId>(state.range(0));
  const auto policy = MakePolicy(name, Options{});
  Nanos now = kSecond;
  for (ApplicationId id = 0; id < applications; ++id) {
    policy->Join({id, id, 1 + id % 8}, now);
    policy->Wait(id, {Phase::kKernel, (1 + id % 5) * kMillisecond}, now);
  }
  for (auto _ : state) {
    const ApplicationId id = *policy->Choose(now, /*stalled=*/true);
    policy->Start(id, now);
    policy->Expect(id, 100 * kMicrosecond, now);
    now += 100 * kMicrosecond;
    policy->Charge(id, ServedAlone(100 * kMicrosecond), now);
    policy->Expect(id, 0, now);
    policy->Finish(id, now);
    policy->Wait(id, {Phase::kKernel, (1 + id % 5) * kMillisecond}, now);
  }
}

const int registered = [] {
  for (const std::string_view name : PolicyNames()) {
    benchmark::RegisterBenchmark(("turn_of_applications/" + std::string(name)).c_str(),
                                 [name](benchmark::State& state) { Turn(state, name); })
        ->Arg(2)
        ->Arg(64)
        ->Arg(512)
        ->Arg(4096);
  }
  return 0;
}();

}  // namespace
}  // namespace consort::schedule
