// SPDX-License-Identifier: Apache-2.0
// host/session/repeated_launches.h: a launch that comes again and again goes as a graph of its own.
//
// Driver 580 takes 3.3 to 3.9 us for a launch, and 1.3 to 2.3 us for the launch of an executable
// graph that holds one kernel, with other arguments each time; one launch of a hundred takes some
// 6 us and 2 us (an H200, docs/PERFORMANCE.md). Another grid, or another kernel, makes that as slow
// as a launch. So a graph is of one kernel in one shape. It is of one stream, too: in its stream a
// graph waits for its own last launch, as everything there does; in another one it would make work
// wait that need not.
//
// A graph is made for what has come kLaunchesPerGraph times without one. Once there are
// kRepeatedGraphsPerSession, it takes the place of one that was not used in all that time, if there
// is one: of more launches in turns than have room, some keep their graphs. If that one was not
// worth its making, the next has to come twice as often first: a program whose shapes grow from
// step to step launches each some dozens of times, and then no more. Owned by the session loop;
// calls need the worker's context.
// Source: CUDA driver API, Graph Management.
#ifndef CONSORT_HOST_SESSION_REPEATED_LAUNCHES_H_
#define CONSORT_HOST_SESSION_REPEATED_LAUNCHES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "gen/device/driver_table.h"
#include "host/session/kernel_node.h"

namespace consort::host {

class RepeatedLaunches {
 public:
  // Making a graph and letting it go take the driver as long as some 15 launches save.
  static constexpr uint32_t kLaunchesPerGraph = 16;
  static constexpr uint32_t kLaunchesPerGraphMost = 1024;

  // `driver` is borrowed for this object's life; `context` is the worker's.
  RepeatedLaunches(const device::DriverTable& driver, CUcontext context)
      : driver_(driver), context_(context) {}
  ~RepeatedLaunches() { Clear(); }
  RepeatedLaunches(const RepeatedLaunches&) = delete;
  RepeatedLaunches& operator=(const RepeatedLaunches&) = delete;

  // Launches it in a stream of that priority. False: nothing was launched, and it goes as any other
  // does, with its own error if there is one.
  bool Launch(CUstream stream, int priority, const PlainLaunch& launch);

  // Forgets all graphs, or those of a kernel: it goes, or what is set for it or the context
  // changes. What was launched goes on.
  void Clear();
  void Forget(CUkernel kernel);

  // In all: launches by graphs, and graphs that were made for them.
  uint64_t launched() const { return launched_; }
  uint64_t made() const { return made_; }

 private:
  struct Key {
    CUstream stream;
    CUkernel kernel;
    uint64_t argument_bytes;
    int priority;  // a driver's stream may have the handle of one that is gone
    LaunchShape shape;

    bool operator==(const Key&) const = default;
    template <class H>
    friend H AbslHashValue(H state, const Key& key) {
      // All at once: a launch has no time for one after the other.
      static_assert(std::has_unique_object_representations_v<Key>);
      return H::combine_contiguous(std::move(state), reinterpret_cast<const unsigned char*>(&key),
                                   sizeof(key));
    }
  };
  struct Graph {
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    KernelNode node;
    uint32_t launches = 0;
    uint64_t used = 0;  // at its last launch, of seen_
  };
  // What is known of a launch.
  struct Entry {
    std::unique_ptr<Graph> graph;  // null: there is none
    uint32_t missed = 0;           // launches that could have used one
    uint64_t first_missed = 0;     // the first of those, of seen_
  };

  // The launch's entry, made when it is first seen.
  Entry& Find(const Key& key);
  // Whether another graph may be made; lets go of one that was last used before then, if need be.
  bool HasRoomSince(uint64_t then);
  // Null: the driver refused.
  std::unique_ptr<Graph> Make(int priority, const PlainLaunch& launch);
  // Of an entry that has one. Learns from whether that was worth its making.
  void LetGo(Entry* entry);
  void Destroy(Graph* graph);

  const device::DriverTable& driver_;
  const CUcontext context_;
  absl::flat_hash_map<Key, Entry> entries_;  // at most kRepeatedKnownPerSession
  size_t graphs_ = 0;                        // at most kRepeatedGraphsPerSession
  uint32_t launches_per_graph_ = kLaunchesPerGraph;
  uint64_t seen_ = 0;  // launches
  uint64_t launched_ = 0;
  uint64_t made_ = 0;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_REPEATED_LAUNCHES_H_
