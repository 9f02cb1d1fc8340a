// SPDX-License-Identifier: Apache-2.0
// vmsock/vhost_user/fast_guest.h: a guest's virtio-vsock driver and one stream socket that cost as
// little as they can, to measure the host's side: what is sent lies in guest memory already, in the
// pieces in which a kernel of Linux has it, and what comes is looked at where it came. One thread,
// that of whoever calls. For benchmarks only; FakeGuest (fake_guest.h) checks what it is given.
//
// Rings and buffers are used as the kernel's driver does (observed with 6.1.192 and 6.12.117 under
// QEMU 7.2): a packet takes one entry of the tx ring, an indirect table of a
// descriptor for the header and those of its payload; a receive buffer is one descriptor of 3,776
// bytes, 128 are posted and posted again when half of them are used. It kicks when the device asks
// for it, looks at the used rings for kLook before it sleeps, and then waits for an interrupt.
#ifndef CONSORT_VMSOCK_VHOST_USER_FAST_GUEST_H_
#define CONSORT_VMSOCK_VHOST_USER_FAST_GUEST_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/units.h"
#include "vmsock/vhost_user/fake_frontend.h"
#include "vmsock/vhost_user/fake_guest.h"
#include "vmsock/vhost_user/packet.h"

namespace consort::vhost_user {

// How a kernel lays out what programs send, and when it tells what they have read.
struct GuestKernel {
  std::string name;
  // Of the descriptors of 64 KiB of payload, all alike, apart from each other.
  uint32_t piece_bytes = 0;
  uint32_t piece_lead = 0;  // of a piece, behind the beginning of its page
  // Tells of reads only when less than a packet's room is left (6.1); else also when all was read.
  bool reports_late = false;
};

// A copying send of 6.1 (one buffer, that begins with the header's room), one of 6.12, and one with
// MSG_ZEROCOPY of 6.12 from memory in pages of 4 KiB.
std::vector<GuestKernel> GuestKernels();

class FastGuest {
 public:
  struct Options {
    uint64_t cid = 0;
    uint32_t guest_port = 0;
    uint32_t host_port = 0;
    uint32_t buf_alloc = 0;
  };
  // Given each packet's payload, in order; it is gone when the call ends.
  using Consumer = std::function<void(std::span<const std::byte>)>;

  // All is borrowed for the object's life; `frontend` has not started its queues yet.
  FastGuest(FakeFrontend* frontend, const Options& options, const GuestKernel& kernel,
            Consumer consumer);
  FastGuest(const FastGuest&) = delete;
  FastGuest& operator=(const FastGuest&) = delete;

  // Connects the stream, once the queues run.
  void Connect();
  // One packet of at most kSmallBytesMax.
  void Send(std::span<const std::byte> bytes);
  // Packets of 64 KiB, from the pieces of guest memory whose turn it is. A multiple of that. What
  // SumOf says of the bytes.
  uint64_t SendPieces(uint64_t bytes);
  // Waits until something has come, and takes it.
  void Step();
  // What SendPieces says, of as many bytes that lie in one place.
  uint64_t SumOf(std::span<const std::byte> bytes) const;
  void Shutdown();

  static constexpr size_t kSmallBytesMax = 1024;

 private:
  // The driver's side of one ring, its indexes kept here.
  struct Ring {
    uint64_t offset = 0;
    uint16_t available = 0;
    uint16_t published = 0;
    uint16_t used = 0;
  };
  struct Piece {
    uint64_t ram_offset = 0;
    uint64_t sum = 0;
  };

  std::byte* At(uint64_t ram_offset) { return frontend_->At(ram_offset); }
  uint16_t LoadIndex(uint64_t ram_offset);
  void StoreIndex(uint64_t ram_offset, uint16_t value);
  GuestRing::Used UsedAt(const Ring& ring, uint16_t index);
  void SetDescriptor(uint64_t table, uint32_t index, const RawDescriptor& descriptor);
  // The entry is seen after Publish.
  void Offer(Ring& ring, uint16_t head);
  void Publish(uint32_t queue);
  // A free entry of the tx ring, once credit for `bytes` is there too.
  uint16_t TakeSlot(uint32_t bytes);
  PacketHeader Header(uint16_t op, uint32_t bytes);
  void SendControl(uint16_t op, uint32_t flags);
  void PostPacket(uint16_t slot, const PacketHeader& header, size_t descriptors);
  void OfferReceived();
  bool Look();
  void TakePacket(uint32_t head, uint32_t bytes);

  FakeFrontend* const frontend_;
  const Options options_;
  const GuestKernel kernel_;
  const Consumer consumer_;
  Ring rings_[kQueueCount];
  std::vector<uint64_t> rx_buffers_;  // of each entry
  std::vector<uint16_t> rx_used_;
  std::vector<uint16_t> tx_free_;
  std::vector<Piece> pieces_;
  size_t next_piece_ = 0;

  bool connected_ = false;
  uint32_t sent_ = 0;
  uint32_t peer_forwarded_ = 0;
  uint32_t peer_window_ = 0;
  uint32_t received_ = 0;
  uint32_t told_ = 0;
  bool credit_asked_ = false;
};

}  // namespace consort::vhost_user

#endif  // CONSORT_VMSOCK_VHOST_USER_FAST_GUEST_H_
