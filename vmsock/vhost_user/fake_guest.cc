// SPDX-License-Identifier: Apache-2.0
#include "vmsock/vhost_user/fake_guest.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "vmsock/vhost_user/limits.h"

namespace consort::vhost_user {
namespace {

constexpr uint32_t kEntries = FakeFrontend::kRingEntries;
// RAM: rings below 1 MiB, then receive buffers, indirect tables, and areas for packets to send,
// half of which lie in the second region.
constexpr uint32_t kRxBufferBytes = 3776;
constexpr uint64_t kRxTablesOffset = 8 * kMiB;
constexpr uint64_t kTxTablesOffset = 12 * kMiB;
constexpr uint64_t kTableStride = 16 * kKiB;
constexpr uint64_t kTxAreasOffset = FakeFrontend::kHalfBytes - 8 * kMiB;
constexpr uint64_t kTxAreaStride = 256 * kKiB;
constexpr uint32_t kTxAreas = 64;
constexpr uint32_t kTableEntriesMax = kTableStride / sizeof(RawDescriptor);
// Between two pieces, so that nothing is adjacent or aligned by chance.
constexpr uint64_t kGap = 17;

static_assert(kTxAreasOffset + kTxAreas * kTxAreaStride <= FakeGuest::kFreeOffset);

uint32_t TotalBytes(const std::vector<RawDescriptor>& pieces) {
  uint32_t total = 0;
  for (const RawDescriptor& piece : pieces) total += piece.len;
  return total;
}

}  // namespace

// ---- GuestRing ----

uint16_t GuestRing::Load(uint64_t ram_offset) const {
  return std::atomic_ref<uint16_t>(*reinterpret_cast<uint16_t*>(frontend_->At(ram_offset)))
      .load(std::memory_order_seq_cst);
}

void GuestRing::Store(uint64_t ram_offset, uint16_t value) {
  std::atomic_ref<uint16_t>(*reinterpret_cast<uint16_t*>(frontend_->At(ram_offset)))
      .store(value, std::memory_order_seq_cst);
}

void GuestRing::Reset() {
  std::memset(frontend_->At(offset()), 0, FakeFrontend::kRingStride);
  available_index_ = 0;
  last_used_ = 0;
}

void GuestRing::SetDescriptor(uint32_t index, const RawDescriptor& descriptor) {
  std::memcpy(frontend_->At(offset() + index * sizeof(descriptor)), &descriptor,
              sizeof(descriptor));
}

void GuestRing::Publish(uint16_t old_index) {
  const uint64_t available = offset() + FakeFrontend::kAvailableOffset;
  const uint64_t used = offset() + FakeFrontend::kUsedOffset;
  Store(available + 2, available_index_);
  bool kick = false;
  if (frontend_->event_idx()) {
    const uint16_t avail_event = Load(used + 4 + 8 * kEntries);
    kick = static_cast<uint16_t>(available_index_ - avail_event - 1) <
           static_cast<uint16_t>(available_index_ - old_index);
  } else {
    kick = (Load(used) & 1) == 0;
  }
  if (kick) frontend_->Kick(index_);
}

void GuestRing::Offer(uint16_t head) {
  const uint64_t available = offset() + FakeFrontend::kAvailableOffset;
  Store(available + 4 + 2 * (available_index_ % kEntries), head);
  const uint16_t old_index = available_index_++;
  Publish(old_index);
}

void GuestRing::JumpIndex(uint16_t count) {
  available_index_ = static_cast<uint16_t>(available_index_ + count);
  Store(offset() + FakeFrontend::kAvailableOffset + 2, available_index_);
  frontend_->Kick(index_);
}

std::optional<GuestRing::Used> GuestRing::TakeUsed() {
  const uint64_t used = offset() + FakeFrontend::kUsedOffset;
  if (Load(used + 2) == last_used_) {
    // Ask for an interrupt at the next one, then look again.
    Store(offset() + FakeFrontend::kAvailableOffset + 4 + 2 * kEntries, last_used_);
    if (Load(used + 2) == last_used_) return std::nullopt;
  }
  Used element;
  std::memcpy(&element, frontend_->At(used + 4 + 8 * (last_used_ % kEntries)), sizeof(element));
  ++last_used_;
  return element;
}

// ---- FakeGuest ----

FakeGuest::FakeGuest(FakeFrontend* frontend, uint64_t cid, std::vector<Shape> rx_shapes)
    : frontend_(frontend),
      cid_(cid),
      rx_shapes_(std::move(rx_shapes)),
      rx_(frontend, kRxQueue),
      tx_(frontend, kTxQueue) {
  Start();
}

void FakeGuest::Start() {
  rx_.Reset();
  tx_.Reset();
  rx_layouts_.assign(kRxBuffers, {});
  rx_buffer_of_head_.clear();
  held_rx_.clear();
  tx_slots_.clear();
  unclaimed_.clear();
  free_tx_descriptors_.clear();
  free_tx_areas_.clear();
  for (uint32_t i = 0; i < kEntries; ++i) {
    free_tx_descriptors_.push_back(static_cast<uint16_t>(kEntries - 1 - i));
  }
  for (uint32_t i = 0; i < kTxAreas; ++i) free_tx_areas_.push_back(i);
  for (uint32_t i = 0; i < kRxBuffers; ++i) OfferRx(i);
}

std::vector<RawDescriptor> FakeGuest::LayOut(uint64_t ram_offset, uint32_t bytes,
                                             const Shape& shape, uint16_t flags) {
  std::vector<RawDescriptor> pieces;
  uint64_t end = ram_offset;
  for (uint32_t left = bytes; left > 0;) {
    const uint32_t length =
        std::min(left, shape.lengths[std::min(pieces.size(), shape.lengths.size() - 1)]);
    pieces.push_back({.addr = 0, .len = length, .flags = flags, .next = 0});
    end += length + kGap;
    left -= length;
  }
  // The first piece lies last.
  for (RawDescriptor& piece : pieces) {
    end -= piece.len + kGap;
    piece.addr = end;  // a RAM offset, made an address when used
  }
  return pieces;
}

void FakeGuest::OfferRx(uint32_t buffer) {
  if (hold_rx_) {
    held_rx_.push_back(buffer);
    return;
  }
  auto& pieces = rx_layouts_[buffer];
  const Shape& shape = rx_shapes_[buffer % rx_shapes_.size()];
  pieces = LayOut(RxBufferOffset(buffer), kRxBufferBytes, shape, kFlagWrite);
  // Two ring entries a buffer: enough for direct chains of two pieces.
  const uint16_t head = static_cast<uint16_t>(buffer * (kEntries / kRxBuffers));
  rx_buffer_of_head_[head] = buffer;
  if (shape.indirect) {
    const uint64_t table = kRxTablesOffset + buffer * kTableStride;
    CHECK_LE(pieces.size(), kTableEntriesMax);
    for (size_t i = 0; i < pieces.size(); ++i) {
      RawDescriptor descriptor = pieces[i];
      descriptor.addr = FakeFrontend::GuestAddr(descriptor.addr);
      if (i + 1 < pieces.size()) descriptor.flags |= kFlagNext;
      descriptor.next = static_cast<uint16_t>(i + 1);
      std::memcpy(frontend_->At(table + i * sizeof(descriptor)), &descriptor, sizeof(descriptor));
    }
    rx_.SetDescriptor(head, {.addr = FakeFrontend::GuestAddr(table),
                             .len = static_cast<uint32_t>(pieces.size() * sizeof(RawDescriptor)),
                             .flags = kFlagIndirect,
                             .next = 0});
  } else {
    CHECK_LE(pieces.size(), kEntries / kRxBuffers);
    for (size_t i = 0; i < pieces.size(); ++i) {
      RawDescriptor descriptor = pieces[i];
      descriptor.addr = FakeFrontend::GuestAddr(descriptor.addr);
      if (i + 1 < pieces.size()) descriptor.flags |= kFlagNext;
      descriptor.next = static_cast<uint16_t>(head + i + 1);
      rx_.SetDescriptor(static_cast<uint32_t>(head + i), descriptor);
    }
  }
  rx_.Offer(head);
}

void FakeGuest::HoldRxBuffers(bool hold) {
  hold_rx_ = hold;
  if (hold) return;
  for (const uint32_t buffer : std::exchange(held_rx_, {})) OfferRx(buffer);
}

PacketHeader FakeGuest::Header(uint32_t guest_port, uint32_t host_port, uint16_t op) const {
  return {.src_cid = cid_,
          .dst_cid = kHostCid,
          .src_port = guest_port,
          .dst_port = host_port,
          .len = 0,
          .type = kTypeStream,
          .op = op,
          .flags = 0,
          .buf_alloc = 262144,
          .fwd_cnt = 0};
}

bool FakeGuest::ReapTx() {
  bool any = false;
  while (const auto used = tx_.TakeUsed()) {
    any = true;
    const auto slot = tx_slots_.find(used->head);
    if (slot == tx_slots_.end()) continue;  // a raw chain of a test
    free_tx_areas_.push_back(slot->second.area);
    for (const uint16_t descriptor : slot->second.descriptors) {
      free_tx_descriptors_.push_back(descriptor);
    }
    tx_slots_.erase(slot);
  }
  return any;
}

bool FakeGuest::Send(const PacketHeader& header, std::span<const std::byte> payload,
                     const Shape& shape) {
  const uint32_t bytes = static_cast<uint32_t>(kPacketHeaderBytes + payload.size());
  auto pieces = LayOut(0, bytes, shape, 0);
  const bool indirect = shape.indirect && frontend_->indirect();
  const size_t needed = indirect ? 1 : pieces.size();
  CHECK_LE(needed, kEntries);
  ReapTx();
  while (free_tx_areas_.empty() || free_tx_descriptors_.size() < needed) {
    if (!Step(kTimeoutMs)) return false;
  }
  TxSlot slot{.descriptors = {}, .area = free_tx_areas_.front()};
  free_tx_areas_.erase(free_tx_areas_.begin());
  CHECK_LE(bytes + kGap * pieces.size(), kTxAreaStride);
  for (RawDescriptor& piece : pieces) piece.addr += kTxAreasOffset + slot.area * kTxAreaStride;

  std::vector<std::byte> packet(bytes);
  std::memcpy(packet.data(), &header, sizeof(header));
  std::copy(payload.begin(), payload.end(), packet.begin() + sizeof(header));
  size_t copied = 0;
  for (const RawDescriptor& piece : pieces) {
    std::memcpy(frontend_->At(piece.addr), packet.data() + copied, piece.len);
    copied += piece.len;
  }
  for (size_t i = 0; i < needed; ++i) {
    slot.descriptors.push_back(free_tx_descriptors_.back());
    free_tx_descriptors_.pop_back();
  }
  const uint16_t head = slot.descriptors[0];
  const uint64_t table = kTxTablesOffset + head * kTableStride;
  CHECK(!indirect || pieces.size() <= kTableEntriesMax);
  for (size_t i = 0; i < pieces.size(); ++i) {
    RawDescriptor descriptor = pieces[i];
    descriptor.addr = FakeFrontend::GuestAddr(descriptor.addr);
    const bool last = i + 1 == pieces.size();
    if (!last) descriptor.flags |= kFlagNext;
    if (indirect) {
      descriptor.next = static_cast<uint16_t>(last ? 0 : i + 1);
      std::memcpy(frontend_->At(table + i * sizeof(descriptor)), &descriptor, sizeof(descriptor));
    } else {
      descriptor.next = last ? 0 : slot.descriptors[i + 1];
      tx_.SetDescriptor(slot.descriptors[i], descriptor);
    }
  }
  if (indirect) {
    tx_.SetDescriptor(head, {.addr = FakeFrontend::GuestAddr(table),
                             .len = static_cast<uint32_t>(pieces.size() * sizeof(RawDescriptor)),
                             .flags = kFlagIndirect,
                             .next = 0});
  }
  tx_slots_[head] = std::move(slot);
  tx_.Offer(head);
  return true;
}

bool FakeGuest::Step(int timeout_ms) {
  while (true) {
    bool any = ReapTx();
    while (const auto used = rx_.TakeUsed()) {
      any = true;
      ++packets_received_;
      const uint32_t buffer = rx_buffer_of_head_.at(used->head);
      std::vector<std::byte> bytes;
      for (const RawDescriptor& piece : rx_layouts_[buffer]) {
        bytes.insert(bytes.end(), frontend_->At(piece.addr), frontend_->At(piece.addr) + piece.len);
      }
      CHECK_EQ(bytes.size(), TotalBytes(rx_layouts_[buffer]));
      CHECK_GE(used->bytes, kPacketHeaderBytes);
      CHECK_LE(used->bytes, bytes.size());
      Packet packet;
      std::memcpy(&packet.header, bytes.data(), sizeof(packet.header));
      CHECK_EQ(packet.header.len + kPacketHeaderBytes, used->bytes);
      packet.payload.assign(bytes.begin() + kPacketHeaderBytes, bytes.begin() + used->bytes);
      OfferRx(buffer);
      Dispatch(std::move(packet));
    }
    if (any) return true;
    if (!frontend_->WaitInterrupt(timeout_ms)) return false;
  }
}

void FakeGuest::Dispatch(Packet packet) {
  CHECK_EQ(packet.header.dst_cid, cid_);
  const auto stream = streams_.find(packet.header.dst_port);
  if (packet.header.src_cid == kHostCid && packet.header.type == kTypeStream &&
      stream != streams_.end() && stream->second->host_port_ == packet.header.src_port) {
    stream->second->Take(std::move(packet));
  } else {
    unclaimed_.push_back(std::move(packet));
  }
}

std::optional<Packet> FakeGuest::Receive(int timeout_ms) {
  while (unclaimed_.empty()) {
    if (!Step(timeout_ms)) return std::nullopt;
  }
  Packet packet = std::move(unclaimed_.front());
  unclaimed_.pop_front();
  return packet;
}

// ---- GuestStream ----

GuestStream::GuestStream(FakeGuest* guest, uint32_t guest_port, uint32_t host_port,
                         uint32_t buf_alloc)
    : guest_(guest), guest_port_(guest_port), host_port_(host_port), buf_alloc_(buf_alloc) {
  guest_->streams_[guest_port] = this;
}

GuestStream::~GuestStream() { guest_->streams_.erase(guest_port_); }

PacketHeader GuestStream::Header(uint16_t op) {
  PacketHeader header = guest_->Header(guest_port_, host_port_, op);
  header.buf_alloc = buf_alloc_;
  header.fwd_cnt = fwd_cnt_;
  fwd_cnt_told_ = fwd_cnt_;
  return header;
}

void GuestStream::Take(Packet packet) {
  peer_buf_alloc_ = packet.header.buf_alloc;
  peer_fwd_cnt_ = packet.header.fwd_cnt;
  switch (packet.header.op) {
    case kOpResponse:
      connected_ = true;
      break;
    case kOpReset:
      reset_ = true;
      break;
    case kOpShutdown:
      host_shutdown_ |= packet.header.flags;
      break;
    case kOpReadWrite:
      received_.insert(received_.end(), packet.payload.begin(), packet.payload.end());
      CHECK_LE(received_.size(), buf_alloc_) << "the device ignores our credit";
      unread_packets_max_ = std::max(unread_packets_max_, ++unread_packets_);
      break;
    case kOpCreditRequest:
      guest_->Send(Header(kOpCreditUpdate), {});
      break;
    default:
      break;
  }
}

bool GuestStream::Connect() {
  if (!guest_->Send(Header(kOpRequest), {})) return false;
  while (!connected_ && !reset_) {
    if (!guest_->Step(FakeGuest::kTimeoutMs)) return false;
  }
  return connected_ && !reset_;
}

uint32_t GuestStream::credit() const {
  // Recent kernels cap their send window at their own buffer.
  const uint32_t window = std::min(peer_buf_alloc_, buf_alloc_);
  const uint32_t in_flight = sent_ - peer_fwd_cnt_;
  return in_flight >= window ? 0 : window - in_flight;
}

size_t GuestStream::SendSome(std::span<const std::byte> bytes, const Shape& shape) {
  while (credit() == 0) {
    if (reset_ || !guest_->Step(FakeGuest::kTimeoutMs)) return 0;
  }
  if (reset_) return 0;
  const size_t count = std::min<size_t>({bytes.size(), credit(), kPacketPayloadBytesMax});
  PacketHeader header = Header(kOpReadWrite);
  header.len = static_cast<uint32_t>(count);
  sent_ += header.len;
  return guest_->Send(header, bytes.first(count), shape) ? count : 0;
}

bool GuestStream::SendAll(std::span<const std::byte> bytes, const Shape& shape) {
  while (!bytes.empty()) {
    const size_t count = SendSome(bytes, shape);
    if (count == 0) return false;
    bytes = bytes.subspan(count);
  }
  return true;
}

std::vector<std::byte> GuestStream::ReceiveSome() {
  while (received_.empty()) {
    if (reset_ || ended() || !guest_->Step(FakeGuest::kTimeoutMs)) return {};
  }
  std::vector<std::byte> bytes = std::exchange(received_, {});
  unread_packets_ = 0;
  fwd_cnt_ += static_cast<uint32_t>(bytes.size());
  // Linux 6.1: only when little of the buffer is left to report.
  if (fwd_cnt_ != fwd_cnt_told_ &&
      (fwd_cnt_ - fwd_cnt_told_) + kPacketPayloadBytesMax > buf_alloc_) {
    guest_->Send(Header(kOpCreditUpdate), {});
  }
  return bytes;
}

void GuestStream::Shutdown(uint32_t flags) {
  PacketHeader header = Header(kOpShutdown);
  header.flags = flags;
  guest_->Send(header, {});
}

bool GuestStream::WaitReset() {
  while (!reset_) {
    if (!guest_->Step(FakeGuest::kTimeoutMs)) return false;
  }
  return true;
}

bool GuestStream::WaitEnd() {
  while (!ended() && !reset_) {
    if (!guest_->Step(FakeGuest::kTimeoutMs)) return false;
  }
  return ended();
}

}  // namespace consort::vhost_user
