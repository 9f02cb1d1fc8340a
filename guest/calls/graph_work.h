// SPDX-License-Identifier: Apache-2.0
// guest/calls/graph_work.h: the work of a node, from a program's parameters and to the stream.
#ifndef CONSORT_GUEST_CALLS_GRAPH_WORK_H_
#define CONSORT_GUEST_CALLS_GRAPH_WORK_H_

#include <cuda.h>

#include <cstdint>

#include "guest/graph.h"

namespace consort::guest {

// Each checks everything that the call in a stream would, and fills `work`. graph_mutex not held.
CUresult MakeKernel(const CUDA_KERNEL_NODE_PARAMS_v1* params, GraphWork* work);
CUresult MakeKernel(const CUDA_KERNEL_NODE_PARAMS_v2* params, GraphWork* work);
// A null `context` is the current one.
CUresult MakeCopy(const CUDA_MEMCPY3D* copy, CUcontext context, GraphWork* work);
CUresult MakeFill(const CUDA_MEMSET_NODE_PARAMS_v1* params, CUcontext context, GraphWork* work);
CUresult MakeHost(const CUDA_HOST_NODE_PARAMS_v1* params, GraphWork* work);
// `type`: that of a record or of a wait.
CUresult MakeEvent(CUgraphNodeType type, CUevent event, GraphWork* work);
// A clone of `child` goes into `work`.
CUresult MakeChild(CUgraph child, GraphWork* work);
// Allocates `bytes`; the node keeps the address, or gets that of an earlier allocation (AddNode).
CUresult MakeAllocation(const CUmemPoolProps& pool, uint64_t bytes, GraphWork* work);
CUresult MakeFree(CUdeviceptr address, GraphWork* work);
// Of any type.
CUresult MakeAny(CUgraphNodeParams* params, GraphWork* work);

// Does the work in `stream`, which is not captured.
CUresult SendWork(const StreamRef& stream, const GraphWork& work);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_CALLS_GRAPH_WORK_H_
