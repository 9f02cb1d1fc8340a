// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/device.h: one CPU device: its memory account and its unchanging properties.
//
// Made in cuInit, never destroyed. Thread safe.
#ifndef CONSORT_DEVICE_CPU_DRIVER_DEVICE_H_
#define CONSORT_DEVICE_CPU_DRIVER_DEVICE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "base/units.h"
#include "device/cpu/driver/cuda_api.h"
#include "device/cpu/driver/device_pace.h"
#include "device/cpu/driver/options.h"

namespace consort::cpu {

class Device {
 public:
  Device(int index, DeviceOptions options)
      : index_(index), options_(std::move(options)), pace_(options_.pace) {}
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int index() const { return index_; }
  const std::string& name() const { return options_.name; }
  Bytes memory_bytes() const { return options_.memory; }
  uint32_t links() const { return options_.links; }
  // CPUs that its kernels run on.
  int MultiprocessorCount() const;
  DevicePace& pace() { return pace_; }
  Bytes free_bytes() const;

  // Takes `bytes` from the device's memory; false if there is not so much left.
  bool TakeMemory(Bytes bytes);
  // Accounts for memory that exists already, whatever is left: an import from another process.
  void CountMemory(Bytes bytes);
  void ReturnMemory(Bytes bytes);

  // As configured, else first 12 bytes "ConsortCPU" and two zeros, then the index, little-endian:
  // the same in every process, so that an application finds the device it was bound to.
  CUuuid Uuid() const;
  // "0000:C5:00.0", the bus number different for each device.
  std::string PciBusId() const;
  // Value of attribute `attribute`. CUDA_ERROR_INVALID_VALUE: unknown.
  CUresult Attribute(CUdevice_attribute attribute, int* value) const;

  // The primary context's handle: fixed from cuInit on, whether the context is active or not.
  CUcontext primary = nullptr;
  // Retain count and flags of the primary context.
  absl::Mutex primary_mutex;
  int primary_retain_count ABSL_GUARDED_BY(primary_mutex) = 0;
  unsigned int primary_flags ABSL_GUARDED_BY(primary_mutex) = 0;

 private:
  const int index_;
  const DeviceOptions options_;
  DevicePace pace_;
  std::atomic<Bytes> used_bytes_{0};
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_DRIVER_DEVICE_H_
