// SPDX-License-Identifier: Apache-2.0
// policies/sim/contention.h: how fast kernels run beside each other on one GPU.
//
// They share two things: issue slots of the multiprocessors, and the bandwidth of device memory. A
// kernel that runs at a part of its speed alone needs that part of both. Each of the two goes out
// in equal parts to those that want more than such a part, and whole to those that want less:
// memory controllers and warp schedulers serve who asks in turn. So kernels that are bound by
// memory slow each other, and hardly one that computes beside them.
//
// The speeds are those of bottleneck max fairness: each kernel has its full speed, or gets of a
// resource that is used up at least as much as anyone else. Source: Bonald and Roberts,
// "Multi-Resource Fairness: Objectives, Algorithms and Performance" (SIGMETRICS 2015). That
// kernels interfere by the bandwidth that they ask for: Jog et al., "Anatomy of GPU Memory System
// for Multi-Application Execution" (MEMSYS 2015).
#ifndef CONSORT_POLICIES_SIM_CONTENTION_H_
#define CONSORT_POLICIES_SIM_CONTENTION_H_

#include <span>

namespace consort::sim {

// What a kernel uses at its full speed, as parts of what the GPU has: 0 to 1 each.
struct Demand {
  double sms = 0;
  double bandwidth = 0;
};

// Fills `speeds`, parts of the speed alone, one for each of `demands` and in their order. More than
// 0 each. O(kernels) where nothing is short of; else some rounds of O(kernels^2) at worst.
void ShareGpu(std::span<const Demand> demands, std::span<double> speeds);

}  // namespace consort::sim

#endif  // CONSORT_POLICIES_SIM_CONTENTION_H_
