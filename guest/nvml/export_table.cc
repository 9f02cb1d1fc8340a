// SPDX-License-Identifier: Apache-2.0
// guest/nvml/export_table.cc: the one private table that nvidia-smi asks for.
//
//   slot 0         the table's bytes
//   slot 81        a device's handle, by index
//   slots 213-215  processes of a device, with their names
//   slot 20, 197   resetting a device: NVML_ERROR_NOT_SUPPORTED
//   others         success; those that take a device and a count say that there is nothing
//
// nvidia-smi gives up a whole view when a slot that is not known here says anything but success,
// and reads as many entries as it had room for unless the count is set.
//
// Source: the description in NVIDIA's public mock of NVML (github.com/NVIDIA/k8s-test-infra,
// pkg/gpu/mocknvml, Apache-2.0), which was made by calling nvidia-smi 580.
#include <stdio.h>
#include <string.h>

#include <utility>

#include "guest/nvml/state.h"

namespace consort::nvml {
namespace {

constexpr uint8_t kTable[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};
constexpr size_t kSlots = 256;
constexpr size_t kReset = 20;
constexpr size_t kHandleByIndex = 81;
constexpr size_t kResetComplete = 197;
constexpr size_t kProcesses = 213;  // and the next two: graphics, MPS, which a vGPU has none of

// Linux maps nothing below (vm.mmap_min_addr); a number that is no pointer may be.
constexpr uintptr_t kLowestPointer = 65536;

struct ProcessEntry {
  uint32_t pid;
  uint64_t used_bytes;
  uint32_t gpu_instance;
  uint32_t compute_instance;
  uint64_t protected_bytes;
  char name[4096];
};
static_assert(sizeof(ProcessEntry) == 4128);

nvmlReturn_t Processes(nvmlDevice_t device, uint32_t* count, ProcessEntry* entries) {
  if (count == nullptr || entries == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  const StatusScope scope(StatusScope::Wanted::kFresh);
  if (scope.status == nullptr) return scope.result;
  uint32_t index = 0;
  if (!IndexOf(device, &index)) return NVML_ERROR_INVALID_ARGUMENT;
  uint32_t found = 0;
  for (uint32_t i = 0; i < scope.status->process_count && found < *count; ++i) {
    const wire::ProcessUse& process = scope.status->processes[i];
    if (process.device != index) continue;
    ProcessEntry& entry = entries[found++];
    entry = {process.pid, process.memory_bytes, UINT32_MAX, UINT32_MAX, 0, {}};
    snprintf(entry.name, sizeof(entry.name), "%s", process.application);
  }
  *count = found;
  return NVML_SUCCESS;
}

extern "C" nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(uint32_t index, nvmlDevice_t* device);

template <size_t slot>
nvmlReturn_t Slot(void* first, void* second, void* third) {
  if constexpr (slot == kHandleByIndex) {
    return nvmlDeviceGetHandleByIndex_v2(static_cast<uint32_t>(reinterpret_cast<uintptr_t>(first)),
                                         static_cast<nvmlDevice_t*>(second));
  } else if constexpr (slot == kProcesses) {
    return Processes(static_cast<nvmlDevice_t>(first), static_cast<uint32_t*>(second),
                     static_cast<ProcessEntry*>(third));
  } else if constexpr (slot == kReset || slot == kResetComplete) {
    return NotSupported("resetting a device");
  } else {
    uint32_t index = 0;
    const bool counts = IndexOf(static_cast<nvmlDevice_t>(first), &index) &&
                        reinterpret_cast<uintptr_t>(second) >= kLowestPointer;
    if (counts) *static_cast<uint32_t*>(second) = 0;
    return NVML_SUCCESS;
  }
}

struct Table {
  size_t bytes = sizeof(Table);
  nvmlReturn_t (*functions[kSlots - 1])(void*, void*, void*);
};

template <size_t... slots>
constexpr Table MakeTable(std::index_sequence<slots...>) {
  return {sizeof(Table), {&Slot<slots + 1>...}};
}

constexpr Table table = MakeTable(std::make_index_sequence<kSlots - 1>());

}  // namespace

extern "C" __attribute__((visibility("default"))) nvmlReturn_t nvmlInternalGetExportTable(
    const void** out, const void* id) {
  if (out == nullptr || id == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (memcmp(id, kTable, sizeof(kTable)) != 0) return NVML_ERROR_NOT_FOUND;
  *out = &table;
  return NVML_SUCCESS;
}

}  // namespace consort::nvml
