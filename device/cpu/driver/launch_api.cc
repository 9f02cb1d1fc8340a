// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/launch_api.cc: kernel launches.
#include "device/cpu/driver/kernel_launch.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/log.h"
#include "device/cpu/driver/limits.h"
#include "device/cpu/driver/occupancy.h"
#include "device/cpu/driver/state.h"

namespace consort::cpu {
namespace {

CUresult ErrorOf(LaunchFault fault) {
  switch (fault) {
    case LaunchFault::kNone:
      return CUDA_SUCCESS;
    case LaunchFault::kIllegalAddress:
      return CUDA_ERROR_ILLEGAL_ADDRESS;
    case LaunchFault::kMisaligned:
      return CUDA_ERROR_MISALIGNED_ADDRESS;
    case LaunchFault::kStackOverflow:
      return CUDA_ERROR_HARDWARE_STACK_ERROR;
    case LaunchFault::kTimeout:
      return CUDA_ERROR_LAUNCH_TIMEOUT;
    case LaunchFault::kAssert:
      return CUDA_ERROR_ASSERT;
    case LaunchFault::kTrap:
    case LaunchFault::kDeadlock:
      return CUDA_ERROR_LAUNCH_FAILED;
  }
  return CUDA_ERROR_UNKNOWN;
}

bool ShapeValid(const LaunchShape& shape, const Kernel& kernel) {
  uint64_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    if (shape.grid[i] == 0 || shape.grid[i] > kGridDimMax[i]) return false;
    if (shape.block[i] == 0 || shape.block[i] > kBlockDimMax[i]) return false;
    threads *= shape.block[i];
  }
  if (threads > kBlockThreadsMax || threads > kernel.info().threads_max) return false;
  return shape.dynamic_shared_bytes <=
         static_cast<uint32_t>(kernel.settings().dynamic_shared_bytes_max.load());
}

// All blocks of a cooperative launch must fit the device at once.
bool FitsAtOnce(const LaunchShape& shape, const Kernel& kernel, const Device& device) {
  const uint32_t threads = shape.block[0] * shape.block[1] * shape.block[2];
  const int blocks = BlocksPerMultiprocessor(kernel.info(), threads, shape.dynamic_shared_bytes);
  return uint64_t{shape.grid[0]} * shape.grid[1] * shape.grid[2] <=
         static_cast<uint64_t>(blocks) * static_cast<uint64_t>(device.MultiprocessorCount());
}

// Gathers the kernel's parameters into one packed buffer, from either form in which they come.
// Source: CUDA driver API, cuLaunchKernel.
CUresult PackParams(const KernelInfo& info, void** params, void** extra,
                    std::vector<std::byte>* packed) {
  packed->resize(info.param_bytes);
  if (params != nullptr && extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (extra != nullptr) {
    const void* buffer = nullptr;
    size_t bytes = 0;
    for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
      if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) {
        buffer = extra[1];
      } else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) {
        if (extra[1] == nullptr) return CUDA_ERROR_INVALID_VALUE;
        bytes = *static_cast<const size_t*>(extra[1]);
      } else {
        return CUDA_ERROR_INVALID_VALUE;
      }
    }
    if (info.params.empty()) return CUDA_SUCCESS;
    // Callers may round the size up, or leave out the end of the last parameter, but no other.
    if (buffer == nullptr || bytes <= info.params.back().offset) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(packed->data(), buffer, std::min<size_t>(bytes, info.param_bytes));
    return CUDA_SUCCESS;
  }
  if (params == nullptr) return info.params.empty() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < info.params.size(); ++i) {
    if (params[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(packed->data() + info.params[i].offset, params[i], info.params[i].bytes);
  }
  return CUDA_SUCCESS;
}

CUresult Launch(CUstream handle, const LaunchRequest& request) {
  return WithStream(handle, [&](State& state, const std::shared_ptr<Stream>& stream) {
    KernelLaunch launch;
    const CUresult result = MakeLaunch(state, stream->context(), request, &launch);
    if (result != CUDA_SUCCESS) return result;
    launch.multiprocessors = stream->multiprocessors();
    launch.output = stream->output();
    stream->context()->Submit(stream, std::move(launch));
    return CUDA_SUCCESS;
  });
}

bool IsCooperative(const CUlaunchConfig& config) {
  for (unsigned int i = 0; i < config.numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config.attrs[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) return attribute.value.cooperative != 0;
  }
  return false;
}

// CUDA_SUCCESS if an attribute asks for nothing, or for something that makes no difference here.
CUresult CheckAttribute(const CUlaunchAttribute& attribute) {
  switch (attribute.id) {
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
    // Hints about placement, order of service and caching.
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
    case CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING:
    // Allows the kernel to start before its predecessor ends; starting after it is allowed too.
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
    // Regarded by IsCooperative.
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
      return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION: {
      const auto& cluster = attribute.value.clusterDim;
      return cluster.x == 1 && cluster.y == 1 && cluster.z == 1 ? CUDA_SUCCESS
                                                                : CUDA_ERROR_NOT_SUPPORTED;
    }
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
      return CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

LaunchShape Shape(const unsigned int (&grid)[3], const unsigned int (&block)[3],
                  unsigned int shared_bytes) {
  LaunchShape shape;
  for (int i = 0; i < 3; ++i) {
    shape.grid[i] = grid[i];
    shape.block[i] = block[i];
  }
  shape.dynamic_shared_bytes = shared_bytes;
  return shape;
}

CUresult MakeLaunch(State& state, const std::shared_ptr<Context>& context,
                    const LaunchRequest& request, KernelLaunch* launch) {
  const std::shared_ptr<Function> function = state.functions.Find(request.function);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  launch->context = context.get();
  launch->shape = request.shape;
  if (const CUresult result = function->In(state, context, &launch->kernel);
      result != CUDA_SUCCESS) {
    return result;
  }
  if (!ShapeValid(request.shape, launch->kernel)) return CUDA_ERROR_INVALID_VALUE;
  if (request.shape.cooperative && !FitsAtOnce(request.shape, launch->kernel, context->device())) {
    return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  }
  return PackParams(launch->kernel.info(), request.params, request.extra, &launch->packed);
}

void KernelLaunch::operator()(CUresult status) const {
  if (status != CUDA_SUCCESS) return;
  LaunchFault fault = LaunchFault::kNone;
  Device& device = context->device();
  device.pace().RunKernel([&] {
    fault = kernel.module->program().Run(
        kernel.index, shape, packed.data(),
        multiprocessors != 0 ? multiprocessors : device.MultiprocessorCount(), output);
  });
  if (fault == LaunchFault::kNone) return;
  LOG(WARNING) << "kernel " << kernel.info().name << " failed with error " << ErrorOf(fault);
  context->Fail(ErrorOf(fault));
}

}  // namespace consort::cpu

using namespace consort::cpu;  // the entry points are global: their prototypes are cuda.h's

extern "C" {

CUresult CUDAAPI cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                unsigned int gridDimZ, unsigned int blockDimX,
                                unsigned int blockDimY, unsigned int blockDimZ,
                                unsigned int sharedMemBytes, CUstream hStream, void** kernelParams,
                                void** extra) {
  return Launch(
      hStream,
      {f, Shape({gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes),
       kernelParams, extra});
}

CUresult CUDAAPI cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX,
                                           unsigned int gridDimY, unsigned int gridDimZ,
                                           unsigned int blockDimX, unsigned int blockDimY,
                                           unsigned int blockDimZ, unsigned int sharedMemBytes,
                                           CUstream hStream, void** kernelParams) {
  LaunchShape shape =
      Shape({gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes);
  shape.cooperative = true;
  return Launch(hStream, {f, shape, kernelParams, nullptr});
}

CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** kernelParams,
                                  void** extra) {
  return WithState([&](State&) {
    if (config == nullptr || (config->numAttrs > 0 && config->attrs == nullptr)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned int i = 0; i < config->numAttrs; ++i) {
      const CUresult result = CheckAttribute(config->attrs[i]);
      if (result != CUDA_SUCCESS) return result;
    }
    LaunchShape shape =
        Shape({config->gridDimX, config->gridDimY, config->gridDimZ},
              {config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes);
    shape.cooperative = IsCooperative(*config);
    return Launch(config->hStream, {f, shape, kernelParams, extra});
  });
}

}  // extern "C"
