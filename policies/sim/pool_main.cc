// SPDX-License-Identifier: Apache-2.0
#include "policies/sim/pool_main.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "policies/placement/trace.h"
#include "policies/sim/pool_simulation.h"
#include "policies/sim/scenario_file.h"

namespace consort::sim {
namespace {

double Seconds(Nanos nanos) { return static_cast<double>(nanos) / kSecond; }

struct PoolOptions {
  std::string scenario;
  std::string applications;  // CSV
  std::string gpus;          // CSV
  std::string trace;
  std::string policy;  // instead of the scenario's
};

bool ParseOptions(int argc, char** argv, PoolOptions* options) {
  const std::pair<std::string_view, std::string*> known[] = {
      {"--applications", &options->applications},
      {"--gpus", &options->gpus},
      {"--trace", &options->trace},
      {"--policy", &options->policy}};
  for (int i = 0; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const auto* const found =
        std::find_if(std::begin(known), std::end(known),
                     [&](const auto& each) { return each.first == argument; });
    if (found != std::end(known)) {
      if (++i == argc) return false;
      *found->second = argv[i];
    } else if (options->scenario.empty() && !argument.starts_with("-")) {
      options->scenario = argument;
    } else {
      return false;
    }
  }
  return !options->scenario.empty();
}

// Opens for writing, or says why not.
bool Open(const std::string& path, std::ofstream* out) {
  out->open(path);
  if (out->good()) return true;
  fprintf(stderr, "cannot write %s\n", path.c_str());
  return false;
}

void WriteApplications(const PoolScenario& scenario, const PoolResult& result, std::ostream& out) {
  out << "stream,program,tenant,node,gid,arrived_s,placed_s,ended_s\n";
  char line[160];
  for (const ApplicationRecord& each : result.applications) {
    const StreamModel& stream = scenario.streams[each.stream];
    snprintf(line, sizeof(line), ",%u,%u,%u,%.9f,%.9f,%.9f\n", stream.tenant, stream.node, each.gid,
             Seconds(each.arrived), Seconds(each.placed), Seconds(each.ended));
    out << each.stream << ',' << scenario.programs[stream.program].name << line;
  }
}

void WriteGpus(const PoolScenario& scenario, const PoolResult& result, std::ostream& out) {
  out << "gid,node,device,model,busy_s,applications\n";
  std::vector<uint64_t> applications(result.busy_seconds.size());
  for (const ApplicationRecord& each : result.applications) ++applications[each.gid - 1];
  size_t gpu = 0;
  for (size_t node = 0; node < scenario.nodes.size(); ++node) {
    for (size_t device = 0; device < scenario.nodes[node].size(); ++device, ++gpu) {
      out << gpu + 1 << ',' << node << ',' << device << ','
          << scenario.models[scenario.nodes[node][device]].name << ',' << result.busy_seconds[gpu]
          << ',' << applications[gpu] << '\n';
    }
  }
}

void PrintSummary(const PoolScenario& scenario, const PoolResult& result) {
  double turnaround = 0;
  double slowdown = 0;
  for (const ApplicationRecord& each : result.applications) {
    const double took = Seconds(each.ended - each.arrived);
    const ProgramModel& program = scenario.programs[scenario.streams[each.stream].program];
    turnaround += took;
    slowdown += took / Seconds(TimeAlone(scenario, program, scenario.models[0]));
  }
  double busy = 0;
  for (const double each : result.busy_seconds) busy += each;
  double sum = 0;
  double squares = 0;
  std::vector<double> weights(result.tenant_seconds.size(), 1);
  for (const StreamModel& stream : scenario.streams) weights[stream.tenant] = stream.weight;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double share = result.tenant_seconds[i] / weights[i];
    sum += share;
    squares += share * share;
  }
  const auto count = static_cast<double>(std::max<size_t>(1, result.applications.size()));
  const double end = std::max(1e-9, Seconds(result.end));
  printf("applications      %zu ended, %llu never placed\n", result.applications.size(),
         static_cast<unsigned long long>(result.never_placed));
  printf("time              %.3f s\n", end);
  printf("turnaround        %.6f s on average, %.4f times what it is alone on a local %s\n",
         turnaround / count, slowdown / count, scenario.models[0].name.c_str());
  printf("GPUs              %.2f %% busy\n",
         100 * busy / end / static_cast<double>(std::max<size_t>(1, result.busy_seconds.size())));
  printf("decisions         %.2f %% by feedback, %.2f %% to another node\n",
         100 * static_cast<double>(result.by_feedback) / count,
         100 * static_cast<double>(result.remote) / count);
  printf("Jain's fairness   %.4f of device time over weight, %zu tenants\n",
         squares > 0 ? sum * sum / (static_cast<double>(weights.size()) * squares) : 1,
         weights.size());
  printf("device time      ");
  for (size_t i = 0; i < std::min<size_t>(weights.size(), 16); ++i) {
    printf(" %.3f", result.tenant_seconds[i]);
  }
  printf(" s by tenant\n");
}

int PoolUsage() {
  fputs(kPoolUsage, stderr);
  return 2;
}

}  // namespace

int PoolMain(int argc, char** argv) {
  PoolOptions options;
  if (!ParseOptions(argc, argv, &options)) return PoolUsage();
  std::ifstream in(options.scenario);
  if (!in.good()) {
    fprintf(stderr, "cannot read %s\n", options.scenario.c_str());
    return 1;
  }
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  absl::StatusOr<PoolScenario> scenario = ParseScenario(options.scenario, text);
  if (!scenario.ok()) {
    fprintf(stderr, "%s\n", std::string(scenario.status().message()).c_str());
    return 1;
  }
  if (!options.policy.empty()) {
    scenario->placement.policy = options.policy;
    scenario->placement.feedback_policy.clear();
  }
  std::ofstream trace;
  std::unique_ptr<placement::TraceWriter> writer;
  if (!options.trace.empty()) {
    if (!Open(options.trace, &trace)) return 1;
    writer = std::make_unique<placement::TraceWriter>(
        [&](std::string_view line) { trace << line << '\n'; });
  }
  std::string error;
  const PoolResult result = SimulatePool(*scenario, writer.get(), &error);
  if (!error.empty()) {
    fprintf(stderr, "%s: %s\n", options.scenario.c_str(), error.c_str());
    return 1;
  }
  if (!options.applications.empty()) {
    std::ofstream out;
    if (!Open(options.applications, &out)) return 1;
    WriteApplications(*scenario, result, out);
  }
  if (!options.gpus.empty()) {
    std::ofstream out;
    if (!Open(options.gpus, &out)) return 1;
    WriteGpus(*scenario, result, out);
  }
  PrintSummary(*scenario, result);
  return 0;
}

int ReplayMain(int argc, char** argv) {
  if (argc != 1) return PoolUsage();
  std::ifstream in(argv[0]);
  if (!in.good()) {
    fprintf(stderr, "cannot read %s\n", argv[0]);
    return 1;
  }
  placement::Replay replay;
  std::string line;
  uint64_t number = 0;
  uint64_t differ = 0;
  while (std::getline(in, line)) {
    ++number;
    switch (replay.Line(line)) {
      case placement::Replay::Result::kDone:
        break;
      case placement::Replay::Result::kBadLine:
        fprintf(stderr, "%s:%llu: not a line of a trace at this place: %s\n", argv[0],
                static_cast<unsigned long long>(number), line.c_str());
        return 1;
      case placement::Replay::Result::kDiffers:
        ++differ;
        printf("%s:%llu: %s\n  here: gid %u by %s\n", argv[0],
               static_cast<unsigned long long>(number), line.c_str(), replay.decision().gid,
               std::string(replay.decision().policy).c_str());
        break;
      case placement::Replay::Result::kRefused:
        ++differ;
        printf("%s:%llu: refused here: %s\n", argv[0], static_cast<unsigned long long>(number),
               line.c_str());
        break;
    }
  }
  printf("%llu decisions, %llu lines differ\n", static_cast<unsigned long long>(replay.decisions()),
         static_cast<unsigned long long>(differ));
  return differ == 0 ? 0 : 1;
}

}  // namespace consort::sim
