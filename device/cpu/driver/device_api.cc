// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/device_api.cc: the driver API's device management.
#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "device/cpu/driver/limits.h"
#include "device/cpu/driver/state.h"

namespace consort::cpu {
namespace {

// Runs body(device) for the device of that ordinal.
template <typename Body>
CUresult WithDevice(CUdevice ordinal, Body&& body) {
  return WithState([&](State& state) {
    if (ordinal < 0 || static_cast<size_t>(ordinal) >= state.devices.size()) {
      return CUDA_ERROR_INVALID_DEVICE;
    }
    return body(*state.devices[ordinal]);
  });
}

// Copies `text` and its NUL to `out`, cut off at `bytes`.
void CopyText(std::string_view text, char* out, int bytes) {
  const size_t count = std::min(text.size(), static_cast<size_t>(bytes) - 1);
  std::memcpy(out, text.data(), count);
  out[count] = '\0';
}

}  // namespace

}  // namespace consort::cpu

using namespace consort::cpu;  // the entry points are global: their prototypes are cuda.h's

extern "C" {

CUresult CUDAAPI cuDeviceGetCount(int* count) {
  return WithState([&](State& state) {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<int>(state.devices.size());
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGet(CUdevice* device, int ordinal) {
  return WithDevice(ordinal, [&](Device& found) {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *device = found.index();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetName(char* name, int len, CUdevice dev) {
  return WithDevice(dev, [&](Device& device) {
    if (name == nullptr || len <= 0) return CUDA_ERROR_INVALID_VALUE;
    CopyText(device.name(), name, len);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice dev) {
  return WithDevice(dev, [&](Device& device) {
    if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *uuid = device.Uuid();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetUuid(CUuuid* uuid, CUdevice dev) {
  return cuDeviceGetUuid_v2(uuid, dev);
}

CUresult CUDAAPI cuDeviceGetLuid(char*, unsigned int*, CUdevice dev) {
  // A LUID exists on Windows only.
  return WithDevice(dev, [](Device&) { return CUDA_ERROR_NOT_SUPPORTED; });
}

CUresult CUDAAPI cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev) {
  return WithDevice(dev, [&](Device& device) {
    if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *bytes = device.memory_bytes();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev) {
  return WithDevice(dev, [&](Device& device) {
    if (pi == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return device.Attribute(attrib, pi);
  });
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char* pciBusId, int len, CUdevice dev) {
  return WithDevice(dev, [&](Device& device) {
    const std::string id = device.PciBusId();
    if (pciBusId == nullptr || len <= 0) return CUDA_ERROR_INVALID_VALUE;
    CopyText(id, pciBusId, len);
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuDeviceCanAccessPeer(int* canAccessPeer, CUdevice dev, CUdevice peerDev) {
  return WithDevice(dev, [&](Device& device) {
    return WithDevice(peerDev, [&](Device& peer) {
      if (canAccessPeer == nullptr) return CUDA_ERROR_INVALID_VALUE;
      // All devices are this process's memory; a device is not its own peer.
      *canAccessPeer = &device != &peer;
      return CUDA_SUCCESS;
    });
  });
}

CUresult CUDAAPI cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attrib,
                                         CUdevice srcDevice, CUdevice dstDevice) {
  return WithDevice(srcDevice, [&](Device& source) {
    return WithDevice(dstDevice, [&](Device& destination) {
      if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
      if (&source == &destination) return CUDA_ERROR_INVALID_DEVICE;
      switch (attrib) {
        case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
        case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
          *value = 1;
          return CUDA_SUCCESS;
        case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
        case CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED:
          *value = 0;
          return CUDA_SUCCESS;
        default:
          return CUDA_ERROR_INVALID_VALUE;
      }
    });
  });
}

}  // extern "C"
