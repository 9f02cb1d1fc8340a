// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/pointer_api.cc: what the driver knows of an address.
#include <cstring>
#include <optional>

#include "device/cpu/driver/limits.h"
#include "device/cpu/driver/state.h"

namespace consort::cpu {
namespace {

// Bytes of an attribute's value, or 0 if the attribute is unknown.
// Source: CUDA driver API, cuPointerGetAttribute.
size_t AttributeBytes(CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return 8;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return 4;
    // Booleans are unsigned int.
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return 4;
    default:
      return 0;
  }
}

unsigned int AccessFlags(const Range& range) {
  if (range.writable) return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
  return range.readable ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ
                        : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
}

// The value of `attribute` for `address`, which lies in `range`.
// CUDA_ERROR_NOT_SUPPORTED: an attribute that this device has not.
CUresult AttributeValue(State& state, const Range& range, uintptr_t address,
                        CUpointer_attribute attribute, uint64_t* value) {
  // An address in a window: the range is the reservation, the mapping is the mapping.
  const auto reservation = state.address_space.FindReservation(address);
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      *value = reinterpret_cast<uint64_t>(range.context);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *value = range.on_device() ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      *value = address;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (range.on_device()) return CUDA_ERROR_INVALID_VALUE;
      *value = address;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      *value = range.sync_memops;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      *value = range.id;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      *value = range.physical != nullptr ? range.physical->handle() : range.id;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *value = static_cast<uint64_t>(range.device->index());
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      *value = reservation.has_value() ? reservation->first : range.base;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      *value = reservation.has_value() ? reservation->second : range.bytes;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      *value = range.base;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      *value = range.bytes;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED:
      *value = 1;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      *value = range.physical != nullptr && range.physical->exportable()
                   ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                   : CU_MEM_HANDLE_TYPE_NONE;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      *value = AccessFlags(range);
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      *value = 0;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

}  // namespace consort::cpu

using namespace consort::cpu;  // the entry points are global: their prototypes are cuda.h's

extern "C" {

CUresult CUDAAPI cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  return WithState([&](State& state) {
    if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_POINTER_ATTRIBUTE_P2P_TOKENS) return CUDA_ERROR_NOT_SUPPORTED;
    const size_t bytes = AttributeBytes(attribute);
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    const std::optional<Range> range = state.address_space.Find(ptr);
    // Memory that the driver knows nothing of: an error that libraries branch on.
    if (!range.has_value()) return CUDA_ERROR_INVALID_VALUE;
    uint64_t value = 0;
    const CUresult result = AttributeValue(state, *range, ptr, attribute, &value);
    if (result == CUDA_SUCCESS) std::memcpy(data, &value, bytes);
    return result;
  });
}

CUresult CUDAAPI cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute* attributes,
                                        void** data, CUdeviceptr ptr) {
  return WithState([&](State& state) {
    if (numAttributes == 0 || attributes == nullptr || data == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned int i = 0; i < numAttributes; ++i) {
      if (AttributeBytes(attributes[i]) == 0) return CUDA_ERROR_INVALID_VALUE;
    }
    const std::optional<Range> range = state.address_space.Find(ptr);
    for (unsigned int i = 0; i < numAttributes; ++i) {
      if (data[i] == nullptr) continue;
      // Unlike the single query this one succeeds for unknown memory, with neutral values.
      // Source: CUDA driver API, cuPointerGetAttributes.
      uint64_t value = 0;
      if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) value = ~uint64_t{1};  // -2
      if (range.has_value() &&
          AttributeValue(state, *range, ptr, attributes[i], &value) != CUDA_SUCCESS) {
        value = 0;
      }
      std::memcpy(data[i], &value, AttributeBytes(attributes[i]));
    }
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
