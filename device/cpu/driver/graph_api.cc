// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/graph_api.cc: graphs: what a worker needs of them. Nodes come from captured
// streams, but for conditional ones and kernels.
#include "device/cpu/driver/graph.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "device/cpu/driver/state.h"

namespace consort::cpu {
namespace {

// Runs body(state, graph).
template <typename Body>
CUresult WithGraph(CUgraph handle, Body&& body) {
  return WithState([&](State& state) {
    const std::shared_ptr<Graph> graph = state.graphs.Find(handle);
    return graph != nullptr ? body(state, *graph) : CUDA_ERROR_INVALID_VALUE;
  });
}

void DropNodes(State& state, Graph& graph);

// Takes the node's handle away, and its bodies with their nodes.
void DropNode(State& state, CUgraphNode handle) {
  const std::shared_ptr<GraphNode> node = state.graph_nodes.Remove(handle);
  for (const auto& body : node->bodies) DropNodes(state, *body);
  for (const CUgraph body : node->body_handles) state.graphs.Remove(body);
}

void DropNodes(State& state, Graph& graph) {
  for (const CUgraphNode node : graph.nodes()) DropNode(state, node);
}

// A kernel as a node of either version of the structure has it.
template <typename Params>
CUresult MakeNodeLaunch(State& state, const Params& params, KernelLaunch* launch) {
  std::shared_ptr<Context> context;
  if (params.func != nullptr || params.ctx == nullptr) {
    if (const CUresult result = CurrentContext(state, &context); result != CUDA_SUCCESS) {
      return result;
    }
  } else {
    context = state.contexts.Find(params.ctx);
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  }
  // A kernel is a function, cast.
  const CUfunction function =
      params.func != nullptr ? params.func : reinterpret_cast<CUfunction>(params.kern);
  return MakeLaunch(
      state, context,
      {function,
       Shape({params.gridDimX, params.gridDimY, params.gridDimZ},
             {params.blockDimX, params.blockDimY, params.blockDimZ}, params.sharedMemBytes),
       params.kernelParams, params.extra},
      launch);
}

bool SizeValid(const CUDA_CONDITIONAL_NODE_PARAMS& params) {
  switch (params.type) {
    case CU_GRAPH_COND_TYPE_IF:
      return params.size == 1 || params.size == 2;
    case CU_GRAPH_COND_TYPE_WHILE:
      return params.size == 1;
    case CU_GRAPH_COND_TYPE_SWITCH:
      return params.size != 0;
  }
  return false;
}

}  // namespace

}  // namespace consort::cpu

using namespace consort::cpu;  // the entry points are global: their prototypes are cuda.h's

extern "C" {

CUresult CUDAAPI cuGraphCreate(CUgraph* phGraph, unsigned int flags) {
  return WithState([&](State& state) {
    if (phGraph == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    *phGraph = state.graphs.Insert(std::make_shared<Graph>());
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGraphDestroy(CUgraph hGraph) {
  return WithGraph(hGraph, [&](State& state, Graph& graph) {
    DropNodes(state, graph);
    state.graphs.Remove(hGraph);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGraphGetNodes(CUgraph hGraph, CUgraphNode* nodes, size_t* numNodes) {
  return WithGraph(hGraph, [&](State&, const Graph& graph) {
    if (numNodes == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const size_t there = graph.nodes().size();
    if (nodes != nullptr) {
      std::fill_n(nodes, *numNodes, nullptr);
      std::copy_n(graph.nodes().begin(), std::min(there, *numNodes), nodes);
    }
    *numNodes = nodes != nullptr ? std::min(there, *numNodes) : there;
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGraphDestroyNode(CUgraphNode hNode) {
  return WithState([&](State& state) {
    const std::shared_ptr<GraphNode> node = state.graph_nodes.Find(hNode);
    if (node == nullptr) return CUDA_ERROR_INVALID_VALUE;
    DropNode(state, hNode);
    node->graph->Remove(hNode);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGraphConditionalHandleCreate(CUgraphConditionalHandle* pHandle_out,
                                                CUgraph hGraph, CUcontext,
                                                unsigned int defaultLaunchValue,
                                                unsigned int flags) {
  return WithGraph(hGraph, [&](State&, const Graph& graph) {
    if (pHandle_out == nullptr || (flags & ~CU_GRAPH_COND_ASSIGN_DEFAULT) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const bool assigned = (flags & CU_GRAPH_COND_ASSIGN_DEFAULT) != 0;
    graph.conditions().push_back(
        std::make_shared<Condition>(Condition{0, defaultLaunchValue, assigned}));
    *pHandle_out = graph.conditions().back()->handle();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGraphAddNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph,
                                   const CUgraphNode* dependencies, const CUgraphEdgeData*,
                                   size_t numDependencies, CUgraphNodeParams* nodeParams) {
  return WithGraph(hGraph, [&](State& state, Graph& graph) {
    if (phGraphNode == nullptr || nodeParams == nullptr ||
        (numDependencies != 0 && dependencies == nullptr)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < numDependencies; ++i) {
      const std::shared_ptr<GraphNode> before = state.graph_nodes.Find(dependencies[i]);
      if (before == nullptr || before->graph != &graph) return CUDA_ERROR_INVALID_VALUE;
    }
    if (nodeParams->type == CU_GRAPH_NODE_TYPE_KERNEL) {
      KernelLaunch launch;
      const CUresult result = MakeNodeLaunch(state, nodeParams->kernel, &launch);
      if (result != CUDA_SUCCESS) return result;
      GraphNode node;
      node.operation = std::move(launch);
      *phGraphNode = graph.Add(state.graph_nodes, std::move(node));
      return CUDA_SUCCESS;
    }
    if (nodeParams->type != CU_GRAPH_NODE_TYPE_CONDITIONAL) return CUDA_ERROR_NOT_SUPPORTED;
    CUDA_CONDITIONAL_NODE_PARAMS& params = nodeParams->conditional;
    const auto condition =
        std::find_if(graph.conditions().begin(), graph.conditions().end(),
                     [&](const auto& each) { return each->handle() == params.handle; });
    if (condition == graph.conditions().end() || !(*condition)->node.expired() ||
        !SizeValid(params)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    GraphNode node;
    node.condition = *condition;
    node.type = params.type;
    for (unsigned int i = 0; i < params.size; ++i) {
      node.bodies.push_back(std::make_shared<Graph>(graph));
      node.body_handles.push_back(state.graphs.Insert(node.bodies.back()));
    }
    *phGraphNode = graph.Add(state.graph_nodes, std::move(node));
    const std::shared_ptr<GraphNode> made = state.graph_nodes.Find(*phGraphNode);
    made->condition->node = made;
    params.phGraph_out = made->body_handles.data();
    return CUDA_SUCCESS;
  });
}

// Priorities change nothing here.
CUresult CUDAAPI cuGraphKernelNodeSetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                               const CUkernelNodeAttrValue* value) {
  return WithState([&](State& state) {
    const std::shared_ptr<GraphNode> node = state.graph_nodes.Find(hNode);
    if (node == nullptr || value == nullptr || node->operation.target<KernelLaunch>() == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return attr == CU_LAUNCH_ATTRIBUTE_PRIORITY ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
  });
}

CUresult CUDAAPI cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph,
                                             const CUgraphNode* dependencies,
                                             const CUgraphEdgeData*, size_t numDependencies,
                                             CUstreamCaptureMode mode) {
  return WithStream(hStream, [&](State& state, const std::shared_ptr<Stream>& stream) {
    const std::shared_ptr<Graph> graph = state.graphs.Find(hGraph);
    if (graph == nullptr || (numDependencies != 0 && dependencies == nullptr) ||
        mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return stream->BeginCapture({hGraph, graph, &state.graph_nodes}) ? CUDA_SUCCESS
                                                                     : CUDA_ERROR_ILLEGAL_STATE;
  });
}

CUresult CUDAAPI cuStreamEndCapture(CUstream hStream, CUgraph* phGraph) {
  return WithStream(hStream, [&](State&, const std::shared_ptr<Stream>& stream) {
    const StreamCapture ended = stream->EndCapture();
    if (phGraph != nullptr) *phGraph = ended.handle;
    return ended.graph != nullptr ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
  });
}

// The work of a capture follows all nodes that are there: dependencies have nothing to add.
CUresult CUDAAPI cuStreamGetCaptureInfo_v3(CUstream hStream,
                                           CUstreamCaptureStatus* captureStatus_out,
                                           cuuint64_t* id_out, CUgraph* graph_out,
                                           const CUgraphNode** dependencies_out,
                                           const CUgraphEdgeData** edgeData_out,
                                           size_t* numDependencies_out) {
  return WithStream(hStream, [&](State&, const std::shared_ptr<Stream>& stream) {
    if (captureStatus_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const StreamCapture capture = stream->capture();
    *captureStatus_out =
        capture.graph != nullptr ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    if (capture.graph == nullptr) return CUDA_SUCCESS;
    if (id_out != nullptr) *id_out = stream->id();
    if (graph_out != nullptr) *graph_out = capture.handle;
    if (dependencies_out != nullptr) *dependencies_out = capture.graph->nodes().data();
    if (edgeData_out != nullptr) *edgeData_out = nullptr;
    if (numDependencies_out != nullptr) *numDependencies_out = capture.graph->nodes().size();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuStreamUpdateCaptureDependencies_v2(CUstream hStream, CUgraphNode* dependencies,
                                                      const CUgraphEdgeData*,
                                                      size_t numDependencies, unsigned int flags) {
  return WithStream(hStream, [&](State& state, const std::shared_ptr<Stream>& stream) {
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES ||
        (numDependencies != 0 && dependencies == nullptr)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const StreamCapture capture = stream->capture();
    if (capture.graph == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
    for (size_t i = 0; i < numDependencies; ++i) {
      const std::shared_ptr<GraphNode> node = state.graph_nodes.Find(dependencies[i]);
      if (node == nullptr || node->graph != capture.graph.get()) return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec* phGraphExec, CUgraph hGraph,
                                             unsigned long long flags) {
  return WithGraph(hGraph, [&](State& state, const Graph& graph) {
    if (phGraphExec == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    *phGraphExec = state.graph_execs.Insert(std::make_shared<GraphExec>(state, graph));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGraphExecKernelNodeSetParams_v2(CUgraphExec hGraphExec, CUgraphNode hNode,
                                                   const CUDA_KERNEL_NODE_PARAMS* nodeParams) {
  return WithState([&](State& state) {
    const std::shared_ptr<GraphExec> exec = state.graph_execs.Find(hGraphExec);
    if (exec == nullptr || nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const KernelLaunch* const had = exec->FindKernel(hNode);
    if (had == nullptr) return CUDA_ERROR_INVALID_VALUE;
    KernelLaunch launch;
    const CUresult result = MakeNodeLaunch(state, *nodeParams, &launch);
    if (result != CUDA_SUCCESS) return result;
    launch.multiprocessors = had->multiprocessors;
    launch.output = had->output;
    exec->SetKernel(hNode, std::move(launch));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec hGraphExec, CUstream hStream) {
  return WithStream(hStream, [&](State& state, const std::shared_ptr<Stream>& stream) {
    const std::shared_ptr<GraphExec> exec = state.graph_execs.Find(hGraphExec);
    if (exec == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Context* context = stream->context().get();
    context->Submit(stream, [context, run = exec->Launch()](CUresult status) {
      if (status == CUDA_SUCCESS) run(*context);
    });
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec hGraphExec) {
  return WithState([&](State& state) {
    return state.graph_execs.Remove(hGraphExec) != nullptr ? CUDA_SUCCESS
                                                           : CUDA_ERROR_INVALID_VALUE;
  });
}

}  // extern "C"
