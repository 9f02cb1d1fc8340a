// SPDX-License-Identifier: Apache-2.0
#include "host/session/worker_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/pages.h"
#include "base/status_macros.h"
#include "host/limits.h"

namespace consort::host {

bool IsSticky(CUresult result) {
  switch (result) {
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_SYSTEM_NOT_READY:
      return true;
    default:
      return false;
  }
}

void DeviceHealth::Poison(CUresult result, const std::string& reason) {
  CUresult healthy = CUDA_SUCCESS;
  if (!result_.compare_exchange_strong(healthy, result, std::memory_order_relaxed)) return;
  Retire(reason);
}

void DeviceHealth::Retire(const std::string& reason) {
  if (!retired_.exchange(true, std::memory_order_relaxed)) on_retired_(reason);
}

CUresult WorkerDevice::Register(std::span<std::byte> memory, unsigned int flags) const {
  // The driver holds everybody's calls up while it gives memory its pages: 23 ms for 64 MiB on an
  // H200, 4 where they are there.
  if (registering_gives_pages_) Populate(memory.data(), memory.size());
  return driver_.cuMemHostRegister_v2(memory.data(), memory.size(), flags);
}

CUresult WorkerDevice::MakePinned(Bytes bytes, std::byte** memory) const {
  std::byte* const made = registering_gives_pages_ ? MapLargePages(bytes) : MapAligned(bytes);
  if (made == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = Register({made, bytes}, CU_MEMHOSTREGISTER_PORTABLE);
  if (result == CUDA_SUCCESS) {
    *memory = made;
  } else {
    munmap(made, bytes);
  }
  return result;
}

void WorkerDevice::FreePinned(std::byte* memory, Bytes bytes) const {
  driver_.cuMemHostUnregister(memory);
  munmap(memory, bytes);
}

absl::StatusOr<std::unique_ptr<WorkerDevice>> WorkerDevice::Open(const device::LoadedDriver& driver,
                                                                 uint32_t index) {
  if (index >= driver.device_count) {
    return absl::NotFoundError(
        absl::StrCat("no device ", index, "; ", driver.library, " has ", driver.device_count));
  }
  std::unique_ptr<WorkerDevice> opened(new WorkerDevice(driver));
  CUresult result = driver.table.cuDeviceGet(&opened->device_, static_cast<int>(index));
  if (result == CUDA_SUCCESS) {
    result = driver.table.cuDevicePrimaryCtxRetain(&opened->context_, opened->device_);
  }
  if (result == CUDA_SUCCESS) result = opened->MakeCurrent();
  if (result != CUDA_SUCCESS) {
    return absl::UnavailableError(
        absl::StrCat("opening device ", index, ": ", device::ResultName(driver.table, result)));
  }
  RETURN_IF_ERROR(opened->ReadSnapshot());
  opened->FindPeers(driver.device_count);
  return opened;
}

// What the driver does not tell is not there.
void WorkerDevice::FindPeers(uint32_t device_count) {
  if (driver_.cuMemExportToShareableHandle == nullptr ||
      driver_.cuMemImportFromShareableHandle == nullptr ||
      driver_.cuDeviceCanAccessPeer == nullptr) {
    return;
  }
  for (uint32_t index = 0; index < device_count; ++index) {
    CUdevice other = 0;
    CUuuid uuid = {};
    int can = 0;
    if (driver_.cuDeviceGet(&other, static_cast<int>(index)) == CUDA_SUCCESS && other != device_ &&
        driver_.cuDeviceCanAccessPeer(&can, other, device_) == CUDA_SUCCESS && can != 0 &&
        driver_.cuDeviceGetUuid_v2(&uuid, other) == CUDA_SUCCESS) {
      reached_by_.push_back(uuid);
    }
    if (other != device_ && index < kDevicesMax &&
        driver_.cuDeviceCanAccessPeer(&can, device_, other) == CUDA_SUCCESS && can != 0) {
      reaches_ |= uint64_t{1} << index;
      int atomics = 0;
      if (driver_.cuDeviceGetP2PAttribute != nullptr &&
          driver_.cuDeviceGetP2PAttribute(&atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
                                          device_, other) == CUDA_SUCCESS &&
          atomics != 0) {
        reaches_atomically_ |= uint64_t{1} << index;
      }
    }
  }
}

bool WorkerDevice::ReachedBy(const uint8_t (&uuid)[16]) const {
  return std::any_of(reached_by_.begin(), reached_by_.end(), [&](const CUuuid& one) {
    return std::memcmp(one.bytes, uuid, sizeof(uuid)) == 0;
  });
}

WorkerDevice::~WorkerDevice() {
  if (context_ == nullptr) return;
  shared_libraries_.reset();
  const CUresult released = driver_.cuDevicePrimaryCtxRelease_v2(device_);
  LOG_IF(WARNING, released != CUDA_SUCCESS)
      << "releasing the device: " << device::ResultName(driver_, released);
}

absl::Status WorkerDevice::ReadSnapshot() {
  CUuuid uuid = {};
  size_t total = 0;
  CUresult result = driver_.cuDeviceGetName(snapshot_.name, sizeof(snapshot_.name), device_);
  if (result == CUDA_SUCCESS) result = driver_.cuDeviceGetUuid_v2(&uuid, device_);
  if (result == CUDA_SUCCESS) result = driver_.cuDeviceTotalMem_v2(&total, device_);
  if (result == CUDA_SUCCESS) {
    result =
        driver_.cuDeviceGetPCIBusId(snapshot_.pci_bus_id, sizeof(snapshot_.pci_bus_id), device_);
  }
  if (result == CUDA_SUCCESS) {
    result = driver_.cuCtxGetStreamPriorityRange(&snapshot_.stream_priority_least,
                                                 &snapshot_.stream_priority_greatest);
  }
  if (result != CUDA_SUCCESS) {
    return absl::UnavailableError(
        absl::StrCat("reading the device's properties: ", device::ResultName(driver_, result)));
  }
  std::memcpy(snapshot_.uuid, uuid.bytes, sizeof(snapshot_.uuid));
  snapshot_.total_bytes = total;
  for (uint32_t attribute = 1; attribute < wire::kDeviceAttributesMax; ++attribute) {
    int value = 0;
    if (driver_.cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(attribute), device_) ==
        CUDA_SUCCESS) {
      snapshot_.attributes[attribute] = value;
      snapshot_.attribute_known[attribute] = 1;
    }
  }
  return absl::OkStatus();
}

}  // namespace consort::host
