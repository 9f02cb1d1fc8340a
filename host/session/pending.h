// SPDX-License-Identifier: Apache-2.0
// host/session/pending.h: what a session does once the device gets somewhere.
//
// Items are in order of submission; each waits for a fence or a guest's event and is then handed to
// the sink, out of order where the device finishes out of order, but: results of copies that were
// finished before a reply's fence are always handed up before that reply. (When a reply's fence is
// seen reached, the copies before it are asked once more: whatever the fence covers is then reached
// too, across streams as well.) Owned by the session loop; polling calls the driver.
#ifndef CONSORT_HOST_SESSION_PENDING_H_
#define CONSORT_HOST_SESSION_PENDING_H_

#include <cstdint>
#include <list>
#include <memory>

#include "gen/device/driver_table.h"
#include "host/session/staging.h"
#include "host/session/streams.h"
#include "vmsock/channel.h"

namespace consort::host {

// A guest's event. Shared: a reply may wait for it after the guest has destroyed it.
struct UserEvent {
  UserEvent(const device::DriverTable& table, CUevent event, uint32_t context_id, bool takes_time)
      : driver(table), handle(event), context(context_id), timed(takes_time) {}
  // The same event of the driver, under another session's name. `original` is kept.
  UserEvent(std::shared_ptr<UserEvent> original, uint32_t context_id)
      : driver(original->driver),
        handle(original->handle),
        context(context_id),
        timed(original->timed),
        shared(std::move(original)) {}
  ~UserEvent() {
    if (shared == nullptr) driver.cuEventDestroy_v2(handle);
  }
  UserEvent(const UserEvent&) = delete;
  UserEvent& operator=(const UserEvent&) = delete;

  const device::DriverTable& driver;
  const CUevent handle;
  const uint32_t context;
  const bool timed;                         // records of it have a time
  const std::shared_ptr<UserEvent> shared;  // whose driver event it is; null: its own
};

struct PendingItem {
  enum class Kind : uint8_t {
    kReply,             // to `request`
    kContextDestroyed,  // its stream work is done: destroy, then reply to `request`
    kCopyOut,           // `piece` holds bytes of a transfer
    kReleaseFrame,      // `frame` was the source of a copy
    kReturnPiece,       // `piece` was
    kRunHostFunction,   // the stream has come to host function `value`
    kMemFree,           // of the address `value`
    kHostFree,          // likewise
    kLibraryUnload,     // of what was removed as `value` (modules.h)
    kArrayDestroy,      // of the driver's array `value`
    kTextureDestroy,    // of the driver's object `value`
    kSurfaceDestroy,    // likewise
    kPeerClose,         // what is had of session `value`, for PeerUse `offset`: unmap, then reply
    kHostLeave,         // host memory of session `value`, at address `offset`: likewise
  };

  Kind kind = Kind::kReply;
  // One of the two is what it waits for. A fence may be shared by items.
  std::shared_ptr<Fence> fence;
  std::shared_ptr<UserEvent> event;

  wire::FrameHeader request;
  Frame frame;
  Staging::Piece piece;
  uint64_t value = 0;  // of kCopyOut: the transfer
  uint64_t offset = 0;
  uint32_t bytes = 0;
};

class PendingSink {
 public:
  virtual ~PendingSink() = default;
  // `result` is CUDA_SUCCESS or what the device failed with before it got there. May add items.
  virtual void OnReached(PendingItem& item, CUresult result) = 0;
};

class PendingList {
 public:
  // Both are borrowed for the list's life.
  PendingList(const device::DriverTable& driver, PendingSink* sink)
      : driver_(driver), sink_(sink) {}

  void Add(PendingItem item);

  // Hands up what has been reached. True: something was.
  bool Poll();
  // Hands up every finished copy to the host: before a reply that is made at once.
  void PollCopiesOut();
  // Hands up everything as if it were reached, with `result`: the device is broken, or nobody
  // waits.
  void FailAll(CUresult result);

  bool empty() const { return items_.empty(); }
  size_t size() const { return items_.size(); }

 private:
  using Items = std::list<PendingItem>;
  bool Reached(PendingItem& item, bool ask, CUresult* result);
  void PollCopiesBefore(Items::iterator end);
  void HandUp(Items::iterator item, CUresult result);

  const device::DriverTable& driver_;
  PendingSink* const sink_;
  Items items_;
  Items unused_;  // nodes for Add, so that it seldom allocates
  // Where Poll goes on; what is handed up may itself hand up copies, this one among them.
  Items::iterator next_ = items_.end();
  uint64_t pass_ = 0;
  size_t copies_out_ = 0;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_PENDING_H_
