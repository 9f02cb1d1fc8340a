// SPDX-License-Identifier: Apache-2.0
// guest/calls/graph_node.cc: nodes of graphs: adding each kind, and what they do.
#include <string.h>

#include <utility>
#include <vector>

#include "gen/guest/calls.h"
#include "guest/calls/graph_condition.h"
#include "guest/calls/graph_store.h"
#include "guest/calls/graph_work.h"
#include "guest/runtime.h"
#include "guest/unsupported.h"

namespace consort::guest {
namespace {

// The parameters of a kernel node; the arrays stay the node's.
void KernelParams(GraphWork* work, CUDA_KERNEL_NODE_PARAMS_v2* params) {
  *params = {};
  params->func = reinterpret_cast<CUfunction>(work->kernel_id);
  params->gridDimX = work->grid[0], params->gridDimY = work->grid[1];
  params->gridDimZ = work->grid[2];
  params->blockDimX = work->block[0], params->blockDimY = work->block[1];
  params->blockDimZ = work->block[2];
  params->sharedMemBytes = work->shared_bytes;
  const Kernel* kernel = GetRuntime()->kernels.Find(work->kernel_id);
  if (kernel == nullptr) return;
  work->pointers.clear();
  for (const KernelParameter& parameter : kernel->parameters)
    work->pointers.push_back(work->parameters.data() + parameter.offset);
  if (!work->pointers.empty()) params->kernelParams = work->pointers.data();
}

// The place of attribute `id` in the packed list, or its end.
size_t AttributeAt(const std::vector<std::byte>& attributes, uint64_t id) {
  for (size_t at = 0; at + kLaunchAttributeBytes <= attributes.size();
       at += kLaunchAttributeBytes) {
    uint64_t there;
    memcpy(&there, &attributes[at], sizeof there);
    if (there == id) return at;
  }
  return attributes.size();
}

CUresult AddEventNode(CUgraphNodeType type, CUgraphNode* out, CUgraph graph,
                      const CUgraphNode* dependencies, size_t count, CUevent event) {
  GraphWork work;
  if (CUresult result = MakeEvent(type, event, &work); result != CUDA_SUCCESS) return result;
  return AddNode(out, graph, dependencies, count, work);
}

CUresult GetNodeEvent(CUgraphNodeType type, CUgraphNode handle, CUevent* event) {
  if (event == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithNode(handle, type, [&](GraphNode* node) {
    *event = reinterpret_cast<CUevent>(node->work.event_id);
    return CUDA_SUCCESS;
  });
}

CUresult SetNodeEvent(CUgraphNodeType type, CUgraphNode handle, CUevent event) {
  GraphWork work;
  if (CUresult result = MakeEvent(type, event, &work); result != CUDA_SUCCESS) return result;
  return ReplaceNode(handle, std::move(work));
}

// What an allocation node has got.
CUresult GetAllocation(CUgraphNode handle, CUdeviceptr* address) {
  return WithNode(handle, CU_GRAPH_NODE_TYPE_MEM_ALLOC, [&](const GraphNode* node) {
    *address = node->work.address;
    return CUDA_SUCCESS;
  });
}

}  // namespace

namespace calls {

CUresult cuGraphAddKernelNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                              const CUgraphNode* dependencies, size_t numDependencies,
                              const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  GraphWork work;
  if (CUresult result = MakeKernel(nodeParams, &work); result != CUDA_SUCCESS) return result;
  return AddNode(phGraphNode, hGraph, dependencies, numDependencies, work);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph,
                                 const CUgraphNode* dependencies, size_t numDependencies,
                                 const CUDA_KERNEL_NODE_PARAMS_v2* nodeParams) {
  GraphWork work;
  if (CUresult result = MakeKernel(nodeParams, &work); result != CUDA_SUCCESS) return result;
  return AddNode(phGraphNode, hGraph, dependencies, numDependencies, work);
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_KERNEL_NODE_PARAMS_v2 wide;
  const CUresult result = calls::cuGraphKernelNodeGetParams_v2(hNode, &wide);
  if (result == CUDA_SUCCESS) memcpy(nodeParams, &wide, sizeof *nodeParams);
  return result;
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode hNode, CUDA_KERNEL_NODE_PARAMS_v2* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithNode(hNode, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode* node) {
    KernelParams(&node->work, nodeParams);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode hNode,
                                    const CUDA_KERNEL_NODE_PARAMS_v1* nodeParams) {
  GraphWork work;
  if (CUresult result = MakeKernel(nodeParams, &work); result != CUDA_SUCCESS) return result;
  return ReplaceNode(hNode, std::move(work));
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode hNode,
                                       const CUDA_KERNEL_NODE_PARAMS_v2* nodeParams) {
  GraphWork work;
  if (CUresult result = MakeKernel(nodeParams, &work); result != CUDA_SUCCESS) return result;
  return ReplaceNode(hNode, std::move(work));
}

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                       CUkernelNodeAttrValue* value_out) {
  if (value_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithNode(hNode, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode* node) {
    memset(value_out, 0, sizeof *value_out);
    const size_t at = AttributeAt(node->work.attributes, attr);
    if (at < node->work.attributes.size())
      memcpy(value_out, &node->work.attributes[at + 8], sizeof *value_out);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode hNode, CUkernelNodeAttrID attr,
                                       const CUkernelNodeAttrValue* value) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (attr == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT ||
      attr == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT ||
      attr == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE) {
    NoteUnsupported("cuGraphKernelNodeSetAttribute", "an attribute that names an event or a node");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return WithNode(hNode, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode* node) {
    std::vector<std::byte>& attributes = node->work.attributes;
    const size_t at = AttributeAt(attributes, attr);
    if (at == attributes.size()) attributes.resize(at + kLaunchAttributeBytes);
    const uint64_t id = attr;
    memcpy(&attributes[at], &id, sizeof id);
    memcpy(&attributes[at + 8], value, sizeof *value);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode dst, CUgraphNode src) {
  std::vector<std::byte> attributes;
  const CUresult result = WithNode(src, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode* node) {
    attributes = node->work.attributes;
    return CUDA_SUCCESS;
  });
  if (result != CUDA_SUCCESS) return result;
  return WithNode(dst, CU_GRAPH_NODE_TYPE_KERNEL, [&](GraphNode* node) {
    node->work.attributes = std::move(attributes);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphAddMemcpyNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                              const CUgraphNode* dependencies, size_t numDependencies,
                              const CUDA_MEMCPY3D* copyParams, CUcontext ctx) {
  GraphWork work;
  if (CUresult result = MakeCopy(copyParams, ctx, &work); result != CUDA_SUCCESS) return result;
  return AddNode(phGraphNode, hGraph, dependencies, numDependencies, work);
}

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode hNode, CUDA_MEMCPY3D* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithNode(hNode, CU_GRAPH_NODE_TYPE_MEMCPY, [&](GraphNode* node) {
    *nodeParams = node->work.copy;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode hNode, const CUDA_MEMCPY3D* nodeParams) {
  GraphWork work;
  if (CUresult result = MakeCopy(nodeParams, nullptr, &work); result != CUDA_SUCCESS) return result;
  return ReplaceNode(hNode, std::move(work));
}

CUresult cuGraphAddMemsetNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                              const CUgraphNode* dependencies, size_t numDependencies,
                              const CUDA_MEMSET_NODE_PARAMS_v1* memsetParams, CUcontext ctx) {
  GraphWork work;
  if (CUresult result = MakeFill(memsetParams, ctx, &work); result != CUDA_SUCCESS) return result;
  return AddNode(phGraphNode, hGraph, dependencies, numDependencies, work);
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode hNode, CUDA_MEMSET_NODE_PARAMS_v1* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithNode(hNode, CU_GRAPH_NODE_TYPE_MEMSET, [&](GraphNode* node) {
    const CUDA_MEMSET_NODE_PARAMS_v2& fill = node->work.fill;
    *nodeParams = {fill.dst, fill.pitch, fill.value, fill.elementSize, fill.width, fill.height};
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode hNode,
                                    const CUDA_MEMSET_NODE_PARAMS_v1* nodeParams) {
  GraphWork work;
  if (CUresult result = MakeFill(nodeParams, nullptr, &work); result != CUDA_SUCCESS) return result;
  return ReplaceNode(hNode, std::move(work));
}

CUresult cuGraphAddHostNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                            const CUgraphNode* dependencies, size_t numDependencies,
                            const CUDA_HOST_NODE_PARAMS_v1* nodeParams) {
  GraphWork work;
  if (CUresult result = MakeHost(nodeParams, &work); result != CUDA_SUCCESS) return result;
  return AddNode(phGraphNode, hGraph, dependencies, numDependencies, work);
}

CUresult cuGraphHostNodeGetParams(CUgraphNode hNode, CUDA_HOST_NODE_PARAMS_v1* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithNode(hNode, CU_GRAPH_NODE_TYPE_HOST, [&](GraphNode* node) {
    *nodeParams = {node->work.host.fn, node->work.host.userData};
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphHostNodeSetParams(CUgraphNode hNode, const CUDA_HOST_NODE_PARAMS_v1* nodeParams) {
  GraphWork work;
  if (CUresult result = MakeHost(nodeParams, &work); result != CUDA_SUCCESS) return result;
  return ReplaceNode(hNode, std::move(work));
}

CUresult cuGraphAddEmptyNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                             const CUgraphNode* dependencies, size_t numDependencies) {
  return AddNode(phGraphNode, hGraph, dependencies, numDependencies, GraphWork());
}

CUresult cuGraphAddChildGraphNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                  const CUgraphNode* dependencies, size_t numDependencies,
                                  CUgraph childGraph) {
  GraphWork work;
  if (CUresult result = MakeChild(childGraph, &work); result != CUDA_SUCCESS) return result;
  return AddNode(phGraphNode, hGraph, dependencies, numDependencies, work);
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode hNode, CUgraph* phGraph) {
  if (phGraph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithNode(hNode, CU_GRAPH_NODE_TYPE_GRAPH, [&](GraphNode* node) {
    *phGraph = reinterpret_cast<CUgraph>(node->work.child_id);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphAddEventRecordNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                   const CUgraphNode* dependencies, size_t numDependencies,
                                   CUevent event) {
  return AddEventNode(CU_GRAPH_NODE_TYPE_EVENT_RECORD, phGraphNode, hGraph, dependencies,
                      numDependencies, event);
}

CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode hNode, CUevent* event_out) {
  return GetNodeEvent(CU_GRAPH_NODE_TYPE_EVENT_RECORD, hNode, event_out);
}

CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode hNode, CUevent event) {
  return SetNodeEvent(CU_GRAPH_NODE_TYPE_EVENT_RECORD, hNode, event);
}

CUresult cuGraphAddEventWaitNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                 const CUgraphNode* dependencies, size_t numDependencies,
                                 CUevent event) {
  return AddEventNode(CU_GRAPH_NODE_TYPE_WAIT_EVENT, phGraphNode, hGraph, dependencies,
                      numDependencies, event);
}

CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode hNode, CUevent* event_out) {
  return GetNodeEvent(CU_GRAPH_NODE_TYPE_WAIT_EVENT, hNode, event_out);
}

CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode hNode, CUevent event) {
  return SetNodeEvent(CU_GRAPH_NODE_TYPE_WAIT_EVENT, hNode, event);
}

CUresult cuGraphAddMemAllocNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                                const CUgraphNode* dependencies, size_t numDependencies,
                                CUDA_MEM_ALLOC_NODE_PARAMS* nodeParams) {
  if (nodeParams == nullptr) return CUDA_ERROR_INVALID_VALUE;
  GraphWork work;
  if (CUresult result = MakeAllocation(nodeParams->poolProps, nodeParams->bytesize, &work);
      result != CUDA_SUCCESS) {
    return result;
  }
  const CUresult result = AddNode(phGraphNode, hGraph, dependencies, numDependencies, work);
  return result == CUDA_SUCCESS ? GetAllocation(*phGraphNode, &nodeParams->dptr) : result;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode hNode, CUDA_MEM_ALLOC_NODE_PARAMS* params_out) {
  if (params_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithNode(hNode, CU_GRAPH_NODE_TYPE_MEM_ALLOC, [&](GraphNode* node) {
    *params_out = {};
    params_out->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params_out->poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    const Context* context = GetRuntime()->contexts.Find(node->work.context_id);
    if (context != nullptr) params_out->poolProps.location.id = context->device->ordinal;
    params_out->bytesize = node->work.bytes;
    params_out->dptr = node->work.address;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphAddMemFreeNode(CUgraphNode* phGraphNode, CUgraph hGraph,
                               const CUgraphNode* dependencies, size_t numDependencies,
                               CUdeviceptr dptr) {
  GraphWork work;
  if (CUresult result = MakeFree(dptr, &work); result != CUDA_SUCCESS) return result;
  return AddNode(phGraphNode, hGraph, dependencies, numDependencies, work);
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode hNode, CUdeviceptr* dptr_out) {
  if (dptr_out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return WithNode(hNode, CU_GRAPH_NODE_TYPE_MEM_FREE, [&](GraphNode* node) {
    *dptr_out = node->work.address;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphAddNode(CUgraphNode* phGraphNode, CUgraph hGraph, const CUgraphNode* dependencies,
                        size_t numDependencies, CUgraphNodeParams* nodeParams) {
  GraphWork work;
  if (nodeParams != nullptr && nodeParams->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
    return AddConditional(phGraphNode, hGraph, dependencies, numDependencies,
                          &nodeParams->conditional);
  }
  if (CUresult result = MakeAny(nodeParams, &work); result != CUDA_SUCCESS) return result;
  const CUresult result = AddNode(phGraphNode, hGraph, dependencies, numDependencies, work);
  if (result != CUDA_SUCCESS || work.type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return result;
  return GetAllocation(*phGraphNode, &nodeParams->alloc.dptr);
}

// A programmatic edge lets its target begin early; here it waits, which is always right.
CUresult cuGraphAddNode_v2(CUgraphNode* phGraphNode, CUgraph hGraph,
                           const CUgraphNode* dependencies, const CUgraphEdgeData*,
                           size_t numDependencies, CUgraphNodeParams* nodeParams) {
  return calls::cuGraphAddNode(phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
}

CUresult cuGraphNodeSetParams(CUgraphNode hNode, CUgraphNodeParams* nodeParams) {
  GraphWork work;
  if (nodeParams != nullptr && (nodeParams->type == CU_GRAPH_NODE_TYPE_GRAPH ||
                                nodeParams->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (CUresult result = MakeAny(nodeParams, &work); result != CUDA_SUCCESS) return result;
  return ReplaceNode(hNode, std::move(work));
}

}  // namespace calls
}  // namespace consort::guest
