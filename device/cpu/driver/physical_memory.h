// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/physical_memory.h: what cuMemCreate makes: device memory without an address.
//
// It is a sealed memfd of a fixed size, named "consort-cpu-device-<index>" so that another process
// that is given the file descriptor knows which device it belongs to. It exists, and counts against
// the device's memory, while a handle or a mapping refers to it (shared_ptr: whichever is last).
#ifndef CONSORT_DEVICE_CPU_DRIVER_PHYSICAL_MEMORY_H_
#define CONSORT_DEVICE_CPU_DRIVER_PHYSICAL_MEMORY_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "device/cpu/driver/cuda_api.h"
#include "device/cpu/driver/device.h"

namespace consort::cpu {

// Immutable, thread safe.
class PhysicalMemory {
 public:
  // Takes over `fd` and `bytes` of `device`'s memory, which the caller has taken.
  PhysicalMemory(UniqueFd fd, Device* device, Bytes bytes, bool exportable);
  ~PhysicalMemory();
  PhysicalMemory(const PhysicalMemory&) = delete;
  PhysicalMemory& operator=(const PhysicalMemory&) = delete;

  int fd() const { return fd_.get(); }
  Device& device() const { return *device_; }
  Bytes bytes() const { return bytes_; }
  bool exportable() const { return exportable_; }
  CUmemGenericAllocationHandle handle() const { return handle_; }
  // Device and inode number of the file: equal for two descriptors of the same memory.
  std::pair<dev_t, ino_t> identity() const { return identity_; }

 private:
  const UniqueFd fd_;
  Device* const device_;
  const Bytes bytes_;
  const bool exportable_;
  const CUmemGenericAllocationHandle handle_;
  std::pair<dev_t, ino_t> identity_;
};

// Handles to physical memory, counted: cuMemImportFromShareableHandle and
// cuMemRetainAllocationHandle give a handle once more, and each needs its own cuMemRelease. Thread
// safe.
class PhysicalMemoryTable {
 public:
  // Makes `bytes` (a multiple of kGranularity) of memory on `device`.
  CUresult Create(Device* device, Bytes bytes, bool exportable,
                  CUmemGenericAllocationHandle* handle);
  // Makes a handle from a file descriptor that Create's memory was exported to, here or in another
  // process. `fd` stays the caller's. CUDA_ERROR_INVALID_VALUE: not such a descriptor.
  CUresult Import(const std::vector<std::unique_ptr<Device>>& devices, int fd,
                  CUmemGenericAllocationHandle* handle);
  // Counts one more use of `memory`'s handle.
  CUmemGenericAllocationHandle Retain(const std::shared_ptr<PhysicalMemory>& memory);
  // Counts one less; false if the handle is unknown.
  bool Release(CUmemGenericAllocationHandle handle);
  std::shared_ptr<PhysicalMemory> Find(CUmemGenericAllocationHandle handle) const;

 private:
  struct Entry {
    std::shared_ptr<PhysicalMemory> memory;
    int count = 0;
  };

  mutable absl::Mutex mutex_;
  absl::flat_hash_map<CUmemGenericAllocationHandle, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  // All memory that exists, to know it again when it is imported.
  absl::flat_hash_map<std::pair<dev_t, ino_t>, std::weak_ptr<PhysicalMemory>> known_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_DRIVER_PHYSICAL_MEMORY_H_
