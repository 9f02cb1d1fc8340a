// SPDX-License-Identifier: Apache-2.0
// What simulating a large pool costs: 10,000 GPUs of four models on 1,000 nodes, a million
// applications. One run a benchmark; `peak_rss_mib` is that of the whole process so far.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <string>

#include "policies/sim/pool_simulation.h"

namespace consort::sim {
namespace {

constexpr uint32_t kNodes = 1000;
constexpr uint32_t kPerNode = 10;
constexpr uint32_t kPrograms = 10;

PoolScenario LargePool(const std::string& policy, uint64_t applications, bool packed) {
  PoolScenario scenario;
  for (uint32_t i = 0; i < 4; ++i) {
    scenario.models.push_back({.name = "model " + std::to_string(i),
                               .sms = 20.0 + 20 * i,
                               .memory_bandwidth = (100.0 + 100 * i) * 1e9,
                               .copy_engines = 1 + i % 2,
                               .memory = (8 + 8 * i) * kGiB});
  }
  std::vector<uint32_t> node;
  for (uint32_t i = 0; i < kPerNode; ++i) node.push_back(i % 4);
  scenario.nodes.assign(kNodes, node);
  double seconds = 0;
  for (uint32_t i = 0; i < kPrograms; ++i) {
    scenario.programs.push_back({.name = "program " + std::to_string(i),
                                 .cycles = 5,
                                 .cpu = (1 + i) * 100 * kMillisecond,
                                 .to_device = 64 * kMiB,
                                 .kernel = (2 + i % 4) * 300 * kMillisecond,
                                 .sms = 10.0 + i,
                                 .compute = i % 2 == 0 ? 1 : 0.3,
                                 .bandwidth = i % 2 == 0 ? 10e9 : 90e9,
                                 .to_host = 16 * kMiB,
                                 .memory = (1 + i % 5) * kGiB});
    seconds += static_cast<double>(TimeAlone(scenario, scenario.programs[i], scenario.models[0])) /
               kSecond / kPrograms;
  }
  // Three applications a GPU on average.
  const double gap = seconds * kNodes / (3.0 * kNodes * kPerNode);
  for (uint32_t i = 0; i < kNodes; ++i) {
    scenario.streams.push_back({.program = i % kPrograms,
                                .node = i,
                                .tenant = i % 50,
                                .device = i % kPerNode,
                                .gap_seconds = gap,
                                .count = applications / kNodes});
  }
  scenario.placement.policy = policy;
  scenario.placement.feedback_policy = policy == "gwtmin" ? "mbf" : "";
  scenario.packed = packed;
  return scenario;
}

void Pool(benchmark::State& state, const std::string& policy, uint64_t applications, bool packed) {
  const PoolScenario scenario = LargePool(policy, applications, packed);
  for (auto _ : state) {
    std::string error;
    const PoolResult result = SimulatePool(scenario, nullptr, &error);
    if (result.applications.size() != applications) state.SkipWithError("not all ended");
    state.counters["simulated_s"] = static_cast<double>(result.end) / kSecond;
    state.counters["by_feedback"] = static_cast<double>(result.by_feedback);
  }
  struct rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  state.counters["peak_rss_mib"] = static_cast<double>(usage.ru_maxrss) / 1024;
}

#define CONSORT_POOL(name, ...) \
  BENCHMARK_CAPTURE(Pool, name, __VA_ARGS__)->Unit(benchmark::kSecond)->Iterations(1)
CONSORT_POOL(gmin_10k_gpus_100k_applications, "gmin", 100'000, true);
CONSORT_POOL(gwtmin_mbf_10k_gpus_1m_applications, "gwtmin", 1'000'000, true);
CONSORT_POOL(grr_process_10k_gpus_1m_applications, "grr", 1'000'000, false);

}  // namespace
}  // namespace consort::sim
