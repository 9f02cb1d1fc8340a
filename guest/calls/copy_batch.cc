// SPDX-License-Identifier: Apache-2.0
// guest/calls/copy_batch.cc: batches of copies, which are their copies, one after the other
// (guest/copy.h). All are checked before one is sent, so what is refused has copied nothing.
// In a captured stream they become nodes. Source: CUDA Driver API, Memory Management,
// cuMemcpyBatchAsync, cuMemcpy3DBatchAsync.
#include <cstdint>

#include "gen/guest/calls.h"
#include "guest/call.h"
#include "guest/copy.h"
#include "guest/graph.h"
#include "guest/unsupported.h"

namespace consort::guest::calls {
namespace {

// The failIdx of an error that is of no copy (CUDA Toolkit 12.8, cuMemcpyBatchAsync).
constexpr size_t kOfNoCopy = SIZE_MAX;

// "Must not be legacy NULL stream".
CUresult FindBatchStream(CUstream handle, DefaultStream default_stream, StreamRef* stream) {
  if (CUresult result = FindStream(handle, default_stream, stream); result != CUDA_SUCCESS)
    return result;
  return stream->id == kLegacyStreamId ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

// Hints are of no use here: nothing moves.
bool Valid(CUmemcpySrcAccessOrder order, unsigned flags) {
  return (order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
          order == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL ||
          order == CU_MEMCPY_SRC_ACCESS_ORDER_ANY) &&
         (flags & ~CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE) == 0;
}

// ---- Linear copies ----

struct LinearBatch {
  const CUdeviceptr* dsts;
  const CUdeviceptr* srcs;
  const size_t* sizes;
  size_t count;
  const CUmemcpyAttributes* attributes;
  const size_t* firsts;  // of each of the attributes, the first copy
  size_t attribute_count;
};

CUresult CheckAttributes(const LinearBatch& batch) {
  if (batch.count == 0 || batch.dsts == nullptr || batch.srcs == nullptr ||
      batch.sizes == nullptr || batch.attribute_count == 0 || batch.attribute_count > batch.count ||
      batch.attributes == nullptr || batch.firsts == nullptr || batch.firsts[0] != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t i = 0; i < batch.attribute_count; ++i) {
    const size_t end = i + 1 < batch.attribute_count ? batch.firsts[i + 1] : batch.count;
    if (batch.firsts[i] >= end ||
        !Valid(batch.attributes[i].srcAccessOrder, batch.attributes[i].flags)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

CUDA_MEMCPY3D LinearCopy(const LinearBatch& batch, size_t index) {
  CUDA_MEMCPY3D copy = {};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.srcDevice = batch.srcs[index];
  copy.dstDevice = batch.dsts[index];
  copy.srcPitch = copy.dstPitch = copy.WidthInBytes = batch.sizes[index];
  copy.Height = copy.Depth = 1;
  return copy;
}

CUresult CopyLinearBatch(const LinearBatch& batch, CUstream handle, DefaultStream default_stream,
                         size_t* failed) {
  *failed = kOfNoCopy;
  StreamRef stream;
  if (CUresult result = FindBatchStream(handle, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  if (CUresult result = CheckAttributes(batch); result != CUDA_SUCCESS) return result;
  for (size_t i = 0; i < batch.count; ++i) {
    // One of no bytes is refused, as by NVIDIA's driver (github.com/rapidsai/rmm/issues/2509).
    if (CUresult result = PrepareCopy(LinearCopy(batch, i)); result != CUDA_SUCCESS) {
      *failed = i;
      return result;
    }
  }
  size_t attribute = 0;
  for (size_t i = 0; i < batch.count; ++i) {
    if (attribute + 1 < batch.attribute_count && batch.firsts[attribute + 1] == i) ++attribute;
    const CUresult result =
        EnqueueCopy(stream, LinearCopy(batch, i), batch.attributes[attribute].srcAccessOrder);
    if (result != CUDA_SUCCESS) {
      *failed = i;
      return result;
    }
  }
  return CUDA_SUCCESS;
}

// ---- Copies of boxes ----

// Bytes of an element of the operand's array. 0: the operand is a pointer, or `*result` says what
// is wrong with it.
uint64_t ArrayElementBytes(const CUmemcpy3DOperand& operand, CUresult* result) {
  if (operand.type == CU_MEMCPY_OPERAND_TYPE_POINTER) return 0;
  if (operand.type != CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    *result = CUDA_ERROR_INVALID_VALUE;
    return 0;
  }
  const Array* array =
      GetRuntime()->arrays.Find(reinterpret_cast<uint64_t>(operand.op.array.array));
  if (array == nullptr) {
    *result = CUDA_ERROR_INVALID_VALUE;
    return 0;
  }
  const uint64_t channel = ChannelBytes(array->descriptor.Format);
  if (channel == 0) {
    NoteUnsupported("cuMemcpy3DBatchAsync", "an array whose format is not of plain channels");
    *result = CUDA_ERROR_NOT_SUPPORTED;
  }
  return channel * array->descriptor.NumChannels;
}

// One side of a copy, in bytes.
struct BoxSide {
  CUmemorytype type = CU_MEMORYTYPE_UNIFIED;
  CUdeviceptr address = 0;
  CUarray array = nullptr;
  size_t x = 0, y = 0, z = 0;
  size_t pitch = 0;
  size_t height = 0;
};

CUresult PrepareOperand(const CUmemcpy3DOperand& operand, const CUextent3D& extent,
                        uint64_t element, BoxSide* side) {
  if (operand.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) {
    const CUoffset3D& offset = operand.op.array.offset;
    side->type = CU_MEMORYTYPE_ARRAY;
    side->array = operand.op.array.array;
    side->y = offset.y, side->z = offset.z;
    return __builtin_mul_overflow(offset.x, element, &side->x) ? CUDA_ERROR_INVALID_VALUE
                                                               : CUDA_SUCCESS;
  }
  const auto& pointer = operand.op.ptr;
  if ((pointer.rowLength != 0 && pointer.rowLength < extent.width) ||
      (pointer.layerHeight != 0 && pointer.layerHeight < extent.height)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  side->address = pointer.ptr;
  side->height = pointer.layerHeight;  // 0: as many rows as are copied, as there
  return __builtin_mul_overflow(pointer.rowLength, element, &side->pitch) ? CUDA_ERROR_INVALID_VALUE
                                                                          : CUDA_SUCCESS;
}

CUresult BoxCopy(const CUDA_MEMCPY3D_BATCH_OP& operation, CUDA_MEMCPY3D* copy) {
  const CUextent3D& extent = operation.extent;
  if (!Valid(operation.srcAccessOrder, operation.flags)) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = CUDA_SUCCESS;
  const uint64_t from_element = ArrayElementBytes(operation.src, &result);
  const uint64_t to_element = ArrayElementBytes(operation.dst, &result);
  if (result != CUDA_SUCCESS) return result;
  if (from_element != 0 && to_element != 0 && from_element != to_element)
    return CUDA_ERROR_INVALID_VALUE;
  uint64_t element = from_element != 0 ? from_element : to_element;
  if (element == 0) element = 1;  // from pointer to pointer
  BoxSide from, to;
  if (result = PrepareOperand(operation.src, extent, element, &from); result != CUDA_SUCCESS)
    return result;
  if (result = PrepareOperand(operation.dst, extent, element, &to); result != CUDA_SUCCESS)
    return result;
  *copy = {};
  copy->srcMemoryType = from.type;
  copy->srcDevice = from.address, copy->srcArray = from.array;
  copy->srcXInBytes = from.x, copy->srcY = from.y, copy->srcZ = from.z;
  copy->srcPitch = from.pitch, copy->srcHeight = from.height;
  copy->dstMemoryType = to.type;
  copy->dstDevice = to.address, copy->dstArray = to.array;
  copy->dstXInBytes = to.x, copy->dstY = to.y, copy->dstZ = to.z;
  copy->dstPitch = to.pitch, copy->dstHeight = to.height;
  copy->Height = extent.height, copy->Depth = extent.depth;
  if (__builtin_mul_overflow(extent.width, element, &copy->WidthInBytes))
    return CUDA_ERROR_INVALID_VALUE;
  return PrepareCopy(*copy);
}

CUresult CopyBoxBatch(size_t count, const CUDA_MEMCPY3D_BATCH_OP* operations,
                      unsigned long long flags, CUstream handle, DefaultStream default_stream,
                      size_t* failed) {
  *failed = kOfNoCopy;
  StreamRef stream;
  if (CUresult result = FindBatchStream(handle, default_stream, &stream); result != CUDA_SUCCESS)
    return result;
  if (count == 0 || operations == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  for (const bool send : {false, true}) {
    for (size_t i = 0; i < count; ++i) {
      CUDA_MEMCPY3D copy;
      CUresult result = BoxCopy(operations[i], &copy);
      if (result == CUDA_SUCCESS && send)
        result = EnqueueCopy(stream, copy, operations[i].srcAccessOrder);
      if (result != CUDA_SUCCESS) {
        *failed = i;
        return result;
      }
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuMemcpyBatchAsync(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                            CUmemcpyAttributes* attrs, size_t* attrIdxs, size_t numAttrs,
                            size_t* failIdx, CUstream hStream, DefaultStream default_stream) {
  size_t failed = 0;
  const CUresult result = CopyLinearBatch({dsts, srcs, sizes, count, attrs, attrIdxs, numAttrs},
                                          hStream, default_stream, &failed);
  if (result != CUDA_SUCCESS && failIdx != nullptr) *failIdx = failed;
  return result;
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                               CUmemcpyAttributes* attrs, size_t* attrIdxs, size_t numAttrs,
                               CUstream hStream, DefaultStream default_stream) {
  return cuMemcpyBatchAsync(dsts, srcs, sizes, count, attrs, attrIdxs, numAttrs, nullptr, hStream,
                            default_stream);
}

CUresult cuMemcpy3DBatchAsync(size_t numParams, CUDA_MEMCPY3D_BATCH_OP* opList, size_t* failIdx,
                              unsigned long long flags, CUstream hStream,
                              DefaultStream default_stream) {
  size_t failed = 0;
  const CUresult result = CopyBoxBatch(numParams, opList, flags, hStream, default_stream, &failed);
  if (result != CUDA_SUCCESS && failIdx != nullptr) *failIdx = failed;
  return result;
}

CUresult cuMemcpy3DBatchAsync_v2(size_t numParams, CUDA_MEMCPY3D_BATCH_OP* opList,
                                 unsigned long long flags, CUstream hStream,
                                 DefaultStream default_stream) {
  return cuMemcpy3DBatchAsync(numParams, opList, nullptr, flags, hStream, default_stream);
}

}  // namespace consort::guest::calls
