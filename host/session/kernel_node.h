// SPDX-License-Identifier: Apache-2.0
// host/session/kernel_node.h: a launch as a node of an executable graph, which can be made another
// launch each time that the graph goes.
//
// What the graphs of launch_chain.h and repeated_launches.h are made of. Owned by the session loop;
// calls need the worker's context.
// Source: CUDA driver API, Graph Management.
#ifndef CONSORT_HOST_SESSION_KERNEL_NODE_H_
#define CONSORT_HOST_SESSION_KERNEL_NODE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "gen/device/driver_table.h"
#include "host/limits.h"

namespace consort::host {

// Of a launch, in words: grid, block, dynamic shared bytes.
using LaunchShape = std::array<unsigned int, 7>;

// A launch without attributes. Its arguments, at most kNodeArgumentBytesMax, may lie in memory that
// a guest can change: what is launched is what was read once.
struct PlainLaunch {
  CUkernel kernel = nullptr;
  LaunchShape shape = {};
  std::span<const std::byte> arguments;

  uint64_t threads() const {
    return uint64_t{shape[0]} * shape[1] * shape[2] * shape[3] * shape[4] * shape[5];
  }
};

class KernelNode {
 public:
  // Whether the driver has all of what is called here.
  static bool Available(const device::DriverTable& driver);

  // Adds it to a graph, with the priority of a stream, behind `before`, which is null for the first
  // one. `context` is the worker's.
  CUresult Add(const device::DriverTable& driver, CUcontext context, CUgraph graph,
               const KernelNode* before, int priority, const PlainLaunch& launch);
  // Makes it another launch from the next launch of the graph on; nothing is asked of the driver
  // for one that it is already. After an error it is not known what it is.
  CUresult Become(const device::DriverTable& driver, CUcontext context, CUgraphExec exec,
                  const PlainLaunch& launch);

 private:
  bool Is(const PlainLaunch& launch) const;
  void Take(const PlainLaunch& launch);

  CUgraphNode handle_ = nullptr;
  CUkernel kernel_ = nullptr;  // null: not known
  LaunchShape shape_ = {};
  uint32_t argument_bytes_ = 0;
  std::array<std::byte, kNodeArgumentBytesMax> arguments_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_KERNEL_NODE_H_
