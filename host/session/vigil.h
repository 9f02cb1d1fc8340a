// SPDX-License-Identifier: Apache-2.0
// host/session/vigil.h: sessions that stay awake while their guests wait for the device.
//
// A guest that waits for a word which the device writes sees it at once, and asks for the next
// thing microseconds later. A session that fell asleep meanwhile would need some 50 us to wake, and
// every wait of milliseconds would cost that much. So it keeps a vigil until the word is there, for
// at most kVigilMost, where the host has a processor to spare: one session of a process at a time
// for every kProcessorsPerVigil.
#ifndef CONSORT_HOST_SESSION_VIGIL_H_
#define CONSORT_HOST_SESSION_VIGIL_H_

#include <atomic>
#include <cstdint>

#include "base/units.h"
#include "host/limits.h"

namespace consort::host {

// For those that look at the moment, of the sessions of a process. Thread safe.
class VigilRoom {
 public:
  // So many at a time; none before this is called, which is to be before there are sessions.
  void Allow(uint32_t most) { most_ = most; }
  // As many as suit a host of so many processors.
  void AllowFor(uint32_t processors) { Allow(processors / kProcessorsPerVigil); }

  bool Enter();  // false: it is full
  void Leave() { inside_.fetch_sub(1, std::memory_order_relaxed); }

  // How often it was entered.
  uint64_t entered() const { return entered_.load(std::memory_order_relaxed); }

 private:
  uint32_t most_ = 0;
  // Counts that guard nothing: relaxed.
  std::atomic<uint32_t> inside_{0};
  std::atomic<uint64_t> entered_{0};
};

// What a session stays awake for. Thread compatible.
class Vigil {
 public:
  // The device is to write `number`, or more, at `address`, for the guest to see. Of several the
  // latest counts.
  void Await(uint64_t address, uint64_t number);
  // Whether there is something, and not for too long yet.
  bool Lasts(Nanos now);
  void End() { awaits_ = false; }

  uint64_t address() const { return address_; }
  uint64_t number() const { return number_; }

 private:
  uint64_t address_ = 0;
  uint64_t number_ = 0;
  bool awaits_ = false;
  Nanos until_ = 0;  // 0: not yet begun
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_VIGIL_H_
