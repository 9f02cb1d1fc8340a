// SPDX-License-Identifier: Apache-2.0
// host/memory/memory_broker.h: the memory of one device, shared by the sessions of its worker.
//
//   room    what may be promised: the device's memory, and with swapping what the store holds more.
//           Without swapping a promise is memory on the device, caches included
//   device  physical memory. Only with swapping do the two differ
//
// A request for room that does not fit waits in a queue (policies/admission) or is refused, as the
// tenant is configured; quotas refuse at once. With swapping a thread of the broker moves contents:
//
//   kInUse ─EndUse─▶ kIdle ─▶ kMoving (out) ─▶ kIdle ─RequestBring─▶ kMoving (in) ─▶ kInUse
//      ▲               │ BeginUse
//      └───────────────┘
//
// A client in use belongs to its session: table of memory and work on the device. An idle one has
// no work there, and the broker may take it to move. Nobody waits for the broker: sessions ask and
// come again. Victims are chosen by policies/admission/victims.h.
//
// Thread safe. No driver call under the lock. See docs/MEMORY.md.
#ifndef CONSORT_HOST_MEMORY_MEMORY_BROKER_H_
#define CONSORT_HOST_MEMORY_MEMORY_BROKER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/units.h"
#include "gen/device/driver_table.h"
#include "host/limits.h"
#include "memmgr/address_window.h"
#include "memmgr/limits.h"
#include "memmgr/memory_budget.h"
#include "memmgr/mover.h"
#include "memmgr/swap_store.h"
#include "policies/admission/admission.h"

namespace consort::host {

struct MemoryRules {
  Bytes capacity = 0;    // device memory for programs
  bool limited = false;  // by configuration, below what the device has
  admission::Order order = admission::Order::kFifo;
  // See host/limits.h.
  Nanos idle_least = kSwapIdleLeast;
  Nanos patience_least = kSwapPatienceLeast;
  Nanos bring_wait_least = kBringWaitLeast;
  uint64_t chunk_granules = memmgr::kSwapChunkGranules;
};

// What a tenant may have on this device. 0 of a quota: none.
struct MemoryTerms {
  std::string tenant;
  Bytes soft = 0;
  Bytes hard = 0;
  Nanos wait = 0;  // for room; 0: refused at once
  uint32_t priority = 0;
};

// Memory of a window that a piece of work uses.
struct MemoryNeed {
  bool everything = false;  // it may follow pointers
  std::vector<memmgr::AddressWindow::Range> ranges;
  std::vector<uint64_t> pointers;  // arguments of a kernel
};

struct MemoryTotals {
  Bytes capacity = 0;
  Bytes promised = 0;  // of the room: allocations, reservations and grants
  Bytes on_device = 0;
  Bytes swapped[memmgr::kSwapTiers] = {};
  Bytes swap_capacity = 0;
  uint32_t waiting = 0;  // requests for room, and sets that want to come back
  uint64_t swapped_out_bytes = 0;
  uint64_t swapped_in_bytes = 0;
  uint64_t clean_bytes = 0;     // that left the device and did not have to be copied
  uint64_t swap_out_nanos = 0;  // spent moving
  uint64_t swap_in_nanos = 0;
  uint64_t refused = 0;  // requests for memory

  friend bool operator==(const MemoryTotals&, const MemoryTotals&) = default;
};

class MemoryBroker;

// One session's side. Its methods are for the session's thread, but those of MemoryBudget.
class MemoryClient final : public memmgr::MemoryBudget {
 public:
  // Leaves: the broker's thread is done with the window, and nothing is charged any more after the
  // window's end.
  ~MemoryClient() override;
  MemoryClient(const MemoryClient&) = delete;
  MemoryClient& operator=(const MemoryClient&) = delete;

  // Borrowed from here on. Before any other call.
  void set_window(memmgr::AddressWindow* window);

  bool Allot(Bytes bytes) override;
  void Unallot(Bytes bytes) override;
  bool TakeDevice(Bytes bytes) override;
  void ReturnDevice(Bytes bytes) override;

  // --- Waiting for room

  // kShort: no room. kDevice: with swapping, no memory on the device for what cannot be away.
  enum class Refusal { kNone, kQuota, kShort, kDevice };
  // Why Allot or TakeDevice said no last.
  Refusal refusal() const;
  // Whether others may get what this client has not: a limit, a quota or swapping is configured, or
  // its tenant waits for room.
  bool rationed() const;
  // Whether so much could ever be had: within the hard quota, and the room.
  bool CouldHave(Bytes bytes) const;

  enum class Answer { kWaiting, kYes, kNo };
  // Queues up for `bytes` more of what `lack` says is short; the number is for Ask. It waits for at
  // most `wait`.
  uint64_t Queue(Bytes bytes, Refusal lack, Nanos now, Nanos wait);
  // kYes, once: the bytes are kept for this client until Redeemed. kNo: it has waited for too long.
  Answer Ask(uint64_t number, Nanos now);
  // What was kept and not taken goes back.
  void Redeemed();
  // From here on the client's promise is at least this; it may have to wait (Queue, then again).
  // kNo: refused, and refusal() says why.
  Answer Reserve(Bytes bytes);
  // What Reserve was last granted; 0: nothing is reserved.
  Bytes reserved() const;
  // Bytes to Queue for before Reserve.
  Bytes ReserveNeeds(Bytes bytes) const;

  // --- Use of the device, with swapping

  // Whether there is a store, so that memory may be away.
  bool swaps() const;
  // Null: there is none.
  memmgr::SwapStore* store() const;
  // Of large extents; 0: they have one.
  uint64_t chunk_granules() const;
  // False: the broker has it, or it was asked to leave and has not come back by RequestBring.
  bool BeginUse();
  void EndUse(Nanos now);
  // The session should end what it does and EndUse; without swapping, give its cache back.
  bool leave_asked() const { return leave_asked_.load(std::memory_order_relaxed); }
  // The extents that are to be there for the need: all of the window's if they fit the device
  // together. For who owns the window now.
  std::vector<uint64_t> Resolve(const MemoryNeed& need) const;
  // After EndUse: that these come, and the client is in use then.
  void RequestBring(MemoryNeed need, Nanos now);
  // kNo: no room in time, or there never is; then the client is in use too. A failure of the device
  // or the store: failure() is not CUDA_SUCCESS, and contents are lost.
  Answer Brought(Nanos now);
  CUresult failure() const;
  // What one client can have on the device at once.
  Bytes device_bytes_max() const;

  // --- What the program is told

  struct Info {
    Bytes total = 0;
    Bytes free = 0;
  };
  // `device_free` of `device_total` are the driver's; `cached` is the session's own to use again.
  Info Tell(Bytes device_free, Bytes device_total, Bytes cached) const;

  // Ends the broker's part: waits for a move that goes on. Then the window is the session's alone.
  void Retire();

  struct Usage {
    uint64_t swapped_out_bytes = 0;
    uint64_t swapped_in_bytes = 0;
    uint64_t waited_nanos = 0;
    Bytes promised = 0;
    Bytes on_device = 0;
  };
  Usage usage() const;

 private:
  friend class MemoryBroker;
  enum class State { kInUse, kIdle, kMoving };

  MemoryClient(MemoryBroker* broker, const MemoryTerms& terms) : broker_(broker), terms_(terms) {}
  std::vector<uint64_t> ResolveWithin(const MemoryNeed& need, Bytes capacity) const;

  // All but the first four are the broker's, under its lock.
  MemoryBroker* const broker_;
  const MemoryTerms terms_;
  memmgr::AddressWindow* window_ = nullptr;
  std::atomic<bool> leave_asked_{false};  // relaxed: a hint; the state is under the lock

  State state_ = State::kInUse;
  bool yielded_ = false;  // was asked to leave, and has
  bool retired_ = false;
  Bytes allotted_ = 0;
  Bytes device_ = 0;
  Bytes reserved_ = 0;
  Bytes granted_ = 0;  // kept for it, of the room
  Bytes device_granted_ = 0;
  Refusal refusal_ = Refusal::kNone;
  Nanos idle_since_ = 0;
  Nanos here_since_ = 0;
  Nanos asked_at_ = 0;  // to leave
  CUresult failure_ = CUDA_SUCCESS;
  std::map<uint64_t, Answer> answers_;
  // Of RequestBring.
  bool bring_ = false;
  Answer brought_ = Answer::kWaiting;
  MemoryNeed need_;
  std::vector<uint64_t> wanted_;  // the extents of it, as the window is now
  Nanos bring_since_ = 0;
  Usage usage_;
};

class MemoryBroker {
 public:
  // `store` may be null: no swapping. `make_current` gives the broker's thread the device's
  // context. All are borrowed for the broker's life.
  MemoryBroker(const device::DriverTable& driver, const MemoryRules& rules,
               memmgr::SwapStore* store, std::function<CUresult()> make_current);
  // All clients are gone.
  ~MemoryBroker();
  MemoryBroker(const MemoryBroker&) = delete;
  MemoryBroker& operator=(const MemoryBroker&) = delete;

  std::unique_ptr<MemoryClient> Join(const MemoryTerms& terms);
  MemoryTotals Totals() const;

 private:
  friend class MemoryClient;
  // A request for room, or with swapping for device memory that cannot be away.
  struct Waiter {
    uint64_t number = 0;
    MemoryClient* client = nullptr;
    Bytes bytes = 0;
    bool device = false;  // it is device memory that it lacks
    Nanos since = 0;
    Nanos deadline = 0;
  };
  struct TenantUse {
    Bytes allotted = 0;
    uint32_t clients = 0;
  };
  using Clients = std::list<MemoryClient*>;

  Bytes RoomLimit() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Bytes ClaimOf(const MemoryClient& client) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Bytes Claims() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Bytes DeviceFree() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool OverSoft(const MemoryClient& client, Bytes more) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the client may have so much more room now, before those that wait.
  bool RoomFor(const MemoryClient& client, Bytes more) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What quotas leave to it: its tenant's hard one, or, with swapping, the device for each client.
  Bytes QuotaLeft(const MemoryClient& client) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool DeviceWanted() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GrantRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Expire(Nanos now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whom to refuse because all that have room wait for more, and for long enough, so that none
  // would ever get it; waiters_.end(): there is no need.
  std::list<Waiter>::iterator FindStuck(Nanos now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether there was one.
  bool RefuseStuck(Nanos now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Erases it; returns the next.
  std::list<Waiter>::iterator RefuseWaiter(std::list<Waiter>::iterator waiter, Nanos now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Run();
  // Who waits for device memory.
  struct Wish {
    MemoryClient* client = nullptr;
    std::list<Waiter>::iterator waiter;  // of one that is no set to bring
    bool bring = false;
    Bytes bytes = 0;
    Nanos since = 0;
  };
  std::vector<Wish> Wishes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // One step for them. False: nothing can be done now.
  bool Step(memmgr::Mover* mover, Nanos now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  using Within = memmgr::SwapStore::Within;
  bool MakeRoom(memmgr::Mover* mover, const Wish& wish, Within within, Nanos now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What of its set fits now.
  bool BringPart(memmgr::Mover* mover, const Wish& wish) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StopAsking() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // How much has left the device.
  Bytes SendOut(memmgr::Mover* mover, MemoryClient* client, Bytes bytes,
                const std::vector<uint64_t>& keep, Within within)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  using KeepSlots = memmgr::AddressWindow::KeepSlots;
  // What has room for everything that there is need not be given back.
  KeepSlots Keepable() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // `room`: at most so much of what it wants; if that is not all, it goes on waiting. How much
  // came.
  Bytes BringIn(memmgr::Mover* mover, MemoryClient* client, Bytes room)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropSpareSlots() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const device::DriverTable& driver_;
  memmgr::SwapStore* const store_;
  const std::function<CUresult()> make_current_;
  const MemoryRules rules_;

  mutable absl::Mutex mutex_;
  absl::CondVar changed_;  // for the thread, and for Retire
  Bytes capacity_ ABSL_GUARDED_BY(mutex_);
  Clients clients_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, TenantUse> tenants_ ABSL_GUARDED_BY(mutex_);
  std::list<Waiter> waiters_ ABSL_GUARDED_BY(mutex_);  // in the order of arrival
  Nanos look_for_stuck_ ABSL_GUARDED_BY(mutex_) = 0;   // when next
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 1;
  Bytes device_used_ ABSL_GUARDED_BY(mutex_) = 0;
  Bytes device_granted_ ABSL_GUARDED_BY(mutex_) = 0;
  Bytes planned_ ABSL_GUARDED_BY(mutex_) = 0;  // of the set that is being brought in
  MemoryTotals totals_ ABSL_GUARDED_BY(mutex_);
  bool store_full_ ABSL_GUARDED_BY(mutex_) = false;  // found by the last SendOut
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_MEMORY_MEMORY_BROKER_H_
