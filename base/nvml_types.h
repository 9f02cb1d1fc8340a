// SPDX-License-Identifier: Apache-2.0
// base/nvml_types.h: what we need of NVML's interface, under its own names: the guest's library has
// it, and workers ask NVIDIA's.
//
// Written from the NVML API Reference (docs.nvidia.com/deploy/nvml-api) and the layouts in NVIDIA's
// public bindings for Go (github.com/NVIDIA/go-nvml, Apache-2.0) and Python (pynvml, BSD).
// Versioned structs begin with a word that the caller fills: bytes | version << 24.
#ifndef CONSORT_BASE_NVML_TYPES_H_
#define CONSORT_BASE_NVML_TYPES_H_

#include <cstddef>
#include <cstdint>

extern "C" {

enum nvmlReturn_t : int32_t {
  NVML_SUCCESS = 0,
  NVML_ERROR_UNINITIALIZED = 1,
  NVML_ERROR_INVALID_ARGUMENT = 2,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_NO_PERMISSION = 4,
  NVML_ERROR_NOT_FOUND = 6,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
  NVML_ERROR_DRIVER_NOT_LOADED = 9,
  NVML_ERROR_TIMEOUT = 10,
  NVML_ERROR_LIB_RM_VERSION_MISMATCH = 18,
  NVML_ERROR_MEMORY = 20,
  NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
  NVML_ERROR_UNKNOWN = 999,
};

struct nvmlDevice_st;
using nvmlDevice_t = nvmlDevice_st*;

struct nvmlPciInfo_t {
  char busIdLegacy[16];
  uint32_t domain;
  uint32_t bus;
  uint32_t device;
  uint32_t pciDeviceId;
  uint32_t pciSubSystemId;
  char busId[32];
};
static_assert(sizeof(nvmlPciInfo_t) == 68);

struct nvmlPciInfoExt_t {
  uint32_t version;
  uint32_t domain;
  uint32_t bus;
  uint32_t device;
  uint32_t pciDeviceId;
  uint32_t pciSubSystemId;
  uint32_t baseClass;
  uint32_t subClass;
  char busId[32];
};
static_assert(sizeof(nvmlPciInfoExt_t) == 64);

struct nvmlMemory_t {
  uint64_t total;
  uint64_t free;
  uint64_t used;
};

struct nvmlMemory_v2_t {
  uint32_t version;
  uint64_t total;
  uint64_t reserved;
  uint64_t free;
  uint64_t used;
};
static_assert(sizeof(nvmlMemory_v2_t) == 40);

struct nvmlUtilization_t {
  uint32_t gpu;
  uint32_t memory;
};

struct nvmlProcessInfo_v1_t {
  uint32_t pid;
  uint64_t usedGpuMemory;
};

struct nvmlProcessInfo_v2_t {
  uint32_t pid;
  uint64_t usedGpuMemory;
  uint32_t gpuInstanceId;
  uint32_t computeInstanceId;
};
static_assert(sizeof(nvmlProcessInfo_v2_t) == 24);

struct nvmlProcessDetail_v1_t {
  uint32_t pid;
  uint64_t usedGpuMemory;
  uint32_t gpuInstanceId;
  uint32_t computeInstanceId;
  uint64_t usedGpuCcProtectedMemory;
};

struct nvmlProcessDetailList_t {
  uint32_t version;
  uint32_t mode;
  uint32_t numProcArrayEntries;
  nvmlProcessDetail_v1_t* procArray;
};
static_assert(sizeof(nvmlProcessDetailList_t) == 24);

struct nvmlProcessUtilizationSample_t {
  uint32_t pid;
  uint64_t timeStamp;
  uint32_t smUtil;
  uint32_t memUtil;
  uint32_t encUtil;
  uint32_t decUtil;
};

struct nvmlFieldValue_t {
  uint32_t fieldId;
  uint32_t scopeId;
  int64_t timestamp;
  int64_t latencyUsec;
  uint32_t valueType;
  nvmlReturn_t nvmlReturn;
  uint64_t value;
};
static_assert(sizeof(nvmlFieldValue_t) == 40);

// Links, and fields of theirs, whose `scopeId` is a link's number where one is meant.
enum : uint32_t {
  NVML_NVLINK_CAP_P2P_SUPPORTED = 0,
  NVML_NVLINK_CAP_P2P_ATOMICS = 2,
  NVML_NVLINK_CAP_VALID = 5,
  NVML_NVLINK_CAP_COUNT = 6,
  NVML_NVLINK_DEVICE_TYPE_GPU = 0,
  NVML_NVLINK_DEVICE_TYPE_IBMNPU = 1,
  NVML_NVLINK_DEVICE_TYPE_SWITCH = 2,
  NVML_NVLINK_DEVICE_TYPE_UNKNOWN = 255,
  NVML_FI_DEV_NVLINK_SPEED_MBPS_L0 = 84,  // and so on to L5
  NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON = 90,
  NVML_FI_DEV_NVLINK_LINK_COUNT = 91,
  NVML_FI_DEV_NVLINK_SPEED_MBPS_L6 = 132,  // and so on to L11
  NVML_FI_DEV_NVLINK_GET_SPEED = 164,
  NVML_FI_DEV_NVLINK_GET_STATE = 165,
  NVML_FI_DEV_NVLINK_GET_VERSION = 166,
  NVML_VALUE_TYPE_UNSIGNED_INT = 1,
};

struct nvmlUUID_t {
  uint32_t version;
  uint32_t type;
  char value[41];
};
static_assert(sizeof(nvmlUUID_t) == 52);

struct nvmlGpmSupport_t {
  uint32_t version;
  uint32_t isSupportedDevice;
};

}  // extern "C"

#endif  // CONSORT_BASE_NVML_TYPES_H_
