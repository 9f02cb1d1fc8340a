// SPDX-License-Identifier: Apache-2.0
// guest/calls/array.cc: CUDA arrays, texture and surface objects. Arrays are named here and made by
// the worker's driver; objects are numbers of the driver, as kernels use them. What programs ask
// about is kept here. Source: CUDA Driver API, Memory Management, Texture Object Management,
// Surface Object Management.
#include <string.h>

#include "gen/guest/calls.h"
#include "guest/call.h"
#include "guest/runtime.h"
#include "guest/texture_objects.h"
#include "guest/unsupported.h"

namespace consort::guest::calls {
namespace {

Array* FindArray(CUarray handle) {
  return GetRuntime()->arrays.Find(reinterpret_cast<uint64_t>(handle));
}

CUresult CreateArray(CUarray* handle, const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  if (handle == nullptr || shape.Width == 0) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  if (CUresult result = RefuseUnsafeCall(); result != CUDA_SUCCESS) return result;
  if ((shape.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0) {
    NoteUnsupported("cuArray3DCreate", "sparse arrays and arrays without memory");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  Runtime* runtime = GetRuntime();
  const uint64_t id = runtime->arrays.Create([&](Array* array, uint64_t new_id) {
    array->id = new_id;
    array->context_id = context->id;
    array->descriptor = shape;
  });
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  GiveBackFreed(context->device);
  wire::ArrayCreateRequest request;
  wire::EmptyReply reply;
  request.array = id;
  request.width = shape.Width;
  request.height = shape.Height;
  request.depth = shape.Depth;
  request.format = shape.Format;
  request.channels = shape.NumChannels;
  request.flags = shape.Flags;
  const CUresult result = Ask(context, request, &reply);
  if (result == CUDA_SUCCESS) {
    *handle = reinterpret_cast<CUarray>(id);
  } else {
    runtime->arrays.Destroy(id);
  }
  return result;
}

// The context of what is destroyed: its own, while that is there.
Context* OwnerOr(uint64_t context_id, Context* current) {
  Context* owner = GetRuntime()->contexts.Find(context_id);
  return owner != nullptr ? owner : current;
}

// Fills in what the resource says; the host checks that the memory is there.
CUresult DescribeResource(const Context* context, const CUDA_RESOURCE_DESC& resource,
                          wire::TextureCreateRequest* request) {
  switch (resource.resType) {
    case CU_RESOURCE_TYPE_ARRAY: {
      const Array* array = FindArray(resource.res.array.hArray);
      if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
      const Context* owner = GetRuntime()->contexts.Find(array->context_id);
      if (owner == nullptr) return CUDA_ERROR_INVALID_HANDLE;
      if (!SameSession(owner, context)) return AcrossDevices("cuTexObjectCreate");
      request->array = array->id;
      return CUDA_SUCCESS;
    }
    case CU_RESOURCE_TYPE_LINEAR: {
      const auto& linear = resource.res.linear;
      request->address = linear.devPtr;
      request->format = linear.format;
      request->channels = linear.numChannels;
      request->pitch = linear.sizeInBytes;
      return linear.sizeInBytes == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
    case CU_RESOURCE_TYPE_PITCH2D: {
      const auto& rows = resource.res.pitch2D;
      request->address = rows.devPtr;
      request->format = rows.format;
      request->channels = rows.numChannels;
      request->width = rows.width;
      request->height = rows.height;
      request->pitch = rows.pitchInBytes;
      return rows.height == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
      NoteUnsupported("cuTexObjectCreate", "a mipmapped array");
      return CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult DestroyObject(uint64_t object, bool is_surface) {
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  TextureRecord record;
  if (!GetRuntime()->texture_objects.Take({context->device, object, is_surface}, &record))
    return CUDA_ERROR_INVALID_VALUE;
  wire::TextureDestroyRequest request;
  request.object = object;
  request.surface = is_surface ? 1 : 0;
  return Post(OwnerOr(record.context_id, context), request);
}

template <class T>
CUresult Give(uint64_t object, bool is_surface, T* out, T TextureRecord::*part) {
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  TextureRecord record;
  if (out == nullptr ||
      !GetRuntime()->texture_objects.Find({context->device, object, is_surface}, &record)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *out = record.*part;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuArray3DCreate_v2(CUarray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR* pAllocateArray) {
  if (pAllocateArray == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return CreateArray(pHandle, *pAllocateArray);
}

CUresult cuArrayCreate_v2(CUarray* pHandle, const CUDA_ARRAY_DESCRIPTOR* pAllocateArray) {
  if (pAllocateArray == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY3D_DESCRIPTOR shape = {};
  shape.Width = pAllocateArray->Width;
  shape.Height = pAllocateArray->Height;
  shape.Format = pAllocateArray->Format;
  shape.NumChannels = pAllocateArray->NumChannels;
  return CreateArray(pHandle, shape);
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR* pArrayDescriptor, CUarray hArray) {
  const Array* array = FindArray(hArray);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (pArrayDescriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *pArrayDescriptor = array->descriptor;
  return CUDA_SUCCESS;
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR* pArrayDescriptor, CUarray hArray) {
  const Array* array = FindArray(hArray);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (pArrayDescriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // It has no room for a depth: "cuArrayGetDescriptor ... of a 3D array" is an error.
  if (array->descriptor.Depth != 0) return CUDA_ERROR_INVALID_VALUE;
  pArrayDescriptor->Width = array->descriptor.Width;
  pArrayDescriptor->Height = array->descriptor.Height;
  pArrayDescriptor->Format = array->descriptor.Format;
  pArrayDescriptor->NumChannels = array->descriptor.NumChannels;
  return CUDA_SUCCESS;
}

CUresult cuArrayDestroy(CUarray hArray) {
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  const Array* array = FindArray(hArray);
  if (array == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const uint64_t id = array->id, owner = array->context_id;
  if (!GetRuntime()->arrays.Destroy(id)) return CUDA_ERROR_INVALID_HANDLE;
  wire::ArrayDestroyRequest request;
  request.array = id;
  return Post(OwnerOr(owner, context), request);
}

CUresult cuTexObjectCreate(CUtexObject* pTexObject, const CUDA_RESOURCE_DESC* pResDesc,
                           const CUDA_TEXTURE_DESC* pTexDesc,
                           const CUDA_RESOURCE_VIEW_DESC* pResViewDesc) {
  if (pTexObject == nullptr || pResDesc == nullptr || pTexDesc == nullptr || pResDesc->flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  if (pResViewDesc != nullptr) {
    NoteUnsupported("cuTexObjectCreate", "a resource view");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  wire::TextureCreateRequest request;
  wire::TextureCreateReply reply;
  if (CUresult result = DescribeResource(context, *pResDesc, &request); result != CUDA_SUCCESS)
    return result;
  for (int i = 0; i < 3; ++i) {
    const uint32_t mode = static_cast<uint32_t>(pTexDesc->addressMode[i]);
    if (mode > 0xFF) return CUDA_ERROR_INVALID_VALUE;
    request.modes |= mode << (8 * i);
  }
  request.filter = pTexDesc->filterMode;
  request.flags = pTexDesc->flags;
  request.anisotropy = pTexDesc->maxAnisotropy;
  request.border = std::as_bytes(std::span(pTexDesc->borderColor));
  if (CUresult result = Ask(context, request, &reply); result != CUDA_SUCCESS) return result;
  GetRuntime()->texture_objects.Add({context->device, reply.object, false},
                                    {context->id, *pResDesc, *pTexDesc});
  *pTexObject = reply.object;
  return CUDA_SUCCESS;
}

CUresult cuTexObjectDestroy(CUtexObject texObject) { return DestroyObject(texObject, false); }

CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* pResDesc, CUtexObject texObject) {
  return Give(texObject, false, pResDesc, &TextureRecord::resource);
}

CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC* pTexDesc, CUtexObject texObject) {
  return Give(texObject, false, pTexDesc, &TextureRecord::texture);
}

CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC*, CUtexObject) {
  // "If no resource view was specified", which is always.
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuSurfObjectCreate(CUsurfObject* pSurfObject, const CUDA_RESOURCE_DESC* pResDesc) {
  if (pSurfObject == nullptr || pResDesc == nullptr || pResDesc->resType != CU_RESOURCE_TYPE_ARRAY)
    return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  wire::TextureCreateRequest described;
  if (CUresult result = DescribeResource(context, *pResDesc, &described); result != CUDA_SUCCESS)
    return result;
  wire::SurfaceCreateRequest request;
  wire::SurfaceCreateReply reply;
  request.array = described.array;
  if (CUresult result = Ask(context, request, &reply); result != CUDA_SUCCESS) return result;
  GetRuntime()->texture_objects.Add({context->device, reply.object, true},
                                    {context->id, *pResDesc, {}});
  *pSurfObject = reply.object;
  return CUDA_SUCCESS;
}

CUresult cuSurfObjectDestroy(CUsurfObject surfObject) { return DestroyObject(surfObject, true); }

CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* pResDesc, CUsurfObject surfObject) {
  return Give(surfObject, true, pResDesc, &TextureRecord::resource);
}

}  // namespace consort::guest::calls
