// SPDX-License-Identifier: Apache-2.0
// host/session/graphs.h: graphs that the driver runs: those with conditional nodes.
//
// Guests keep their graphs and send what they do, node by node. Which bodies of a conditional node
// run only the device knows, so such a graph is recorded into a graph of the driver: the guest
// sends its work as ever, to a stream that is captured meanwhile, one part after the other. Part 0
// is the graph, the others are bodies, which come to be with their nodes.
//
// A handle of a condition is the driver's and good for one graph, so the driver's graph stays the
// same however often it is recorded. Owned by the session loop; calls need the worker's context.
// Results are the driver's, or CUDA_ERROR_INVALID_HANDLE for a name that is not known. What is left
// is destroyed in the destructor. Source: CUDA driver API, Graph Management.
#ifndef CONSORT_HOST_SESSION_GRAPHS_H_
#define CONSORT_HOST_SESSION_GRAPHS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gen/device/driver_table.h"
#include "gen/wire/requests.h"
#include "host/session/streams.h"

namespace consort::host {

class Graphs {
 public:
  // `driver` is borrowed for this object's life; `context` is the worker's.
  Graphs(const device::DriverTable& driver, CUcontext context)
      : driver_(driver), context_(context) {}
  ~Graphs();
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  // CUDA_ERROR_OUT_OF_MEMORY: kHandlesPerKind graphs are there.
  CUresult CreateHandle(const wire::GraphHandleCreateRequest& request, uint64_t* handle);
  // `stream` is the request's; likewise below.
  CUresult Record(const wire::GraphRecordRequest& request, Stream* stream);
  // CUDA_ERROR_INVALID_VALUE: more than kHandlesPerKind parts.
  CUresult AddCondition(const wire::GraphConditionRequest& request, const Stream& stream);
  // A kernel that prints was recorded.
  void NotePrinting() { recording_prints_ = true; }
  CUresult Instantiate(const wire::GraphInstantiateRequest& request, Stream* stream);
  CUresult Launch(uint64_t exec, CUstream stream);
  // Whether a launch may print.
  bool Prints(uint64_t exec) const;
  CUresult DestroyExec(uint64_t exec);
  CUresult Destroy(uint64_t graph);

  bool empty() const { return graphs_.empty() && execs_.empty(); }

 private:
  struct Graph {
    CUgraph handle = nullptr;
    std::vector<CUgraph> parts;  // null: not there yet
  };
  struct Exec {
    CUgraphExec handle = nullptr;
    bool prints = false;
  };

  // Ends what was recorded before on the stream.
  CUresult End(Stream* stream);
  CUresult Clear(CUgraph graph);

  const device::DriverTable& driver_;
  const CUcontext context_;
  absl::flat_hash_map<uint64_t, Graph> graphs_;
  absl::flat_hash_map<uint64_t, Exec> execs_;
  bool recording_prints_ = false;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_GRAPHS_H_
