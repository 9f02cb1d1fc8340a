// SPDX-License-Identifier: Apache-2.0
#include "host/session/textures.h"

#include <algorithm>
#include <cstring>

#include "host/limits.h"
#include "host/session/session.h"

namespace consort::host {
namespace {

// Bytes from the first to the last byte of a box of rows; false if that exceeds 64 bits.
bool BoxBytes(uint64_t pitch, uint64_t slice_rows, const wire::ArrayCopyRequest& box,
              uint64_t* bytes) {
  uint64_t rows = 0;
  return !__builtin_mul_overflow(slice_rows, box.depth - 1, &rows) &&
         !__builtin_add_overflow(rows, box.height - 1, &rows) &&
         !__builtin_mul_overflow(rows, pitch, bytes) &&
         !__builtin_add_overflow(*bytes, box.width, bytes);
}

}  // namespace

Textures::~Textures() {
  // Only a broken context makes these fail, and then everything goes with the process.
  for (const auto& [object, context] : textures_) driver_.cuTexObjectDestroy(object);
  for (const auto& [object, context] : surfaces_) driver_.cuSurfObjectDestroy(object);
  for (const auto& [name, array] : arrays_) driver_.cuArrayDestroy(array.handle);
}

CUresult Textures::CreateArray(uint32_t context, const wire::ArrayCreateRequest& request) {
  if (arrays_.contains(request.array)) return CUDA_ERROR_INVALID_HANDLE;
  if (arrays_.size() >= kHandlesPerKind) return CUDA_ERROR_OUT_OF_MEMORY;
  CUDA_ARRAY3D_DESCRIPTOR shape = {};
  shape.Width = request.width;
  shape.Height = request.height;
  shape.Depth = request.depth;
  shape.Format = static_cast<CUarray_format>(request.format);
  shape.NumChannels = request.channels;
  shape.Flags = request.flags;
  Array array = {nullptr, context};
  const CUresult result = driver_.cuArray3DCreate_v2(&array.handle, &shape);
  if (result == CUDA_SUCCESS) arrays_.emplace(request.array, array);
  return result;
}

CUarray Textures::FindArray(uint64_t name) const {
  const auto it = arrays_.find(name);
  return it == arrays_.end() ? nullptr : it->second.handle;
}

CUarray Textures::TakeArray(uint64_t name) {
  const CUarray handle = FindArray(name);
  arrays_.erase(name);
  return handle;
}

CUresult Textures::CreateTexture(uint32_t context, const CUDA_RESOURCE_DESC& resource,
                                 const CUDA_TEXTURE_DESC& texture, uint64_t* object) {
  if (textures_.size() >= kHandlesPerKind) return CUDA_ERROR_OUT_OF_MEMORY;
  CUtexObject made = 0;
  const CUresult result = driver_.cuTexObjectCreate(&made, &resource, &texture, nullptr);
  if (result == CUDA_SUCCESS) textures_[made] = context;
  *object = made;
  return result;
}

CUresult Textures::CreateSurface(uint32_t context, const CUDA_RESOURCE_DESC& resource,
                                 uint64_t* object) {
  if (surfaces_.size() >= kHandlesPerKind) return CUDA_ERROR_OUT_OF_MEMORY;
  CUsurfObject made = 0;
  const CUresult result = driver_.cuSurfObjectCreate(&made, &resource);
  if (result == CUDA_SUCCESS) surfaces_[made] = context;
  *object = made;
  return result;
}

bool Textures::TakeObject(uint64_t object, bool is_surface) {
  return (is_surface ? surfaces_ : textures_).erase(object) != 0;
}

void Textures::DestroyContext(uint32_t context) {
  const auto drop = [context](Objects* objects, auto destroy) {
    for (auto it = objects->begin(); it != objects->end();) {
      if (it->second == context) {
        destroy(it->first);
        objects->erase(it++);
      } else {
        ++it;
      }
    }
  };
  drop(&textures_, driver_.cuTexObjectDestroy);
  drop(&surfaces_, driver_.cuSurfObjectDestroy);
  for (auto it = arrays_.begin(); it != arrays_.end();) {
    if (it->second.context == context) {
      driver_.cuArrayDestroy(it->second.handle);
      arrays_.erase(it++);
    } else {
      ++it;
    }
  }
}

// --- Handlers

CUresult Session::ArrayCreate(const wire::FrameHeader& header,
                              const wire::ArrayCreateRequest& request) {
  CUresult result = textures_.CreateArray(header.value, request);
  // As for MemAlloc: what is freed comes back when its work has ended.
  while (result == CUDA_ERROR_OUT_OF_MEMORY && frees_pending_ != 0 && !failed() &&
         device_result() == CUDA_SUCCESS) {
    TurnWhileStalled();
    result = textures_.CreateArray(header.value, request);
  }
  return result;
}

CUresult Session::ArrayDestroy(const wire::FrameHeader&, const wire::ArrayDestroyRequest& request) {
  const CUarray array = textures_.TakeArray(request.array);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  ++frees_pending_;
  return AfterAllWork(PendingItem::Kind::kArrayDestroy, reinterpret_cast<uint64_t>(array));
}

CUresult Session::ArrayCopy(const wire::FrameHeader& header,
                            const wire::ArrayCopyRequest& request) {
  if (request.width == 0 || request.height == 0 || request.depth == 0) return CUDA_SUCCESS;
  CUDA_MEMCPY3D copy = {};
  copy.WidthInBytes = request.width;
  copy.Height = request.height;
  copy.Depth = request.depth;
  uint64_t bytes = 0;
  const auto reachable = [&](uint64_t address, uint64_t pitch, uint64_t rows) {
    return pitch >= request.width && rows >= request.height &&
           BoxBytes(pitch, rows, request, &bytes) && Reachable(address, bytes);
  };
  // The driver checks that a box lies in its array.
  if (request.dst_array != 0) {
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = textures_.FindArray(request.dst_array);
    if (copy.dstArray == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    copy.dstXInBytes = request.dst_x;
    copy.dstY = request.dst_y;
    copy.dstZ = request.dst_z;
  } else {
    copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    copy.dstDevice = request.dst;
    copy.dstPitch = request.dst_pitch;
    copy.dstHeight = request.dst_rows;
    if (!reachable(request.dst, request.dst_pitch, request.dst_rows))
      return CUDA_ERROR_INVALID_VALUE;
    NoteWrite(request.dst, bytes);
  }
  if (request.src_array != 0) {
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.srcArray = textures_.FindArray(request.src_array);
    if (copy.srcArray == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    copy.srcXInBytes = request.src_x;
    copy.srcY = request.src_y;
    copy.srcZ = request.src_z;
  } else {
    copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
    copy.srcDevice = request.src;
    copy.srcPitch = request.src_pitch;
    copy.srcHeight = request.src_rows;
    if (!reachable(request.src, request.src_pitch, request.src_rows))
      return CUDA_ERROR_INVALID_VALUE;
  }
  CUstream stream = nullptr;
  const CUresult result = UseStream(header.value, request.stream, &stream);
  if (result != CUDA_SUCCESS) return result;
  return driver_.cuMemcpy3DAsync_v2(&copy, stream);
}

CUresult Session::TextureCreate(const wire::FrameHeader& header,
                                const wire::TextureCreateRequest& request,
                                wire::TextureCreateReply* reply) {
  CUDA_RESOURCE_DESC resource = {};
  const auto format = static_cast<CUarray_format>(request.format);
  if (request.array != 0) {
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = textures_.FindArray(request.array);
    if (resource.res.array.hArray == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  } else if (request.height == 0) {
    if (!Reachable(request.address, request.pitch)) return CUDA_ERROR_INVALID_VALUE;
    resource.resType = CU_RESOURCE_TYPE_LINEAR;
    resource.res.linear.devPtr = request.address;
    resource.res.linear.format = format;
    resource.res.linear.numChannels = request.channels;
    resource.res.linear.sizeInBytes = request.pitch;
  } else {
    // All rows but the last, which need not be there to its pitch's end.
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(request.pitch, request.height - 1, &bytes) ||
        __builtin_add_overflow(bytes, 1, &bytes) || !Reachable(request.address, bytes)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    resource.resType = CU_RESOURCE_TYPE_PITCH2D;
    resource.res.pitch2D.devPtr = request.address;
    resource.res.pitch2D.format = format;
    resource.res.pitch2D.numChannels = request.channels;
    resource.res.pitch2D.width = request.width;
    resource.res.pitch2D.height = request.height;
    resource.res.pitch2D.pitchInBytes = request.pitch;
  }
  CUDA_TEXTURE_DESC texture = {};
  if (request.border.size() != sizeof(texture.borderColor)) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(texture.borderColor, request.border.data(), sizeof(texture.borderColor));
  for (uint32_t i = 0; i < 3; ++i) {
    texture.addressMode[i] = static_cast<CUaddress_mode>(request.modes >> (8 * i) & 0xFF);
  }
  texture.filterMode = static_cast<CUfilter_mode>(request.filter);
  texture.flags = request.flags;
  texture.maxAnisotropy = request.anisotropy;
  return textures_.CreateTexture(header.value, resource, texture, &reply->object);
}

CUresult Session::SurfaceCreate(const wire::FrameHeader& header,
                                const wire::SurfaceCreateRequest& request,
                                wire::SurfaceCreateReply* reply) {
  CUDA_RESOURCE_DESC resource = {};
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  resource.res.array.hArray = textures_.FindArray(request.array);
  if (resource.res.array.hArray == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return textures_.CreateSurface(header.value, resource, &reply->object);
}

CUresult Session::TextureDestroy(const wire::FrameHeader&,
                                 const wire::TextureDestroyRequest& request) {
  const bool is_surface = request.surface != 0;
  if (!textures_.TakeObject(request.object, is_surface)) return CUDA_ERROR_INVALID_VALUE;
  return AfterAllWork(
      is_surface ? PendingItem::Kind::kSurfaceDestroy : PendingItem::Kind::kTextureDestroy,
      request.object);
}

}  // namespace consort::host
