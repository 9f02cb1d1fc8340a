// SPDX-License-Identifier: Apache-2.0
// policies/sim/main.cc: consort-sim, what policies make of a workload: scheduling policies on one
// device, here; placement on the GPUs of a pool, in pool_main.h; and whether
// a scheduling policy decides again as a trace says.
#include <inttypes.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "policies/schedule/policy.h"
#include "policies/schedule/trace.h"
#include "policies/sim/device_simulation.h"
#include "policies/sim/pool_main.h"

namespace consort::sim {
namespace {

constexpr char kUsage[] =
    R"(consort-sim: shares of one device under every scheduling policy, simulated.

  consort-sim [--seconds N] [--seed N] TENANT:WEIGHT:SHORTEST-LONGEST[:THINK] ...
  consort-sim --replay TRACE [--policy NAME]

Each argument is an application of a tenant: batches of SHORTEST to LONGEST microseconds alone on
the device, one after the other; with THINK it waits so many microseconds after each. For example
  consort-sim one:1:50-300 two:2:3000-9000 four:4:200-2000 seldom:1:100-100:10000

--replay brings the policy everything that a scheduler wrote down (consortd --trace) and compares
its decisions with those of the trace: exit status 0 if they are the same. --policy takes another.
)";

int Usage() {
  fputs(kUsage, stderr);
  fputs(kPoolUsage, stderr);
  return 2;
}

bool Parse(const char* text, ApplicationModel* model) {
  char tenant[64];
  unsigned weight = 0;
  long long shortest = 0;
  long long longest = 0;
  long long think = 0;
  int end = 0;
  const int count = sscanf(text, "%63[^:]:%u:%lld-%lld%n:%lld%n", tenant, &weight, &shortest,
                           &longest, &end, &think, &end);
  if (count < 4 || text[end] != '\0' || weight == 0 || shortest <= 0 || longest < shortest ||
      think < 0) {
    return false;
  }
  model->tenant = tenant;
  model->weight = weight;
  model->cycle = {{schedule::Phase::kKernel, shortest * kMicrosecond, longest * kMicrosecond, 1.0}};
  model->think = think * kMicrosecond;
  return true;
}

void Print(const Scenario& scenario, std::string_view name, const Result& result,
           const std::vector<Nanos>& alone) {
  double all = 0;
  for (const ApplicationResult& each : result.applications) {
    all += static_cast<double>(each.device_time);
  }
  const Metrics metrics = Measure(scenario, result, alone);
  printf("%-8.*s", static_cast<int>(name.size()), name.data());
  for (const ApplicationResult& each : result.applications) {
    printf(" %9.2f %%", all > 0 ? 100 * static_cast<double>(each.device_time) / all : 0.0);
  }
  printf(" %8.4f %8.3f %7.2f %%\n", metrics.jain, metrics.weighted_speedup, 100 * metrics.busy);
}

int ReplayFile(const char* path, const std::optional<std::string>& policy) {
  if (policy.has_value() && schedule::PolicyPromise(*policy).empty()) {
    fprintf(stderr, "consort-sim: there is no policy %s\n", policy->c_str());
    return 2;
  }
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) {
    fprintf(stderr, "consort-sim: cannot read %s\n", path);
    return 2;
  }
  const schedule::Replay replay = schedule::ReplayTrace(text.str(), policy, schedule::Options());
  if (!replay.error.empty()) {
    fprintf(stderr, "consort-sim: %s: %s\n", path, replay.error.c_str());
    return 2;
  }
  printf("%" PRIu64 " events, %" PRIu64 " decisions, %" PRIu64 " different\n", replay.events,
         replay.decisions, replay.different);
  if (replay.different == 0) return 0;
  printf("first in line %" PRIu64 "\n", replay.first_different);
  return 1;
}

int Main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "pool") return PoolMain(argc - 2, argv + 2);
  if (argc > 1 && std::string_view(argv[1]) == "replay") return ReplayMain(argc - 2, argv + 2);
  if (argc >= 3 && std::string_view(argv[1]) == "--replay") {
    if (argc == 3) return ReplayFile(argv[2], std::nullopt);
    if (argc == 5 && std::string_view(argv[3]) == "--policy") return ReplayFile(argv[2], argv[4]);
    return Usage();
  }
  Scenario scenario;
  scenario.duration = 10 * kSecond;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if ((argument == "--seconds" || argument == "--seed") && i + 1 < argc) {
      const long long value = atoll(argv[++i]);
      if (value <= 0) return Usage();
      if (argument == "--seed") {
        scenario.seed = static_cast<uint64_t>(value);
      } else {
        scenario.duration = value * kSecond;
      }
      continue;
    }
    ApplicationModel model;
    if (!Parse(argv[i], &model)) return Usage();
    scenario.applications.push_back(model);
  }
  if (scenario.applications.empty()) return Usage();

  printf("%-8s", "policy");
  for (const ApplicationModel& model : scenario.applications) {
    printf(" %11s", model.tenant.substr(0, 11).c_str());
  }
  printf(" %8s %8s %9s\n", "Jain", "speedup", "busy");
  const std::vector<Nanos> alone = WorkAlone(scenario);
  Print(scenario, "none", Simulate(scenario, nullptr), alone);
  for (const std::string_view name : schedule::PolicyNames()) {
    const auto policy = schedule::MakePolicy(name, schedule::Options());
    Print(scenario, name, Simulate(scenario, policy.get()), alone);
  }
  return 0;
}

}  // namespace
}  // namespace consort::sim

int main(int argc, char** argv) { return consort::sim::Main(argc, argv); }
