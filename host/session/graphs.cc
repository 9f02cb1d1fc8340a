// SPDX-License-Identifier: Apache-2.0
#include "host/session/graphs.h"

#include <algorithm>

#include "host/limits.h"

namespace consort::host {

Graphs::~Graphs() {
  for (const auto& [id, exec] : execs_) driver_.cuGraphExecDestroy(exec.handle);
  for (const auto& [id, graph] : graphs_) driver_.cuGraphDestroy(graph.handle);
}

CUresult Graphs::CreateHandle(const wire::GraphHandleCreateRequest& request, uint64_t* handle) {
  auto found = graphs_.find(request.graph);
  if (found == graphs_.end()) {
    if (graphs_.size() >= kHandlesPerKind) return CUDA_ERROR_OUT_OF_MEMORY;
    Graph made;
    const CUresult result = driver_.cuGraphCreate(&made.handle, 0);
    if (result != CUDA_SUCCESS) return result;
    found = graphs_.emplace(request.graph, made).first;
  }
  CUgraphConditionalHandle created = 0;
  const CUresult result = driver_.cuGraphConditionalHandleCreate(
      &created, found->second.handle, context_, request.default_value, request.flags);
  *handle = created;
  return result;
}

CUresult Graphs::Clear(CUgraph graph) {
  size_t count = 0;
  CUresult result = driver_.cuGraphGetNodes(graph, nullptr, &count);
  std::vector<CUgraphNode> nodes(count);
  if (result == CUDA_SUCCESS && count != 0) {
    result = driver_.cuGraphGetNodes(graph, nodes.data(), &count);
  }
  for (size_t i = 0; i < count && result == CUDA_SUCCESS; ++i) {
    result = driver_.cuGraphDestroyNode(nodes[i]);
  }
  return result;
}

CUresult Graphs::End(Stream* stream) {
  if (!stream->recording) return CUDA_SUCCESS;
  stream->recording = false;
  CUgraph ended = nullptr;
  return driver_.cuStreamEndCapture(stream->driver, &ended);
}

CUresult Graphs::Record(const wire::GraphRecordRequest& request, Stream* stream) {
  const auto found = graphs_.find(request.graph);
  if (found == graphs_.end()) return CUDA_ERROR_INVALID_HANDLE;
  Graph& graph = found->second;
  CUresult result = End(stream);
  if (result != CUDA_SUCCESS) return result;
  if (request.part == 0) {
    recording_prints_ = false;
    graph.parts.assign(1, graph.handle);
    result = Clear(graph.handle);
    if (result != CUDA_SUCCESS) return result;
  }
  if (request.part >= graph.parts.size() || graph.parts[request.part] == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // Relaxed: what other threads of the worker do meanwhile is none of the recording's business.
  result = driver_.cuStreamBeginCaptureToGraph(stream->driver, graph.parts[request.part], nullptr,
                                               nullptr, 0, CU_STREAM_CAPTURE_MODE_RELAXED);
  stream->recording = result == CUDA_SUCCESS;
  return result;
}

CUresult Graphs::AddCondition(const wire::GraphConditionRequest& request, const Stream& stream) {
  const auto found = graphs_.find(request.graph);
  if (found == graphs_.end()) return CUDA_ERROR_INVALID_HANDLE;
  std::vector<CUgraph>& parts = found->second.parts;
  if (!stream.recording || request.size > kHandlesPerKind ||
      request.first_part > kHandlesPerKind - request.size) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUgraph graph = nullptr;
  const CUgraphNode* dependencies = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  size_t count = 0;
  CUresult result = driver_.cuStreamGetCaptureInfo_v3(stream.driver, &status, nullptr, &graph,
                                                      &dependencies, &edges, &count);
  if (result != CUDA_SUCCESS) return result;
  if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  CUgraphNodeParams params = {};
  params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  params.conditional.handle = request.handle;
  params.conditional.type = static_cast<CUgraphConditionalNodeType>(request.type);
  params.conditional.size = request.size;
  params.conditional.ctx = context_;
  CUgraphNode node = nullptr;
  result = driver_.cuGraphAddNode_v2(&node, graph, dependencies, edges, count, &params);
  if (result != CUDA_SUCCESS) return result;
  const size_t end = size_t{request.first_part} + request.size;
  parts.resize(std::max(parts.size(), end));
  std::copy_n(params.conditional.phGraph_out, request.size, parts.begin() + request.first_part);
  return driver_.cuStreamUpdateCaptureDependencies_v2(stream.driver, &node, nullptr, 1,
                                                      CU_STREAM_SET_CAPTURE_DEPENDENCIES);
}

CUresult Graphs::Instantiate(const wire::GraphInstantiateRequest& request, Stream* stream) {
  const auto found = graphs_.find(request.graph);
  if (found == graphs_.end() || execs_.contains(request.exec)) return CUDA_ERROR_INVALID_HANDLE;
  if (execs_.size() >= kHandlesPerKind) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = End(stream);
  if (result != CUDA_SUCCESS) return result;
  Exec exec;
  exec.prints = recording_prints_;
  result = driver_.cuGraphInstantiateWithFlags(&exec.handle, found->second.handle, 0);
  if (result == CUDA_SUCCESS) execs_.emplace(request.exec, exec);
  return result;
}

CUresult Graphs::Launch(uint64_t exec, CUstream stream) {
  const auto found = execs_.find(exec);
  if (found == execs_.end()) return CUDA_ERROR_INVALID_HANDLE;
  return driver_.cuGraphLaunch(found->second.handle, stream);
}

bool Graphs::Prints(uint64_t exec) const {
  const auto found = execs_.find(exec);
  return found != execs_.end() && found->second.prints;
}

CUresult Graphs::DestroyExec(uint64_t exec) {
  const auto found = execs_.find(exec);
  if (found == execs_.end()) return CUDA_ERROR_INVALID_HANDLE;
  const CUgraphExec handle = found->second.handle;
  execs_.erase(found);
  return driver_.cuGraphExecDestroy(handle);
}

CUresult Graphs::Destroy(uint64_t graph) {
  const auto found = graphs_.find(graph);
  if (found == graphs_.end()) return CUDA_ERROR_INVALID_HANDLE;
  const CUgraph handle = found->second.handle;
  graphs_.erase(found);
  return driver_.cuGraphDestroy(handle);
}

}  // namespace consort::host
