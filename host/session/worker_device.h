// SPDX-License-Identifier: Apache-2.0
// host/session/worker_device.h: the one device of a worker: its primary context, its snapshot and
// its health.
#ifndef CONSORT_HOST_SESSION_WORKER_DEVICE_H_
#define CONSORT_HOST_SESSION_WORKER_DEVICE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "device/driver/board_links.h"
#include "device/driver/driver_loader.h"
#include "host/limits.h"
#include "host/session/exports.h"
#include "host/session/loaded_library.h"
#include "host/session/shared_output.h"
#include "host/session/vigil.h"
#include "vmsock/wire/handshake.h"

namespace consort::host {

// Whether a result says that the device context is of no use any more: every later call in this
// process fails, whoever makes it. Source: CUDA driver API, CUresult ("must be terminated and
// relaunched"); measured: contexts of the same process go with it.
bool IsSticky(CUresult result);

// The health of a worker's device context, shared by its sessions. Thread safe.
class DeviceHealth {
 public:
  // `on_retired` is called once, on the thread that noticed.
  explicit DeviceHealth(std::function<void(const std::string& reason)> on_retired)
      : on_retired_(std::move(on_retired)) {}

  // The process should take no new sessions and end with its last one; those that it has go on.
  void Retire(const std::string& reason);
  // The context is broken, with the result that every session gets from now on. Retires too.
  void Poison(CUresult result, const std::string& reason);

  // CUDA_SUCCESS, or what Poison was told first.
  CUresult result() const { return result_.load(std::memory_order_relaxed); }
  bool retired() const { return retired_.load(std::memory_order_relaxed); }

 private:
  const std::function<void(const std::string&)> on_retired_;
  // Relaxed: the values alone matter, nothing is published with them.
  std::atomic<CUresult> result_{CUDA_SUCCESS};
  std::atomic<bool> retired_{false};
};

class WorkerDevice {
 public:
  // Retains the primary context of device `index` and reads what guests are told of it.
  static absl::StatusOr<std::unique_ptr<WorkerDevice>> Open(const device::LoadedDriver& driver,
                                                            uint32_t index);
  // Releases the context; the driver may wait for kernels.
  ~WorkerDevice();

  const device::DriverTable& driver() const { return driver_; }
  const device::AllocationNotes& allocation_notes() const { return notes_; }
  // Catches what the driver prints for all sessions; null: it tells them apart, or nobody cares.
  // Set before there are sessions.
  void set_shared_output(std::unique_ptr<SharedOutput> shared) {
    shared_output_ = std::move(shared);
  }
  SharedOutput* shared_output() const { return shared_output_.get(); }
  device::SetStreamOutput* set_stream_output() const { return set_stream_output_; }
  device::SetManagedMemory* set_managed_memory() const { return set_managed_memory_; }
  CUdevice device() const { return device_; }
  CUcontext context() const { return context_; }
  const wire::DeviceSnapshot& snapshot() const { return snapshot_; }
  device::PciSlot slot() const {
    const auto attribute = [this](CUdevice_attribute which) {
      return static_cast<uint32_t>(snapshot_.attributes[which]);
    };
    return {attribute(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID), attribute(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
            attribute(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)};
  }
  // Compute capability: major * 10 + minor.
  uint32_t capability() const {
    return static_cast<uint32_t>(
        10 * snapshot_.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] +
        snapshot_.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR]);
  }
  // Threads that it runs at once, where nothing but their number limits that.
  uint64_t resident_threads() const {
    return static_cast<uint64_t>(snapshot_.attributes[CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT]) *
           static_cast<uint64_t>(
               snapshot_.attributes[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR]);
  }
  // What sessions share with each other.
  Exports& exports() const { return exports_; }
  // Likewise, of what the driver has loaded; null: nothing. Set before there are sessions.
  SharedLibraries* shared_libraries() const { return shared_libraries_.get(); }
  void ShareLibraries(Bytes kept_max = kSharedCodeKeptBytes) {
    shared_libraries_ = std::make_unique<SharedLibraries>(kept_max);
  }
  // Likewise: which of them stay awake for their guests. Set before there are sessions.
  VigilRoom* vigils() const { return &vigils_; }
  // Whether the device with this UUID copies from this one's memory by itself; whether any does.
  bool ReachedBy(const uint8_t (&uuid)[16]) const;
  bool reached() const { return !reached_by_.empty(); }
  // Bit N: this device reaches memory of the driver's device N; and atomics on that are atomic.
  uint64_t reaches() const { return reaches_; }
  uint64_t reaches_atomically() const { return reaches_atomically_; }
  // Registers mapped host memory with the driver, as cuMemHostRegister does. What it takes besides
  // keeps nobody else's calls waiting. Any thread that has the context.
  CUresult Register(std::span<std::byte> memory, unsigned int flags) const;
  // Pinned memory of zeros for the worker itself, `bytes` (a multiple of 2 MiB), likewise; for
  // FreePinned. The driver's errors.
  CUresult MakePinned(Bytes bytes, std::byte** memory) const;
  void FreePinned(std::byte* memory, Bytes bytes) const;
  // Makes the context the calling thread's.
  CUresult MakeCurrent() const { return driver_.cuCtxSetCurrent(context_); }

 private:
  explicit WorkerDevice(const device::LoadedDriver& driver)
      : driver_(driver.table),
        notes_(driver.notes),
        set_stream_output_(driver.set_stream_output),
        set_managed_memory_(driver.set_managed_memory),
        registering_gives_pages_(!driver.cpu) {}
  absl::Status ReadSnapshot();
  void FindPeers(uint32_t device_count);

  const device::DriverTable driver_;
  const device::AllocationNotes notes_;
  device::SetStreamOutput* const set_stream_output_;
  device::SetManagedMemory* const set_managed_memory_;
  const bool registering_gives_pages_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  wire::DeviceSnapshot snapshot_;
  std::vector<CUuuid> reached_by_;
  uint64_t reaches_ = 0;
  uint64_t reaches_atomically_ = 0;
  std::unique_ptr<SharedOutput> shared_output_;
  mutable Exports exports_;   // thread safe, and no property of the device
  mutable VigilRoom vigils_;  // likewise
  std::unique_ptr<SharedLibraries> shared_libraries_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_WORKER_DEVICE_H_
