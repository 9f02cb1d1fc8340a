// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/driver/physical_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "device/cpu/driver/handle_table.h"
#include "device/cpu/driver/limits.h"

namespace consort::cpu {
namespace {

constexpr std::string_view kFileName = "consort-cpu-device-";
constexpr std::string_view kMemfdPrefix = "/memfd:";

// The device index in the name of the memfd `fd`, or -1 if it is not one of ours.
// Source: memfd_create(2), the name in /proc/self/fd.
int DeviceIndexOf(int fd) {
  char target[128];
  const ssize_t length =
      readlink(absl::StrCat("/proc/self/fd/", fd).c_str(), target, sizeof(target));
  if (length <= 0) return -1;
  std::string_view name(target, static_cast<size_t>(length));
  if (!name.starts_with(kMemfdPrefix)) return -1;
  name.remove_prefix(kMemfdPrefix.size());
  if (!name.starts_with(kFileName)) return -1;
  name.remove_prefix(kFileName.size());
  int index = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), index);
  return error == std::errc() ? index : -1;
}

}  // namespace

PhysicalMemory::PhysicalMemory(UniqueFd fd, Device* device, Bytes bytes, bool exportable)
    : fd_(std::move(fd)),
      device_(device),
      bytes_(bytes),
      exportable_(exportable),
      handle_(NewHandleValue()) {
  struct stat status = {};
  PCHECK(fstat(fd_.get(), &status) == 0);
  identity_ = {status.st_dev, status.st_ino};
}

PhysicalMemory::~PhysicalMemory() { device_->ReturnMemory(bytes_); }

CUresult PhysicalMemoryTable::Create(Device* device, Bytes bytes, bool exportable,
                                     CUmemGenericAllocationHandle* handle) {
  if (!device->TakeMemory(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  UniqueFd fd(memfd_create(absl::StrCat(std::string(kFileName), device->index()).c_str(),
                           MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // Sealed, so that nobody who gets the descriptor can pull the memory away under a mapping.
  if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    PLOG(ERROR) << "cuMemCreate of " << bytes << " bytes: memfd";
    device->ReturnMemory(bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  auto memory = std::make_shared<PhysicalMemory>(std::move(fd), device, bytes, exportable);
  absl::MutexLock lock(&mutex_);
  // Names of memory that is gone are swept when there are twice as many as handles.
  if (known_.size() > 2 * entries_.size() + 16) {
    for (auto it = known_.begin(); it != known_.end();) {
      if (it->second.expired()) {
        known_.erase(it++);
      } else {
        ++it;
      }
    }
  }
  known_[memory->identity()] = memory;
  *handle = memory->handle();
  entries_[*handle] = {std::move(memory), 1};
  return CUDA_SUCCESS;
}

CUresult PhysicalMemoryTable::Import(const std::vector<std::unique_ptr<Device>>& devices, int fd,
                                     CUmemGenericAllocationHandle* handle) {
  struct stat status = {};
  if (fstat(fd, &status) != 0) return CUDA_ERROR_INVALID_VALUE;
  const std::pair<dev_t, ino_t> identity = {status.st_dev, status.st_ino};
  {
    absl::MutexLock lock(&mutex_);
    const auto it = known_.find(identity);
    if (it != known_.end()) {
      if (std::shared_ptr<PhysicalMemory> memory = it->second.lock()) {
        Entry& entry = entries_[memory->handle()];
        entry.memory = memory;
        ++entry.count;
        *handle = memory->handle();
        return CUDA_SUCCESS;
      }
    }
  }
  const int index = DeviceIndexOf(fd);
  const int seals = fcntl(fd, F_GET_SEALS);
  if (index < 0 || static_cast<size_t>(index) >= devices.size() || seals < 0 ||
      (seals & F_SEAL_SHRINK) == 0 || status.st_size <= 0 ||
      static_cast<Bytes>(status.st_size) % kGranularity != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  UniqueFd own(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own.valid()) return CUDA_ERROR_OPERATING_SYSTEM;
  const Bytes bytes = static_cast<Bytes>(status.st_size);
  Device* device = devices[index].get();
  device->CountMemory(bytes);
  auto memory = std::make_shared<PhysicalMemory>(std::move(own), device, bytes, true);
  absl::MutexLock lock(&mutex_);
  known_[identity] = memory;
  *handle = memory->handle();
  entries_[*handle] = {std::move(memory), 1};
  return CUDA_SUCCESS;
}

CUmemGenericAllocationHandle PhysicalMemoryTable::Retain(
    const std::shared_ptr<PhysicalMemory>& memory) {
  absl::MutexLock lock(&mutex_);
  Entry& entry = entries_[memory->handle()];
  entry.memory = memory;
  ++entry.count;
  return memory->handle();
}

bool PhysicalMemoryTable::Release(CUmemGenericAllocationHandle handle) {
  // Freed outside the lock.
  std::shared_ptr<PhysicalMemory> dropped;
  absl::MutexLock lock(&mutex_);
  const auto it = entries_.find(handle);
  if (it == entries_.end()) return false;
  if (--it->second.count == 0) {
    dropped = std::move(it->second.memory);
    entries_.erase(it);
  }
  return true;
}

std::shared_ptr<PhysicalMemory> PhysicalMemoryTable::Find(
    CUmemGenericAllocationHandle handle) const {
  absl::MutexLock lock(&mutex_);
  const auto it = entries_.find(handle);
  return it == entries_.end() ? nullptr : it->second.memory;
}

}  // namespace consort::cpu
