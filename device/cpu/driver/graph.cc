// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/driver/graph.h"

#include <algorithm>
#include <utility>

#include "device/cpu/driver/state.h"

namespace consort::cpu {

CUgraphNode Graph::Add(NodeTable& table, GraphNode node) {
  node.graph = this;
  nodes_.push_back(table.Insert(std::make_shared<GraphNode>(std::move(node))));
  return nodes_.back();
}

void Graph::Remove(CUgraphNode node) {
  nodes_.erase(std::remove(nodes_.begin(), nodes_.end(), node), nodes_.end());
}

GraphExec::Steps GraphExec::StepsOf(const State& state, const Graph& graph) {
  Steps steps;
  for (const CUgraphNode handle : graph.nodes()) {
    const std::shared_ptr<GraphNode> node = state.graph_nodes.Find(handle);
    Step& step = steps.emplace_back();
    step.node = handle;
    step.operation = std::make_shared<const Operation>(node->operation);
    step.condition = node->condition.get();
    step.type = node->type;
    for (const auto& body : node->bodies) step.bodies.push_back(StepsOf(state, *body));
  }
  return steps;
}

const KernelLaunch* GraphExec::FindKernel(CUgraphNode node) const {
  for (const Step& step : steps_) {
    if (step.node == node) return step.operation->target<KernelLaunch>();
  }
  return nullptr;
}

void GraphExec::SetKernel(CUgraphNode node, KernelLaunch kernel) {
  for (Step& step : steps_) {
    if (step.node == node) step.operation = std::make_shared<const Operation>(std::move(kernel));
  }
}

std::function<void(const Context&)> GraphExec::Launch() const {
  return [conditions = conditions_, steps = steps_](const Context& context) {
    for (const std::shared_ptr<Condition>& condition : conditions) {
      if (condition->assigned) condition->value = condition->initial;
    }
    Run(context, steps);
  };
}

void GraphExec::Run(const Context& context, const Steps& steps) {
  for (const Step& step : steps) {
    if (context.destroyed() || context.error() != CUDA_SUCCESS) return;
    if (step.condition == nullptr) {
      (*step.operation)(CUDA_SUCCESS);
      continue;
    }
    const uint32_t value = step.condition->value;
    switch (step.type) {
      case CU_GRAPH_COND_TYPE_IF:
        if (value != 0) Run(context, step.bodies[0]);
        if (value == 0 && step.bodies.size() > 1) Run(context, step.bodies[1]);
        break;
      case CU_GRAPH_COND_TYPE_WHILE:
        while (step.condition->value != 0 && !context.destroyed() &&
               context.error() == CUDA_SUCCESS) {
          Run(context, step.bodies[0]);
        }
        break;
      case CU_GRAPH_COND_TYPE_SWITCH:
        if (value < step.bodies.size()) Run(context, step.bodies[value]);
        break;
    }
  }
}

}  // namespace consort::cpu
