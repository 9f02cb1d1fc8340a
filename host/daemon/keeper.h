// SPDX-License-Identifier: Apache-2.0
// host/daemon/keeper.h: what outlives the workers: descriptors of their sessions' memory, channels
// and records. They are held and passed on, and never looked into, but for whether a record is at
// rest (host/session/session_record.h). Nothing here runs a tenant's kernel or maps its memory.
//
//   worker ──Keep, LetGo──▶ Keeper ──PassOn: Keep ..., KeptEnd──▶ a session of another worker
//
// Copies stay here when they are passed on, so that the next worker may die, too. Bound:
// kKeptDescriptorsPerSession. Owned by consortd's loop.
#ifndef CONSORT_HOST_DAEMON_KEEPER_H_
#define CONSORT_HOST_DAEMON_KEEPER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "host/checkpoint/holding.h"
#include "host/control/control_socket.h"
#include "host/daemon/event_loop.h"

namespace consort::host {

class Keeper {
 public:
  // `loop` is borrowed for this object's life.
  explicit Keeper(EventLoop* loop) : loop_(loop) {}
  ~Keeper();

  void Hold(const Keep& keep, UniqueFd descriptor);
  void Drop(const LetGo& let_go);
  // Whether the session can go on in another worker. kFailedPrecondition: it cannot, and why, for
  // people.
  absl::Status CheckGoesOn(uint64_t session) const;
  // Whether it can be computed again, likewise.
  absl::Status CheckRedo(uint64_t session) const;
  // Copies of all that this needs. kResourceExhausted, kFailedPrecondition: it is not there.
  absl::StatusOr<LostSession> Lend(uint64_t session) const;
  // Its device memory is gone, and with it the record.
  void DropMemory(uint64_t session);
  // The session has another number from now on.
  void Rename(uint64_t session, uint64_t becomes);
  // Sends all that is kept, as `link` takes it.
  absl::Status PassOn(uint64_t session, UniqueFd link);
  // The session has ended: its guest sees the end of the channel, and everything is let go.
  void End(uint64_t session);

  uint64_t descriptors() const { return descriptors_; }

 private:
  using Key = std::pair<KeptRole, uint64_t>;
  struct Kept {
    std::map<Key, UniqueFd> descriptors;
    std::string why_not;  // something is missing
  };
  struct Delivery {
    explicit Delivery(UniqueFd fd) : link(std::move(fd)) {}
    ControlSocket link;
    Key next;  // the first that was not sent
    bool begun = false;
  };
  void Continue(uint64_t session);
  void EndDelivery(uint64_t session);
  // False: the link has no room.
  absl::Status SendSome(uint64_t session, Delivery* delivery);

  EventLoop* const loop_;
  std::map<uint64_t, Kept> sessions_;
  std::map<uint64_t, std::unique_ptr<Delivery>> deliveries_;
  uint64_t descriptors_ = 0;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_KEEPER_H_
