// SPDX-License-Identifier: Apache-2.0
// guest/calls/launch.cc: kernels, host functions and occupancy. A launch is checked and packed here
// and then sent, not asked: the documented errors of its arguments come back at once, those of its
// execution at the next synchronisation, as in CUDA. Source: CUDA Driver API, Execution Control,
// Occupancy.
#include <limits.h>
#include <string.h>

#include "gen/guest/calls.h"
#include "guest/call.h"
#include "guest/config.h"
#include "guest/host_reach.h"
#include "guest/modules.h"
#include "guest/runtime.h"
#include "guest/unsupported.h"

namespace consort::guest {
namespace {

// Kernel parameters: 32,764 bytes at most since CUDA 12.1, and some room for alignment.
constexpr size_t kParameterBytesMax = 32 * 1024;
// Attributes of one launch; cuda.h has fewer kinds.
constexpr unsigned kLaunchAttributesMax = 32;
static_assert(sizeof(CUlaunchAttributeValue) == 64);

int KernelAttribute(const Kernel* kernel, CUfunction_attribute attribute) {
  return kernel->attributes[attribute].load(std::memory_order_relaxed);
}

int DeviceAttribute(const Device* device, CUdevice_attribute attribute) {
  return device->snapshot.attributes[attribute];
}

// Grid, block and shared memory against the limits of device and kernel.
CUresult CheckShape(const CUlaunchConfig& config, const Kernel* kernel, const Device* device) {
  const unsigned grid[3] = {config.gridDimX, config.gridDimY, config.gridDimZ};
  const unsigned block[3] = {config.blockDimX, config.blockDimY, config.blockDimZ};
  uint64_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    const auto grid_limit = static_cast<CUdevice_attribute>(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i);
    const auto block_limit =
        static_cast<CUdevice_attribute>(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i);
    if (grid[i] == 0 || block[i] == 0) return CUDA_ERROR_INVALID_VALUE;
    if (grid[i] > static_cast<unsigned>(DeviceAttribute(device, grid_limit)))
      return CUDA_ERROR_INVALID_VALUE;
    if (block[i] > static_cast<unsigned>(DeviceAttribute(device, block_limit)))
      return CUDA_ERROR_INVALID_VALUE;
    threads *= block[i];
  }
  if (threads >
      static_cast<uint64_t>(DeviceAttribute(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (threads >
      static_cast<uint64_t>(KernelAttribute(kernel, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK))) {
    // More than __launch_bounds__ said, or more than the registers suffice for. Seen: driver 580.
    const uint64_t registers = threads * KernelAttribute(kernel, CU_FUNC_ATTRIBUTE_NUM_REGS);
    return registers > static_cast<uint64_t>(
                           DeviceAttribute(device, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK))
               ? CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
               : CUDA_ERROR_INVALID_VALUE;
  }
  if (config.sharedMemBytes > static_cast<unsigned>(KernelAttribute(
                                  kernel, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

// The packed parameter buffer, in `buffer` or where the program has packed it.
CUresult PackParameters(const Kernel* kernel, void** kernel_params, void** extra, std::byte* buffer,
                        std::span<const std::byte>* packed) {
  if (kernel_params != nullptr && extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (extra != nullptr) {
    const std::byte* data = nullptr;
    const size_t* bytes = nullptr;
    for (void** at = extra; *at != CU_LAUNCH_PARAM_END; at += 2) {
      if (*at == CU_LAUNCH_PARAM_BUFFER_POINTER) {
        data = static_cast<const std::byte*>(at[1]);
      } else if (*at == CU_LAUNCH_PARAM_BUFFER_SIZE) {
        bytes = static_cast<const size_t*>(at[1]);
      } else {
        return CUDA_ERROR_INVALID_VALUE;
      }
    }
    if (data == nullptr || bytes == nullptr || *bytes > kParameterBytesMax ||
        kernel->parameter_bytes > kParameterBytesMax) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (*bytes >= kernel->parameter_bytes) {
      *packed = {data, *bytes};
      return CUDA_SUCCESS;
    }
    // NCCL passes of a parameter of 4 KiB what its kernel reads. The driver takes that (seen:
    // driver 580); what is not given is undefined there. A whole parameter is not left out.
    if (kernel->parameters.empty() || *bytes <= kernel->parameters.back().offset)
      return CUDA_ERROR_INVALID_VALUE;
    memcpy(buffer, data, *bytes);
    memset(buffer + *bytes, 0, kernel->parameter_bytes - *bytes);
    *packed = {buffer, kernel->parameter_bytes};
    return CUDA_SUCCESS;
  }
  if (kernel->parameters.empty()) return CUDA_SUCCESS;
  if (kernel_params == nullptr || kernel->parameter_bytes > kParameterBytesMax)
    return CUDA_ERROR_INVALID_VALUE;
  memset(buffer, 0, kernel->parameter_bytes);  // gaps between parameters
  for (size_t i = 0; i < kernel->parameters.size(); ++i) {
    if (kernel_params[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
    memcpy(buffer + kernel->parameters[i].offset, kernel_params[i], kernel->parameters[i].bytes);
  }
  *packed = {buffer, kernel->parameter_bytes};
  return CUDA_SUCCESS;
}

CUresult PackAttributes(const CUlaunchConfig& config, std::byte* buffer,
                        std::span<const std::byte>* packed, bool* cooperative) {
  if (config.numAttrs > kLaunchAttributesMax || (config.numAttrs != 0 && config.attrs == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config.attrs[i];
    switch (attribute.id) {
      case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
      case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
      case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
        NoteUnsupported("cuLaunchKernelEx",
                        "a launch attribute that names an event or a graph node");
        return CUDA_ERROR_NOT_SUPPORTED;
      case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
        *cooperative = attribute.value.cooperative != 0;
        break;
      default:
        break;
    }
    const uint64_t id = attribute.id;
    memcpy(buffer + i * kLaunchAttributeBytes, &id, 8);
    memcpy(buffer + i * kLaunchAttributeBytes + 8, &attribute.value, 64);
  }
  *packed = {buffer, config.numAttrs * kLaunchAttributeBytes};
  return CUDA_SUCCESS;
}

CUresult AskOccupancy(Context* context, const Kernel* kernel, int block_size, uint64_t shared_bytes,
                      unsigned flags, int* blocks) {
  wire::OccupancyRequest request;
  wire::OccupancyReply reply;
  request.kernel = kernel->id;
  request.block_size = block_size;
  request.dynamic_shared_bytes = shared_bytes;
  request.flags = flags;
  if (CUresult result = Ask(context, request, &reply); result != CUDA_SUCCESS) return result;
  *blocks = reply.blocks;
  return CUDA_SUCCESS;
}

// All blocks of a cooperative grid must be on the device at once.
CUresult CheckCooperative(Context* context, const CUlaunchConfig& config, const Kernel* kernel) {
  int blocks = 0;
  const int block_size = static_cast<int>(config.blockDimX * config.blockDimY * config.blockDimZ);
  if (CUresult result =
          AskOccupancy(context, kernel, block_size, config.sharedMemBytes, 0, &blocks);
      result != CUDA_SUCCESS) {
    return result;
  }
  const uint64_t at_once =
      uint64_t{static_cast<uint32_t>(blocks)} *
      DeviceAttribute(context->device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  const uint64_t grid = uint64_t{config.gridDimX} * config.gridDimY * config.gridDimZ;
  return grid <= at_once ? CUDA_SUCCESS : CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
}

// The kernel behind `f` for work of `context`, whose limits the shape of the launch keeps.
CUresult CheckLaunch(Context* context, const CUlaunchConfig& config, CUfunction f,
                     Kernel** kernel) {
  if (CUresult result = FindKernel(f, kernel); result != CUDA_SUCCESS) return result;
  // A module's function belongs to the module's context; a library's kernel to all.
  const Library* library = GetRuntime()->libraries.Find((*kernel)->library_id);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (library->module_context != 0 && library->module_context != context->id)
    return CUDA_ERROR_INVALID_HANDLE;
  if (CUresult result = KernelIn(context, kernel); result != CUDA_SUCCESS) return result;
  return CheckShape(config, *kernel, context->device);
}

void SetShape(const CUlaunchConfig& config, wire::LaunchRequest* request) {
  request->grid_x = config.gridDimX, request->grid_y = config.gridDimY;
  request->grid_z = config.gridDimZ;
  request->block_x = config.blockDimX, request->block_y = config.blockDimY;
  request->block_z = config.blockDimZ;
  request->shared_bytes = config.sharedMemBytes;
}

CUresult WaitForStream(Context* context, uint64_t stream_id) {
  wire::StreamSynchronizeRequest request;
  wire::EmptyReply reply;
  request.stream = stream_id;
  return Ask(context, request, &reply);
}

// Whether the host must not use managed memory while the kernel runs: their atomics on the same
// words would not be atomic for each other. Pointers are looked for in the parameters, not in the
// memory that these point to.
bool KeepsHostAway(const Device* device, const Kernel& kernel,
                   std::span<const std::byte> parameters) {
  if (kernel.system_atomics == SystemAtomics::kNone ||
      DeviceAttribute(device, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) != 0) {
    return false;
  }
  if (kernel.system_atomics == SystemAtomics::kBesideManagedVariables) return true;
  if (!GetRuntime()->allocations.any_managed()) return false;
  for (size_t at = 0; at + sizeof(uint64_t) <= parameters.size(); at += sizeof(uint64_t)) {
    uint64_t value = 0;
    memcpy(&value, parameters.data() + at, sizeof(value));
    Allocation range;
    if (GetRuntime()->allocations.Find(value, &range) && IsManaged(range.kind)) return true;
  }
  return false;
}

CUresult SendLaunch(Context* context, const wire::LaunchRequest& request, const Kernel& kernel) {
  if (CUresult result = Post(context, request); result != CUDA_SUCCESS) return result;
  return EndLaunch(context, request.stream, kernel, request.params);
}

// What a graph keeps of a launch.
void KeepLaunch(Context* context, const wire::LaunchRequest& request, GraphWork* work) {
  work->type = CU_GRAPH_NODE_TYPE_KERNEL;
  work->context_id = context->id;
  work->kernel_id = request.kernel;
  work->grid[0] = request.grid_x, work->grid[1] = request.grid_y, work->grid[2] = request.grid_z;
  work->block[0] = request.block_x, work->block[1] = request.block_y;
  work->block[2] = request.block_z;
  work->shared_bytes = request.shared_bytes;
  work->parameters.assign(request.params.begin(), request.params.end());
  work->attributes.assign(request.attributes.begin(), request.attributes.end());
}

CUresult Launch(const CUlaunchConfig& config, CUfunction f, void** kernel_params, void** extra,
                DefaultStream default_stream) {
  StreamRef stream;
  if (CUresult result = FindStream(config.hStream, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  Kernel* kernel = nullptr;
  if (CUresult result = CheckLaunch(stream.context, config, f, &kernel); result != CUDA_SUCCESS)
    return result;

  std::byte parameters[kParameterBytesMax];
  std::byte attributes[kLaunchAttributesMax * kLaunchAttributeBytes];
  bool cooperative = false;
  wire::LaunchRequest request;
  if (CUresult result = PackParameters(kernel, kernel_params, extra, parameters, &request.params);
      result != CUDA_SUCCESS) {
    return result;
  }
  ReachParameters(stream.context->device, request.params);
  if (CUresult result = PackAttributes(config, attributes, &request.attributes, &cooperative);
      result != CUDA_SUCCESS) {
    return result;
  }
  if (cooperative) {
    if (CUresult result = CheckCooperative(stream.context, config, kernel); result != CUDA_SUCCESS)
      return result;
  }
  request.kernel = kernel->id;
  request.stream = stream.id;
  SetShape(config, &request);
  if (MaybeCapturing()) {
    GraphWork work;
    KeepLaunch(stream.context, request, &work);
    bool captured = false;
    const CUresult result = CaptureWork(stream.context, stream.id, &work, &captured);
    if (captured || result != CUDA_SUCCESS) return result;
  }
  if (CUresult result = SendLaunch(stream.context, request, *kernel); result != CUDA_SUCCESS)
    return result;
  return GetConfig().launch_blocking ? WaitForStream(stream.context, stream.id) : CUDA_SUCCESS;
}

CUlaunchConfig LaunchConfig(unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                            unsigned bz, unsigned shared, CUstream stream) {
  CUlaunchConfig config = {};
  config.gridDimX = gx, config.gridDimY = gy, config.gridDimZ = gz;
  config.blockDimX = bx, config.blockDimY = by, config.blockDimZ = bz;
  config.sharedMemBytes = shared;
  config.hStream = stream;
  return config;
}

struct StreamCallback {
  CUstreamCallback function;
  CUstream stream;
  void* argument;
  const Session* session;
};

// "In the event of a device error, all subsequently executed callbacks will receive an appropriate
// CUresult" (cuStreamAddCallback).
void RunStreamCallback(void* argument) {
  const StreamCallback callback = *static_cast<StreamCallback*>(argument);
  delete static_cast<StreamCallback*>(argument);
  callback.function(callback.stream, callback.session->failure(), callback.argument);
}

CUresult FindForOccupancy(CUfunction func, Context** context, Kernel** kernel) {
  if (CUresult result = CurrentContext(context); result != CUDA_SUCCESS) return result;
  if (CUresult result = FindKernel(func, kernel); result != CUDA_SUCCESS) return result;
  return KernelIn(*context, kernel);
}

CUresult Clusters(uint32_t which, int* count, CUfunction func, const CUlaunchConfig* config) {
  if (count == nullptr || config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  Kernel* kernel = nullptr;
  if (CUresult result = FindForOccupancy(func, &context, &kernel); result != CUDA_SUCCESS)
    return result;
  std::byte attributes[kLaunchAttributesMax * kLaunchAttributeBytes];
  bool cooperative = false;
  wire::OccupancyClustersRequest request;
  wire::OccupancyClustersReply reply;
  if (CUresult result = PackAttributes(*config, attributes, &request.attributes, &cooperative);
      result != CUDA_SUCCESS) {
    return result;
  }
  request.which = which;
  request.kernel = kernel->id;
  request.grid_x = config->gridDimX, request.grid_y = config->gridDimY,
  request.grid_z = config->gridDimZ;
  request.block_x = config->blockDimX, request.block_y = config->blockDimY,
  request.block_z = config->blockDimZ;
  request.shared_bytes = config->sharedMemBytes;
  if (CUresult result = Ask(context, request, &reply); result != CUDA_SUCCESS) return result;
  *count = reply.count;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult PrepareLaunch(Context* context, const CUDA_KERNEL_NODE_PARAMS_v2& params,
                       const std::vector<std::byte>& attributes, GraphWork* work) {
  const CUlaunchConfig config =
      LaunchConfig(params.gridDimX, params.gridDimY, params.gridDimZ, params.blockDimX,
                   params.blockDimY, params.blockDimZ, params.sharedMemBytes, nullptr);
  Kernel* kernel = nullptr;
  if (CUresult result = CheckLaunch(context, config, params.func, &kernel); result != CUDA_SUCCESS)
    return result;
  std::byte buffer[kParameterBytesMax];
  wire::LaunchRequest request;
  if (CUresult result =
          PackParameters(kernel, params.kernelParams, params.extra, buffer, &request.params);
      result != CUDA_SUCCESS) {
    return result;
  }
  ReachParameters(context->device, request.params);
  request.kernel = kernel->id;
  request.attributes = attributes;
  SetShape(config, &request);
  KeepLaunch(context, request, work);
  return CUDA_SUCCESS;
}

CUresult SendLaunch(const StreamRef& stream, const GraphWork& work) {
  wire::LaunchRequest request;
  request.kernel = work.kernel_id;
  request.stream = stream.id;
  request.grid_x = work.grid[0], request.grid_y = work.grid[1], request.grid_z = work.grid[2];
  request.block_x = work.block[0], request.block_y = work.block[1];
  request.block_z = work.block[2];
  request.shared_bytes = work.shared_bytes;
  request.params = work.parameters;
  request.attributes = work.attributes;
  const Kernel* kernel = GetRuntime()->kernels.Find(work.kernel_id);
  return kernel != nullptr ? SendLaunch(stream.context, request, *kernel)
                           : Post(stream.context, request);
}

CUresult EndLaunch(Context* context, uint64_t stream_id, const Kernel& kernel,
                   std::span<const std::byte> parameters) {
  // After it was sent: a synchronisation counts what was sent before it.
  if (kernel.prints) context->printing_launches.fetch_add(1, std::memory_order_relaxed);
  return KeepsHostAway(context->device, kernel, parameters) ? WaitForStream(context, stream_id)
                                                            : CUDA_SUCCESS;
}

CUresult SendHostFunction(const StreamRef& stream, const GraphWork& work) {
  return EnqueueHostFunction(stream, work.host.fn, work.host.userData,
                             Session::AfterFailure::kDrop);
}

namespace calls {

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                        unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                        unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                        void** kernelParams, void** extra, DefaultStream default_stream) {
  return Launch(LaunchConfig(gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ,
                             sharedMemBytes, hStream),
                f, kernelParams, extra, default_stream);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** kernelParams,
                          void** extra, DefaultStream default_stream) {
  if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Launch(*config, f, kernelParams, extra, default_stream);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                   unsigned int gridDimZ, unsigned int blockDimX,
                                   unsigned int blockDimY, unsigned int blockDimZ,
                                   unsigned int sharedMemBytes, CUstream hStream,
                                   void** kernelParams, DefaultStream default_stream) {
  CUlaunchAttribute attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  attribute.value.cooperative = 1;
  CUlaunchConfig config = LaunchConfig(gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY,
                                       blockDimZ, sharedMemBytes, hStream);
  config.attrs = &attribute;
  config.numAttrs = 1;
  return Launch(config, f, kernelParams, nullptr, default_stream);
}

CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void* userData,
                          DefaultStream default_stream) {
  if (fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  StreamRef stream;
  if (CUresult result = FindStream(hStream, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  if (MaybeCapturing()) {
    GraphWork work;
    work.type = CU_GRAPH_NODE_TYPE_HOST;
    work.context_id = stream.context->id;
    work.host.fn = fn;
    work.host.userData = userData;
    bool captured = false;
    const CUresult result = CaptureWork(stream.context, stream.id, &work, &captured);
    if (captured || result != CUDA_SUCCESS) return result;
  }
  // "The function will not be called in the event of an error in the CUDA context."
  return EnqueueHostFunction(stream, fn, userData, Session::AfterFailure::kDrop);
}

CUresult cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void* userData,
                             unsigned int flags, DefaultStream default_stream) {
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  StreamRef stream;
  if (CUresult result = FindStream(hStream, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  // "Callbacks ... cannot be captured": cuLaunchHostFunc is there for that.
  if (CUresult result = RefuseInCapture(stream.context, stream.id); result != CUDA_SUCCESS)
    return result;
  auto* entry = new StreamCallback{callback, hStream, userData, stream.context->device->session};
  const CUresult result =
      EnqueueHostFunction(stream, RunStreamCallback, entry, Session::AfterFailure::kRun);
  if (result != CUDA_SUCCESS) delete entry;
  return result;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* numBlocks, CUfunction func, int blockSize,
                                                     size_t dynamicSMemSize) {
  return calls::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(numBlocks, func, blockSize,
                                                                     dynamicSMemSize, 0);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* numBlocks, CUfunction func,
                                                              int blockSize, size_t dynamicSMemSize,
                                                              unsigned int flags) {
  if (numBlocks == nullptr || blockSize <= 0 || flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Context* context = nullptr;
  Kernel* kernel = nullptr;
  if (CUresult result = FindForOccupancy(func, &context, &kernel); result != CUDA_SUCCESS)
    return result;
  return AskOccupancy(context, kernel, blockSize, dynamicSMemSize, flags, numBlocks);
}

CUresult cuOccupancyMaxPotentialBlockSize(int* minGridSize, int* blockSize, CUfunction func,
                                          CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                          size_t dynamicSMemSize, int blockSizeLimit) {
  return calls::cuOccupancyMaxPotentialBlockSizeWithFlags(
      minGridSize, blockSize, func, blockSizeToDynamicSMemSize, dynamicSMemSize, blockSizeLimit, 0);
}

// The block size with the most resident threads, larger sizes first, as the driver documents. The
// program's callback gives the shared memory of each size, so the search is made here.
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int* minGridSize, int* blockSize,
                                                   CUfunction func,
                                                   CUoccupancyB2DSize blockSizeToDynamicSMemSize,
                                                   size_t dynamicSMemSize, int blockSizeLimit,
                                                   unsigned int flags) {
  if (minGridSize == nullptr || blockSize == nullptr ||
      flags > CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Context* context = nullptr;
  Kernel* kernel = nullptr;
  if (CUresult result = FindForOccupancy(func, &context, &kernel); result != CUDA_SUCCESS)
    return result;
  const Device* device = context->device;
  const int warp = DeviceAttribute(device, CU_DEVICE_ATTRIBUTE_WARP_SIZE);
  const int resident_max =
      DeviceAttribute(device, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
  int limit = KernelAttribute(kernel, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  if (blockSizeLimit > 0 && blockSizeLimit < limit) limit = blockSizeLimit;
  int best_size = 0, best_blocks = 0;
  for (int aligned = (limit + warp - 1) / warp * warp; aligned > 0; aligned -= warp) {
    const int size = aligned < limit ? aligned : limit;
    const size_t shared =
        blockSizeToDynamicSMemSize != nullptr ? blockSizeToDynamicSMemSize(size) : dynamicSMemSize;
    int blocks = 0;
    if (CUresult result = AskOccupancy(context, kernel, size, shared, flags, &blocks);
        result != CUDA_SUCCESS)
      return result;
    if (int64_t{blocks} * size > int64_t{best_blocks} * best_size) {
      best_size = size;
      best_blocks = blocks;
    }
    if (best_blocks * best_size == resident_max) break;
  }
  *blockSize = best_size;
  *minGridSize = best_blocks * DeviceAttribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  return CUDA_SUCCESS;
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* dynamicSmemSize, CUfunction func,
                                                 int numBlocks, int blockSize) {
  if (dynamicSmemSize == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  Kernel* kernel = nullptr;
  if (CUresult result = FindForOccupancy(func, &context, &kernel); result != CUDA_SUCCESS)
    return result;
  wire::OccupancyDynamicSharedRequest request;
  wire::OccupancyDynamicSharedReply reply;
  request.kernel = kernel->id;
  request.blocks = numBlocks;
  request.block_size = blockSize;
  if (CUresult result = Ask(context, request, &reply); result != CUDA_SUCCESS) return result;
  *dynamicSmemSize = reply.bytes;
  return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int* numClusters, CUfunction func,
                                      const CUlaunchConfig* config) {
  return Clusters(0, numClusters, func, config);
}

CUresult cuOccupancyMaxPotentialClusterSize(int* clusterSize, CUfunction func,
                                            const CUlaunchConfig* config) {
  return Clusters(1, clusterSize, func, config);
}

}  // namespace calls
}  // namespace consort::guest
