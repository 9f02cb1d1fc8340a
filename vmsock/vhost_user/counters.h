// SPDX-License-Identifier: Apache-2.0
// vmsock/vhost_user/counters.h: what the device counts. Written by its thread, read by any.
#ifndef CONSORT_VMSOCK_VHOST_USER_COUNTERS_H_
#define CONSORT_VMSOCK_VHOST_USER_COUNTERS_H_

#include <atomic>
#include <cstdint>

namespace consort::vhost_user {

// A count that one thread raises. Relaxed: readers want recent values, and order nothing by them.
class Counter {
 public:
  void Add(uint64_t amount = 1) {
    value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  // For a quantity that also falls.
  void Set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  uint64_t Get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// See VsockDeviceStats for the meaning of each.
struct Counters {
  Counter frontends;
  Counter frontends_now;
  Counter connections_opened;
  Counter connections_refused;
  Counter connections_reset;
  Counter connections_now;
  Counter packets_from_guest;
  Counter packets_to_guest;
  Counter bytes_from_guest;
  Counter bytes_to_guest;
  Counter socket_bytes_from_guest;
  Counter socket_bytes_to_guest;
  Counter kicks;
  Counter interrupts;
  Counter device_resets;
  Counter protocol_errors;
  Counter broken_rings;
};

}  // namespace consort::vhost_user

#endif  // CONSORT_VMSOCK_VHOST_USER_COUNTERS_H_
