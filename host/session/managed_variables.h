// SPDX-License-Identifier: Apache-2.0
// host/session/managed_variables.h: while the driver loads a library: memory for its managed
// variables, which the guest maps, too.
//
// The CPU device's driver asks for it. NVIDIA's would give the variables memory that only this
// process has; so it gets the library's PTX with their addresses in place of their names
// (device/image/managed.h), compiled anew, and machine code for the device is left aside. On the
// session loop's thread, around the driver's call.
#ifndef CONSORT_HOST_SESSION_MANAGED_VARIABLES_H_
#define CONSORT_HOST_SESSION_MANAGED_VARIABLES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/units.h"
#include "device/driver/driver_loader.h"
#include "device/image/managed.h"
#include "host/session/shared_host.h"

namespace consort::host {

class ManagedVariables {
 public:
  struct Place {
    uint64_t address = 0;
    Bytes bytes = 0;
  };
  using Places = std::map<std::string, Place>;  // by name

  // `address`: an allocation of `memory` that has the variables already; 0: they get a new one.
  // Null `set`: the driver does not ask. Null `memory`: the guest shares none.
  ManagedVariables(device::SetManagedMemory* set, SharedHost* memory, uint64_t address)
      : set_(memory != nullptr ? set : nullptr),
        asks_(set != nullptr),
        memory_(memory),
        given_(address) {
    if (set_ != nullptr) set_(&Take, this);
  }
  ~ManagedVariables() {
    if (set_ != nullptr) set_(nullptr, nullptr);
    Drop();
  }
  ManagedVariables(const ManagedVariables&) = delete;
  ManagedVariables& operator=(const ManagedVariables&) = delete;

  // What to load in place of the image, for a driver that does not ask; nothing: the image itself,
  // which has no managed variables, or not in PTX of one unit that is understood.
  // `capability` of the device: major * 10 + minor.
  std::optional<std::string> PlaceIn(std::span<const std::byte> image, uint32_t capability);
  // That was not loaded after all.
  void Drop();
  // Where PlaceIn has put them.
  Places TakePlaces() { return std::move(places_); }

  // The library is loaded: the allocation that has its variables, 0 for none; it is the caller's.
  uint64_t Keep() { return std::exchange(taken_, 0); }
  Bytes bytes() const { return bytes_; }

 private:
  static void* Take(void* owner, uint64_t bytes, int* fresh) {
    return static_cast<ManagedVariables*>(owner)->Take(bytes, fresh);
  }
  void* Take(Bytes bytes, int* fresh);

  device::SetManagedMemory* const set_;
  const bool asks_;
  SharedHost* const memory_;
  const uint64_t given_;
  uint64_t taken_ = 0;
  Bytes bytes_ = 0;
  Places places_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_MANAGED_VARIABLES_H_
