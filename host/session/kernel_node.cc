// SPDX-License-Identifier: Apache-2.0
#include "host/session/kernel_node.h"

#include <cstring>

namespace consort::host {
namespace {

// Packed arguments as the driver takes them; it copies what it keeps.
struct Packed {
  size_t bytes;
  void* extra[5];

  Packed(std::byte* arguments, size_t argument_bytes)
      : bytes(argument_bytes),
        extra{CU_LAUNCH_PARAM_BUFFER_POINTER, arguments, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
              CU_LAUNCH_PARAM_END} {}
  Packed(const Packed&) = delete;
  void** get() { return bytes != 0 ? extra : nullptr; }
};

// `packed` must outlast the call of the driver.
template <class Params>
void Describe(CUkernel kernel, CUcontext context, const LaunchShape& shape, Packed* packed,
              Params* params) {
  *params = {};
  params->kern = kernel;
  params->ctx = context;
  params->gridDimX = shape[0];
  params->gridDimY = shape[1];
  params->gridDimZ = shape[2];
  params->blockDimX = shape[3];
  params->blockDimY = shape[4];
  params->blockDimZ = shape[5];
  params->sharedMemBytes = shape[6];
  params->extra = packed->get();
}

}  // namespace

bool KernelNode::Available(const device::DriverTable& driver) {
  return driver.cuGraphKernelNodeSetAttribute != nullptr &&
         driver.cuGraphExecKernelNodeSetParams_v2 != nullptr;
}

CUresult KernelNode::Add(const device::DriverTable& driver, CUcontext context, CUgraph graph,
                         const KernelNode* before, int priority, const PlainLaunch& launch) {
  Take(launch);
  Packed packed(arguments_.data(), argument_bytes_);
  CUgraphNodeParams params = {};
  params.type = CU_GRAPH_NODE_TYPE_KERNEL;
  Describe(kernel_, context, shape_, &packed, &params.kernel);
  const CUgraphNode behind = before != nullptr ? before->handle_ : nullptr;
  const CUresult result = driver.cuGraphAddNode_v2(&handle_, graph, &behind, nullptr,
                                                   before != nullptr ? 1 : 0, &params);
  if (result != CUDA_SUCCESS) return result;
  CUkernelNodeAttrValue value = {};
  value.priority = priority;
  return driver.cuGraphKernelNodeSetAttribute(handle_, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value);
}

CUresult KernelNode::Become(const device::DriverTable& driver, CUcontext context, CUgraphExec exec,
                            const PlainLaunch& launch) {
  if (Is(launch)) return CUDA_SUCCESS;
  Take(launch);
  Packed packed(arguments_.data(), argument_bytes_);
  CUDA_KERNEL_NODE_PARAMS params;
  Describe(kernel_, context, shape_, &packed, &params);
  const CUresult result = driver.cuGraphExecKernelNodeSetParams_v2(exec, handle_, &params);
  if (result != CUDA_SUCCESS) kernel_ = nullptr;
  return result;
}

bool KernelNode::Is(const PlainLaunch& launch) const {
  return kernel_ == launch.kernel && shape_ == launch.shape &&
         argument_bytes_ == launch.arguments.size() &&
         std::memcmp(arguments_.data(), launch.arguments.data(), argument_bytes_) == 0;
}

void KernelNode::Take(const PlainLaunch& launch) {
  kernel_ = launch.kernel;
  shape_ = launch.shape;
  argument_bytes_ = static_cast<uint32_t>(launch.arguments.size());
  std::memcpy(arguments_.data(), launch.arguments.data(), argument_bytes_);
}

}  // namespace consort::host
