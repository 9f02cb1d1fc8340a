// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/copy_api.cc: cuMemcpy... and cuMemset..., plain, pitched and in streams.
#include "device/cpu/driver/copy.h"
#include "device/cpu/driver/limits.h"

namespace consort::cpu {
namespace {

enum class Timing { kNow, kInStream };

uintptr_t Address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

CUresult CopyLinear(CUstream handle, Timing timing, const CopyShape& shape) {
  return WithStream(handle, [&](State& state, const std::shared_ptr<Stream>& stream) {
    return timing == Timing::kNow ? CopyNow(state, stream, shape)
                                  : CopyInStream(state, stream, shape);
  });
}

CopyShape Linear(uintptr_t destination, uintptr_t source, size_t bytes) {
  CopyShape shape;
  shape.destination = destination;
  shape.source = source;
  shape.width = bytes;
  return shape;
}

CopyShape HostToDevice(CUdeviceptr destination, const void* source, size_t bytes) {
  CopyShape shape = Linear(destination, Address(source), bytes);
  shape.destination_device = true;
  return shape;
}

CopyShape DeviceToHost(void* destination, CUdeviceptr source, size_t bytes) {
  CopyShape shape = Linear(Address(destination), source, bytes);
  shape.source_device = true;
  return shape;
}

CopyShape DeviceToDevice(CUdeviceptr destination, CUdeviceptr source, size_t bytes) {
  CopyShape shape = Linear(destination, source, bytes);
  shape.destination_device = true;
  shape.source_device = true;
  return shape;
}

// One side of a pitched copy, before its start is computed.
struct Side {
  CUmemorytype type;
  const void* host;
  CUdeviceptr device;
  CUarray array;
  size_t x_bytes, y, z;
  size_t pitch, height;
};

// True if [first, first + count) lies below `end`.
bool Inside(uint64_t first, uint64_t count, uint64_t end) {
  return first <= end && count <= end - first;
}

// Start, pitch and slice of one side. Source: CUDA driver API, cuMemcpy3D.
CUresult Place(State& state, const Side& side, const CUDA_MEMCPY3D& copy, uintptr_t* start,
               Bytes* pitch, Bytes* slice, bool* device) {
  switch (side.type) {
    case CU_MEMORYTYPE_HOST:
      *start = Address(side.host);
      *device = false;
      break;
    case CU_MEMORYTYPE_DEVICE:
      *start = side.device;
      *device = true;
      break;
    case CU_MEMORYTYPE_UNIFIED:
      *start = side.device;
      *device = false;
      break;
    case CU_MEMORYTYPE_ARRAY: {
      const std::shared_ptr<Array> array = state.arrays.Find(side.array);
      if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
      const TexelGrid& grid = array->grid();
      if (!Inside(side.x_bytes, copy.WidthInBytes, grid.pitch) ||
          !Inside(side.y, copy.Height, grid.height) || !Inside(side.z, copy.Depth, grid.slices) ||
          side.x_bytes % grid.texel_bytes() != 0 || copy.WidthInBytes % grid.texel_bytes() != 0) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      *start = grid.base + side.z * grid.slice_bytes + side.y * grid.pitch + side.x_bytes;
      *pitch = grid.pitch;
      *slice = grid.slice_bytes;
      *device = true;
      return CUDA_SUCCESS;
    }
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  // Pitch and height do not matter, and may be 0, where there is one row and one slice.
  const bool many_rows = copy.Height > 1 || copy.Depth > 1 || side.y > 0 || side.z > 0;
  const bool many_slices = copy.Depth > 1 || side.z > 0;
  Bytes row_end = 0, column_end = 0;
  if (__builtin_add_overflow(side.x_bytes, copy.WidthInBytes, &row_end) ||
      __builtin_add_overflow(side.y, copy.Height, &column_end)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (many_rows && (side.pitch < row_end || side.pitch > kPitchMax))
    return CUDA_ERROR_INVALID_VALUE;
  if (many_slices && side.height < column_end) return CUDA_ERROR_INVALID_VALUE;
  *pitch = side.pitch;
  Bytes rows = 0, offset = 0;
  if (__builtin_mul_overflow(side.pitch, side.height, slice) ||
      __builtin_mul_overflow(side.z, side.height, &rows) ||
      __builtin_add_overflow(rows, side.y, &rows) ||
      __builtin_mul_overflow(rows, side.pitch, &offset) ||
      __builtin_add_overflow(offset, side.x_bytes, &offset) ||
      __builtin_add_overflow(*start, offset, start)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult CopyBox(State& state, CUstream handle, Timing timing, const CUDA_MEMCPY3D& copy) {
  CopyShape shape;
  const Side source = {copy.srcMemoryType, copy.srcHost,     copy.srcDevice,
                       copy.srcArray,      copy.srcXInBytes, copy.srcY,
                       copy.srcZ,          copy.srcPitch,    copy.srcHeight};
  const Side destination = {copy.dstMemoryType, copy.dstHost,     copy.dstDevice,
                            copy.dstArray,      copy.dstXInBytes, copy.dstY,
                            copy.dstZ,          copy.dstPitch,    copy.dstHeight};
  CUresult result = Place(state, source, copy, &shape.source, &shape.source_pitch,
                          &shape.source_slice, &shape.source_device);
  if (result != CUDA_SUCCESS) return result;
  result = Place(state, destination, copy, &shape.destination, &shape.destination_pitch,
                 &shape.destination_slice, &shape.destination_device);
  if (result != CUDA_SUCCESS) return result;
  if (copy.srcLOD != 0 || copy.dstLOD != 0 || copy.reserved0 != nullptr ||
      copy.reserved1 != nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  shape.width = copy.WidthInBytes;
  shape.height = copy.Height;
  shape.depth = copy.Depth;
  return CopyLinear(handle, timing, shape);
}

CUresult Copy3D(CUstream handle, Timing timing, const CUDA_MEMCPY3D* copy) {
  return WithState([&](State& state) {
    return copy == nullptr ? CUDA_ERROR_INVALID_VALUE : CopyBox(state, handle, timing, *copy);
  });
}

CUresult Copy2D(CUstream handle, Timing timing, const CUDA_MEMCPY2D* copy) {
  return WithState([&](State& state) {
    if (copy == nullptr) return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D box = {};
    box.srcXInBytes = copy->srcXInBytes;
    box.srcY = copy->srcY;
    box.srcMemoryType = copy->srcMemoryType;
    box.srcHost = copy->srcHost;
    box.srcDevice = copy->srcDevice;
    box.srcArray = copy->srcArray;
    box.srcPitch = copy->srcPitch;
    box.dstXInBytes = copy->dstXInBytes;
    box.dstY = copy->dstY;
    box.dstMemoryType = copy->dstMemoryType;
    box.dstHost = copy->dstHost;
    box.dstDevice = copy->dstDevice;
    box.dstArray = copy->dstArray;
    box.dstPitch = copy->dstPitch;
    box.WidthInBytes = copy->WidthInBytes;
    box.Height = copy->Height;
    box.Depth = 1;
    return CopyBox(state, handle, timing, box);
  });
}

CUresult FillMemory(CUstream handle, Timing timing, const FillShape& shape) {
  return WithStream(handle, [&](State& state, const std::shared_ptr<Stream>& stream) {
    return timing == Timing::kNow ? FillNow(state, stream, shape)
                                  : FillInStream(state, stream, shape);
  });
}

FillShape Row(CUdeviceptr destination, uint32_t value, Bytes element_bytes, size_t count) {
  return {.destination = destination,
          .value = value,
          .element_bytes = element_bytes,
          .width = count,
          .pitch = 0};
}

FillShape Box(CUdeviceptr destination, size_t pitch, uint32_t value, Bytes element_bytes,
              size_t width, size_t height) {
  return {.destination = destination,
          .value = value,
          .element_bytes = element_bytes,
          .width = width,
          .height = height,
          .pitch = pitch};
}

}  // namespace

}  // namespace consort::cpu

using namespace consort::cpu;  // the entry points are global: their prototypes are cuda.h's

extern "C" {

CUresult CUDAAPI cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount) {
  return CopyLinear(nullptr, Timing::kNow, Linear(dst, src, ByteCount));
}

CUresult CUDAAPI cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount,
                               CUstream hStream) {
  return CopyLinear(hStream, Timing::kInStream, Linear(dst, src, ByteCount));
}

CUresult CUDAAPI cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount) {
  return CopyLinear(nullptr, Timing::kNow, HostToDevice(dstDevice, srcHost, ByteCount));
}

CUresult CUDAAPI cuMemcpyDtoH_v2(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount) {
  return CopyLinear(nullptr, Timing::kNow, DeviceToHost(dstHost, srcDevice, ByteCount));
}

CUresult CUDAAPI cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount) {
  return CopyLinear(nullptr, Timing::kNow, DeviceToDevice(dstDevice, srcDevice, ByteCount));
}

CUresult CUDAAPI cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount,
                                      CUstream hStream) {
  return CopyLinear(hStream, Timing::kInStream, HostToDevice(dstDevice, srcHost, ByteCount));
}

CUresult CUDAAPI cuMemcpyDtoHAsync_v2(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount,
                                      CUstream hStream) {
  return CopyLinear(hStream, Timing::kInStream, DeviceToHost(dstHost, srcDevice, ByteCount));
}

CUresult CUDAAPI cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice,
                                      size_t ByteCount, CUstream hStream) {
  return CopyLinear(hStream, Timing::kInStream, DeviceToDevice(dstDevice, srcDevice, ByteCount));
}

CUresult CUDAAPI cuMemcpy2D_v2(const CUDA_MEMCPY2D* pCopy) {
  return Copy2D(nullptr, Timing::kNow, pCopy);
}

CUresult CUDAAPI cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D* pCopy) {
  return Copy2D(nullptr, Timing::kNow, pCopy);
}

CUresult CUDAAPI cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* pCopy, CUstream hStream) {
  return Copy2D(hStream, Timing::kInStream, pCopy);
}

CUresult CUDAAPI cuMemcpy3D_v2(const CUDA_MEMCPY3D* pCopy) {
  return Copy3D(nullptr, Timing::kNow, pCopy);
}

CUresult CUDAAPI cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* pCopy, CUstream hStream) {
  return Copy3D(hStream, Timing::kInStream, pCopy);
}

CUresult CUDAAPI cuMemsetD8_v2(CUdeviceptr dstDevice, unsigned char uc, size_t N) {
  return FillMemory(nullptr, Timing::kNow, Row(dstDevice, uc, 1, N));
}

CUresult CUDAAPI cuMemsetD16_v2(CUdeviceptr dstDevice, unsigned short us, size_t N) {
  return FillMemory(nullptr, Timing::kNow, Row(dstDevice, us, 2, N));
}

CUresult CUDAAPI cuMemsetD32_v2(CUdeviceptr dstDevice, unsigned int ui, size_t N) {
  return FillMemory(nullptr, Timing::kNow, Row(dstDevice, ui, 4, N));
}

CUresult CUDAAPI cuMemsetD8Async(CUdeviceptr dstDevice, unsigned char uc, size_t N,
                                 CUstream hStream) {
  return FillMemory(hStream, Timing::kInStream, Row(dstDevice, uc, 1, N));
}

CUresult CUDAAPI cuMemsetD16Async(CUdeviceptr dstDevice, unsigned short us, size_t N,
                                  CUstream hStream) {
  return FillMemory(hStream, Timing::kInStream, Row(dstDevice, us, 2, N));
}

CUresult CUDAAPI cuMemsetD32Async(CUdeviceptr dstDevice, unsigned int ui, size_t N,
                                  CUstream hStream) {
  return FillMemory(hStream, Timing::kInStream, Row(dstDevice, ui, 4, N));
}

CUresult CUDAAPI cuMemsetD2D8_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc,
                                 size_t Width, size_t Height) {
  return FillMemory(nullptr, Timing::kNow, Box(dstDevice, dstPitch, uc, 1, Width, Height));
}

CUresult CUDAAPI cuMemsetD2D16_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us,
                                  size_t Width, size_t Height) {
  return FillMemory(nullptr, Timing::kNow, Box(dstDevice, dstPitch, us, 2, Width, Height));
}

CUresult CUDAAPI cuMemsetD2D32_v2(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui,
                                  size_t Width, size_t Height) {
  return FillMemory(nullptr, Timing::kNow, Box(dstDevice, dstPitch, ui, 4, Width, Height));
}

CUresult CUDAAPI cuMemsetD2D8Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned char uc,
                                   size_t Width, size_t Height, CUstream hStream) {
  return FillMemory(hStream, Timing::kInStream, Box(dstDevice, dstPitch, uc, 1, Width, Height));
}

CUresult CUDAAPI cuMemsetD2D16Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned short us,
                                    size_t Width, size_t Height, CUstream hStream) {
  return FillMemory(hStream, Timing::kInStream, Box(dstDevice, dstPitch, us, 2, Width, Height));
}

CUresult CUDAAPI cuMemsetD2D32Async(CUdeviceptr dstDevice, size_t dstPitch, unsigned int ui,
                                    size_t Width, size_t Height, CUstream hStream) {
  return FillMemory(hStream, Timing::kInStream, Box(dstDevice, dstPitch, ui, 4, Width, Height));
}

}  // extern "C"
