// SPDX-License-Identifier: Apache-2.0
// host/session/event_pool.h: driver events for the session's own use, made once and used again.
//
// Owned by the session loop; calls need the worker's context current. Bound: as many as are out at
// once.
#ifndef CONSORT_HOST_SESSION_EVENT_POOL_H_
#define CONSORT_HOST_SESSION_EVENT_POOL_H_

#include <vector>

#include "gen/device/driver_table.h"

namespace consort::host {

class EventPool {
 public:
  // Events made with `flags`, CU_EVENT_...; `driver` is borrowed.
  EventPool(const device::DriverTable& driver, unsigned int flags)
      : driver_(driver), flags_(flags) {}
  ~EventPool() {
    for (CUevent event : free_) driver_.cuEventDestroy_v2(event);
  }
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  CUresult Take(CUevent* event) {
    if (free_.empty()) return driver_.cuEventCreate(event, flags_);
    *event = free_.back();
    free_.pop_back();
    return CUDA_SUCCESS;
  }
  void Return(CUevent event) { free_.push_back(event); }

 private:
  const device::DriverTable& driver_;
  const unsigned int flags_;
  std::vector<CUevent> free_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_EVENT_POOL_H_
