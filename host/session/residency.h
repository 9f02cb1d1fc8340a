// SPDX-License-Identifier: Apache-2.0
// host/session/residency.h: a session's side of swapping: whether the memory that a request needs
// is on the device, and when the session lets it be moved.
//
//   in use ── nothing to do, or asked to make way, or memory is missed; and all work has ended ──▶
//   resting
//      ▲                                                                                          │
//      └────────── the next request: at once if nothing was moved, else after it was brought ─────┘
//
// A request that must wait is kept by the session, with all that come after it; nothing here
// blocks. Owned by the session loop.
#ifndef CONSORT_HOST_SESSION_RESIDENCY_H_
#define CONSORT_HOST_SESSION_RESIDENCY_H_

#include <memory>
#include <optional>
#include <utility>

#include "host/memory/memory_broker.h"
#include "memmgr/address_window.h"

namespace consort::host {

class Residency {
 public:
  explicit Residency(MemoryClient* client) : client_(client), swaps_(client->swaps()) {}

  // Borrowed from here on.
  void set_window(memmgr::AddressWindow* window) { window_ = window; }
  // False: memory is always on the device, and the rest of this class says yes.
  bool swaps() const { return swaps_; }

  // Whether any request may go on, whatever it needs.
  bool at_hand() const {
    return !swaps_ || (in_use_ && !deferred_ && !client_->leave_asked() && window_->all_here());
  }
  // Nothing is to come to the device, and no request is at_hand, until Settle (binding.cc).
  void Defer() { deferred_ = true; }
  void Settle() { deferred_ = false; }
  bool deferred() const { return deferred_; }
  enum class Verdict { kGo, kWait, kRefuse };
  // Of a request that uses, or changes, what is in the window. kWait: ask again, for the same one.
  // kRefuse: its memory cannot be on the device, or failure() says that contents are lost.
  Verdict Check(const MemoryNeed& need, Nanos now);
  // Of one that changes what is in the window, and needs no contents.
  Verdict CheckTable(Nanos now);
  CUresult failure() const { return failure_; }

  bool in_use() const { return in_use_; }
  // The device is broken, and the client retired: everything goes on, to its error.
  void Abandon() { swaps_ = false; }
  // A request waits for the session to rest.
  bool wants_rest() const { return wants_rest_ || (in_use_ && client_->leave_asked()); }
  // All work of the session has ended, and it has had nothing to do since then.
  void Rest(Nanos since);

 private:
  Verdict Take(const MemoryNeed& need, Nanos now);

  MemoryClient* const client_;
  bool swaps_;
  memmgr::AddressWindow* window_ = nullptr;
  bool in_use_ = true;
  bool deferred_ = false;
  bool wants_rest_ = false;
  bool bringing_ = false;
  std::optional<MemoryNeed> missing_;  // to be brought after Rest
  CUresult failure_ = CUDA_SUCCESS;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_RESIDENCY_H_
