// SPDX-License-Identifier: Apache-2.0
// guest/graph.h: graphs, and what a node of one does.
//
// Graphs live in the guest. A node keeps its work in a form that can be sent at any time: packed
// kernel parameters, the descriptor of a copy or fill, a host function. Instantiating copies the
// work of all nodes in one order that the edges allow; launching sends it in that order to the
// stream, so that a graph runs like the stream that it could have been captured from. Branches that
// could run at once run one after the other.
//
// Which bodies of a conditional node run only the device knows. A graph with such nodes is sent
// once, when it is instantiated, for the host's driver to record: one part after the other, the
// graph itself and each body.
//
// Graph, GraphNode and GraphExec are guarded by Runtime::graph_mutex, which is never held while the
// host is asked. Source: CUDA Driver API, Graph Management.
#ifndef CONSORT_GUEST_GRAPH_H_
#define CONSORT_GUEST_GRAPH_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace consort::guest {

struct Context;
struct Kernel;
struct StreamRef;

// A write to memory or a wait for it, in stream order.
struct MemoryOperation {
  bool wait = false;
  bool wide = false;  // 64 bits
  uint64_t value = 0;
  uint32_t flags = 0;
};

struct GraphWork {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  uint64_t context_id = 0;
  // Kernel.
  uint64_t kernel_id = 0;
  uint32_t grid[3] = {};
  uint32_t block[3] = {};
  uint32_t shared_bytes = 0;
  std::vector<std::byte> parameters;  // packed as LaunchRequest has them
  std::vector<std::byte> attributes;  // likewise
  std::vector<void*> pointers;        // into `parameters`; made when a program asks for them
  // The others, by type.
  CUDA_MEMSET_NODE_PARAMS_v2 fill = {};
  CUDA_MEMCPY3D copy = {};
  CUDA_HOST_NODE_PARAMS_v2 host = {};
  MemoryOperation operation;
  uint64_t event_id = 0;
  uint64_t child_id = 0;  // a graph of the node's own
  // Conditional: the program's parameters, and graphs of the node's own.
  CUDA_CONDITIONAL_NODE_PARAMS condition = {};
  std::vector<uint64_t> body_ids;
  CUdeviceptr address = 0;  // of memory nodes and operations
  uint64_t bytes = 0;
};

struct GraphNode {
  uint64_t id = 0;
  uint64_t graph_id = 0;
  uint64_t cloned_from = 0;
  std::vector<uint64_t> dependencies;
  GraphWork work;
};

// References of a graph to a user object.
struct RetainedObject {
  uint64_t object_id = 0;
  uint32_t count = 0;
};

// A handle for a conditional node, which the host's driver made.
struct GraphCondition {
  CUgraphConditionalHandle handle = 0;
  bool used = false;  // by a node
};

struct Graph {
  uint64_t id = 0;
  bool owned = false;           // by a child graph or conditional node, which destroys it
  bool capturing = false;       // a capture adds to it; destroying it is refused
  std::vector<uint64_t> nodes;  // in the order of their making
  std::vector<RetainedObject> objects;
  // Of a body: the graph that its node is part of, at any depth, which has the conditions; else 0.
  uint64_t root_id = 0;
  std::vector<GraphCondition> conditions;
  uint64_t condition_context_id = 0;  // 0: no condition was made, and the host knows nothing of it
};

struct GraphExec {
  struct Step {
    uint64_t node_id = 0;     // of the graph that was instantiated
    uint32_t part = 0;        // 0: the graph, else a body
    uint32_t first_body = 0;  // of a conditional node: the parts that are its bodies begin here
    bool enabled = true;
    GraphWork work;
  };
  uint64_t id = 0;
  uint64_t flags = 0;
  uint64_t context_id = 0;  // of the latest launch
  std::vector<Step> steps;
  uint32_t parts = 1;           // more: the graph is recorded on the host
  uint64_t graph_id = 0;        // under this name there; it may be gone
  bool recorded = false;        // the host has it
  bool stale = false;           // the steps were changed since
  std::vector<uint64_t> shape;  // types and edges: equal if and only if the topology is
  std::vector<RetainedObject> objects;
};

struct UserObject {
  uint64_t id = 0;
  uint64_t count = 0;
  CUhostFn destroy = nullptr;
  void* argument = nullptr;
};

// Memory of allocation nodes. It keeps its address while a graph or executable graph has the node.
struct GraphMemory {
  CUdeviceptr address = 0;
  uint64_t bytes = 0;
  uint64_t context_id = 0;
  uint32_t references = 0;  // of nodes and steps; nodes of one graph may share it
  bool live = false;        // between the launch of its allocation and of its free
  // A launch has used it, and it was not live at a trim since.
  bool used = false;
};

// Adds a node after `dependencies`, which are nodes of the graph; an allocation may get the address
// of an earlier one. graph_mutex held. 0: too many.
uint64_t AddGraphNode(Graph* graph, const std::vector<uint64_t>& dependencies, GraphWork work);
Graph* NewGraph();
// Destroys the graph and its nodes; what is to be done once graph_mutex is not held any more is
// appended to `objects`. graph_mutex held.
void DestroyGraph(Graph* graph, std::vector<RetainedObject>* objects);
// Gives references back, and runs destructors. graph_mutex not held.
void ReleaseObjects(const std::vector<RetainedObject>& objects);

// Memory for an allocation node of `stream`'s device, under the lock of nobody.
CUresult AllocateGraphMemory(const StreamRef& stream, uint64_t bytes, CUdeviceptr* address);
// The program frees memory that an allocation node made. False: `address` is none.
bool FreeGraphMemory(CUdeviceptr address);

// A launch attribute as it is kept and sent: u64 id, CUlaunchAttributeValue.
inline constexpr size_t kLaunchAttributeBytes = 8 + sizeof(CUlaunchAttributeValue);

// What kinds of work check and do; each in the file of the calls that do the same in a stream.
// Preparing checks everything that the call would. Sending is for a stream that is not captured.
CUresult PrepareLaunch(Context* context, const CUDA_KERNEL_NODE_PARAMS_v2& params,
                       const std::vector<std::byte>& attributes, GraphWork* work);
CUresult SendLaunch(const StreamRef& stream, const GraphWork& work);
// What follows when the launch of a kernel was sent: counts it if it may print; if the host must
// not use managed memory meanwhile, waits until it has ended. (For a program that does not know
// that of devices without concurrent managed access; where CUDA's own are such, it fails. Source:
// CUDA C++ Programming Guide, "GPU Exclusive Access To Managed Memory".)
CUresult EndLaunch(Context* context, uint64_t stream_id, const Kernel& kernel,
                   std::span<const std::byte> parameters);
CUresult SendHostFunction(const StreamRef& stream, const GraphWork& work);
CUresult PrepareCopy(const CUDA_MEMCPY3D& copy);
CUresult SendCopy(const StreamRef& stream, const GraphWork& work);
// Whether the worker of the context reaches both sides of a copy.
bool IsCopyByAddress(const Context* context, const GraphWork& work);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_GRAPH_H_
