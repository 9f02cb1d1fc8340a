// SPDX-License-Identifier: Apache-2.0
// vmsock/vhost_user/muxer.h: virtio-vsock packets to and from the connections of one VM.
//
// Owned by the device's thread. Bytes of conduits are copied while it goes on (copy_line.h):
// between two calls it holds chains, and pointers into guest memory are used, only while copying(),
// so the memory map changes after FinishCopies or Reset. Nothing that a guest sends is fatal: a
// packet that breaks the protocol resets its connection, is counted, and the next one is looked at.
// Fairness: connections with something to send stand in one queue and each has a bounded turn.
// Source: virtio 1.2, section 5.10.6 (Socket Device, Device Operation).
#ifndef CONSORT_VMSOCK_VHOST_USER_MUXER_H_
#define CONSORT_VMSOCK_VHOST_USER_MUXER_H_

#include <sys/uio.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/inherited_fds.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "vmsock/copy_crew.h"
#include "vmsock/vhost_user/connection.h"
#include "vmsock/vhost_user/copy_line.h"
#include "vmsock/vhost_user/counters.h"
#include "vmsock/vhost_user/device_state.h"
#include "vmsock/vhost_user/event_set.h"
#include "vmsock/vhost_user/fill_job.h"
#include "vmsock/vhost_user/limits.h"
#include "vmsock/vhost_user/packet.h"
#include "vmsock/vhost_user/virtqueue.h"

namespace consort::vhost_user {

// See VsockDevice::Create.
using ConnectHandler =
    std::function<absl::StatusOr<UniqueFd>(uint32_t host_port, uint32_t guest_port)>;

class Muxer {
 public:
  struct Options {
    uint32_t guest_cid = 0;
    uint32_t receive_window_bytes_max = 0;
    uint64_t first_connection_id = 0;  // event tokens from here on are ours
    CopyCrew* crew = nullptr;          // borrowed for the object's life; none: copies alone
  };
  struct PumpResult {
    bool interrupt_rx = false;
    bool interrupt_tx = false;
    bool more = false;   // call again without waiting
    bool moved = false;  // packets were taken or sent, or copies of some have ended
  };

  // All pointers and the handler are borrowed for the object's life.
  Muxer(const Options& options, const ConnectHandler* handler, EventSet* events,
        Counters* counters);
  ~Muxer();
  Muxer(const Muxer&) = delete;
  Muxer& operator=(const Muxer&) = delete;

  // While nothing is being copied.
  MuxerState Save() const;
  // Goes on with what was saved, before anything else is called. `state` fits its bounds.
  // kInternal: a descriptor is not what it must be.
  absl::Status Restore(const MuxerState& state, InheritedFds* fds);

  // Takes packets from `tx`, fills buffers of `rx`, publishes both. `rests`: nobody looks at `tx`
  // again before the guest notifies of packets, which it is asked for. kDataLoss: one of the rings
  // is broken.
  absl::StatusOr<PumpResult> Pump(Virtqueue& rx, Virtqueue& tx, bool rests);
  // Copies are on their way; Pump ends those that are done.
  bool copying() const { return !to_host_.empty() || !to_guest_.empty(); }
  // For a while in which Pump had nothing to do but to wait for copies: copies a share of what
  // waits, if the crew is behind, and looks out for what Pump may do next; `idle`, that is, after a
  // longer while: copies whatever waits, and if nothing does, gives others the processor.
  void HelpCopying(const Virtqueue& rx, const Virtqueue& tx, bool idle);
  // Returns when nothing is being copied, and all that was copied is with the guest and the hosts.
  PumpResult FinishCopies(Virtqueue& rx, Virtqueue& tx);
  // An edge of connection `id`'s host descriptor; ids of connections that have gone are ignored.
  void TakeHostEvents(uint64_t id, uint32_t events);
  // Asks again for credit where that is due. Returns when to call next, in ms from now, or -1 for
  // never.
  int TakeTime(std::chrono::steady_clock::time_point now);
  // The guest has started anew: ends all connections without a word to it, and copies, whose chains
  // it gets no more.
  void Reset();

 private:
  // An answer to a packet of no connection.
  struct PendingReset {
    uint64_t src_cid = 0;
    PortPair ports;
    uint16_t type = 0;
  };
  // RW packets of one connection that follow each other in the tx queue, written at once.
  struct Batch {
    Connection* connection = nullptr;
    size_t chain_count = 0;
    uint64_t bytes = 0;
    std::vector<iovec> pieces;
  };
  enum class TurnResult { kIdle, kMore, kStarved };

  // guest->host
  absl::StatusOr<bool> DrainTx(Virtqueue& tx);
  void TakePacket(Virtqueue& tx);
  void TakeControlPacket(const PacketHeader& header, const PortPair& ports);
  void OpenConnection(const PacketHeader& header, const PortPair& ports);
  void AppendToBatch(Connection* connection, uint32_t payload_bytes);
  void FlushBatch(Virtqueue& tx);

  // host->guest
  absl::Status FillRx(Virtqueue& rx, bool& more, bool& starved);
  absl::StatusOr<TurnResult> TakeTurn(Virtqueue& rx, Connection& connection);
  absl::StatusOr<TurnResult> SendData(Virtqueue& rx, Connection& connection, uint64_t& moved);
  absl::StatusOr<TurnResult> SendFromConduit(Virtqueue& rx, Connection& connection,
                                             uint64_t& moved);
  absl::StatusOr<bool> SendControl(Virtqueue& rx, Connection& connection, uint16_t op,
                                   uint32_t flags);
  // Takes an rx buffer with room for a header and at least one byte.
  absl::StatusOr<bool> PopRx(Virtqueue& rx, Chain& chain);
  PacketHeader HeaderFor(Connection& connection, uint16_t op, uint32_t len, uint32_t flags) const;
  void PutHeader(Virtqueue& rx, const Chain& chain, const PacketHeader& header);

  // copies
  // Begins those of the step that `line` has made, of bytes of `connection`.
  template <class Job>
  void BeginCopies(CopyLine<Job>& line, Connection& connection);
  // Ends what is done, up to the first that is not, and shows the guest what it has back. True:
  // something was.
  template <class Job>
  bool EndCopies(CopyLine<Job>& line, Virtqueue& ring);
  // Waits for all copies and tells connections; then no conduit is used. Chains stay for EndCopies.
  void SettleCopies();
  // Those of one line.
  template <class Job>
  void SettleCopies(CopyLine<Job>& line);
  // `last`: others of the line may not follow soon.
  static void TellCopied(const CopyLine<PartsJob>& to_host, Connection& connection, uint64_t bytes,
                         bool last);
  static void TellCopied(const CopyLine<FillJob>& to_guest, Connection& connection, uint64_t bytes,
                         bool last);
  // Whether the guest wants to be interrupted for chains of the line that it has back.
  bool& Owed(const CopyLine<PartsJob>&) { return owed_tx_interrupt_; }
  bool& Owed(const CopyLine<FillJob>&) { return owed_rx_interrupt_; }
  // Shows it all that was given back since, and adds to `result` which interrupts it wants.
  PumpResult TellGuest(Virtqueue& rx, Virtqueue& tx, PumpResult result);
  // Returns a chain to the guest behind those of `line`.
  template <class Job>
  static void GiveBack(CopyLine<Job>& line, Virtqueue& ring, const UsedChain& chain);

  // connections
  // Checks that the host's descriptor is what the rest relies on, and watches it.
  absl::StatusOr<EventSet::Watch> WatchHost(const UniqueFd& fd, uint64_t id);
  Connection* Find(const PortPair& ports);
  // Puts `connection` into the queue for rx buffers if it has something to send.
  void QueueIfReady(Connection& connection);
  // Asks for credit in a while, if nothing has come by then.
  void Stall(Connection& connection);
  // Sends the guest a reset and forgets the connection.
  void ResetConnection(Connection& connection);
  // Forgets the connection. Its host descriptor is closed.
  void Remove(Connection& connection);
  // The guest has forgotten the connection, but there are bytes of it to write.
  void Detach(Connection& connection);
  void Unqueue(Connection& connection);
  void AddReset(uint64_t src_cid, const PortPair& ports, uint16_t type);
  // The receive window of the next connection; there is room for one.
  Bytes WindowForNew() const;

  const Options options_;
  const ConnectHandler* const handler_;
  EventSet* const events_;
  Counters* const counters_;

  uint64_t next_id_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Connection>> connections_;
  absl::flat_hash_map<PortPair, Connection*> by_ports_;  // without detached ones
  Bytes windows_granted_ = 0;

  std::deque<PendingReset> resets_;
  std::deque<Connection*> ready_;
  std::vector<Connection*> stalled_;
  std::chrono::steady_clock::time_point stalled_deadline_{};

  CopyLine<PartsJob> to_host_;
  CopyLine<FillJob> to_guest_;
  bool rx_starved_ = false;  // as of the latest Pump: something waits for rx buffers
  bool owed_rx_interrupt_ = false;
  bool owed_tx_interrupt_ = false;

  // Scratch of one call, kept for its storage.
  Batch batch_;
  std::array<Chain, kPacketsPerBatchMax> tx_chains_;
  std::array<Chain, kPacketsPerBatchMax> rx_chains_;
  std::array<WritableBuffer, kPacketsPerCopy> rx_buffers_;
  std::vector<iovec> rx_pieces_;
};

}  // namespace consort::vhost_user

#endif  // CONSORT_VMSOCK_VHOST_USER_MUXER_H_
