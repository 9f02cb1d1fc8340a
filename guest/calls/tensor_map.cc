// SPDX-License-Identifier: Apache-2.0
// guest/calls/tensor_map.cc: descriptors for the tensor memory accelerator, made by the worker's
// driver. Source: CUDA Driver API, Tensor Map Object Management.
#include <string.h>

#include "gen/guest/calls.h"
#include "guest/call.h"

namespace consort::guest::calls {
namespace {

constexpr cuuint32_t kTensorRankMax = 5;
constexpr size_t kTensorMapAlignment = 64;

template <class T>
std::span<const std::byte> Bytes(const T* values, size_t count) {
  return {reinterpret_cast<const std::byte*>(values), values != nullptr ? count * sizeof(T) : 0};
}

bool Aligned(const CUtensorMap* map) {
  return map != nullptr && reinterpret_cast<uintptr_t>(map) % kTensorMapAlignment == 0;
}

// Asks with the parts that all kinds have and writes the descriptor.
CUresult Encode(wire::TensorMapEncodeRequest* request, CUtensorMap* map, CUtensorMapDataType type,
                cuuint32_t rank, const void* address, const cuuint64_t* dims,
                const cuuint64_t* strides, const cuuint32_t* element_strides) {
  if (!Aligned(map) || rank == 0 || rank > kTensorRankMax || dims == nullptr ||
      element_strides == nullptr || (rank > 1 && strides == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  request->data_type = type;
  request->rank = rank;
  request->address = reinterpret_cast<uint64_t>(address);
  request->dims = Bytes(dims, rank);
  request->strides = Bytes(strides, rank - 1);
  request->element_strides = Bytes(element_strides, rank);
  wire::TensorMapEncodeReply reply;
  if (CUresult result = Ask(context, *request, &reply); result != CUDA_SUCCESS) return result;
  if (reply.map.size() != sizeof *map) return CUDA_ERROR_UNKNOWN;
  memcpy(map, reply.map.data(), sizeof *map);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuTensorMapEncodeTiled(CUtensorMap* tensorMap, CUtensorMapDataType tensorDataType,
                                cuuint32_t tensorRank, void* globalAddress,
                                const cuuint64_t* globalDim, const cuuint64_t* globalStrides,
                                const cuuint32_t* boxDim, const cuuint32_t* elementStrides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion l2Promotion,
                                CUtensorMapFloatOOBfill oobFill) {
  if (boxDim == nullptr || tensorRank > kTensorRankMax) return CUDA_ERROR_INVALID_VALUE;
  wire::TensorMapEncodeRequest request;
  request.which = 0;
  request.box = Bytes(boxDim, tensorRank);
  request.interleave = interleave;
  request.swizzle = swizzle;
  request.promotion = l2Promotion;
  request.fill = oobFill;
  return Encode(&request, tensorMap, tensorDataType, tensorRank, globalAddress, globalDim,
                globalStrides, elementStrides);
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap* tensorMap, CUtensorMapDataType tensorDataType,
                                 cuuint32_t tensorRank, void* globalAddress,
                                 const cuuint64_t* globalDim, const cuuint64_t* globalStrides,
                                 const int* pixelBoxLowerCorner, const int* pixelBoxUpperCorner,
                                 cuuint32_t channelsPerPixel, cuuint32_t pixelsPerColumn,
                                 const cuuint32_t* elementStrides, CUtensorMapInterleave interleave,
                                 CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
                                 CUtensorMapFloatOOBfill oobFill) {
  // "Tensor rank ... must be 3, 4, or 5", and a corner has a number for each dimension but two.
  if (tensorRank < 3 || tensorRank > kTensorRankMax || pixelBoxLowerCorner == nullptr ||
      pixelBoxUpperCorner == nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  wire::TensorMapEncodeRequest request;
  request.which = 1;
  request.lower = Bytes(pixelBoxLowerCorner, tensorRank - 2);
  request.upper = Bytes(pixelBoxUpperCorner, tensorRank - 2);
  request.channels = channelsPerPixel;
  request.pixels = pixelsPerColumn;
  request.interleave = interleave;
  request.swizzle = swizzle;
  request.promotion = l2Promotion;
  request.fill = oobFill;
  return Encode(&request, tensorMap, tensorDataType, tensorRank, globalAddress, globalDim,
                globalStrides, elementStrides);
}

CUresult cuTensorMapEncodeIm2colWide(
    CUtensorMap* tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank,
    void* globalAddress, const cuuint64_t* globalDim, const cuuint64_t* globalStrides,
    int pixelBoxLowerCornerWidth, int pixelBoxUpperCornerWidth, cuuint32_t channelsPerPixel,
    cuuint32_t pixelsPerColumn, const cuuint32_t* elementStrides, CUtensorMapInterleave interleave,
    CUtensorMapIm2ColWideMode mode, CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
    CUtensorMapFloatOOBfill oobFill) {
  wire::TensorMapEncodeRequest request;
  request.which = 2;
  request.lower = Bytes(&pixelBoxLowerCornerWidth, 1);
  request.upper = Bytes(&pixelBoxUpperCornerWidth, 1);
  request.channels = channelsPerPixel;
  request.pixels = pixelsPerColumn;
  request.interleave = interleave;
  request.mode = mode;
  request.swizzle = swizzle;
  request.promotion = l2Promotion;
  request.fill = oobFill;
  return Encode(&request, tensorMap, tensorDataType, tensorRank, globalAddress, globalDim,
                globalStrides, elementStrides);
}

CUresult cuTensorMapReplaceAddress(CUtensorMap* tensorMap, void* globalAddress) {
  if (!Aligned(tensorMap)) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  wire::TensorMapReplaceAddressRequest request;
  wire::TensorMapReplaceAddressReply reply;
  request.map = Bytes(tensorMap, 1);
  request.address = reinterpret_cast<uint64_t>(globalAddress);
  if (CUresult result = Ask(context, request, &reply); result != CUDA_SUCCESS) return result;
  if (reply.map.size() != sizeof *tensorMap) return CUDA_ERROR_UNKNOWN;
  memcpy(tensorMap, reply.map.data(), sizeof *tensorMap);
  return CUDA_SUCCESS;
}

}  // namespace consort::guest::calls
