// SPDX-License-Identifier: Apache-2.0
// policies/sim/pool_simulation.h: applications on the GPUs of many nodes, as discrete events. Where
// each goes is decided by the very mapper of the daemon (policies/placement), who is next on a GPU
// by the very policies of its workers (policies/schedule).
//
// An application is a number of cycles, each: time on the CPU, a copy to the device, a kernel, a
// copy to the host, one after the other. Several threads of it may each be in a cycle. Applications
// arrive in streams, with negative exponential gaps. A GPU runs them in one of two ways:
//   packed   one context: kernels run beside each other while there is room for them, and copies
//            beside kernels. Kernels share issue slots and memory bandwidth (contention.h).
//   process  a context an application: the device does one thing at a time, the first that came,
//            and changes from one application to another take time.
// CPUs and the network have no queues. Nothing reads a clock and all randomness comes from the
// seed; arrivals do not depend on decisions, so that runs under different policies are comparable
// application by application. docs/SIMULATOR.md describes the model and the file of a scenario.
#ifndef CONSORT_POLICIES_SIM_POOL_SIMULATION_H_
#define CONSORT_POLICIES_SIM_POOL_SIMULATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "policies/placement/mapper.h"
#include "policies/schedule/policy.h"
#include "policies/sim/contention.h"

namespace consort::sim {

struct GpuModel {
  std::string name;
  double sms = 1;
  double sm_speed = 1;              // of one SM, relative
  double memory_bandwidth = 100e9;  // bytes a second
  double copy_bandwidth = 6e9;      // bytes a second, host to device or back, each engine
  uint32_t copy_engines = 1;        // 1, or 2: one each way
  uint32_t kernels_max = 16;        // that run beside each other
  Bytes memory = kGiB;
};

inline constexpr uint32_t kThreadsMax = 64;

// Per cycle; kernels as they are alone on the scenario's first model of GPU.
struct ProgramModel {
  std::string name;
  uint32_t cycles = 1;
  uint32_t threads = 1;  // 1 to kThreadsMax; each takes the next cycle that none has begun
  Nanos cpu = 0;
  Bytes to_device = 0;
  Nanos kernel = 0;
  double sms = 1;        // that its kernel can fill, of the first model's
  double compute = 1;    // part of the kernel's time in which those SMs have something to issue
  double bandwidth = 0;  // bytes a second that it touches
  Bytes to_host = 0;
  uint32_t calls = 3;  // for whose answer it waits, a cycle
  Bytes memory = 0;
};

struct StreamModel {
  uint32_t program = 0;
  placement::NodeId node = 0;
  uint32_t tenant = 0;
  uint32_t weight = 1;     // of the tenant on each GPU
  uint32_t device = 0;     // that the program asks for itself
  double gap_seconds = 1;  // between arrivals, the mean; 0: all at once
  uint64_t count = 1;
  Nanos start = 0;
};

struct PoolScenario {
  std::vector<GpuModel> models;
  std::vector<std::vector<uint32_t>> nodes;  // the models of each node's GPUs
  std::vector<ProgramModel> programs;
  std::vector<StreamModel> streams;
  placement::MapperOptions placement;
  bool packed = true;
  std::string scheduler = "none";  // of each GPU; "none" or a name of policies/schedule
  uint32_t batches_in_flight = schedule::Options().batches_in_flight;  // of the scheduler
  Nanos context_switch = 500 * kMicrosecond;
  double network_bandwidth = 1.25e9;
  Nanos round_trip = 100 * kMicrosecond;
  // Whether hosts measure how much memory bandwidth programs use; if not, feedback has 0 for it.
  bool bandwidth_measured = true;
  // How wrong they are, 0 to 1: what is measured of a program is its bandwidth times a number
  // between 1 - error and 1 + error, all equally likely, and always the same for a program: an
  // error that does not go away with the number of measurements.
  double bandwidth_error = 0;
  uint64_t seed = 1;
  Nanos stop = 0;  // what has not ended by then is left undone; 0: until everything has ended
};

// How a kernel of a program is on a GPU of a model, alone.
struct KernelOnModel {
  double duration = 0;  // nanoseconds
  Demand demand = {};
};
KernelOnModel KernelOn(const PoolScenario& scenario, const ProgramModel& program,
                       const GpuModel& model);
// An application of the program alone on a local GPU of the model, from begin to end, where its
// threads are never in each other's way.
Nanos TimeAlone(const PoolScenario& scenario, const ProgramModel& program, const GpuModel& model);

struct ApplicationRecord {
  uint32_t stream = 0;
  placement::Gid gid = placement::kNoGid;  // gids are 1, 2, ... over the nodes in their order
  Nanos arrived = 0;
  Nanos placed = 0;
  Nanos ended = 0;
};

struct PoolResult {
  std::vector<ApplicationRecord> applications;  // in the order of their ends
  std::vector<double> busy_seconds;             // of each GPU: it had work; by gid - 1
  // Device time, that of several at once split evenly; what has not ended is in it.
  std::vector<double> tenant_seconds;
  uint64_t decisions = 0;
  uint64_t by_feedback = 0;
  uint64_t remote = 0;
  uint64_t never_placed = 0;  // no GPU of the pool could ever take them
  Nanos end = 0;
};

// Null `recorder`: no trace. `error` not empty, and an empty result: the scenario makes no sense.
PoolResult SimulatePool(const PoolScenario& scenario, placement::MapperRecorder* recorder,
                        std::string* error);

}  // namespace consort::sim

#endif  // CONSORT_POLICIES_SIM_POOL_SIMULATION_H_
