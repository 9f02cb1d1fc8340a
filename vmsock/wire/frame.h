// SPDX-License-Identifier: Apache-2.0
// vmsock/wire/frame.h: the frame, which is all that a channel carries.
//
//   offset  bytes  field
//        0      4  bytes    of the whole frame, header included; multiple of 8, 16..kFrameBytesMax
//        4      2  opcode   what is asked (gen/wire/opcodes.h); a reply repeats the request's
//        6      2  flags    kFrame... below
//        8      4  call     guest to host: 0, or the caller's reply slot + 1 when it waits for a
//        reply;
//                           in a reply: the same number
//       12      4  value    guest to host: the guest's context id; in a reply: the CUresult
//       16      .  body     the request's or reply's fields, see gen/wire/requests.h
//
// Little endian, fixed width, no pointers. Plain values; this file needs no library: it is compiled
// into the guest library too. Bytes from the other side are parsed by vmsock/wire/decoder.h only.
#ifndef CONSORT_VMSOCK_WIRE_FRAME_H_
#define CONSORT_VMSOCK_WIRE_FRAME_H_

#include <cstddef>
#include <cstdint>

namespace consort::wire {

// Bulk data travels in pieces of this size: large enough to hide a frame's cost (1 MiB takes 20 us
// at PCIe 5 speed), small enough that copying one piece overlaps sending the next.
// In what the device writes for StreamSignal: an earlier request of the session has failed.
inline constexpr uint64_t kSignalError = uint64_t{1} << 63;

inline constexpr uint32_t kBulkBytesMax = 512 * 1024;

// Of what MemAlloc answers, bits: nothing that the session was sent before is unfinished; and the
// guest's library may keep the memory for a while when the program frees it.
inline constexpr uint32_t kAllocationIdle = 1;
inline constexpr uint32_t kAllocationMayKeep = 2;

// Of a MemoryHint: the program uses the device no more for a while.
inline constexpr uint32_t kHintCpuPhase = 1;

// Of a PeerOpen: what the session has of one of its program's on another device.
enum class PeerUse : uint64_t {
  kCopies = 0,     // its memory, for copies, at addresses that nobody is told
  kKernels = 1,    // its memory, at the addresses that it has there
  kAddresses = 2,  // those addresses, to map memory at
  kHost = 3,       // the addresses of its host memory, of which HostReach maps what it names
};

// One piece of bulk data and the fields around it.
inline constexpr uint32_t kFrameBytesMax = kBulkBytesMax + 64 * 1024;

inline constexpr uint32_t kFrameAlignment = 8;

// The frame answers an earlier one; `value` is its CUresult.
inline constexpr uint16_t kFrameReply = 1;

// The frame is the transport's own (16 bytes, no body) and is never handed up: see
// stream_channel.h.
inline constexpr uint16_t kFrameTransport = 0x8000;

struct FrameHeader {
  uint32_t bytes = 0;
  uint16_t opcode = 0;
  uint16_t flags = 0;
  uint32_t call = 0;
  uint32_t value = 0;
};
static_assert(sizeof(FrameHeader) == 16);

constexpr uint32_t FrameBytes(uint32_t body_bytes) {
  return (static_cast<uint32_t>(sizeof(FrameHeader)) + body_bytes + kFrameAlignment - 1) &
         ~(kFrameAlignment - 1);
}

// Whether `header`, as received, describes a frame that may exist. Anything else ends the session.
constexpr bool FrameHeaderValid(const FrameHeader& header) {
  return header.bytes >= sizeof(FrameHeader) && header.bytes <= kFrameBytesMax &&
         header.bytes % kFrameAlignment == 0;
}

}  // namespace consort::wire

#endif  // CONSORT_VMSOCK_WIRE_FRAME_H_
