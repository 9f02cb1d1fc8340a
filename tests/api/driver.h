// SPDX-License-Identifier: Apache-2.0
// tests/api/driver.h: the driver library under test, as a table of typed functions taken by dlsym.
//
// The library is the one named by CONSORT_TEST_LIBCUDA (default libcuda.so.1). Members carry the
// exported names, so that the cases name the exact version that they call. Opened once in main();
// read-only afterwards, so any thread may call.
#ifndef CONSORT_TESTS_API_DRIVER_H_
#define CONSORT_TESTS_API_DRIVER_H_

#define CUDA_ENABLE_DEPRECATED  // cuda.h marks some functions deprecated; they are still exported
                                // and still tested.
#include <cuda.h>
#include <cudaProfiler.h>
#include <cudaTypedefs.h>

// cuda.h renames these to their newest version. The table below names older versions by their
// exported names.
#undef cuCtxCreate
#undef cuCtxDestroy
#undef cuCtxPopCurrent
#undef cuCtxPushCurrent
#undef cuDeviceGetUuid
#undef cuDevicePrimaryCtxRelease
#undef cuDevicePrimaryCtxReset
#undef cuEventElapsedTime
#undef cuGetProcAddress
#undef cuGraphAddDependencies
#undef cuGraphGetEdges
#undef cuMemAdvise
#undef cuMemAlloc
#undef cuMemPrefetchAsync
#undef cuMemcpy3DBatchAsync
#undef cuMemcpyBatchAsync

namespace consort::tests::api {

// Thrown by a call of a function that the library does not export. See Guarded in support.h.
struct MissingFunction {
  const char* name;
};

template <typename Function>
class Entry;

template <typename... Args>
class Entry<CUresult (*)(Args...)> {
 public:
  CUresult operator()(Args... args) const {
    if (function_ == nullptr) throw MissingFunction{name_};
    return function_(args...);
  }
  void Set(const char* name, void* symbol) {
    name_ = name;
    function_ = reinterpret_cast<CUresult (*)(Args...)>(symbol);
  }

 private:
  const char* name_ = "";
  CUresult (*function_)(Args...) = nullptr;
};

// X(name): declared by cuda.h under its exported name. Y(name, type): an older version, whose
// signature is `type` of cudaTypedefs.h.
#define CONSORT_TEST_DRIVER_FUNCTIONS(X, Y)                          \
  X(cuInit)                                                          \
  X(cuCoredumpGetAttribute)                                          \
  X(cuCoredumpGetAttributeGlobal)                                    \
  X(cuCoredumpSetAttribute)                                          \
  X(cuCoredumpSetAttributeGlobal)                                    \
  X(cuProfilerInitialize)                                            \
  X(cuProfilerStart)                                                 \
  X(cuProfilerStop)                                                  \
  X(cuDeviceGetDevResource)                                          \
  X(cuCtxGetDevResource)                                             \
  X(cuGreenCtxGetDevResource)                                        \
  X(cuDevSmResourceSplitByCount)                                     \
  X(cuDevResourceGenerateDesc)                                       \
  X(cuGreenCtxCreate)                                                \
  X(cuGreenCtxDestroy)                                               \
  X(cuCtxFromGreenCtx)                                               \
  X(cuGreenCtxStreamCreate)                                          \
  X(cuStreamGetGreenCtx)                                             \
  X(cuGreenCtxRecordEvent)                                           \
  X(cuGreenCtxWaitEvent)                                             \
  X(cuGreenCtxGetId)                                                 \
  X(cuStreamGetCtx_v2)                                               \
  X(cuDriverGetVersion)                                              \
  X(cuGetErrorName)                                                  \
  X(cuGetErrorString)                                                \
  X(cuGetProcAddress_v2)                                             \
  Y(cuGetProcAddress, PFN_cuGetProcAddress_v11030)                   \
  X(cuDeviceGet)                                                     \
  X(cuDeviceGetCount)                                                \
  X(cuDeviceGetName)                                                 \
  Y(cuDeviceGetUuid, PFN_cuDeviceGetUuid_v9020)                      \
  X(cuDeviceGetUuid_v2)                                              \
  X(cuDeviceTotalMem_v2)                                             \
  X(cuDeviceGetAttribute)                                            \
  X(cuDeviceGetProperties)                                           \
  X(cuDeviceComputeCapability)                                       \
  X(cuDeviceGetPCIBusId)                                             \
  X(cuDeviceGetByPCIBusId)                                           \
  X(cuDeviceCanAccessPeer)                                           \
  X(cuDeviceGetP2PAttribute)                                         \
  X(cuDevicePrimaryCtxRetain)                                        \
  X(cuDevicePrimaryCtxRelease_v2)                                    \
  Y(cuDevicePrimaryCtxRelease, PFN_cuDevicePrimaryCtxRelease_v11000) \
  X(cuDevicePrimaryCtxReset_v2)                                      \
  Y(cuDevicePrimaryCtxReset, PFN_cuDevicePrimaryCtxReset_v11000)     \
  X(cuDevicePrimaryCtxSetFlags_v2)                                   \
  X(cuDevicePrimaryCtxGetState)                                      \
  Y(cuCtxCreate_v2, PFN_cuCtxCreate_v3020)                           \
  Y(cuCtxCreate_v3, PFN_cuCtxCreate_v11040)                          \
  X(cuCtxCreate_v4)                                                  \
  X(cuCtxDestroy_v2)                                                 \
  Y(cuCtxDestroy, PFN_cuCtxDestroy_v4000)                            \
  X(cuCtxPushCurrent_v2)                                             \
  Y(cuCtxPushCurrent, PFN_cuCtxPushCurrent_v4000)                    \
  X(cuCtxPopCurrent_v2)                                              \
  Y(cuCtxPopCurrent, PFN_cuCtxPopCurrent_v4000)                      \
  X(cuCtxSetCurrent)                                                 \
  X(cuCtxGetCurrent)                                                 \
  X(cuCtxGetDevice)                                                  \
  X(cuCtxGetDevice_v2)                                               \
  X(cuCtxGetFlags)                                                   \
  X(cuCtxSetFlags)                                                   \
  X(cuCtxGetId)                                                      \
  X(cuCtxGetApiVersion)                                              \
  X(cuCtxSynchronize)                                                \
  X(cuCtxSynchronize_v2)                                             \
  X(cuCtxGetLimit)                                                   \
  X(cuCtxSetLimit)                                                   \
  X(cuCtxGetCacheConfig)                                             \
  X(cuCtxSetCacheConfig)                                             \
  X(cuCtxGetExecAffinity)                                            \
  X(cuCtxGetStreamPriorityRange)                                     \
  X(cuModuleLoad)                                                    \
  X(cuModuleLoadData)                                                \
  X(cuModuleLoadDataEx)                                              \
  X(cuModuleLoadFatBinary)                                           \
  X(cuModuleUnload)                                                  \
  X(cuModuleGetLoadingMode)                                          \
  X(cuModuleGetFunction)                                             \
  X(cuModuleGetFunctionCount)                                        \
  X(cuModuleEnumerateFunctions)                                      \
  X(cuModuleGetGlobal_v2)                                            \
  X(cuLinkCreate_v2)                                                 \
  X(cuLinkAddData_v2)                                                \
  X(cuLinkAddFile_v2)                                                \
  X(cuLinkComplete)                                                  \
  X(cuLinkDestroy)                                                   \
  X(cuFuncGetAttribute)                                              \
  X(cuFuncSetAttribute)                                              \
  X(cuFuncSetCacheConfig)                                            \
  X(cuFuncGetModule)                                                 \
  X(cuFuncGetName)                                                   \
  X(cuFuncGetParamInfo)                                              \
  X(cuFuncIsLoaded)                                                  \
  X(cuFuncLoad)                                                      \
  X(cuLibraryLoadData)                                               \
  X(cuLibraryLoadFromFile)                                           \
  X(cuLibraryUnload)                                                 \
  X(cuLibraryGetKernel)                                              \
  X(cuLibraryGetKernelCount)                                         \
  X(cuLibraryEnumerateKernels)                                       \
  X(cuLibraryGetModule)                                              \
  X(cuLibraryGetGlobal)                                              \
  X(cuLibraryGetManaged)                                             \
  X(cuKernelGetFunction)                                             \
  X(cuKernelGetLibrary)                                              \
  X(cuKernelGetName)                                                 \
  X(cuKernelGetParamInfo)                                            \
  X(cuKernelGetAttribute)                                            \
  X(cuKernelSetAttribute)                                            \
  X(cuKernelSetCacheConfig)                                          \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor)                     \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)            \
  X(cuOccupancyMaxPotentialBlockSize)                                \
  X(cuOccupancyMaxPotentialBlockSizeWithFlags)                       \
  X(cuOccupancyAvailableDynamicSMemPerBlock)                         \
  X(cuLaunchKernel)                                                  \
  X(cuLaunchKernelEx)                                                \
  X(cuLaunchCooperativeKernel)                                       \
  X(cuLaunchHostFunc)                                                \
  X(cuMemGetInfo_v2)                                                 \
  X(cuMemAlloc_v2)                                                   \
  X(cuMemAllocPitch_v2)                                              \
  X(cuMemFree_v2)                                                    \
  X(cuMemGetAddressRange_v2)                                         \
  X(cuMemAllocManaged)                                               \
  X(cuMemPrefetchAsync_v2)                                           \
  X(cuMemAdvise_v2)                                                  \
  Y(cuMemPrefetchAsync, PFN_cuMemPrefetchAsync_v8000)                \
  Y(cuMemAdvise, PFN_cuMemAdvise_v8000)                              \
  X(cuMemPrefetchBatchAsync)                                         \
  X(cuMemDiscardBatchAsync)                                          \
  X(cuMemDiscardAndPrefetchBatchAsync)                               \
  X(cuMemRangeGetAttribute)                                          \
  X(cuMemRangeGetAttributes)                                         \
  X(cuStreamAttachMemAsync)                                          \
  X(cuMemAllocHost_v2)                                               \
  X(cuMemFreeHost)                                                   \
  X(cuMemHostAlloc)                                                  \
  X(cuMemHostGetDevicePointer_v2)                                    \
  X(cuMemHostGetFlags)                                               \
  X(cuMemHostRegister_v2)                                            \
  X(cuMemHostUnregister)                                             \
  X(cuPointerGetAttribute)                                           \
  X(cuPointerGetAttributes)                                          \
  X(cuPointerSetAttribute)                                           \
  X(cuMemcpy)                                                        \
  X(cuMemcpyAsync)                                                   \
  X(cuMemcpyHtoD_v2)                                                 \
  X(cuMemcpyDtoH_v2)                                                 \
  X(cuMemcpyDtoD_v2)                                                 \
  X(cuMemcpyHtoDAsync_v2)                                            \
  X(cuMemcpyDtoHAsync_v2)                                            \
  X(cuMemcpyDtoDAsync_v2)                                            \
  X(cuMemcpy2D_v2)                                                   \
  X(cuMemcpy2DUnaligned_v2)                                          \
  X(cuMemcpy2DAsync_v2)                                              \
  X(cuMemcpy3D_v2)                                                   \
  X(cuMemcpy3DAsync_v2)                                              \
  X(cuMemcpy3DPeer)                                                  \
  X(cuMemcpy3DPeerAsync)                                             \
  Y(cuMemcpyBatchAsync, PFN_cuMemcpyBatchAsync_v12080)               \
  X(cuMemcpyBatchAsync_v2)                                           \
  Y(cuMemcpy3DBatchAsync, PFN_cuMemcpy3DBatchAsync_v12080)           \
  X(cuMemcpy3DBatchAsync_v2)                                         \
  X(cuArray3DCreate_v2)                                              \
  X(cuArray3DGetDescriptor_v2)                                       \
  X(cuArrayDestroy)                                                  \
  X(cuTexObjectCreate)                                               \
  X(cuTexObjectDestroy)                                              \
  X(cuTexObjectGetResourceDesc)                                      \
  X(cuTexObjectGetTextureDesc)                                       \
  X(cuSurfObjectCreate)                                              \
  X(cuSurfObjectDestroy)                                             \
  X(cuMemsetD8_v2)                                                   \
  X(cuMemsetD16_v2)                                                  \
  X(cuMemsetD32_v2)                                                  \
  X(cuMemsetD2D8_v2)                                                 \
  X(cuMemsetD2D16_v2)                                                \
  X(cuMemsetD2D32_v2)                                                \
  X(cuMemsetD8Async)                                                 \
  X(cuMemsetD16Async)                                                \
  X(cuMemsetD32Async)                                                \
  X(cuMemsetD2D8Async)                                               \
  X(cuMemsetD2D16Async)                                              \
  X(cuMemsetD2D32Async)                                              \
  X(cuStreamCreate)                                                  \
  X(cuStreamCreateWithPriority)                                      \
  X(cuStreamDestroy_v2)                                              \
  X(cuStreamGetFlags)                                                \
  X(cuStreamGetPriority)                                             \
  X(cuStreamGetCtx)                                                  \
  X(cuStreamGetId)                                                   \
  X(cuStreamGetDevice)                                               \
  X(cuStreamQuery)                                                   \
  X(cuStreamSynchronize)                                             \
  X(cuStreamWaitEvent)                                               \
  X(cuStreamWaitValue32_v2)                                          \
  X(cuStreamAddCallback)                                             \
  X(cuStreamIsCapturing)                                             \
  X(cuEventCreate)                                                   \
  X(cuEventDestroy_v2)                                               \
  X(cuEventRecord)                                                   \
  X(cuEventRecordWithFlags)                                          \
  X(cuEventQuery)                                                    \
  X(cuEventSynchronize)                                              \
  Y(cuEventElapsedTime, PFN_cuEventElapsedTime_v2000)                \
  X(cuEventElapsedTime_v2)                                           \
  X(cuThreadExchangeStreamCaptureMode)                               \
  X(cuMemAllocAsync)                                                 \
  X(cuMemAllocFromPoolAsync)                                         \
  X(cuMemFreeAsync)                                                  \
  X(cuMemPoolExportToShareableHandle)                                \
  X(cuMemPoolImportFromShareableHandle)                              \
  X(cuMemPoolExportPointer)                                          \
  X(cuMemPoolImportPointer)                                          \
  X(cuMemPoolCreate)                                                 \
  X(cuMemPoolDestroy)                                                \
  X(cuMemPoolTrimTo)                                                 \
  X(cuMemPoolSetAttribute)                                           \
  X(cuMemPoolGetAttribute)                                           \
  X(cuMemPoolSetAccess)                                              \
  X(cuMemPoolGetAccess)                                              \
  X(cuDeviceGetDefaultMemPool)                                       \
  X(cuDeviceGetGraphMemAttribute)                                    \
  X(cuDeviceGraphMemTrim)                                            \
  X(cuDeviceGetMemPool)                                              \
  X(cuDeviceSetMemPool)                                              \
  X(cuMemGetDefaultMemPool)                                          \
  X(cuMemGetMemPool)                                                 \
  X(cuMemSetMemPool)                                                 \
  X(cuGraphCreate)                                                   \
  X(cuGraphDestroy)                                                  \
  X(cuGraphClone)                                                    \
  X(cuGraphAddKernelNode_v2)                                         \
  X(cuGraphKernelNodeGetParams_v2)                                   \
  X(cuGraphKernelNodeSetParams_v2)                                   \
  X(cuGraphAddMemcpyNode)                                            \
  X(cuGraphAddMemsetNode)                                            \
  X(cuGraphAddMemAllocNode)                                          \
  X(cuGraphAddMemFreeNode)                                           \
  X(cuGraphAddEmptyNode)                                             \
  X(cuGraphAddEventRecordNode)                                       \
  X(cuGraphAddChildGraphNode)                                        \
  X(cuGraphChildGraphNodeGetGraph)                                   \
  X(cuGraphGetNodes)                                                 \
  X(cuGraphNodeGetType)                                              \
  X(cuGraphDestroyNode)                                              \
  X(cuGraphNodeFindInClone)                                          \
  X(cuGraphInstantiateWithFlags)                                     \
  X(cuGraphLaunch)                                                   \
  X(cuGraphExecDestroy)                                              \
  X(cuGraphExecUpdate_v2)                                            \
  X(cuGraphExecKernelNodeSetParams_v2)                               \
  X(cuGraphNodeSetEnabled)                                           \
  X(cuGraphAddHostNode)                                              \
  X(cuGraphAddNode_v2)                                               \
  X(cuGraphConditionalHandleCreate)                                  \
  X(cuStreamBeginCaptureToGraph)                                     \
  X(cuStreamUpdateCaptureDependencies_v2)                            \
  X(cuUserObjectCreate)                                              \
  X(cuGraphRetainUserObject)                                         \
  X(cuStreamBeginCapture_v2)                                         \
  X(cuStreamEndCapture)                                              \
  Y(cuStreamGetCaptureInfo_v2, PFN_cuStreamGetCaptureInfo_v11030)    \
  Y(cuGraphAddDependencies, PFN_cuGraphAddDependencies_v10000)       \
  Y(cuGraphGetEdges, PFN_cuGraphGetEdges_v10000)                     \
  X(cuMemGetAllocationGranularity)                                   \
  X(cuMemAddressReserve)                                             \
  X(cuMemAddressFree)                                                \
  X(cuMemCreate)                                                     \
  X(cuMemRelease)                                                    \
  X(cuMemMap)                                                        \
  X(cuMemUnmap)                                                      \
  X(cuMemSetAccess)                                                  \
  X(cuMemGetAccess)                                                  \
  X(cuMemRetainAllocationHandle)                                     \
  X(cuMemGetAllocationPropertiesFromHandle)                          \
  X(cuMemcpyPeer)                                                    \
  X(cuMemcpyPeerAsync)                                               \
  X(cuCtxEnablePeerAccess)                                           \
  X(cuCtxDisablePeerAccess)                                          \
  X(cuStreamBatchMemOp_v2)                                           \
  X(cuStreamGetAttribute)                                            \
  X(cuStreamSetAttribute)                                            \
  X(cuStreamCopyAttributes)                                          \
  X(cuIpcGetMemHandle)                                               \
  X(cuIpcOpenMemHandle_v2)                                           \
  X(cuIpcCloseMemHandle)                                             \
  X(cuIpcGetEventHandle)                                             \
  X(cuIpcOpenEventHandle)                                            \
  X(cuMemExportToShareableHandle)                                    \
  X(cuMemImportFromShareableHandle)                                  \
  X(cuTensorMapEncodeTiled)                                          \
  X(cuGetExportTable)

struct DriverTable {
#define CONSORT_TEST_MEMBER(name) Entry<decltype(&::name)> name;
#define CONSORT_TEST_OLD_MEMBER(name, type) Entry<type> name;
  CONSORT_TEST_DRIVER_FUNCTIONS(CONSORT_TEST_MEMBER, CONSORT_TEST_OLD_MEMBER)
#undef CONSORT_TEST_MEMBER
#undef CONSORT_TEST_OLD_MEMBER
};

// Opens the library. Empty on success, else the reason. Called once, by main(), before any other
// function here.
const char* OpenDriver();

// The functions of the library. A call of one that is absent throws MissingFunction.
const DriverTable& Drv();

// dlsym on the library; nullptr if it does not export `name`.
void* DriverSymbol(const char* name);

// What a call returned, as the enumerator's name ("CUDA_ERROR_INVALID_VALUE"), without asking the
// library. "CUresult(n)" for a number that cuda.h 13.0 does not have.
const char* ResultName(CUresult result);

// Every enumerator of CUresult in cuda.h 13.0 with its name.
struct NamedResult {
  CUresult result;
  const char* name;
};
struct NamedResults {
  const NamedResult* data;
  int count;
  const NamedResult* begin() const { return data; }
  const NamedResult* end() const { return data + count; }
};
NamedResults AllResults();

}  // namespace consort::tests::api

#endif  // CONSORT_TESTS_API_DRIVER_H_
