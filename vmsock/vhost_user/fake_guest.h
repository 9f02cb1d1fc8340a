// SPDX-License-Identifier: Apache-2.0
// vmsock/vhost_user/fake_guest.h: a guest's virtio-vsock driver and stream sockets for tests, on a
// FakeFrontend's RAM. One thread. For tests only.
//
// Kicks only when the device asks for it and waits for interrupts: a notification that the device
// forgets shows as a test that times out. Credit is kept as Linux 6.1 does it, which reports reads
// late.
#ifndef CONSORT_VMSOCK_VHOST_USER_FAKE_GUEST_H_
#define CONSORT_VMSOCK_VHOST_USER_FAKE_GUEST_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "vmsock/vhost_user/fake_frontend.h"
#include "vmsock/vhost_user/packet.h"

namespace consort::vhost_user {

inline constexpr uint16_t kFlagNext = 1;
inline constexpr uint16_t kFlagWrite = 2;
inline constexpr uint16_t kFlagIndirect = 4;

// As it lies in guest memory.
struct RawDescriptor {
  uint64_t addr = 0;
  uint32_t len = 0;
  uint16_t flags = 0;
  uint16_t next = 0;
};

// The driver's side of one ring. Public where tests must be able to lie.
class GuestRing {
 public:
  GuestRing(FakeFrontend* frontend, uint32_t index) : frontend_(frontend), index_(index) {}

  // As a driver that starts: all zero.
  void Reset();
  void SetDescriptor(uint32_t index, const RawDescriptor& descriptor);
  // Offers the chain at `head`; the device is kicked if it asked for that.
  void Offer(uint16_t head);
  // Offers nothing but moves the available index by `count`, and kicks.
  void JumpIndex(uint16_t count);
  struct Used {
    uint32_t head = 0;
    uint32_t bytes = 0;
  };
  std::optional<Used> TakeUsed();
  uint64_t offset() const {
    return FakeFrontend::kRingsOffset + index_ * FakeFrontend::kRingStride;
  }

 private:
  uint16_t Load(uint64_t ram_offset) const;
  void Store(uint64_t ram_offset, uint16_t value);
  // Makes the available index visible and kicks if the device wants it.
  void Publish(uint16_t old_index);

  FakeFrontend* const frontend_;
  const uint32_t index_;
  uint16_t available_index_ = 0;
  uint16_t last_used_ = 0;
};

// How a packet is laid out: lengths of the descriptors in order; the last is repeated as often as
// needed, and cut to what is left.
struct Shape {
  std::vector<uint32_t> lengths = {44, 65536};
  bool indirect = true;
};

struct Packet {
  PacketHeader header;
  std::vector<std::byte> payload;
};

class GuestStream;

class FakeGuest {
 public:
  static constexpr uint32_t kRxBuffers = 64;
  // Where receive buffer `buffer` is, in RAM, if it is one piece.
  static constexpr uint64_t RxBufferOffset(uint32_t buffer) { return kMiB + buffer * 64 * kKiB; }
  static constexpr int kTimeoutMs = 20000;

  // `rx_shapes` is how receive buffers (44 + 3,732 bytes) are laid out, in turn.
  FakeGuest(FakeFrontend* frontend, uint64_t cid,
            std::vector<Shape> rx_shapes = {{.lengths = {3776}, .indirect = true}});

  // As a driver that starts: empty rings, all rx buffers offered. Forgets all streams' packets.
  void Start();
  // Sends one packet; waits for a free slot. False after kTimeoutMs.
  bool Send(const PacketHeader& header, std::span<const std::byte> payload,
            const Shape& shape = {});
  // A header from us to the host's `host_port`.
  PacketHeader Header(uint32_t guest_port, uint32_t host_port, uint16_t op) const;
  // The next packet for no open stream, waiting for it; nothing after timeout_ms.
  std::optional<Packet> Receive(int timeout_ms = kTimeoutMs);
  // Takes what has come, waiting up to timeout_ms if nothing has. False if nothing came.
  bool Step(int timeout_ms);
  // While true, used rx buffers are not offered again.
  void HoldRxBuffers(bool hold);

  GuestRing& rx() { return rx_; }
  GuestRing& tx() { return tx_; }
  FakeFrontend& frontend() { return *frontend_; }
  uint64_t cid() const { return cid_; }
  uint64_t packets_received() const { return packets_received_; }
  // RAM that the guest's driver does not use.
  static constexpr uint64_t kFreeOffset = 48 * kMiB;

 private:
  friend class GuestStream;
  struct TxSlot {
    std::vector<uint16_t> descriptors;
    uint32_t area = 0;
  };
  // Pieces of `bytes` in the area at `ram_offset`, apart from each other and in descending order.
  static std::vector<RawDescriptor> LayOut(uint64_t ram_offset, uint32_t bytes, const Shape& shape,
                                           uint16_t flags);
  void OfferRx(uint32_t buffer);
  bool ReapTx();
  void Dispatch(Packet packet);

  FakeFrontend* const frontend_;
  const uint64_t cid_;
  const std::vector<Shape> rx_shapes_;
  GuestRing rx_;
  GuestRing tx_;
  std::vector<std::vector<RawDescriptor>> rx_layouts_;
  std::map<uint32_t, uint32_t> rx_buffer_of_head_;
  bool hold_rx_ = false;
  std::vector<uint32_t> held_rx_;
  std::vector<uint16_t> free_tx_descriptors_;
  std::vector<uint32_t> free_tx_areas_;
  std::map<uint32_t, TxSlot> tx_slots_;
  std::map<uint32_t, GuestStream*> streams_;
  std::deque<Packet> unclaimed_;
  uint64_t packets_received_ = 0;
};

// A stream socket of the guest.
class GuestStream {
 public:
  GuestStream(FakeGuest* guest, uint32_t guest_port, uint32_t host_port,
              uint32_t buf_alloc = 262144);
  ~GuestStream();
  GuestStream(const GuestStream&) = delete;
  GuestStream& operator=(const GuestStream&) = delete;

  // Sends REQUEST and waits for the answer; true if it was RESPONSE.
  bool Connect();
  // Sends as much as credit allows, at least one byte, waiting for credit if there is none; the
  // count, 0 after FakeGuest::kTimeoutMs or once reset.
  size_t SendSome(std::span<const std::byte> bytes, const Shape& shape = {});
  bool SendAll(std::span<const std::byte> bytes, const Shape& shape = {});
  // What has come, waiting for something; empty at end of stream, reset or time-out.
  std::vector<std::byte> ReceiveSome();
  // Sends SHUTDOWN with `flags`.
  void Shutdown(uint32_t flags);
  bool WaitReset();
  // Waits until the host has said that it will not send any more.
  bool WaitEnd();

  bool reset() const { return reset_; }
  bool ended() const { return (host_shutdown_ & kShutdownSend) != 0; }
  uint32_t host_shutdown() const { return host_shutdown_; }
  uint32_t window() const { return peer_buf_alloc_; }
  uint32_t credit() const;
  PacketHeader Header(uint16_t op);
  size_t unread_packets_max() const { return unread_packets_max_; }
  size_t unread_bytes() const { return received_.size(); }

 private:
  friend class FakeGuest;
  void Take(Packet packet);

  FakeGuest* const guest_;
  const uint32_t guest_port_;
  const uint32_t host_port_;
  const uint32_t buf_alloc_;
  bool connected_ = false;
  bool reset_ = false;
  uint32_t host_shutdown_ = 0;
  uint32_t sent_ = 0;
  uint32_t peer_fwd_cnt_ = 0;
  uint32_t peer_buf_alloc_ = 0;
  std::vector<std::byte> received_;
  size_t unread_packets_ = 0;
  size_t unread_packets_max_ = 0;
  uint32_t fwd_cnt_ = 0;
  uint32_t fwd_cnt_told_ = 0;
};

}  // namespace consort::vhost_user

#endif  // CONSORT_VMSOCK_VHOST_USER_FAKE_GUEST_H_
