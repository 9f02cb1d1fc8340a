// SPDX-License-Identifier: Apache-2.0
// vmsock/vhost_user/packet.h: the 44-byte header of a virtio-vsock packet. Values, no behaviour.
//
//   offset  0  u64 src_cid      offset 28  u16 type (1 stream)
//           8  u64 dst_cid             30  u16 op
//          16  u32 src_port            32  u32 flags (SHUTDOWN: 1 will not receive, 2 will not
//          send) 20  u32 dst_port            36  u32 buf_alloc: the sender's receive buffer, bytes
//          24  u32 len (payload)       40  u32 fwd_cnt: bytes its reader has taken, modulo 2^32
//
// Little-endian. Source: virtio 1.2, section 5.10.6 (Socket Device, Device Operation).
#ifndef CONSORT_VMSOCK_VHOST_USER_PACKET_H_
#define CONSORT_VMSOCK_VHOST_USER_PACKET_H_

#include <bit>
#include <cstddef>
#include <cstdint>

namespace consort::vhost_user {

static_assert(std::endian::native == std::endian::little, "headers are copied as they are");

struct __attribute__((packed)) PacketHeader {
  uint64_t src_cid = 0;
  uint64_t dst_cid = 0;
  uint32_t src_port = 0;
  uint32_t dst_port = 0;
  uint32_t len = 0;
  uint16_t type = 0;
  uint16_t op = 0;
  uint32_t flags = 0;
  uint32_t buf_alloc = 0;
  uint32_t fwd_cnt = 0;
};
inline constexpr size_t kPacketHeaderBytes = 44;
static_assert(sizeof(PacketHeader) == kPacketHeaderBytes);

// The well-known address of the host.
inline constexpr uint64_t kHostCid = 2;

inline constexpr uint16_t kTypeStream = 1;

enum PacketOp : uint16_t {
  kOpInvalid = 0,
  kOpRequest = 1,
  kOpResponse = 2,
  kOpReset = 3,
  kOpShutdown = 4,
  kOpReadWrite = 5,
  kOpCreditUpdate = 6,
  kOpCreditRequest = 7,
};

inline constexpr uint32_t kShutdownReceive = 1;
inline constexpr uint32_t kShutdownSend = 2;
inline constexpr uint32_t kShutdownBoth = kShutdownReceive | kShutdownSend;

}  // namespace consort::vhost_user

#endif  // CONSORT_VMSOCK_VHOST_USER_PACKET_H_
