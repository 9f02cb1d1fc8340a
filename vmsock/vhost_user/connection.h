// SPDX-License-Identifier: Apache-2.0
// vmsock/vhost_user/connection.h: one stream between a port of the guest and a descriptor of the
// host.
//
// Owned by the device's thread (Muxer). Moves bytes and keeps both credit accounts; packets and
// rings are the muxer's. The two directions end apart:
//
//   guest->host: open -> (guest: SHUTDOWN send) finishing -> (backlog written, SHUT_WR) closed
//   host->guest: open -> (host: end of file; or guest: SHUTDOWN receive) closed
//
// A host that serves a session asks for a conduit (conduit.h): then bytes go through memory, and
// the descriptor carries bells. Each direction changes over where a descriptor of that memory comes
// in the stream: the host's with its next read, the guest's once the backlog is empty.
//
// Guest bytes that the host descriptor does not take at once are copied into a backlog and their
// chain is returned: the tx ring's 128 entries are shared by all connections, so a slow reader must
// not keep any. The backlog is bounded by the window that the guest was granted; what lies in it is
// not yet credited back, so a slow reader stops its own guest socket and nobody else.
// Source: virtio 1.2, section 5.10.6.3 (Buffer Space Management).
#ifndef CONSORT_VMSOCK_VHOST_USER_CONNECTION_H_
#define CONSORT_VMSOCK_VHOST_USER_CONNECTION_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "base/units.h"
#include "vmsock/conduit.h"
#include "vmsock/vhost_user/device_state.h"
#include "vmsock/vhost_user/event_set.h"
#include "vmsock/vhost_user/pace.h"
#include "vmsock/vhost_user/packet.h"

namespace consort::vhost_user {

// The two ports name a stream of one VM.
struct PortPair {
  uint32_t guest_port = 0;
  uint32_t host_port = 0;
  bool operator==(const PortPair&) const = default;
  template <typename H>
  friend H AbslHashValue(H state, const PortPair& ports) {
    return H::combine(std::move(state), ports.guest_port, ports.host_port);
  }
};

class Connection {
 public:
  // `fd` is a connected, non-blocking stream socket that `watch` reports edges of; `window_bytes`
  // is what the guest may have undelivered.
  Connection(uint64_t id, PortPair ports, UniqueFd fd, EventSet::Watch watch,
             uint32_t window_bytes);
  // Goes on with one that was saved; `state` fits its bounds. `fd` and `watch` are empty if it had
  // given its descriptor back, `conduit` if it has none.
  Connection(uint64_t id, const ConnectionState& state, UniqueFd fd, EventSet::Watch watch,
             std::unique_ptr<ConduitDeviceEnd> conduit);
  ConnectionState Save() const;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  uint64_t id() const { return id_; }
  const PortPair& ports() const { return ports_; }
  uint32_t window_bytes() const { return window_bytes_; }

  // --- credit ---

  // Takes buf_alloc and fwd_cnt of any packet of the guest. False: it claims to have read what was
  // never sent.
  [[nodiscard]] bool TakePeerCredit(const PacketHeader& header);
  // Bytes and packets that the guest has room for now.
  uint32_t SendableBytes() const;
  uint32_t SendablePackets() const;
  // Packets of so many bytes each are on their way to the guest.
  void NoteSent(std::span<const uint32_t> packets) {
    const size_t before = unread_ends_.size();
    unread_ends_.resize(before + packets.size());
    uint32_t* const ends = unread_ends_.data() + before;
    uint32_t sent = sent_;
    for (size_t i = 0; i < packets.size(); ++i) ends[i] = sent += packets[i];
    sent_ = sent;
  }
  // What the host side has taken so far, for a header that goes out now.
  uint32_t ReportForwarded();
  // The guest may be waiting to hear that its bytes were taken. If not, an edge of the host
  // descriptor tells when that changes.
  bool NeedsCreditUpdate();
  // Enough small packets are unread that their number, not their bytes, will stop us soon.
  bool NearPacketLimit() const;

  // --- moving bytes ---

  enum class IoResult {
    kOk,      // all that could be moved was
    kEnd,     // ReadInto only: no more bytes will come
    kFailed,  // the host side is gone; reset the connection
  };
  // Sends `pieces` (`bytes` in all) to the host, behind the backlog; keeps the rest. With a
  // conduit, appends what is to be copied for that to `copies`; Forwarded follows. kFailed also
  // when the guest sends more than its window, or after its SHUTDOWN.
  IoResult Forward(std::span<const iovec> pieces, uint64_t bytes, std::vector<CopyPart>* copies);
  // The next `bytes` of what Forward wanted copied are copied.
  void Forwarded(uint64_t bytes);
  // Sends as much of the backlog as the host takes, then the end of stream if the guest has ended
  // it.
  IoResult Flush();
  // Fills `pieces` from the host's socket. `received` is 0 when there is nothing now (kOk).
  IoResult ReadInto(std::span<iovec> pieces, uint64_t& received);
  // With a conduit, instead: whether it has bytes now. Results as ReadInto.
  IoResult FindBytes(bool& any);
  // What lies in one place behind all that was read before; after FindBytes has found some,
  // Received follows. Empty: there is no more now, or broken().
  std::span<const std::byte> Read();
  // The last `bytes` of what Read gave last were not taken: it gives them again.
  void Unread(uint64_t bytes);
  // The next `bytes` of what Read gave are copied, and the guest has room for more. The worker
  // hears of it `now`, or with others.
  void Received(uint64_t bytes, bool now);
  // The guest takes what Received tells of faster than it could read it.
  bool taken_unread() const { return pace_.faster_than_reading(); }

  // --- state ---

  // Bytes to the host, and from it, go through memory that the host uses where they lie. Those that
  // do not are copied once more, by whoever has the other end.
  bool writes_memory() const { return conduit_ != nullptr && conduit_->begun(); }
  bool reads_memory() const { return conduit_ != nullptr; }
  // The host has written what cannot be into its conduit; reset the connection.
  bool broken() const { return conduit_ != nullptr && conduit_->corrupt(); }
  // Edges of the host descriptor (EPOLLIN, ...).
  void TakeEvents(uint32_t events);
  // The guest will not send (kShutdownSend), or not receive (kShutdownReceive). Follow with Flush.
  void TakeGuestShutdown(uint32_t flags);
  // The guest said both.
  bool guest_done() const { return guest_shutdown_ == kShutdownBoth; }
  bool backlog_empty() const { return backlog_begin_ == backlog_.size(); }
  // Host bytes may be waiting and the guest wants them.
  bool readable() const {
    return readable_ && !host_ended_ && !(guest_shutdown_ & kShutdownReceive);
  }
  // Flags for the SHUTDOWN packet that the guest should get now, 0 for none. Marks them as told.
  uint32_t TakeShutdownToTell();
  bool HasShutdownToTell() const { return ShutdownToTell() != 0; }
  // Both directions have ended as far as the host goes: only the guest's answer is missing.
  bool host_done() const { return told_shutdown_ == kShutdownBoth; }
  // Gives the host descriptor and the conduit back early: nothing will move any more, or moves.
  void CloseHost();

  // --- the muxer's bookkeeping for this connection ---

  bool response_pending = true;        // the guest's REQUEST is unanswered
  bool credit_update_pending = false;  // the guest asked, or needs to hear
  bool credit_request_pending = false;
  bool credit_requested = false;  // and no packet of the guest has come since
  bool queued = false;            // is in the muxer's list of connections with something to send
  bool stalled = false;      // is in the muxer's list of connections blocked on the packet limit
  bool detached = false;     // the guest has forgotten it; only the backlog is still to be written
  uint32_t read_chains = 1;  // rx buffers to try next time: grows while reads fill them

 private:
  size_t unread_packets() const { return unread_ends_.size() - read_; }
  uint32_t ShutdownToTell() const;
  uint32_t UnreadPacketLimit() const;
  // Sends pieces until done or the socket is full; `sent` is the sum.
  IoResult SendPieces(std::span<const iovec> pieces, uint64_t& sent);
  // A descriptor came from the host with the last of `received` bytes, which is no data if it is a
  // conduit's.
  IoResult TakeConduit(UniqueFd memory, uint64_t& received);
  // Lets the guest's bytes go through the conduit from here on, if there is one and nothing before
  // them is left.
  IoResult BeginConduit();
  void RingBell();

  const uint64_t id_;
  const PortPair ports_;
  const uint32_t window_bytes_;
  // In this order: the watch must go before its descriptor does.
  UniqueFd fd_;
  EventSet::Watch watch_;
  std::unique_ptr<ConduitDeviceEnd> conduit_;

  // guest->host
  std::vector<std::byte> backlog_;
  size_t backlog_begin_ = 0;
  uint32_t forwarded_ = 0;  // modulo 2^32, as all counters of the protocol
  uint32_t forwarded_reported_ = 0;
  bool writable_ = true;
  bool write_ended_ = false;   // SHUT_WR is done
  bool host_refuses_ = false;  // the host side closed, or will not read any more

  // host->guest
  uint32_t peer_window_ = 0;
  uint32_t peer_forwarded_ = 0;
  uint32_t sent_ = 0;
  // Value of sent_ behind each packet that is not wholly read, behind `read_` others.
  std::vector<uint32_t> unread_ends_;
  size_t read_ = 0;
  bool readable_ = false;
  uint64_t received_ = 0;    // bytes of the conduit that are copied and not returned yet
  Pace pace_;                // of those that were returned
  bool host_left_ = false;   // nothing comes behind what the descriptor or the conduit has now
  bool host_ended_ = false;  // end of file was read

  uint32_t guest_shutdown_ = 0;
  uint32_t told_shutdown_ = 0;
};

}  // namespace consort::vhost_user

#endif  // CONSORT_VMSOCK_VHOST_USER_CONNECTION_H_
