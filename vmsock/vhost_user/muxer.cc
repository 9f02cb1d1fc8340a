// SPDX-License-Identifier: Apache-2.0
#include "vmsock/vhost_user/muxer.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <span>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "vmsock/spin.h"

namespace consort::vhost_user {
namespace {

// Copies the first `bytes` of the chain's readable part; there are at least as many.
void CopyFrom(std::span<const iovec> pieces, void* out, size_t bytes) {
  std::byte* to = static_cast<std::byte*>(out);
  for (const iovec& piece : pieces) {
    const size_t count = std::min(bytes, piece.iov_len);
    std::memcpy(to, piece.iov_base, count);
    to += count;
    bytes -= count;
    if (bytes == 0) return;
  }
}

// Copies `bytes` to the start of the chain's writable part, which holds at least as many.
void CopyTo(std::span<const iovec> pieces, const void* in, size_t bytes) {
  const std::byte* from = static_cast<const std::byte*>(in);
  for (const iovec& piece : pieces) {
    const size_t count = std::min(bytes, piece.iov_len);
    std::memcpy(piece.iov_base, from, count);
    from += count;
    bytes -= count;
    if (bytes == 0) return;
  }
}

// Appends the `bytes` of `pieces` that follow the packet header.
void AppendPayload(std::span<const iovec> pieces, uint64_t bytes, std::vector<iovec>& out) {
  uint64_t skip = kPacketHeaderBytes;
  for (const iovec& piece : pieces) {
    const uint64_t begin = std::min<uint64_t>(skip, piece.iov_len);
    skip -= begin;
    const uint64_t count = std::min<uint64_t>(bytes, piece.iov_len - begin);
    if (count > 0) out.push_back({static_cast<std::byte*>(piece.iov_base) + begin, count});
    bytes -= count;
    if (bytes == 0) return;
  }
}

// The handler's descriptor must be what the rest relies on.
absl::Status PrepareHostDescriptor(int fd) {
  int type = 0;
  socklen_t length = sizeof(type);
  if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type != SOCK_STREAM) {
    return absl::InternalError("the connect handler's descriptor is no stream socket");
  }
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return absl::InternalError("the connect handler's descriptor refuses O_NONBLOCK");
  }
  return absl::OkStatus();
}

}  // namespace

Muxer::Muxer(const Options& options, const ConnectHandler* handler, EventSet* events,
             Counters* counters)
    : options_(options),
      handler_(handler),
      events_(events),
      counters_(counters),
      next_id_(options.first_connection_id) {}

Muxer::~Muxer() { Reset(); }

void Muxer::Reset() {
  SettleCopies();
  to_host_.Clear();
  to_guest_.Clear();
  owed_rx_interrupt_ = owed_tx_interrupt_ = false;
  // Where the guest broke its ring behind packets of this pass.
  batch_ = {};
  counters_->connections_now.Set(0);  // before their host ends can see it
  ready_.clear();
  stalled_.clear();
  resets_.clear();
  by_ports_.clear();
  connections_.clear();
  windows_granted_ = 0;
}

MuxerState Muxer::Save() const {
  CHECK(!copying());
  MuxerState state;
  for (const Connection* connection : ready_) state.connections.push_back(connection->Save());
  std::map<uint64_t, const Connection*> others;
  for (const auto& [id, connection] : connections_) {
    if (!connection->queued) others[id] = connection.get();
  }
  for (const auto& [id, connection] : others) state.connections.push_back(connection->Save());
  for (const PendingReset& reset : resets_) {
    state.resets.push_back(
        {reset.src_cid, reset.ports.guest_port, reset.ports.host_port, reset.type});
  }
  return state;
}

absl::Status Muxer::Restore(const MuxerState& state, InheritedFds* fds) {
  for (const ConnectionState& one : state.connections) {
    const uint64_t id = next_id_++;
    UniqueFd fd = fds->Take(one.host);
    EventSet::Watch watch;
    if (one.host != kNoDescriptor) {
      // Adding it reports what it is ready for: no edge is lost.
      ASSIGN_OR_RETURN(watch, WatchHost(fd, id));
    }
    std::unique_ptr<ConduitDeviceEnd> conduit;
    for (const ConduitDeviceEnd::State& end : one.conduit) {
      ASSIGN_OR_RETURN(conduit, ConduitDeviceEnd::Restore(fds->Take(end.memory), end));
    }
    auto connection =
        std::make_unique<Connection>(id, one, std::move(fd), std::move(watch), std::move(conduit));
    windows_granted_ += connection->window_bytes();
    if (!connection->detached) by_ports_[connection->ports()] = connection.get();
    QueueIfReady(*connection);
    if (one.stalled) Stall(*connection);
    connections_[id] = std::move(connection);
  }
  for (const ResetState& reset : state.resets) {
    AddReset(reset.src_cid, {.guest_port = reset.guest_port, .host_port = reset.host_port},
             static_cast<uint16_t>(reset.type));
  }
  counters_->connections_now.Set(connections_.size());
  return absl::OkStatus();
}

absl::StatusOr<Muxer::PumpResult> Muxer::Pump(Virtqueue& rx, Virtqueue& tx, bool rests) {
  PumpResult result;
  rx_starved_ = false;
  const auto packets = [this] {
    return counters_->packets_from_guest.Get() + counters_->packets_to_guest.Get();
  };
  const uint64_t packets_before = packets();
  tx.DisableKicks();
  rx.DisableKicks();
  ASSIGN_OR_RETURN(result.more, DrainTx(tx));
  // Buffers that the guest has back it may post again, before the next are looked for.
  result.moved = EndCopies(to_guest_, rx);
  RETURN_IF_ERROR(FillRx(rx, result.more, rx_starved_));
  result.moved |= EndCopies(to_host_, tx);
  result.moved |= EndCopies(to_guest_, rx);
  result.moved |= packets() != packets_before;
  result.more |= copying();
  // Only where they are all that is missing do rx buffers interest us.
  if (rests && rx_starved_ && rx.EnableKicks()) result.more = true;
  // While resets fill their list, the tx queue rests until rx buffers come.
  if (rests && !result.more && resets_.size() < kPendingResetsMax && tx.EnableKicks()) {
    result.more = true;
  }
  return TellGuest(rx, tx, result);
}

Muxer::PumpResult Muxer::TellGuest(Virtqueue& rx, Virtqueue& tx, PumpResult result) {
  result.interrupt_rx = rx.Publish() || owed_rx_interrupt_;
  result.interrupt_tx = tx.Publish() || owed_tx_interrupt_;
  owed_rx_interrupt_ = owed_tx_interrupt_ = false;
  return result;
}

void Muxer::HelpCopying(const Virtqueue& rx, const Virtqueue& tx, bool idle) {
  if (options_.crew == nullptr || !copying()) return;
  if (!idle) {
    options_.crew->HelpIfBehind();
    const auto done = [](auto& line) { return !line.empty() && line.first().job.done(); };
    for (int looks = 0; looks < kLooksPerPump; ++looks) {
      if (done(to_guest_) || done(to_host_) || tx.HasNews() || (rx_starved_ && rx.HasNews())) break;
      Pause();
    }
  } else if (!options_.crew->Help()) {
    // Whoever copies may want it.
    std::this_thread::yield();
  }
}

Muxer::PumpResult Muxer::FinishCopies(Virtqueue& rx, Virtqueue& tx) {
  SettleCopies();
  EndCopies(to_host_, tx);
  EndCopies(to_guest_, rx);
  return TellGuest(rx, tx, {});
}

// ---- copies ----

template <class Job>
void Muxer::BeginCopies(CopyLine<Job>& line, Connection& connection) {
  line.Append();
  CopyStep<Job>& step = line.last();
  step.connection = &connection;
  if (options_.crew != nullptr) {
    options_.crew->Begin(&step.job);
  } else {
    step.job.CopyAlone();
  }
}

void Muxer::TellCopied(const CopyLine<PartsJob>&, Connection& connection, uint64_t bytes, bool) {
  connection.Forwarded(bytes);
}

void Muxer::TellCopied(const CopyLine<FillJob>&, Connection& connection, uint64_t bytes,
                       bool last) {
  connection.Received(bytes, last);
}

template <class Job>
bool Muxer::EndCopies(CopyLine<Job>& line, Virtqueue& ring) {
  bool any = false;
  // Told at once of what ends at once: the other side looks at where that is written.
  Connection* connection = nullptr;
  uint64_t bytes = 0;
  while (!line.empty() && line.first().job.done()) {
    const CopyStep<Job>& step = line.first();
    if (step.connection != connection) {
      if (connection != nullptr) TellCopied(line, *connection, bytes, /*last=*/true);
      connection = step.connection;
      bytes = 0;
    }
    bytes += step.bytes;
    ring.Push(step.used);
    line.RemoveFirst();
    any = true;
  }
  // The guest goes on with them while the next are being filled.
  if (any && ring.Publish()) Owed(line) = true;
  if (connection != nullptr) {
    const bool last = line.empty() || line.first().connection != connection;
    TellCopied(line, *connection, bytes, last);
  }
  return any;
}

void Muxer::SettleCopies() {
  SettleCopies(to_host_);
  SettleCopies(to_guest_);
}

template <class Job>
void Muxer::SettleCopies(CopyLine<Job>& line) {
  line.ForEach([&](CopyStep<Job>& step) {
    if (options_.crew != nullptr) options_.crew->Finish(step.job);
    if (step.connection != nullptr) TellCopied(line, *step.connection, step.bytes, /*last=*/true);
    step.connection = nullptr;
  });
}

template <class Job>
void Muxer::GiveBack(CopyLine<Job>& line, Virtqueue& ring, const UsedChain& chain) {
  if (line.empty()) {
    ring.Push({&chain, 1});
  } else {
    line.last().used.push_back(chain);
  }
}

// ---- guest->host ----

// True if packets remain.
absl::StatusOr<bool> Muxer::DrainTx(Virtqueue& tx) {
  bool more = true;
  for (uint32_t packets = 0; packets < kPacketsPerPass; ++packets) {
    if (resets_.size() >= kPendingResetsMax) {
      more = false;
      break;
    }
    if (to_host_.full()) break;
    ASSIGN_OR_RETURN(const bool popped, tx.Pop(tx_chains_[batch_.chain_count]));
    if (!popped) {
      more = false;
      break;
    }
    TakePacket(tx);
  }
  FlushBatch(tx);
  return more;
}

// The packet is in tx_chains_[batch_.chain_count].
void Muxer::TakePacket(Virtqueue& tx) {
  const Chain& chain = tx_chains_[batch_.chain_count];
  counters_->packets_from_guest.Add();
  PacketHeader header;
  bool valid = chain.writable_bytes == 0 && chain.readable_bytes >= kPacketHeaderBytes;
  if (valid) {
    CopyFrom(chain.readable, &header, sizeof(header));
    valid = header.src_cid == options_.guest_cid;
  }
  const PortPair ports{.guest_port = header.src_port, .host_port = header.dst_port};
  const bool valid_data = valid && header.op == kOpReadWrite && header.type == kTypeStream &&
                          header.dst_cid == kHostCid && header.len <= kPacketPayloadBytesMax &&
                          header.len <= chain.readable_bytes - kPacketHeaderBytes;
  if (valid_data && batch_.connection != nullptr && batch_.connection->ports() == ports &&
      batch_.connection->TakePeerCredit(header)) {
    AppendToBatch(batch_.connection, header.len);
    if (batch_.chain_count == kPacketsPerBatchMax ||
        (batch_.connection->writes_memory() &&
         (batch_.bytes >= kBytesPerCopy || batch_.pieces.size() >= kPiecesPerCopy))) {
      FlushBatch(tx);
    }
    return;
  }
  if (batch_.chain_count > 0) {
    const size_t slot = batch_.chain_count;
    FlushBatch(tx);
    std::swap(tx_chains_[0], tx_chains_[slot]);
  }
  if (valid_data) {
    Connection* connection = Find(ports);
    if (connection != nullptr && connection->TakePeerCredit(header)) {
      batch_.connection = connection;
      AppendToBatch(connection, header.len);
      return;
    }
  }
  if (valid) {
    TakeControlPacket(header, ports);
  } else {
    // Without a sender there is nobody to answer.
    counters_->protocol_errors.Add();
  }
  GiveBack(to_host_, tx, {tx_chains_[0].head, 0});
}

void Muxer::AppendToBatch(Connection* connection, uint32_t payload_bytes) {
  CHECK(batch_.connection == connection);
  AppendPayload(tx_chains_[batch_.chain_count].readable, payload_bytes, batch_.pieces);
  batch_.bytes += payload_bytes;
  ++batch_.chain_count;
}

void Muxer::FlushBatch(Virtqueue& tx) {
  if (batch_.chain_count == 0) return;
  Connection& connection = *batch_.connection;
  if (!connection.writes_memory()) counters_->socket_bytes_from_guest.Add(batch_.bytes);
  CopyStep<PartsJob>& step = to_host_.Make();
  const Connection::IoResult result =
      connection.Forward(batch_.pieces, batch_.bytes, &step.job.parts());
  counters_->bytes_from_guest.Add(batch_.bytes);
  if (!step.job.parts().empty()) {
    step.bytes = batch_.bytes;
    BeginCopies(to_host_, connection);
  }
  for (size_t i = 0; i < batch_.chain_count; ++i) GiveBack(to_host_, tx, {tx_chains_[i].head, 0});
  EndCopies(to_host_, tx);
  batch_.connection = nullptr;
  batch_.chain_count = 0;
  batch_.bytes = 0;
  batch_.pieces.clear();
  if (result == Connection::IoResult::kFailed) {
    ResetConnection(connection);
  } else {
    QueueIfReady(connection);
  }
}

// All packets that carry no acceptable data: the batch is empty.
void Muxer::TakeControlPacket(const PacketHeader& header, const PortPair& ports) {
  Connection* connection = Find(ports);
  const bool for_us = header.type == kTypeStream && header.dst_cid == kHostCid;
  if (!for_us) connection = nullptr;
  if (header.op == kOpReset) {
    if (connection != nullptr) Remove(*connection);
    return;  // a reset is never answered
  }
  if (connection == nullptr) {
    if (for_us && header.op == kOpRequest && header.len == 0) {
      OpenConnection(header, ports);
    } else {
      AddReset(header.dst_cid, ports, header.type);
    }
    return;
  }
  if (header.op == kOpRequest && connection->host_done()) {
    // Closed on our side; the guest has forgotten it too and uses its port again.
    Remove(*connection);
    OpenConnection(header, ports);
    return;
  }
  const bool known =
      header.op == kOpShutdown || header.op == kOpCreditUpdate || header.op == kOpCreditRequest;
  if (!known || header.len != 0 || !connection->TakePeerCredit(header)) {
    counters_->protocol_errors.Add();
    VLOG(1) << "vsock: reset of guest port " << ports.guest_port << ": operation " << header.op
            << ", " << header.len << " bytes, fwd_cnt " << header.fwd_cnt;
    ResetConnection(*connection);
    return;
  }
  if (header.op == kOpCreditRequest) connection->credit_update_pending = true;
  if (header.op == kOpShutdown) {
    // What it sent before comes before the end.
    SettleCopies();
    connection->TakeGuestShutdown(header.flags);
    if (connection->Flush() == Connection::IoResult::kFailed) {
      ResetConnection(*connection);
      return;
    }
    if (connection->guest_done()) {
      // A guest that has closed waits for this answer before it forgets the port.
      if (connection->backlog_empty()) {
        AddReset(kHostCid, ports, kTypeStream);
        Remove(*connection);
      } else {
        Detach(*connection);
      }
      return;
    }
  }
  QueueIfReady(*connection);
}

Bytes Muxer::WindowForNew() const {
  const Bytes kept = (kConnectionsPerVmMax - connections_.size()) * kReceiveWindowBytesMin;
  const Bytes left = kReceiveBudgetBytes - windows_granted_ - kept;
  return std::min<Bytes>(kReceiveWindowBytesMin + left / kReceiveBudgetShare,
                         options_.receive_window_bytes_max);
}

void Muxer::OpenConnection(const PacketHeader& header, const PortPair& ports) {
  absl::StatusOr<UniqueFd> fd = absl::ResourceExhaustedError("too many connections");
  if (connections_.size() < kConnectionsPerVmMax) {
    fd = (*handler_)(ports.host_port, ports.guest_port);
  }
  const uint64_t id = next_id_++;
  absl::StatusOr<EventSet::Watch> watch =
      fd.ok() ? WatchHost(*fd, id) : absl::StatusOr<EventSet::Watch>(fd.status());
  if (!watch.ok()) {
    VLOG(1) << "vsock: guest port " << ports.guest_port << " to host port " << ports.host_port
            << " refused: " << watch.status();
    counters_->connections_refused.Add();
    AddReset(kHostCid, ports, kTypeStream);
    return;
  }
  const Bytes window = WindowForNew();
  auto connection = std::make_unique<Connection>(id, ports, *std::move(fd), *std::move(watch),
                                                 static_cast<uint32_t>(window));
  if (!connection->TakePeerCredit(header)) {
    counters_->protocol_errors.Add();
    counters_->connections_refused.Add();
    AddReset(kHostCid, ports, kTypeStream);
    return;
  }
  windows_granted_ += window;
  by_ports_[ports] = connection.get();
  QueueIfReady(*connection);
  connections_[id] = std::move(connection);
  counters_->connections_opened.Add();
  counters_->connections_now.Set(connections_.size());
}

// ---- host->guest ----

absl::StatusOr<bool> Muxer::PopRx(Virtqueue& rx, Chain& chain) {
  ASSIGN_OR_RETURN(const bool popped, rx.Pop(chain));
  if (!popped) return false;
  if (chain.readable_bytes > 0 || chain.writable_bytes <= kPacketHeaderBytes) {
    return absl::DataLossError(absl::StrCat("rx buffer with ", chain.writable_bytes,
                                            " writable and ", chain.readable_bytes,
                                            " readable bytes"));
  }
  return true;
}

PacketHeader Muxer::HeaderFor(Connection& connection, uint16_t op, uint32_t len,
                              uint32_t flags) const {
  return {.src_cid = kHostCid,
          .dst_cid = options_.guest_cid,
          .src_port = connection.ports().host_port,
          .dst_port = connection.ports().guest_port,
          .len = len,
          .type = kTypeStream,
          .op = op,
          .flags = flags,
          .buf_alloc = connection.window_bytes(),
          .fwd_cnt = connection.ReportForwarded()};
}

void Muxer::PutHeader(Virtqueue& rx, const Chain& chain, const PacketHeader& header) {
  CopyTo(chain.writable, &header, sizeof(header));
  GiveBack(to_guest_, rx, {chain.head, static_cast<uint32_t>(kPacketHeaderBytes) + header.len});
  counters_->packets_to_guest.Add();
  counters_->bytes_to_guest.Add(header.len);
}

absl::Status Muxer::FillRx(Virtqueue& rx, bool& more, bool& starved) {
  Chain& chain = rx_chains_[0];
  while (!resets_.empty()) {
    ASSIGN_OR_RETURN(const bool popped, PopRx(rx, chain));
    if (!popped) {
      starved = true;
      return absl::OkStatus();
    }
    const PendingReset& reset = resets_.front();
    PutHeader(rx, chain,
              {.src_cid = reset.src_cid,
               .dst_cid = options_.guest_cid,
               .src_port = reset.ports.host_port,
               .dst_port = reset.ports.guest_port,
               .len = 0,
               .type = reset.type,
               .op = kOpReset,
               .flags = 0,
               .buf_alloc = 0,
               .fwd_cnt = 0});
    resets_.pop_front();
  }
  // One turn for each that is ready now; those with more to send stand at the end again.
  for (size_t turns = ready_.size(); turns > 0 && !ready_.empty(); --turns) {
    Connection& connection = *ready_.front();
    ready_.pop_front();
    connection.queued = false;
    const uint64_t id = connection.id();
    ASSIGN_OR_RETURN(const TurnResult result, TakeTurn(rx, connection));
    if (!connections_.contains(id)) continue;  // the turn ended it
    if (result == TurnResult::kStarved) {
      connection.queued = true;
      ready_.push_front(&connection);
      starved = true;
      return absl::OkStatus();
    }
    if (result == TurnResult::kMore || connection.broken()) QueueIfReady(connection);
  }
  if (!ready_.empty() || !resets_.empty()) more = true;
  return absl::OkStatus();
}

absl::StatusOr<bool> Muxer::SendControl(Virtqueue& rx, Connection& connection, uint16_t op,
                                        uint32_t flags) {
  ASSIGN_OR_RETURN(const bool popped, PopRx(rx, rx_chains_[0]));
  if (popped) PutHeader(rx, rx_chains_[0], HeaderFor(connection, op, 0, flags));
  return popped;
}

absl::StatusOr<Muxer::TurnResult> Muxer::TakeTurn(Virtqueue& rx, Connection& connection) {
  if (connection.broken()) {
    ResetConnection(connection);
    return TurnResult::kIdle;
  }
  if (connection.response_pending) {
    ASSIGN_OR_RETURN(const bool sent, SendControl(rx, connection, kOpResponse, 0));
    if (!sent) return TurnResult::kStarved;
    connection.response_pending = false;
  }
  const uint64_t id = connection.id();
  bool more = false;
  for (uint64_t moved = 0; connection.readable() && connection.SendableBytes() > 0 &&
                           connection.SendablePackets() > 0;) {
    if (moved >= kBytesPerTurn || to_guest_.full()) {
      more = true;
      break;
    }
    ASSIGN_OR_RETURN(const TurnResult result, connection.reads_memory()
                                                  ? SendFromConduit(rx, connection, moved)
                                                  : SendData(rx, connection, moved));
    if (!connections_.contains(id)) return TurnResult::kIdle;
    if (result == TurnResult::kStarved) return result;
  }
  if (connection.HasShutdownToTell()) {
    // The flags are taken only once there is a buffer to carry them.
    ASSIGN_OR_RETURN(const bool popped, PopRx(rx, rx_chains_[0]));
    if (!popped) return TurnResult::kStarved;
    const uint32_t flags = connection.TakeShutdownToTell();
    PutHeader(rx, rx_chains_[0], HeaderFor(connection, kOpShutdown, 0, flags));
    if (connection.host_done()) {
      SettleCopies();
      connection.CloseHost();
    }
  }
  if (connection.credit_update_pending || connection.NeedsCreditUpdate()) {
    ASSIGN_OR_RETURN(const bool sent, SendControl(rx, connection, kOpCreditUpdate, 0));
    if (!sent) return TurnResult::kStarved;
  }
  // Guests before Linux 6.8 report small reads only when asked.
  if (connection.NearPacketLimit() && !connection.credit_requested) {
    connection.credit_request_pending = true;
  }
  if (connection.credit_request_pending) {
    ASSIGN_OR_RETURN(const bool sent, SendControl(rx, connection, kOpCreditRequest, 0));
    if (!sent) return TurnResult::kStarved;
    connection.credit_request_pending = false;
    connection.credit_requested = true;
  }
  if (connection.readable() && connection.SendablePackets() == 0 && !connection.stalled) {
    Stall(connection);
  }
  return more ? TurnResult::kMore : TurnResult::kIdle;
}

// One read from the host's socket into several rx buffers. May end the connection.
absl::StatusOr<Muxer::TurnResult> Muxer::SendData(Virtqueue& rx, Connection& connection,
                                                  uint64_t& moved) {
  const uint32_t chains_wanted = std::min<uint32_t>(
      {connection.read_chains, connection.SendablePackets(), kPacketsPerBatchMax});
  const uint64_t credit = connection.SendableBytes();
  std::array<uint32_t, kPacketsPerBatchMax> room;  // of the first chain_count
  uint64_t room_total = 0;
  uint16_t chain_count = 0;
  rx_pieces_.clear();
  while (chain_count < chains_wanted && room_total < credit) {
    Chain& chain = rx_chains_[chain_count];
    ASSIGN_OR_RETURN(const bool popped, PopRx(rx, chain));
    if (!popped) break;
    const uint64_t bytes = std::min<uint64_t>(
        {chain.writable_bytes - kPacketHeaderBytes, kPacketPayloadBytesMax, credit - room_total});
    AppendPayload(chain.writable, bytes, rx_pieces_);
    room[chain_count] = static_cast<uint32_t>(bytes);
    room_total += bytes;
    ++chain_count;
  }
  if (chain_count == 0) return TurnResult::kStarved;

  uint64_t received = 0;
  const Connection::IoResult result = connection.ReadInto(rx_pieces_, received);
  moved += received;
  counters_->socket_bytes_to_guest.Add(received);
  uint16_t used = 0;
  for (uint64_t left = received; left > 0; ++used) {
    const uint32_t bytes = static_cast<uint32_t>(std::min<uint64_t>(left, room[used]));
    PutHeader(rx, rx_chains_[used], HeaderFor(connection, kOpReadWrite, bytes, 0));
    connection.NoteSent({&bytes, 1});
    left -= bytes;
  }
  rx.Rewind(static_cast<uint16_t>(chain_count - used));
  // As many buffers next time as proved useful, twice as many if all were.
  connection.read_chains = received == room_total
                               ? std::min<uint32_t>(2 * connection.read_chains, kPacketsPerBatchMax)
                               : std::max<uint32_t>(used, 1);
  if (result == Connection::IoResult::kFailed) ResetConnection(connection);
  return TurnResult::kIdle;
}

// A step of copies from the conduit into rx buffers. May end the connection.
absl::StatusOr<Muxer::TurnResult> Muxer::SendFromConduit(Virtqueue& rx, Connection& connection,
                                                         uint64_t& moved) {
  CopyStep<FillJob>& step = to_guest_.Make();
  const size_t packets = std::min<size_t>(connection.SendablePackets(), kPacketsPerCopy);
  const uint64_t credit = connection.SendableBytes();
  Connection::IoResult result = Connection::IoResult::kOk;
  bool starved = false;
  uint64_t found = 0;  // bytes that the job has been given to read
  // Sources, until the job has `bytes` more than it has packets for, as far as there are so many.
  const auto find = [&](uint64_t bytes) {
    while (found - step.bytes < bytes && !step.job.full()) {
      const std::span<const std::byte> more = connection.Read();
      if (more.empty()) break;
      step.job.AddSource(more);
      found += more.size();
    }
    return !connection.broken();
  };
  while (step.used.size() < packets && step.bytes < credit && !step.job.full()) {
    if (found == step.bytes) {
      bool any = false;
      result = connection.FindBytes(any);
      if (!any) break;
    }
    const std::span<const WritableBuffer> buffers(
        rx_buffers_.data(),
        rx.PopWritable(kPacketHeaderBytes + 1,
                       std::span(rx_buffers_).first(packets - step.used.size())));
    uint64_t room = 0;
    for (const WritableBuffer& buffer : buffers) room += PayloadRoom(buffer.place.iov_len);
    Chain& chain = rx_chains_[0];
    if (buffers.empty()) {
      ASSIGN_OR_RETURN(const bool popped, PopRx(rx, chain));
      if (!popped) {
        starved = true;
        break;
      }
      room = PayloadRoom(chain.writable_bytes);
    }
    room = std::min(room, credit - step.bytes);
    if (!find(room)) {
      rx.Rewind(static_cast<uint16_t>(std::max<size_t>(buffers.size(), 1)));
      result = Connection::IoResult::kFailed;
      break;
    }
    const uint64_t bytes = std::min(room, found - step.bytes);
    step.bytes += bytes;
    if (buffers.empty()) {
      const auto payload = static_cast<uint32_t>(bytes);
      step.job.AddPacket(chain.writable, payload);
      step.used.push_back({chain.head, static_cast<uint32_t>(kPacketHeaderBytes) + payload});
      connection.NoteSent({&payload, 1});
      continue;
    }
    std::array<uint32_t, kPacketsPerCopy> payloads;
    const size_t count = step.job.AddPackets(buffers, bytes, payloads);
    rx.Rewind(static_cast<uint16_t>(buffers.size() - count));
    const size_t before = step.used.size();
    step.used.resize(before + count);
    for (size_t i = 0; i < count; ++i) {
      step.used[before + i] = {buffers[i].head,
                               static_cast<uint32_t>(kPacketHeaderBytes) + payloads[i]};
    }
    connection.NoteSent(std::span(payloads).first(count));
  }
  if (result != Connection::IoResult::kFailed) connection.Unread(found - step.bytes);
  moved += step.bytes;
  if (!step.used.empty()) {
    counters_->packets_to_guest.Add(step.used.size());
    counters_->bytes_to_guest.Add(step.bytes);
    step.job.SetHeader(HeaderFor(connection, kOpReadWrite, 0, 0));
    step.job.SetPastCaches(connection.taken_unread());
    BeginCopies(to_guest_, connection);
    EndCopies(to_guest_, rx);
  }
  if (result == Connection::IoResult::kFailed) ResetConnection(connection);
  return starved ? TurnResult::kStarved : TurnResult::kIdle;
}

int Muxer::TakeTime(std::chrono::steady_clock::time_point now) {
  if (stalled_.empty()) return -1;
  if (now >= stalled_deadline_) {
    for (Connection* connection : std::exchange(stalled_, {})) {
      connection->stalled = false;
      connection->credit_request_pending =
          connection->readable() && connection->SendablePackets() == 0;
      QueueIfReady(*connection);
    }
    return 0;
  }
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(stalled_deadline_ - now).count();
  return static_cast<int>(left) + 1;
}

// ---- connections ----

absl::StatusOr<EventSet::Watch> Muxer::WatchHost(const UniqueFd& fd, uint64_t id) {
  RETURN_IF_ERROR(PrepareHostDescriptor(fd.get()));
  return events_->Add(fd.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, id);
}

Connection* Muxer::Find(const PortPair& ports) {
  const auto found = by_ports_.find(ports);
  return found == by_ports_.end() ? nullptr : found->second;
}

void Muxer::QueueIfReady(Connection& connection) {
  if (connection.queued || connection.detached) return;
  const bool can_send_data =
      connection.readable() && connection.SendableBytes() > 0 && connection.SendablePackets() > 0;
  const bool ready = connection.response_pending || can_send_data ||
                     connection.HasShutdownToTell() || connection.credit_update_pending ||
                     connection.NeedsCreditUpdate() || connection.credit_request_pending ||
                     connection.broken();
  if (!ready) return;
  connection.queued = true;
  ready_.push_back(&connection);
}

void Muxer::Stall(Connection& connection) {
  connection.stalled = true;
  if (stalled_.empty()) {
    stalled_deadline_ =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(kCreditRequestIntervalMs);
  }
  stalled_.push_back(&connection);
}

void Muxer::TakeHostEvents(uint64_t id, uint32_t events) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection& connection = *found->second;
  connection.TakeEvents(events);
  const Connection::IoResult result = connection.Flush();
  if (connection.detached) {
    if (result == Connection::IoResult::kFailed || connection.backlog_empty()) Remove(connection);
    return;
  }
  if (result == Connection::IoResult::kFailed) {
    ResetConnection(connection);
    return;
  }
  QueueIfReady(connection);
}

void Muxer::Unqueue(Connection& connection) {
  if (std::exchange(connection.queued, false)) std::erase(ready_, &connection);
  if (std::exchange(connection.stalled, false)) std::erase(stalled_, &connection);
}

void Muxer::Remove(Connection& connection) {
  SettleCopies();
  Unqueue(connection);
  if (!connection.detached) by_ports_.erase(connection.ports());
  windows_granted_ -= connection.window_bytes();
  counters_->connections_now.Set(connections_.size() - 1);
  connections_.erase(connection.id());
}

void Muxer::Detach(Connection& connection) {
  Unqueue(connection);
  by_ports_.erase(connection.ports());
  connection.detached = true;
  AddReset(kHostCid, connection.ports(), kTypeStream);
}

void Muxer::ResetConnection(Connection& connection) {
  LOG_IF(WARNING, connection.broken()) << "vsock: guest port " << connection.ports().guest_port
                                       << ": a worker wrote nonsense into its conduit";
  counters_->connections_reset.Add();
  AddReset(kHostCid, connection.ports(), kTypeStream);
  Remove(connection);
}

void Muxer::AddReset(uint64_t src_cid, const PortPair& ports, uint16_t type) {
  resets_.push_back({.src_cid = src_cid, .ports = ports, .type = type});
}

}  // namespace consort::vhost_user
