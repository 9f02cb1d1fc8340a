// SPDX-License-Identifier: Apache-2.0
#include "host/session/kernel_node.h"

#include <cstring>

namespace consort::host {
namespace {

// What of it the driver keeps it copies. `extra` is set to refer to what the arguments refer to.
template <class Params>
void Describe(CUkernel kernel, CUcontext context, const LaunchShape& shape, void** extra,
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
  params->extra = extra;
}

}  // namespace

bool KernelNode::Available(const device::DriverTable& driver) {
  return driver.cuGraphKernelNodeSetAttribute != nullptr &&
         driver.cuGraphExecKernelNodeSetParams_v2 != nullptr;
}

CUresult KernelNode::Add(const device::DriverTable& driver, CUcontext context, CUgraph graph,
                         const KernelNode* before, int priority, const PlainLaunch& launch) {
  Take(launch);
  size_t bytes = argument_bytes_;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, arguments_.data(), CU_LAUNCH_PARAM_BUFFER_SIZE,
                   &bytes, CU_LAUNCH_PARAM_END};
  CUgraphNodeParams params = {};
  params.type = CU_GRAPH_NODE_TYPE_KERNEL;
  Describe(kernel_, context, shape_, bytes != 0 ? extra : nullptr, &params.kernel);
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
  size_t bytes = argument_bytes_;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, arguments_.data(), CU_LAUNCH_PARAM_BUFFER_SIZE,
                   &bytes, CU_LAUNCH_PARAM_END};
  CUDA_KERNEL_NODE_PARAMS params;
  Describe(kernel_, context, shape_, bytes != 0 ? extra : nullptr, &params);
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
