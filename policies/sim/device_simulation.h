// SPDX-License-Identifier: Apache-2.0
// policies/sim/device_simulation.h: applications on one device under a scheduling policy, as
// discrete events. The policy is the very code that a worker runs (host/scheduler).
//
// The device runs the oldest batch of each application at once. A batch needs part of the device
// (`demand`); while more than the whole is asked for, all slow down alike. Device time is split
// evenly between the batches that run, as the worker measures it. Nothing reads a clock, and all
// randomness comes from the seed: the same scenario always brings the same result.
#ifndef CONSORT_POLICIES_SIM_DEVICE_SIMULATION_H_
#define CONSORT_POLICIES_SIM_DEVICE_SIMULATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "policies/schedule/policy.h"

namespace consort::sim {

// One batch of an application's cycle.
struct BatchModel {
  schedule::Phase phase = schedule::Phase::kKernel;
  Nanos shortest = kMillisecond;  // alone on the device; drawn evenly up to `longest`
  Nanos longest = kMillisecond;
  double demand = 1;  // of the device; 0 < demand <= 1
};

struct ApplicationModel {
  std::string tenant;
  uint32_t weight = 1;
  std::vector<BatchModel> cycle;  // repeated; not empty
  Nanos think = 0;            // after each cycle the application waits for the device, then so long
  bool synchronises = false;  // waits for the device after each cycle even if `think` is 0
  Nanos start = 0;
  Nanos stop = -1;  // it begins no batch from then on; negative: never
};

struct Scenario {
  std::vector<ApplicationModel> applications;
  Nanos duration = kSecond;
  uint64_t seed = 1;
  uint32_t batches_in_flight = 2;  // an application
};

struct ApplicationResult {
  Nanos device_time = 0;  // as charged
  Nanos work = 0;         // of finished and begun batches, in time alone
  uint64_t batches = 0;   // finished
  Nanos waited = 0;       // of batches, before they were started
  Nanos waited_longest = 0;
};

struct Result {
  std::vector<ApplicationResult> applications;  // as in the scenario
  Nanos busy = 0;                               // time in which the device had work
  Nanos idle_with_waiting = 0;                  // ... had none though somebody wanted to start
};

// Null `policy`: everybody starts at once, as without a scheduler.
Result Simulate(const Scenario& scenario, schedule::Policy* policy);

struct Metrics {
  double jain = 0;              // of device time over weight, tenants of the scenario
  double weighted_speedup = 0;  // sum over applications of progress beside progress alone
  double busy = 0;              // part of the time
};
// `alone`: each application's work in the same time with the device to itself.
Metrics Measure(const Scenario& scenario, const Result& result, const std::vector<Nanos>& alone);
std::vector<Nanos> WorkAlone(const Scenario& scenario);

}  // namespace consort::sim

#endif  // CONSORT_POLICIES_SIM_DEVICE_SIMULATION_H_
