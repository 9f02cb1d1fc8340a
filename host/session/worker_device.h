// SPDX-License-Identifier: Apache-2.0
// host/session/worker_device.h: the one device of a worker: its primary context, its snapshot and
// its health.
#ifndef CONSORT_HOST_SESSION_WORKER_DEVICE_H_
#define CONSORT_HOST_SESSION_WORKER_DEVICE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "device/driver/driver_loader.h"
#include "vmsock/wire/handshake.h"

namespace consort::host {

// Whether a result says that the device context is of no use any more: every later call in this
// process fails, whoever makes it. Source: CUDA driver API, CUresult ("must be terminated and
// relaunched"); measured: contexts of the same process go with it.
bool IsSticky(CUresult result);

// The health of a worker's device context, shared by its sessions. Thread safe.
class DeviceHealth {
 public:
  // `on_poisoned` is called once, on the thread that noticed.
  explicit DeviceHealth(std::function<void(const std::string& reason)> on_poisoned)
      : on_poisoned_(std::move(on_poisoned)) {}

  // Notes that the context is broken, with the result that every session gets from now on.
  void Poison(CUresult result, const std::string& reason);
  // CUDA_SUCCESS, or what Poison was told first.
  CUresult result() const { return result_.load(std::memory_order_relaxed); }

 private:
  const std::function<void(const std::string&)> on_poisoned_;
  // Relaxed: the value alone matters, nothing is published with it.
  std::atomic<CUresult> result_{CUDA_SUCCESS};
};

class WorkerDevice {
 public:
  // Retains the primary context of device `index` and reads what guests are told of it.
  static absl::StatusOr<std::unique_ptr<WorkerDevice>> Open(const device::LoadedDriver& driver,
                                                            uint32_t index);
  // Releases the context; the driver may wait for kernels.
  ~WorkerDevice();

  const device::DriverTable& driver() const { return driver_; }
  CUdevice device() const { return device_; }
  const wire::DeviceSnapshot& snapshot() const { return snapshot_; }
  // Makes the context the calling thread's.
  CUresult MakeCurrent() const { return driver_.cuCtxSetCurrent(context_); }
  // Of this context, for the sessions that share it.

 private:
  explicit WorkerDevice(const device::DriverTable& driver) : driver_(driver) {}
  absl::Status ReadSnapshot();

  const device::DriverTable driver_;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  wire::DeviceSnapshot snapshot_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_WORKER_DEVICE_H_
