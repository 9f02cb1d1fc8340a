// SPDX-License-Identifier: Apache-2.0
#include "vmsock/vhost_user/fast_guest.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <utility>

#include "base/log.h"
#include "vmsock/deadline.h"
#include "vmsock/spin.h"
#include "vmsock/vhost_user/limits.h"

namespace consort::vhost_user {
namespace {

constexpr uint32_t kEntries = FakeFrontend::kRingEntries;
// RAM: rings below 1 MiB, then receive buffers, and of each entry of the tx ring the table and the
// room of a header and a small payload; then the pieces, in both regions.
constexpr uint64_t kRxBuffersOffset = 1 * kMiB;
constexpr uint64_t kPageBytes = 4 * kKiB;
constexpr uint32_t kRxBufferBytes = 3776;
constexpr uint64_t kTablesOffset = 8 * kMiB;
constexpr uint64_t kTableStride = 1 * kKiB;
constexpr uint64_t kHeadersOffset = 12 * kMiB;
constexpr uint64_t kPiecesOffset = 16 * kMiB;
constexpr uint64_t kPiecesEnd = FakeFrontend::kRamBytes;
constexpr uint32_t kDataPacketBytes = kPacketPayloadBytesMax;
// How long to look at the used rings before sleeping: a guest's processor that waits for bulk data
// seldom rests.
constexpr Nanos kLook = 50 * kMicrosecond;
// Between two looks at the clock, which costs as much as some of them.
constexpr int kLooksPerClock = 16;
// What a program has read is told when all was read, but not for less than this.
constexpr uint32_t kReportBytesMin = 256 * kKiB;
constexpr int kTimeoutMs = 60000;

uint64_t WordSum(const std::byte* at, size_t bytes) {
  uint64_t sum = 0;
  for (size_t i = 0; i < bytes; i += 8) {
    uint64_t word;
    std::memcpy(&word, at + i, 8);
    sum += word;
  }
  return sum;
}

}  // namespace

std::vector<GuestKernel> GuestKernels() {
  return {{"6.1", 65536, static_cast<uint32_t>(kPacketHeaderBytes), true},
          {"6.12", 32768, 0, false},
          {"6.12 MSG_ZEROCOPY", 4096, 0, false}};
}

FastGuest::FastGuest(FakeFrontend* frontend, const Options& options, const GuestKernel& kernel,
                     Consumer consumer)
    : frontend_(frontend), options_(options), kernel_(kernel), consumer_(std::move(consumer)) {
  CHECK(frontend_->event_idx() && frontend_->indirect());
  std::mt19937_64 random(1);
  for (uint32_t i = 0; i < kQueueCount; ++i) {
    rings_[i].offset = FakeFrontend::kRingsOffset + i * FakeFrontend::kRingStride;
    std::memset(At(rings_[i].offset), 0, FakeFrontend::kRingStride);
  }
  for (uint64_t i = 0; i < kEntries; ++i) {
    rx_buffers_.push_back(kRxBuffersOffset + i * kPageBytes);
    tx_free_.push_back(static_cast<uint16_t>(i));
    rx_used_.push_back(static_cast<uint16_t>(i));
    SetDescriptor(rings_[kTxQueue].offset, static_cast<uint32_t>(i),
                  {.addr = FakeFrontend::GuestAddr(kTablesOffset + i * kTableStride),
                   .len = 0,
                   .flags = kFlagIndirect,
                   .next = 0});
  }
  std::shuffle(rx_buffers_.begin(), rx_buffers_.end(), random);
  const uint64_t stride = kernel.piece_lead == 0 ? kernel.piece_bytes : 2 * kernel.piece_bytes;
  for (uint64_t at = kPiecesOffset; at < kPiecesEnd; at += stride) {
    const uint64_t offset = at + kernel.piece_lead;
    for (uint64_t i = 0; i < kernel.piece_bytes; i += 8) {
      const uint64_t word = random();
      std::memcpy(At(offset + i), &word, 8);
    }
    pieces_.push_back({offset, WordSum(At(offset), kernel.piece_bytes)});
  }
  std::shuffle(pieces_.begin(), pieces_.end(), random);
  OfferReceived();
}

// ---- rings ----

uint16_t FastGuest::LoadIndex(uint64_t ram_offset) {
  return std::atomic_ref<uint16_t>(*reinterpret_cast<uint16_t*>(At(ram_offset)))
      .load(std::memory_order_seq_cst);
}

void FastGuest::StoreIndex(uint64_t ram_offset, uint16_t value) {
  std::atomic_ref<uint16_t>(*reinterpret_cast<uint16_t*>(At(ram_offset)))
      .store(value, std::memory_order_seq_cst);
}

void FastGuest::SetDescriptor(uint64_t table, uint32_t index, const RawDescriptor& descriptor) {
  std::memcpy(At(table + index * sizeof(descriptor)), &descriptor, sizeof(descriptor));
}

void FastGuest::Offer(Ring& ring, uint16_t head) {
  std::memcpy(
      At(ring.offset + FakeFrontend::kAvailableOffset + 4 + 2 * (ring.available % kEntries)), &head,
      sizeof(head));
  ++ring.available;
}

void FastGuest::Publish(uint32_t queue) {
  Ring& ring = rings_[queue];
  // Before the look at what the device wants to hear of.
  StoreIndex(ring.offset + FakeFrontend::kAvailableOffset + 2, ring.available);
  const uint16_t event = LoadIndex(ring.offset + FakeFrontend::kUsedOffset + 4 + 8 * kEntries);
  const bool kick = static_cast<uint16_t>(ring.available - event - 1) <
                    static_cast<uint16_t>(ring.available - ring.published);
  ring.published = ring.available;
  if (kick) frontend_->Kick(queue);
}

void FastGuest::OfferReceived() {
  Ring& ring = rings_[kRxQueue];
  for (const uint16_t head : rx_used_) {
    SetDescriptor(ring.offset, head,
                  {.addr = FakeFrontend::GuestAddr(rx_buffers_[head]),
                   .len = kRxBufferBytes,
                   .flags = kFlagWrite,
                   .next = 0});
    Offer(ring, head);
  }
  const bool first = ring.published == 0 && ring.available == kEntries;
  rx_used_.clear();
  if (first) {
    // The queues do not run yet: their start shows the device what there is.
    StoreIndex(ring.offset + FakeFrontend::kAvailableOffset + 2, ring.available);
    ring.published = ring.available;
    return;
  }
  Publish(kRxQueue);
}

GuestRing::Used FastGuest::UsedAt(const Ring& ring, uint16_t index) {
  GuestRing::Used used;
  std::memcpy(&used, At(ring.offset + FakeFrontend::kUsedOffset + 4 + 8 * (index % kEntries)),
              sizeof(used));
  return used;
}

bool FastGuest::Look() {
  bool any = false;
  Ring& tx = rings_[kTxQueue];
  const uint16_t tx_used = LoadIndex(tx.offset + FakeFrontend::kUsedOffset + 2);
  for (; tx.used != tx_used; ++tx.used) {
    tx_free_.push_back(static_cast<uint16_t>(UsedAt(tx, tx.used).head));
    any = true;
  }
  Ring& rx = rings_[kRxQueue];
  const uint16_t rx_used = LoadIndex(rx.offset + FakeFrontend::kUsedOffset + 2);
  // Other processors have just written their headers: the misses of all at once.
  for (uint16_t ahead = rx.used; ahead != rx_used; ++ahead) {
    const uint32_t head = UsedAt(rx, ahead).head;
    CHECK_LT(head, kEntries);
    __builtin_prefetch(At(rx_buffers_[head]));
  }
  for (; rx.used != rx_used; ++rx.used) {
    const GuestRing::Used used = UsedAt(rx, rx.used);
    TakePacket(used.head, used.bytes);
    rx_used_.push_back(static_cast<uint16_t>(used.head));
    if (rx_used_.size() >= kEntries / 2) OfferReceived();
    any = true;
  }
  const uint32_t untold = received_ - told_;
  const bool tell = kernel_.reports_late
                        ? untold + kPacketPayloadBytesMax > options_.buf_alloc
                        : untold >= std::min(kReportBytesMin, options_.buf_alloc / 2);
  // An update takes an entry; without one, the next packet says it.
  if ((tell || std::exchange(credit_asked_, false)) && !tx_free_.empty()) {
    SendControl(kOpCreditUpdate, 0);
  }
  return any;
}

void FastGuest::Step() {
  for (const Nanos until = MonotonicNow() + kLook;;) {
    for (int look = 0; look < kLooksPerClock; ++look) {
      if (Look()) return;
      // Others may share the core, as they do where a guest's processor waits.
      Pause();
    }
    if (MonotonicNow() >= until) break;
  }
  for (const Ring& ring : rings_) {
    StoreIndex(ring.offset + FakeFrontend::kAvailableOffset + 4 + 2 * kEntries, ring.used);
  }
  while (!Look()) CHECK(frontend_->WaitInterrupt(kTimeoutMs)) << "the device rests";
}

// ---- the stream ----

PacketHeader FastGuest::Header(uint16_t op, uint32_t bytes) {
  told_ = received_;
  return {.src_cid = options_.cid,
          .dst_cid = kHostCid,
          .src_port = options_.guest_port,
          .dst_port = options_.host_port,
          .len = bytes,
          .type = kTypeStream,
          .op = op,
          .flags = 0,
          .buf_alloc = options_.buf_alloc,
          .fwd_cnt = received_};
}

uint16_t FastGuest::TakeSlot(uint32_t bytes) {
  // Recent kernels send no more than they would receive.
  while (tx_free_.empty() || (bytes > 0 && sent_ - peer_forwarded_ + bytes >
                                               std::min(peer_window_, options_.buf_alloc))) {
    Step();
  }
  const uint16_t slot = tx_free_.back();
  tx_free_.pop_back();
  sent_ += bytes;
  return slot;
}

void FastGuest::PostPacket(uint16_t slot, const PacketHeader& header, size_t descriptors) {
  const uint64_t at = kHeadersOffset + slot * kPageBytes;
  const uint64_t table = kTablesOffset + slot * kTableStride;
  std::memcpy(At(at), &header, sizeof(header));
  SetDescriptor(table, 0,
                {.addr = FakeFrontend::GuestAddr(at),
                 .len = static_cast<uint32_t>(kPacketHeaderBytes),
                 .flags = descriptors > 1 ? kFlagNext : uint16_t{0},
                 .next = 1});
  SetDescriptor(rings_[kTxQueue].offset, slot,
                {.addr = FakeFrontend::GuestAddr(table),
                 .len = static_cast<uint32_t>(descriptors * sizeof(RawDescriptor)),
                 .flags = kFlagIndirect,
                 .next = 0});
  Offer(rings_[kTxQueue], slot);
  Publish(kTxQueue);
}

void FastGuest::SendControl(uint16_t op, uint32_t flags) {
  const uint16_t slot = TakeSlot(0);
  PacketHeader header = Header(op, 0);
  header.flags = flags;
  PostPacket(slot, header, 1);
}

void FastGuest::Send(std::span<const std::byte> bytes) {
  CHECK_LE(bytes.size(), kSmallBytesMax);
  const auto count = static_cast<uint32_t>(bytes.size());
  const uint16_t slot = TakeSlot(count);
  const uint64_t at = kHeadersOffset + slot * kPageBytes + kPageBytes / 2;
  std::memcpy(At(at), bytes.data(), bytes.size());
  SetDescriptor(kTablesOffset + slot * kTableStride, 1,
                {.addr = FakeFrontend::GuestAddr(at), .len = count, .flags = 0, .next = 0});
  PostPacket(slot, Header(kOpReadWrite, count), 2);
}

uint64_t FastGuest::SendPieces(uint64_t bytes) {
  CHECK_EQ(bytes % kDataPacketBytes, 0u);
  const uint32_t per_packet = kDataPacketBytes / kernel_.piece_bytes;
  uint64_t sum = 0;
  uint64_t index = 0;
  for (uint64_t at = 0; at < bytes; at += kDataPacketBytes) {
    const uint16_t slot = TakeSlot(kDataPacketBytes);
    const uint64_t table = kTablesOffset + slot * kTableStride;
    for (uint32_t i = 1; i <= per_packet; ++i) {
      const Piece& piece = pieces_[next_piece_];
      next_piece_ = (next_piece_ + 1) % pieces_.size();
      sum += piece.sum * (2 * index++ + 1);
      SetDescriptor(table, i,
                    {.addr = FakeFrontend::GuestAddr(piece.ram_offset),
                     .len = kernel_.piece_bytes,
                     .flags = i < per_packet ? kFlagNext : uint16_t{0},
                     .next = static_cast<uint16_t>(i < per_packet ? i + 1 : 0)});
    }
    PostPacket(slot, Header(kOpReadWrite, kDataPacketBytes), per_packet + 1);
  }
  return sum;
}

uint64_t FastGuest::SumOf(std::span<const std::byte> bytes) const {
  uint64_t sum = 0;
  uint64_t index = 0;
  for (size_t at = 0; at < bytes.size(); at += kernel_.piece_bytes) {
    sum += WordSum(bytes.data() + at, kernel_.piece_bytes) * (2 * index++ + 1);
  }
  return sum;
}

void FastGuest::TakePacket(uint32_t head, uint32_t bytes) {
  CHECK_LT(head, kEntries);
  const std::byte* const at = At(rx_buffers_[head]);
  PacketHeader header;
  std::memcpy(&header, at, sizeof(header));
  CHECK_EQ(header.len + kPacketHeaderBytes, bytes);
  CHECK_EQ(header.dst_port, options_.guest_port);
  peer_forwarded_ = header.fwd_cnt;
  peer_window_ = header.buf_alloc;
  switch (header.op) {
    case kOpResponse:
      connected_ = true;
      break;
    case kOpReset:
      connected_ = false;
      break;
    case kOpCreditRequest:
      credit_asked_ = true;
      break;
    case kOpReadWrite:
      received_ += header.len;
      consumer_({at + kPacketHeaderBytes, header.len});
      break;
    default:
      break;
  }
}

void FastGuest::Connect() {
  SendControl(kOpRequest, 0);
  while (!connected_) Step();
}

void FastGuest::Shutdown() {
  SendControl(kOpShutdown, kShutdownBoth);
  while (connected_) Step();
}

}  // namespace consort::vhost_user
