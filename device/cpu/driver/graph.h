// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/graph.h: graphs: work that was captured from streams, kernel nodes, and
// conditional nodes.
//
// A graph runs as one operation of its stream, node after node in the order of their making, which
// every edge allows: a node's dependencies are there before it. A condition is a word whose
// address is its handle; cudaGraphSetConditional writes it. Graphs are thread compatible, as the
// CUDA driver API says of them; what a launch of an executable graph runs no later call changes.
#ifndef CONSORT_DEVICE_CPU_DRIVER_GRAPH_H_
#define CONSORT_DEVICE_CPU_DRIVER_GRAPH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "device/cpu/driver/cuda_api.h"
#include "device/cpu/driver/handle_table.h"
#include "device/cpu/driver/kernel_launch.h"
#include "device/cpu/driver/stream.h"

namespace consort::cpu {

struct GraphNode;

struct Condition {
  uint32_t value = 0;  // kernels write it
  const uint32_t initial = 0;
  const bool assigned = false;         // `initial` is the value at each launch
  std::weak_ptr<GraphNode> node = {};  // whose it is, as long as that is there

  CUgraphConditionalHandle handle() const { return reinterpret_cast<uint64_t>(&value); }
};
using Conditions = std::vector<std::shared_ptr<Condition>>;

class Graph;

struct GraphNode {
  Graph* graph = nullptr;
  Operation operation;  // null: a conditional node
  std::shared_ptr<Condition> condition;
  CUgraphConditionalNodeType type = CU_GRAPH_COND_TYPE_IF;
  std::vector<std::shared_ptr<Graph>> bodies;
  std::vector<CUgraph> body_handles;
};

class Graph {
 public:
  // A graph has conditions of its own; a body has those of the graph that it is part of.
  Graph() : conditions_(std::make_shared<Conditions>()) {}
  explicit Graph(const Graph& of) : conditions_(of.conditions_) {}
  Graph& operator=(const Graph&) = delete;

  Conditions& conditions() const { return *conditions_; }
  const std::vector<CUgraphNode>& nodes() const { return nodes_; }

  using NodeTable = HandleTable<CUgraphNode, GraphNode>;
  CUgraphNode Add(NodeTable& table, GraphNode node);
  void Remove(CUgraphNode node);

 private:
  const std::shared_ptr<Conditions> conditions_;
  std::vector<CUgraphNode> nodes_;
};

struct State;

// An instantiated graph.
class GraphExec {
 public:
  GraphExec(const State& state, const Graph& graph)
      : conditions_(graph.conditions()), steps_(StepsOf(state, graph)) {}

  // The kernel of a node, until it is changed; null: there is no such node, or it is none.
  const KernelLaunch* FindKernel(CUgraphNode node) const;
  // Of a node that has one: for launches from now on.
  void SetKernel(CUgraphNode node, KernelLaunch kernel);

  // All that the graph does now, to be run by one thread.
  std::function<void(const Context&)> Launch() const;

 private:
  struct Step {
    CUgraphNode node = nullptr;
    std::shared_ptr<const Operation> operation;
    const Condition* condition = nullptr;
    CUgraphConditionalNodeType type = CU_GRAPH_COND_TYPE_IF;
    std::vector<std::vector<Step>> bodies;
  };
  using Steps = std::vector<Step>;
  static Steps StepsOf(const State& state, const Graph& graph);
  static void Run(const Context& context, const Steps& steps);

  const Conditions conditions_;
  Steps steps_;
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_DRIVER_GRAPH_H_
