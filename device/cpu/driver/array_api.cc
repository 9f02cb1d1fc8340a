// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/array_api.cc: CUDA arrays, texture and surface objects.
// Source: CUDA Driver API, Memory Management, Texture Object Management, Surface Object Management.
#include <algorithm>
#include <utility>

#include "device/cpu/driver/array.h"
#include "device/cpu/driver/limits.h"
#include "device/cpu/driver/state.h"

namespace consort::cpu {

bool ChannelOf(CUarray_format format, TexelGrid* grid) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
      grid->kind = ChannelKind::kUnsigned, grid->channel_bytes = 1;
      return true;
    case CU_AD_FORMAT_UNSIGNED_INT16:
      grid->kind = ChannelKind::kUnsigned, grid->channel_bytes = 2;
      return true;
    case CU_AD_FORMAT_UNSIGNED_INT32:
      grid->kind = ChannelKind::kUnsigned, grid->channel_bytes = 4;
      return true;
    case CU_AD_FORMAT_SIGNED_INT8:
      grid->kind = ChannelKind::kSigned, grid->channel_bytes = 1;
      return true;
    case CU_AD_FORMAT_SIGNED_INT16:
      grid->kind = ChannelKind::kSigned, grid->channel_bytes = 2;
      return true;
    case CU_AD_FORMAT_SIGNED_INT32:
      grid->kind = ChannelKind::kSigned, grid->channel_bytes = 4;
      return true;
    case CU_AD_FORMAT_HALF:
      grid->kind = ChannelKind::kFloat, grid->channel_bytes = 2;
      return true;
    case CU_AD_FORMAT_FLOAT:
      grid->kind = ChannelKind::kFloat, grid->channel_bytes = 4;
      return true;
    default:
      return false;
  }
}

CUresult GridOf(const CUDA_ARRAY3D_DESCRIPTOR& descriptor, TexelGrid* grid) {
  constexpr unsigned int kKnown = CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP |
                                  CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_TEXTURE_GATHER |
                                  CUDA_ARRAY3D_COLOR_ATTACHMENT;
  const auto& [width, height, depth, format, channels, flags] = descriptor;
  if ((flags & ~kKnown) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (!ChannelOf(format, grid)) return CUDA_ERROR_NOT_SUPPORTED;
  if (channels != 1 && channels != 2 && channels != 4) return CUDA_ERROR_INVALID_VALUE;
  grid->channels = static_cast<uint8_t>(channels);
  const bool is_layered = (flags & CUDA_ARRAY3D_LAYERED) != 0;
  const bool is_cube = (flags & CUDA_ARRAY3D_CUBEMAP) != 0;
  if (width == 0 || (is_layered && depth == 0)) return CUDA_ERROR_INVALID_VALUE;
  // "Width must be equal to Height, and Depth must be six", or a multiple of six if layered.
  if (is_cube && (width != height || depth == 0 || depth % 6 != 0 || (!is_layered && depth != 6))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool has_slices = !is_layered && !is_cube && depth > 0;
  if (has_slices && height == 0) return CUDA_ERROR_INVALID_VALUE;
  const TextureBounds& bounds = is_cube       ? kCubeBounds
                                : is_layered  ? (height == 0 ? kLayered1DBounds : kLayered2DBounds)
                                : has_slices  ? k3DBounds
                                : height == 0 ? k1DBounds
                                              : k2DBounds;
  if (width > bounds.width || height > bounds.height || depth > bounds.depth) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  grid->width = width;
  grid->height = std::max<uint64_t>(height, 1);
  grid->slices = std::max<uint64_t>(depth, 1);
  grid->pitch = grid->width * grid->texel_bytes();
  grid->slice_bytes = grid->pitch * grid->height;
  return CUDA_SUCCESS;
}

namespace {

CUresult CreateArray(CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR* descriptor) {
  return WithContext([&](State& state, const std::shared_ptr<Context>& context) {
    if (handle == nullptr || descriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
    TexelGrid grid;
    CUresult result = GridOf(*descriptor, &grid);
    if (result != CUDA_SUCCESS) return result;
    result = state.address_space.Allocate(*context, grid.slice_bytes * grid.slices, &grid.base);
    if (result != CUDA_SUCCESS) return result;
    *handle = state.arrays.Insert(std::make_shared<Array>(context, *descriptor, grid));
    return CUDA_SUCCESS;
  });
}

// What a resource gives a texture to read.
CUresult GridOfResource(State& state, const CUDA_RESOURCE_DESC& resource, TextureObject* object) {
  TexelGrid& grid = object->grid;
  switch (resource.resType) {
    case CU_RESOURCE_TYPE_ARRAY: {
      const std::shared_ptr<Array> array = state.arrays.Find(resource.res.array.hArray);
      if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
      grid = array->grid();
      return CUDA_SUCCESS;
    }
    case CU_RESOURCE_TYPE_LINEAR: {
      const auto& linear = resource.res.linear;
      if (!ChannelOf(linear.format, &grid)) return CUDA_ERROR_NOT_SUPPORTED;
      grid.channels = static_cast<uint8_t>(linear.numChannels);
      if (linear.numChannels != 1 && linear.numChannels != 2 && linear.numChannels != 4) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      grid.base = linear.devPtr;
      grid.width = linear.sizeInBytes / grid.texel_bytes();
      grid.pitch = linear.sizeInBytes;
      object->is_buffer = true;
      if (grid.width == 0 || grid.width > kLinearTexelsMax) return CUDA_ERROR_INVALID_VALUE;
      break;
    }
    case CU_RESOURCE_TYPE_PITCH2D: {
      const auto& rows = resource.res.pitch2D;
      if (!ChannelOf(rows.format, &grid)) return CUDA_ERROR_NOT_SUPPORTED;
      if (rows.numChannels != 1 && rows.numChannels != 2 && rows.numChannels != 4) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      grid.channels = static_cast<uint8_t>(rows.numChannels);
      grid.base = rows.devPtr;
      grid.width = rows.width;
      grid.height = rows.height;
      grid.pitch = rows.pitchInBytes;
      grid.slice_bytes = rows.pitchInBytes * rows.height;
      if (rows.width == 0 || rows.height == 0 || rows.width > k2DBounds.width ||
          rows.height > k2DBounds.height || rows.pitchInBytes < rows.width * grid.texel_bytes()) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      break;
    }
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
      return CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  const Extent extent = {grid.base,
                         grid.pitch * (grid.height - 1) + grid.width * grid.texel_bytes(),
                         /*write=*/false, /*known=*/true};
  return state.address_space.Check({&extent, 1}) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool ModeOf(CUaddress_mode mode, AddressMode* out) {
  switch (mode) {
    case CU_TR_ADDRESS_MODE_WRAP:
      *out = AddressMode::kWrap;
      return true;
    case CU_TR_ADDRESS_MODE_CLAMP:
      *out = AddressMode::kClamp;
      return true;
    case CU_TR_ADDRESS_MODE_MIRROR:
      *out = AddressMode::kMirror;
      return true;
    case CU_TR_ADDRESS_MODE_BORDER:
      *out = AddressMode::kBorder;
      return true;
    default:
      return false;
  }
}

CUresult ReadingOf(const CUDA_TEXTURE_DESC& texture, TextureObject* object) {
  constexpr unsigned int kKnown = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES |
                                  CU_TRSF_SRGB | CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION;
  if ((texture.flags & ~kKnown) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  for (size_t i = 0; i < 3; ++i) {
    if (!ModeOf(texture.addressMode[i], &object->address[i])) return CUDA_ERROR_INVALID_VALUE;
    object->border[i] = texture.borderColor[i];
  }
  object->border[3] = texture.borderColor[3];
  if (texture.filterMode != CU_TR_FILTER_MODE_POINT &&
      texture.filterMode != CU_TR_FILTER_MODE_LINEAR) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  object->linear_filter = texture.filterMode == CU_TR_FILTER_MODE_LINEAR;
  object->normalised = (texture.flags & CU_TRSF_NORMALIZED_COORDINATES) != 0;
  const bool is_integer = object->grid.kind != ChannelKind::kFloat;
  // "A texture with 32-bit integer format is not promoted, regardless of whether or not this flag
  // is specified."
  object->normalised_reads = is_integer && object->grid.channel_bytes < 4 &&
                             (texture.flags & CU_TRSF_READ_AS_INTEGER) == 0;
  object->srgb = (texture.flags & CU_TRSF_SRGB) != 0;
  // Integers have nothing between them.
  if (object->linear_filter && is_integer && !object->normalised_reads) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult Keep(State& state, const std::shared_ptr<Context>& context, const TextureObject& object,
              CUtexObject* handle) {
  const uint64_t made = AddTexture(object);
  if (made == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  auto owner = std::make_shared<TextureOwner>();
  owner->owner = context;
  owner->handle = made;
  state.textures.Replace(made, std::move(owner));
  *handle = made;
  return CUDA_SUCCESS;
}

CUresult Destroy(uint64_t handle, bool is_surface) {
  return WithContext([&](State& state, const std::shared_ptr<Context>& context) {
    const TextureObject* const object = FindTexture(handle);
    if (object == nullptr || object->is_surface != is_surface) return CUDA_ERROR_INVALID_VALUE;
    // Kernels that were launched before may still use it.
    const CUresult error = context->Synchronize();
    return state.textures.Remove(handle) == nullptr ? CUDA_ERROR_INVALID_VALUE : error;
  });
}

}  // namespace

}  // namespace consort::cpu

using namespace consort::cpu;  // the entry points are global: their prototypes are cuda.h's

extern "C" {

CUresult CUDAAPI cuArray3DCreate_v2(CUarray* pHandle,
                                    const CUDA_ARRAY3D_DESCRIPTOR* pAllocateArray) {
  return CreateArray(pHandle, pAllocateArray);
}

CUresult CUDAAPI cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* pArrayDescriptor,
                                           CUarray hArray) {
  return WithContext([&](State& state, const std::shared_ptr<Context>&) {
    const std::shared_ptr<Array> array = state.arrays.Find(hArray);
    if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (pArrayDescriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pArrayDescriptor = array->descriptor();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuArrayDestroy(CUarray hArray) {
  return WithContext([&](State& state, const std::shared_ptr<Context>&) {
    const std::shared_ptr<Array> array = state.arrays.Remove(hArray);
    if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    const CUresult error = array->context()->Synchronize();
    state.address_space.Remove(array->grid().base, RangeKind::kDevice);
    return error;
  });
}

CUresult CUDAAPI cuTexObjectCreate(CUtexObject* pTexObject, const CUDA_RESOURCE_DESC* pResDesc,
                                   const CUDA_TEXTURE_DESC* pTexDesc,
                                   const CUDA_RESOURCE_VIEW_DESC* pResViewDesc) {
  return WithContext([&](State& state, const std::shared_ptr<Context>& context) {
    if (pTexObject == nullptr || pResDesc == nullptr || pTexDesc == nullptr ||
        pResDesc->flags != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (pResViewDesc != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
    TextureObject object;
    CUresult result = GridOfResource(state, *pResDesc, &object);
    if (result == CUDA_SUCCESS) result = ReadingOf(*pTexDesc, &object);
    return result == CUDA_SUCCESS ? Keep(state, context, object, pTexObject) : result;
  });
}

CUresult CUDAAPI cuTexObjectDestroy(CUtexObject texObject) {
  return Destroy(texObject, /*is_surface=*/false);
}

CUresult CUDAAPI cuSurfObjectCreate(CUsurfObject* pSurfObject, const CUDA_RESOURCE_DESC* pResDesc) {
  return WithContext([&](State& state, const std::shared_ptr<Context>& context) {
    if (pSurfObject == nullptr || pResDesc == nullptr ||
        pResDesc->resType != CU_RESOURCE_TYPE_ARRAY || pResDesc->flags != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const std::shared_ptr<Array> array = state.arrays.Find(pResDesc->res.array.hArray);
    if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if ((array->descriptor().Flags & CUDA_ARRAY3D_SURFACE_LDST) == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    TextureObject object;
    object.grid = array->grid();
    object.is_surface = true;
    return Keep(state, context, object, pSurfObject);
  });
}

CUresult CUDAAPI cuSurfObjectDestroy(CUsurfObject surfObject) {
  return Destroy(surfObject, /*is_surface=*/true);
}

}  // extern "C"
