// SPDX-License-Identifier: Apache-2.0
// guest/nvml/device.cc: what NVML says of one device: names, memory, use, processes. How they are
// connected: links.cc.
//
// A vGPU is the board as CUDA sees it, with the memory and the processes of this tenant. What
// belongs to the physical board (temperature, power, clocks, counters) is not answered: stubs.cc.
#include <cuda.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "guest/nvml/pci_address.h"
#include "guest/nvml/state.h"

namespace consort::nvml {
namespace {

// Source: NVML API Reference, constants.
constexpr uint32_t kNotApplicable = 0xFFFFFFFF;  // gpuInstanceId of what is no MIG instance
constexpr uint32_t kComputeModeDefault = 0;
constexpr uint32_t kUuidTypeAscii = 1;
constexpr uint32_t kUuidTypeBinary = 2;

using Wanted = StatusScope::Wanted;

constexpr int kUuidTextBytes = 41;

void FormatUuid(const wire::DeviceSnapshot& snapshot, char (&text)[kUuidTextBytes]) {
  char* at = text + sprintf(text, "GPU-");
  for (int i = 0; i < 16; ++i) {
    at += sprintf(at, "%02x", snapshot.uuid[i]);
    if (i == 3 || i == 5 || i == 7 || i == 9) *at++ = '-';
  }
  *at = '\0';
}

nvmlReturn_t Attribute(nvmlDevice_t device, int attribute, uint32_t* out) {
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return WithDevice(device, Wanted::kAny, [&](const Status& status, uint32_t index) {
    const wire::DeviceSnapshot& snapshot = status.devices[index];
    if (snapshot.attribute_known[attribute] == 0) return NVML_ERROR_NOT_SUPPORTED;
    *out = static_cast<uint32_t>(snapshot.attributes[attribute]);
    return NVML_SUCCESS;
  });
}

// A number that every device has alike.
nvmlReturn_t Constant(nvmlDevice_t device, uint32_t value, uint32_t* out) {
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return WithDevice(device, Wanted::kAny, [&](const Status&, uint32_t) {
    *out = value;
    return NVML_SUCCESS;
  });
}

nvmlReturn_t FillPid(const wire::ProcessUse& process, nvmlProcessInfo_v1_t* out) {
  *out = {process.pid, process.memory_bytes};
  return NVML_SUCCESS;
}

nvmlReturn_t FillPid(const wire::ProcessUse& process, nvmlProcessInfo_v2_t* out) {
  *out = {process.pid, process.memory_bytes, kNotApplicable, kNotApplicable};
  return NVML_SUCCESS;
}

nvmlReturn_t FillPid(const wire::ProcessUse& process, nvmlProcessDetail_v1_t* out) {
  *out = {process.pid, process.memory_bytes, kNotApplicable, kNotApplicable, 0};
  return NVML_SUCCESS;
}

// The device's processes into `infos`, which holds *count. A null `infos` with a *count of 0 asks
// how many there are.
template <typename Info>
nvmlReturn_t Processes(nvmlDevice_t device, uint32_t* count, Info* infos) {
  if (count == nullptr || (infos == nullptr && *count != 0)) return NVML_ERROR_INVALID_ARGUMENT;
  return WithDevice(device, Wanted::kFresh, [&](const Status& status, uint32_t index) {
    uint32_t found = 0;
    for (uint32_t i = 0; i < status.process_count; ++i) {
      if (status.processes[i].device != index) continue;
      if (found < *count) FillPid(status.processes[i], &infos[found]);
      ++found;
    }
    const uint32_t room = *count;
    *count = found;
    return found <= room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
  });
}

// Of kinds that a vGPU does not have (graphics, MPS).
nvmlReturn_t NoProcesses(nvmlDevice_t device, uint32_t* count) {
  return Constant(device, 0, count);
}

// The first device that `matches`.
template <typename Matches>
nvmlReturn_t FindDevice(nvmlDevice_t* device, Matches matches) {
  if (device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const StatusScope scope(Wanted::kAny);
  if (scope.status == nullptr) return scope.result;
  for (uint32_t i = 0; i < scope.status->device_count; ++i) {
    if (!matches(scope.status->devices[i])) continue;
    *device = HandleOf(i);
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

template <typename Struct>
constexpr uint32_t VersionOf(uint32_t version) {
  return static_cast<uint32_t>(sizeof(Struct)) | version << 24;
}

}  // namespace

// --- Which devices there are

NVML_API nvmlReturn_t nvmlDeviceGetCount_v2(uint32_t* deviceCount) {
  if (deviceCount == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const StatusScope scope(Wanted::kAny);
  if (scope.status == nullptr) return scope.result;
  *deviceCount = scope.status->device_count;
  return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetCount(uint32_t* deviceCount) {
  return nvmlDeviceGetCount_v2(deviceCount);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(uint32_t index, nvmlDevice_t* device) {
  if (device == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const StatusScope scope(Wanted::kAny);
  if (scope.status == nullptr) return scope.result;
  if (index >= scope.status->device_count) return NVML_ERROR_INVALID_ARGUMENT;
  *device = HandleOf(index);
  return NVML_SUCCESS;
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByIndex(uint32_t index, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device) {
  if (uuid == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return FindDevice(device, [&](const wire::DeviceSnapshot& snapshot) {
    char text[kUuidTextBytes];
    FormatUuid(snapshot, text);
    return strcasecmp(text, uuid) == 0;
  });
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t* uuid, nvmlDevice_t* device) {
  if (uuid == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (uuid->version != VersionOf<nvmlUUID_t>(1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (uuid->type == kUuidTypeBinary) {
    return FindDevice(device, [&](const wire::DeviceSnapshot& snapshot) {
      return memcmp(snapshot.uuid, uuid->value, sizeof(snapshot.uuid)) == 0;
    });
  }
  if (uuid->type != kUuidTypeAscii) return NVML_ERROR_INVALID_ARGUMENT;
  char text[sizeof(uuid->value) + 1] = {};
  memcpy(text, uuid->value, sizeof(uuid->value));
  return nvmlDeviceGetHandleByUUID(text, device);
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* pciBusId, nvmlDevice_t* device) {
  PciAddress wanted;
  if (pciBusId == nullptr || !ParsePciAddress(pciBusId, &wanted)) {
    return NVML_ERROR_INVALID_ARGUMENT;
  }
  return FindDevice(device, [&](const wire::DeviceSnapshot& snapshot) {
    PciAddress address;
    return ParsePciAddress(snapshot.pci_bus_id, &address) && address == wanted;
  });
}

NVML_API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char* pciBusId, nvmlDevice_t* device) {
  return nvmlDeviceGetHandleByPciBusId_v2(pciBusId, device);
}

NVML_API nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, uint32_t* out) {
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return WithDevice(device, Wanted::kAny, [&](const Status&, uint32_t index) {
    *out = index;
    return NVML_SUCCESS;
  });
}

// --- What a device is

NVML_API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, uint32_t length) {
  return WithDevice(device, Wanted::kAny, [&](const Status& status, uint32_t index) {
    return CopyText(status.devices[index].name, name, length);
  });
}

NVML_API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, uint32_t length) {
  return WithDevice(device, Wanted::kAny, [&](const Status& status, uint32_t index) {
    char text[kUuidTextBytes];
    FormatUuid(status.devices[index], text);
    return CopyText(text, uuid, length);
  });
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* pci) {
  if (pci == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return WithDevice(device, Wanted::kAny, [&](const Status& status, uint32_t index) {
    PciAddress address;
    if (!ParsePciAddress(status.devices[index].pci_bus_id, &address)) return NVML_ERROR_UNKNOWN;
    FillPciInfo(address, pci);
    return NVML_SUCCESS;
  });
}

// The first versions of the struct are the last one without busId.
NVML_API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, void* pci) {
  if (pci == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  nvmlPciInfo_t whole;
  const nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(device, &whole);
  if (result == NVML_SUCCESS) memcpy(pci, &whole, offsetof(nvmlPciInfo_t, busId));
  return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, void* pci) {
  return nvmlDeviceGetPciInfo_v2(device, pci);
}

NVML_API nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t* pci) {
  if (pci == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (pci->version != VersionOf<nvmlPciInfoExt_t>(1)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  return WithDevice(device, Wanted::kAny, [&](const Status& status, uint32_t index) {
    PciAddress address;
    if (!ParsePciAddress(status.devices[index].pci_bus_id, &address)) return NVML_ERROR_UNKNOWN;
    pci->baseClass = 3;  // display controller; PCI Code and ID Assignment Specification
    pci->subClass = 2;   // 3D controller
    FillPciInfo(address, pci);
    return NVML_SUCCESS;
  });
}

NVML_API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major,
                                                         int* minor) {
  if (major == nullptr || minor == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return WithDevice(device, Wanted::kAny, [&](const Status& status, uint32_t index) {
    const wire::DeviceSnapshot& snapshot = status.devices[index];
    *major = snapshot.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR];
    *minor = snapshot.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR];
    return NVML_SUCCESS;
  });
}

// Source: NVML API Reference, NVML_DEVICE_ARCH_*; CUDA C++ Programming Guide, compute capabilities.
NVML_API nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, uint32_t* arch) {
  if (arch == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  int major = 0;
  int minor = 0;
  const nvmlReturn_t result = nvmlDeviceGetCudaComputeCapability(device, &major, &minor);
  if (result != NVML_SUCCESS) return result;
  switch (major) {
    case 5:
      *arch = 3;  // Maxwell
      break;
    case 6:
      *arch = 4;  // Pascal
      break;
    case 7:
      *arch = minor < 5 ? 5 : 6;  // Volta, Turing
      break;
    case 8:
      *arch = minor < 9 ? 7 : 8;  // Ampere, Ada
      break;
    case 9:
      *arch = 9;  // Hopper
      break;
    case 10:
    case 11:
    case 12:
      *arch = 10;  // Blackwell
      break;
    default:
      *arch = 0xFFFFFFFF;  // NVML_DEVICE_ARCH_UNKNOWN
  }
  return NVML_SUCCESS;
}

// By the name that the board has. Source: NVML API Reference, nvmlBrandType_t.
NVML_API nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, uint32_t* type) {
  if (type == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return WithDevice(device, Wanted::kAny, [&](const Status& status, uint32_t index) {
    static constexpr struct {
      const char* word;
      uint32_t brand;
    } kBrands[] = {{"GeForce RTX", 15}, {"GeForce", 5}, {"Quadro RTX", 12}, {"Quadro", 1},
                   {"Tesla", 2},        {"RTX", 13},    {"NVIDIA", 14}};
    *type = 0;  // NVML_BRAND_UNKNOWN
    for (const auto& known : kBrands) {
      if (strstr(status.devices[index].name, known.word) == nullptr) continue;
      *type = known.brand;
      break;
    }
    return NVML_SUCCESS;
  });
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, uint32_t* busWidth) {
  return Attribute(device, CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, busWidth);
}

NVML_API nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, uint32_t* current,
                                           uint32_t* pending) {
  if (pending == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const nvmlReturn_t result = Attribute(device, CU_DEVICE_ATTRIBUTE_ECC_ENABLED, current);
  if (result == NVML_SUCCESS) *pending = *current;
  return result;
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, uint32_t* mode) {
  return Constant(device, kComputeModeDefault, mode);
}

NVML_API nvmlReturn_t nvmlDeviceGetMultiGpuBoard(nvmlDevice_t device, uint32_t* multiGpuBool) {
  return Constant(device, 0, multiGpuBool);
}

NVML_API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, uint32_t* count) {
  return Constant(device, 0, count);
}

NVML_API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, uint32_t* isMigDevice) {
  return Constant(device, 0, isMigDevice);
}

// --- What is in use

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory) {
  if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return WithDevice(device, Wanted::kFresh, [&](const Status& status, uint32_t index) {
    const wire::DeviceUse& use = status.uses[index];
    *memory = {use.total_bytes, use.free_bytes, use.used_bytes};
    return NVML_SUCCESS;
  });
}

NVML_API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory) {
  if (memory == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (memory->version != VersionOf<nvmlMemory_v2_t>(2)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  return WithDevice(device, Wanted::kFresh, [&](const Status& status, uint32_t index) {
    const wire::DeviceUse& use = status.uses[index];
    // What others have of the device is neither this tenant's nor to be had.
    const uint64_t known = use.free_bytes + use.used_bytes;
    const uint64_t reserved = use.total_bytes > known ? use.total_bytes - known : 0;
    *memory = {memory->version, use.total_bytes, reserved, use.free_bytes, use.used_bytes};
    return NVML_SUCCESS;
  });
}

// `memory`, the time in which device memory was read or written, is not measured and stays 0.
NVML_API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device,
                                                    nvmlUtilization_t* utilization) {
  if (utilization == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return WithDevice(device, Wanted::kFresh, [&](const Status& status, uint32_t index) {
    *utilization = {status.uses[index].busy_percent, 0};
    return NVML_SUCCESS;
  });
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device,
                                                              uint32_t* infoCount,
                                                              nvmlProcessInfo_v2_t* infos) {
  return Processes(device, infoCount, infos);
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device,
                                                              uint32_t* infoCount,
                                                              nvmlProcessInfo_v2_t* infos) {
  return Processes(device, infoCount, infos);
}

NVML_API nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, uint32_t* infoCount,
                                                           nvmlProcessInfo_v1_t* infos) {
  return Processes(device, infoCount, infos);
}

NVML_API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device,
                                                               uint32_t* infoCount, void*) {
  return NoProcesses(device, infoCount);
}

NVML_API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device,
                                                               uint32_t* infoCount, void*) {
  return NoProcesses(device, infoCount);
}

NVML_API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device,
                                                            uint32_t* infoCount, void*) {
  return NoProcesses(device, infoCount);
}

NVML_API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device,
                                                                 uint32_t* infoCount, void*) {
  return NoProcesses(device, infoCount);
}

NVML_API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device,
                                                                 uint32_t* infoCount, void*) {
  return NoProcesses(device, infoCount);
}

NVML_API nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device,
                                                              uint32_t* infoCount, void*) {
  return NoProcesses(device, infoCount);
}

NVML_API nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                            nvmlProcessDetailList_t* list) {
  if (list == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (list->version != VersionOf<nvmlProcessDetailList_t>(1)) {
    return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  }
  if (list->mode > 2) return NVML_ERROR_INVALID_ARGUMENT;  // compute, graphics, MPS
  if (list->mode != 0) return NoProcesses(device, &list->numProcArrayEntries);
  return Processes(device, &list->numProcArrayEntries, list->procArray);
}

// One sample a process, of the last second. `lastSeenTimeStamp`, in microseconds since 1970, asks
// for later ones only; these are always of now.
NVML_API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                                      nvmlProcessUtilizationSample_t* utilization,
                                                      uint32_t* processSamplesCount,
                                                      unsigned long long) {
  if (processSamplesCount == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return WithDevice(device, Wanted::kFresh, [&](const Status& status, uint32_t index) {
    const uint64_t now = WallClockMicroseconds();
    const uint32_t room = utilization != nullptr ? *processSamplesCount : 0;
    uint32_t found = 0;
    for (uint32_t i = 0; i < status.process_count; ++i) {
      const wire::ProcessUse& process = status.processes[i];
      if (process.device != index) continue;
      if (found < room) utilization[found] = {process.pid, now, process.busy_percent, 0, 0, 0};
      ++found;
    }
    *processSamplesCount = found;
    if (found == 0) return NVML_ERROR_NOT_FOUND;
    return found <= room ? NVML_SUCCESS : NVML_ERROR_INSUFFICIENT_SIZE;
  });
}

// --- What a vGPU has none of

NVML_API nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device,
                                                       unsigned long long* eventTypes) {
  if (eventTypes == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  return WithDevice(device, Wanted::kAny, [&](const Status&, uint32_t) {
    *eventTypes = 0;
    return NVML_SUCCESS;
  });
}

NVML_API nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t* support) {
  return Constant(device, 0, support != nullptr ? &support->isSupportedDevice : nullptr);
}

}  // namespace consort::nvml
