// SPDX-License-Identifier: Apache-2.0
// guest/calls/copy_peer.cc: copies that name the contexts of both sides. Unified addresses say as
// much, so they are the copies of guest/calls/copy.cc; the contexts are checked, and a synchronous
// copy waits for them. Source: CUDA Driver API, Memory Management, cuMemcpyPeer, cuMemcpy3DPeer.
#include "gen/guest/calls.h"
#include "guest/call.h"

namespace consort::guest::calls {
namespace {

// A synchronous copy is "serialized with respect all pending and future asynchronous work in" both
// contexts. Handles that are none are for the asynchronous call to refuse.
CUresult AwaitContexts(CUcontext dst, CUcontext src) {
  for (CUcontext handle : {dst, src}) {
    Context* context = nullptr;
    if (handle == nullptr || FindHome(handle, &context) != CUDA_SUCCESS ||
        context->device->session == nullptr) {
      continue;
    }
    wire::ContextSynchronizeRequest request;
    wire::EmptyReply reply;
    if (CUresult result = Ask(context, request, &reply); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult CheckContext(CUcontext handle) {
  Context* context = nullptr;
  return handle == nullptr ? CUDA_ERROR_INVALID_CONTEXT : FindContext(handle, &context);
}

// The context of one side: "ignored" where that is an array; memory of the host may be of none.
CUresult CheckContextOf(CUmemorytype type, CUcontext handle) {
  if (type == CU_MEMORYTYPE_ARRAY || (type == CU_MEMORYTYPE_HOST && handle == nullptr))
    return CUDA_SUCCESS;
  return CheckContext(handle);
}

CUDA_MEMCPY3D WithoutContexts(const CUDA_MEMCPY3D_PEER& peer) {
  CUDA_MEMCPY3D copy = {};
  copy.srcXInBytes = peer.srcXInBytes, copy.srcY = peer.srcY, copy.srcZ = peer.srcZ;
  copy.srcLOD = peer.srcLOD;
  copy.srcMemoryType = peer.srcMemoryType;
  copy.srcHost = peer.srcHost, copy.srcDevice = peer.srcDevice, copy.srcArray = peer.srcArray;
  copy.srcPitch = peer.srcPitch, copy.srcHeight = peer.srcHeight;
  copy.dstXInBytes = peer.dstXInBytes, copy.dstY = peer.dstY, copy.dstZ = peer.dstZ;
  copy.dstLOD = peer.dstLOD;
  copy.dstMemoryType = peer.dstMemoryType;
  copy.dstHost = peer.dstHost, copy.dstDevice = peer.dstDevice, copy.dstArray = peer.dstArray;
  copy.dstPitch = peer.dstPitch, copy.dstHeight = peer.dstHeight;
  copy.WidthInBytes = peer.WidthInBytes, copy.Height = peer.Height, copy.Depth = peer.Depth;
  return copy;
}

}  // namespace

CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                      CUcontext srcContext, size_t ByteCount, DefaultStream default_stream) {
  if (CUresult result = AwaitContexts(dstContext, srcContext); result != CUDA_SUCCESS)
    return result;
  const CUresult result = cuMemcpyPeerAsync(dstDevice, dstContext, srcDevice, srcContext, ByteCount,
                                            nullptr, default_stream);
  return result == CUDA_SUCCESS ? calls::cuStreamSynchronize(nullptr, default_stream) : result;
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                           CUcontext srcContext, size_t ByteCount, CUstream hStream,
                           DefaultStream default_stream) {
  if (CUresult result = CheckContext(dstContext); result != CUDA_SUCCESS) return result;
  if (CUresult result = CheckContext(srcContext); result != CUDA_SUCCESS) return result;
  return cuMemcpyDtoDAsync_v2(dstDevice, srcDevice, ByteCount, hStream, default_stream);
}

CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER* pCopy, DefaultStream default_stream) {
  if (pCopy == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool to_array = pCopy->dstMemoryType == CU_MEMORYTYPE_ARRAY;
  const bool from_array = pCopy->srcMemoryType == CU_MEMORYTYPE_ARRAY;
  if (CUresult result = AwaitContexts(to_array ? nullptr : pCopy->dstContext,
                                      from_array ? nullptr : pCopy->srcContext);
      result != CUDA_SUCCESS) {
    return result;
  }
  const CUresult result = cuMemcpy3DPeerAsync(pCopy, nullptr, default_stream);
  return result == CUDA_SUCCESS ? calls::cuStreamSynchronize(nullptr, default_stream) : result;
}

CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* pCopy, CUstream hStream,
                             DefaultStream default_stream) {
  if (pCopy == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = CheckContextOf(pCopy->dstMemoryType, pCopy->dstContext);
      result != CUDA_SUCCESS) {
    return result;
  }
  if (CUresult result = CheckContextOf(pCopy->srcMemoryType, pCopy->srcContext);
      result != CUDA_SUCCESS) {
    return result;
  }
  const CUDA_MEMCPY3D copy = WithoutContexts(*pCopy);
  return cuMemcpy3DAsync_v2(&copy, hStream, default_stream);
}

}  // namespace consort::guest::calls
