// SPDX-License-Identifier: Apache-2.0
// host/session/managed_variables.h: while the driver loads a library: memory for its managed
// variables, which the guest maps, too. On the session loop's thread, around the driver's call.
#ifndef CONSORT_HOST_SESSION_MANAGED_VARIABLES_H_
#define CONSORT_HOST_SESSION_MANAGED_VARIABLES_H_

#include <cstdint>
#include <utility>

#include "base/units.h"
#include "device/driver/driver_loader.h"
#include "host/session/shared_host.h"

namespace consort::host {

class ManagedVariables {
 public:
  // `address`: an allocation of `memory` that has the variables already; 0: they get a new one.
  // Null `set` or `memory`: the driver does as it likes.
  ManagedVariables(device::SetManagedMemory* set, SharedHost* memory, uint64_t address)
      : set_(memory != nullptr ? set : nullptr), memory_(memory), given_(address) {
    if (set_ != nullptr) set_(&Take, this);
  }
  ~ManagedVariables() {
    if (set_ != nullptr) set_(nullptr, nullptr);
    if (taken_ != 0 && given_ == 0) (void)memory_->Free(taken_);
  }
  ManagedVariables(const ManagedVariables&) = delete;
  ManagedVariables& operator=(const ManagedVariables&) = delete;

  // The library is loaded: the allocation that has its variables, 0 for none; it is the caller's.
  uint64_t Keep() { return std::exchange(taken_, 0); }
  Bytes bytes() const { return bytes_; }

 private:
  static void* Take(void* owner, uint64_t bytes, int* fresh) {
    return static_cast<ManagedVariables*>(owner)->Take(bytes, fresh);
  }
  void* Take(Bytes bytes, int* fresh) {
    // Once a library: the driver loads one.
    if (taken_ != 0) return nullptr;
    *fresh = given_ == 0 ? 1 : 0;
    if (given_ != 0 ? !memory_->IsAllocation(given_) || !memory_->Covers(given_, bytes)
                    : memory_->Allocate(bytes, &taken_) != CUDA_SUCCESS) {
      return nullptr;
    }
    if (given_ != 0) taken_ = given_;
    bytes_ = bytes;
    return reinterpret_cast<void*>(taken_);
  }

  device::SetManagedMemory* const set_;
  SharedHost* const memory_;
  const uint64_t given_;
  uint64_t taken_ = 0;
  Bytes bytes_ = 0;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_MANAGED_VARIABLES_H_
