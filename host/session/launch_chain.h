// SPDX-License-Identifier: Apache-2.0
// host/session/launch_chain.h: many launches of one stream as one call of the driver.
//
// A linear graph of kernels costs the driver a fraction of what as many launches do, also where
// each node first gets another kernel and other arguments. So a session that has many launches
// waiting puts them into the nodes of such a graph, made before and used again:
//
//   waiting:  a(1) b(2) a(3) ...  ─▶  [a 1]─▶[b 2]─▶[a 3]─▶ ... as the nodes were left, but for
//                                      what differs  ─▶  one cuGraphLaunch
//
// An executable graph is used again only when what it last launched has ended: driver 580 changes
// it faster then, and a graph that still runs in one stream would hold up another. So there are
// several of each length, made one by one as the session has shown to need them. One whose nodes
// have the same kernels already goes first: other arguments cost the driver nothing to speak of,
// another kernel a third of a launch. So what a program launches again and again finds its own
// graphs, wherever its launches are cut into chains. Nodes have the priority of their stream. Owned
// by the session loop; calls need the worker's context.
// Source: CUDA driver API, Graph Management.
#ifndef CONSORT_HOST_SESSION_LAUNCH_CHAIN_H_
#define CONSORT_HOST_SESSION_LAUNCH_CHAIN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "gen/device/driver_table.h"
#include "host/limits.h"
#include "host/session/event_pool.h"
#include "host/session/kernel_node.h"

namespace consort::host {

class LaunchChains {
 public:
  // Launches of a chain, the longest first.
  static constexpr std::array<uint32_t, 2> kLengths = {64, 16};
  static constexpr uint32_t kLengthLeast = kLengths.back();
  static constexpr uint32_t kLengthMost = kLengths.front();
  // A graph is made once one with the right kernels could have been used so often since the one
  // before was made: making it takes the driver as long as some 70 to 150 launches.
  static constexpr uint32_t kMissesPerGraph = 4;

  // `driver` and `events`, which have no timing, are borrowed for this object's life; `context` is
  // the worker's.
  LaunchChains(const device::DriverTable& driver, CUcontext context, EventPool* events)
      : driver_(driver), context_(context), events_(events) {}
  ~LaunchChains() { Clear(); }
  LaunchChains(const LaunchChains&) = delete;
  LaunchChains& operator=(const LaunchChains&) = delete;

  // The most of `count` launches that go as a chain; 0: none do.
  static uint32_t LengthOf(size_t count);
  // Whether launches of the kernel may be part of a chain; the driver has refused one.
  bool Takes(CUkernel kernel) const { return refused_.empty() || !refused_.contains(kernel); }
  // The driver has refused a whole chain: there are no more.
  bool broken() const { return broken_; }

  // Makes a graph ready that launches `items`, as many as LengthOf gives, in a stream of that
  // priority. False: they go one by one, nothing has been launched.
  bool Prepare(int priority, std::span<const PlainLaunch> items);
  // Launches what was prepared last. An error: nothing of it was launched, and one by one the
  // launches give their own errors.
  CUresult Launch(CUstream stream);

  // Forgets all graphs: a kernel goes, or what is set for a kernel or the context changes. What
  // was launched goes on.
  void Clear();

 private:
  struct Chain {
    int priority = 0;
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    CUevent ended = nullptr;  // behind its last launch; null: there is none in flight
    std::vector<KernelNode> nodes;
    uint64_t kernels = 0;  // HashOf what the nodes are
    uint64_t used = 0;     // at its last launch, of uses_
  };

  // Of the kernels in their order; nothing hangs on it but speed.
  static uint64_t HashOf(std::span<const PlainLaunch> items);
  // One that is not in flight, best one that has those kernels, or null. Looks at two at most.
  Chain* FindFree(int priority, size_t length, uint64_t kernels);
  bool InFlight(Chain* chain);
  // Null: the driver refused.
  std::unique_ptr<Chain> Make(int priority, std::span<const PlainLaunch> items);
  void Destroy(Chain* chain);

  const device::DriverTable& driver_;
  const CUcontext context_;
  EventPool* const events_;
  std::vector<std::unique_ptr<Chain>> chains_;  // at most kChainsPerSession
  uint64_t uses_ = 0;
  Chain* prepared_ = nullptr;
  uint32_t misses_ = 0;
  absl::flat_hash_set<CUkernel> refused_;
  bool broken_ = false;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_LAUNCH_CHAIN_H_
