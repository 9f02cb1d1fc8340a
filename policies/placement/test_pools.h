// SPDX-License-Identifier: Apache-2.0
// policies/placement/test_pools.h: pools and programs for tests and benchmarks, made from a seed.
#ifndef CONSORT_POLICIES_PLACEMENT_TEST_POOLS_H_
#define CONSORT_POLICIES_PLACEMENT_TEST_POOLS_H_

#include <cstdint>
#include <vector>

#include "policies/placement/mapper.h"

namespace consort::placement {

// SplitMix64.
class TestRandom {
 public:
  explicit TestRandom(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t Below(uint64_t bound) { return Next() % bound; }

 private:
  uint64_t state_;
};

// GPU i of a pool of `models` models of different size and speed, `per_node` on a node.
inline Gpu TestGpu(uint32_t i, uint32_t per_node, uint32_t models) {
  const uint32_t model = i % models;
  return Gpu{.gid = i + 1,
             .node = i / per_node,
             .local_device = i % per_node,
             .model = model,
             .weight = 1.0 + model,
             .memory_total = (8 + 8 * model) * kGiB,
             .memory_bandwidth = 100e9 * (1 + model)};
}

// What program `program` does on GPUs of the model; always the same.
inline Feedback TestFeedback(ProgramId program, const Gpu& gpu) {
  TestRandom random(program * 7919 + 1);
  const auto gpu_time = static_cast<Nanos>(random.Below(20) + 1) * kSecond;
  const auto transfer_time = static_cast<Nanos>(random.Below(10)) * kSecond;
  const auto cpu_time = static_cast<Nanos>(random.Below(10)) * kSecond;
  const auto scaled = static_cast<Nanos>(static_cast<double>(gpu_time) / gpu.weight);
  return Feedback{
      .program = program,
      .model = gpu.model,
      .runtime = scaled + transfer_time + cpu_time,
      .gpu_time = scaled,
      .transfer_time = transfer_time,
      .transferred = static_cast<Bytes>(transfer_time),
      .bandwidth = gpu.memory_bandwidth * static_cast<double>(random.Below(101)) / 100,
      .sensitivity = static_cast<double>(random.Below(40)) / 100,
  };
}

}  // namespace consort::placement

#endif  // CONSORT_POLICIES_PLACEMENT_TEST_POOLS_H_
