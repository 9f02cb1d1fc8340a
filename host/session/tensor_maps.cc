// SPDX-License-Identifier: Apache-2.0
// Descriptors for the tensor memory accelerator: pure functions of the driver, whose numbers a
// guest chooses and whose arrays are checked for their length here. A descriptor is of use only to
// a kernel, which may read all that the device lets it in any case.
#include <cstring>

#include "host/session/session.h"

namespace consort::host {
namespace {

constexpr uint32_t kTensorRankMax = 5;

// Copies `bytes` to `values` if they are `count` of them.
template <class T, size_t kMax>
bool Unpack(std::span<const std::byte> bytes, size_t count, T (&values)[kMax]) {
  if (count > kMax || bytes.size() != count * sizeof(T)) return false;
  std::memcpy(values, bytes.data(), bytes.size());
  return true;
}

}  // namespace

CUresult Session::TensorMapEncode(const wire::FrameHeader&,
                                  const wire::TensorMapEncodeRequest& request,
                                  wire::TensorMapEncodeReply* reply) {
  cuuint64_t dims[kTensorRankMax] = {};
  cuuint64_t strides[kTensorRankMax] = {};
  cuuint32_t box[kTensorRankMax] = {};
  cuuint32_t element_strides[kTensorRankMax] = {};
  int lower[kTensorRankMax] = {};
  int upper[kTensorRankMax] = {};
  const uint32_t rank = request.rank;
  if (request.which > 2 || rank == 0 || rank > kTensorRankMax) return CUDA_ERROR_INVALID_VALUE;
  const uint32_t corners = request.which == 0   ? 0
                           : request.which == 2 ? 1
                           : rank < 3           ? 0
                                                : rank - 2;
  if (!Unpack(request.dims, rank, dims) || !Unpack(request.strides, rank - 1, strides) ||
      !Unpack(request.box, request.which == 0 ? rank : 0, box) ||
      !Unpack(request.element_strides, rank, element_strides) ||
      !Unpack(request.lower, corners, lower) || !Unpack(request.upper, corners, upper)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto type = static_cast<CUtensorMapDataType>(request.data_type);
  void* const address = reinterpret_cast<void*>(request.address);
  const auto interleave = static_cast<CUtensorMapInterleave>(request.interleave);
  const auto swizzle = static_cast<CUtensorMapSwizzle>(request.swizzle);
  const auto promotion = static_cast<CUtensorMapL2promotion>(request.promotion);
  const auto fill = static_cast<CUtensorMapFloatOOBfill>(request.fill);
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  if (request.which == 0 && driver_.cuTensorMapEncodeTiled != nullptr) {
    result = driver_.cuTensorMapEncodeTiled(&tensor_map_, type, rank, address, dims, strides, box,
                                            element_strides, interleave, swizzle, promotion, fill);
  } else if (request.which == 1 && driver_.cuTensorMapEncodeIm2col != nullptr) {
    result = driver_.cuTensorMapEncodeIm2col(&tensor_map_, type, rank, address, dims, strides,
                                             lower, upper, request.channels, request.pixels,
                                             element_strides, interleave, swizzle, promotion, fill);
  } else if (request.which == 2 && driver_.cuTensorMapEncodeIm2colWide != nullptr) {
    result = driver_.cuTensorMapEncodeIm2colWide(
        &tensor_map_, type, rank, address, dims, strides, lower[0], upper[0], request.channels,
        request.pixels, element_strides, interleave,
        static_cast<CUtensorMapIm2ColWideMode>(request.mode), swizzle, promotion, fill);
  }
  if (result == CUDA_SUCCESS) {
    reply->map = {reinterpret_cast<const std::byte*>(&tensor_map_), sizeof(tensor_map_)};
  }
  return result;
}

CUresult Session::TensorMapReplaceAddress(const wire::FrameHeader&,
                                          const wire::TensorMapReplaceAddressRequest& request,
                                          wire::TensorMapReplaceAddressReply* reply) {
  if (driver_.cuTensorMapReplaceAddress == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  if (request.map.size() != sizeof(tensor_map_)) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(&tensor_map_, request.map.data(), sizeof(tensor_map_));
  const CUresult result =
      driver_.cuTensorMapReplaceAddress(&tensor_map_, reinterpret_cast<void*>(request.address));
  if (result == CUDA_SUCCESS) {
    reply->map = {reinterpret_cast<const std::byte*>(&tensor_map_), sizeof(tensor_map_)};
  }
  return result;
}

}  // namespace consort::host
