// SPDX-License-Identifier: Apache-2.0
// vmsock/wire/handshake.h: what is said on a stream before it becomes a channel.
//
//   guest                                  host
//   Hello (256 bytes)          ──▶
//                              ◀──         Welcome (4096 bytes), with the ring's memfd as
//                              SCM_RIGHTS
//                                          if kFeatureRings was agreed
//   frames                     ◀─▶         frames
//
// A Hello with purpose kPurposeQuery asks which devices there are: Welcome is followed by
// device_count DeviceSnapshots and the host closes. With kPurposeStatus, device_count DeviceUses
// and process_count ProcessUses follow those. With kPurposeSession the stream becomes the channel
// of one application to one device, and so it does with kPurposeResume,
// where an earlier stream's channel goes on. Plain values of fixed layout, little endian; unknown
// trailing bytes are zero. Text fields are NUL-terminated within their array.
#ifndef CONSORT_VMSOCK_WIRE_HANDSHAKE_H_
#define CONSORT_VMSOCK_WIRE_HANDSHAKE_H_

#include <cstddef>
#include <cstdint>

namespace consort::wire {

inline constexpr uint32_t kHelloMagic = 0x54534E43;  // "CNST"

// Raised when a frame, the handshake or the meaning of a request changes. Peers of another version
// are refused with a text that names both.
inline constexpr uint32_t kWireVersion = 1;

// The vsock port of Consort on the host (CID 2).
inline constexpr uint32_t kVsockPort = 7000;

inline constexpr uint32_t kPurposeQuery = 1;
inline constexpr uint32_t kPurposeSession = 2;
inline constexpr uint32_t kPurposeStatus = 3;  // kPurposeQuery, and what is in use at present
inline constexpr uint32_t kPurposeResume = 4;  // goes on with the session of `resume_token`

// The stream is a UNIX socket and the guest can take a memfd: rings in shared memory.
inline constexpr uint32_t kFeatureRings = 1;
// Nothing of the session needs a descriptor, so it can leave this connection for another.
inline constexpr uint32_t kFeatureResume = 2;
// The guest sees memory that its virtual machine shares with the host: rings, and host memory that
// both sides map, lie there (VmMemoryHead).
inline constexpr uint32_t kFeatureVmMemory = 4;

// A random number that nobody guesses. All 0: none.
struct Token {
  uint8_t bytes[16] = {};

  bool empty() const {
    uint8_t any = 0;
    for (uint8_t byte : bytes) any |= byte;
    return any == 0;
  }
  friend bool operator==(const Token&, const Token&) = default;
};

// Names a session to whoever may go on with it. Empty: it cannot leave its connection.
using ResumeToken = Token;

// Takes as long whichever bytes differ: a guess learns nothing from it.
inline bool SameToken(const Token& one, const Token& other) {
  uint8_t differ = 0;
  for (size_t i = 0; i < sizeof(one.bytes); ++i) differ |= one.bytes[i] ^ other.bytes[i];
  return differ == 0;
}

// What the host has put at the beginning of the memory that it shares with a virtual machine. A
// guest that knows the token has read it there: both have the same memory.
struct VmMemoryHead {
  static constexpr uint64_t kMark = 0x314d454d'4d565343;  // "CSVMMEM1"
  uint64_t mark = kMark;
  Token token;
};
static_assert(sizeof(VmMemoryHead) == 24);

struct Hello {
  uint32_t magic = kHelloMagic;
  uint32_t version = kWireVersion;
  uint64_t description_hash = 0;  // of the API description that both sides were generated from
  uint32_t purpose = 0;
  uint32_t device = 0;         // the vGPU's index, kPurposeSession only
  uint32_t features = 0;       // that the guest can do
  uint32_t pid = 0;            // the guest's; for people, never for decisions
  char application[128] = {};  // the guest process's name; for people
  uint64_t assembly = 0;       // what the query's Welcome had; kPurposeSession only
  ResumeToken resume_token;    // kPurposeResume only
  Token vm_memory;             // kFeatureVmMemory: of the memory that the guest sees
  char reserved[56] = {};
};
static_assert(sizeof(Hello) == 256);

inline constexpr uint32_t kWelcomeOk = 0;
inline constexpr uint32_t kWelcomeVersionMismatch = 1;
inline constexpr uint32_t kWelcomeNoDevice = 2;
inline constexpr uint32_t kWelcomeRefused = 3;  // limits; `text` says which
inline constexpr uint32_t kWelcomeNotHere =
    4;  // kPurposeResume: the session is not here, or not yet

struct Welcome {
  uint32_t magic = kHelloMagic;
  uint32_t version = kWireVersion;
  uint32_t status = kWelcomeOk;
  uint32_t features = 0;        // agreed
  uint32_t device_count = 0;    // kPurposeQuery: snapshots that follow
  uint32_t driver_version = 0;  // as cuDriverGetVersion reports it, e.g. 13000
  uint64_t window_base = 0;     // address window of this session on this device
  uint64_t window_bytes = 0;
  uint64_t shared_host_base = 0;  // part of the window for host memory that both sides map; 0: none
  uint64_t shared_host_bytes = 0;
  // kFeatureRings, and kFeatureVmMemory for a session: capacities, powers of two
  uint64_t request_ring_bytes = 0;
  uint64_t reply_ring_bytes = 0;
  char text[256] = {};         // status != kWelcomeOk: for a person, says what to do
  uint32_t process_count = 0;  // kPurposeStatus: ProcessUses that follow
  uint32_t reserved_1 = 0;
  char driver_release[64] = {};  // of the host's driver, e.g. 580.159.04
  uint64_t assembly = 0;         // kPurposeQuery: which choice of devices this is; 0: no choice
  ResumeToken resume_token;      // kPurposeSession, with kFeatureResume
  uint64_t rings_offset = 0;     // kFeatureVmMemory for a session: in that memory
  char reserved[3664] = {};
};
static_assert(sizeof(Welcome) == 4096);

// Every attribute number of CUDA 13.0 is below this (CU_DEVICE_ATTRIBUTE_MAX is 145 there).
inline constexpr uint32_t kDeviceAttributesMax = 256;

// Where a link (NVLink) of a device's board leads. All that lead to a switch lead to the same one.
inline constexpr uint32_t kDeviceLinksMax = 36;  // NVML_NVLINK_MAX_LINKS
inline constexpr uint8_t kLinkToNothing = 0;
inline constexpr uint8_t kLinkToDevice = 1;  // plus the device's place in the answer
inline constexpr uint8_t kLinkToSwitch = 255;

// All that the guest answers about a device without asking again.
struct DeviceSnapshot {
  char name[256] = {};
  uint8_t uuid[16] = {};
  uint64_t total_bytes = 0;
  int32_t stream_priority_least = 0;
  int32_t stream_priority_greatest = 0;
  int32_t attributes[kDeviceAttributesMax] = {};
  uint8_t attribute_known[kDeviceAttributesMax] = {};  // 0: the driver refused that attribute
  char pci_bus_id[32] = {};
  // Bit N: it can reach memory of device N of the same answer; and atomics on that are atomic.
  uint64_t peers = 0;
  uint64_t peer_atomics = 0;
  // Links by which it reaches those; by NVML's number. kLinkToNothing: it is down, or for others.
  uint8_t links[kDeviceLinksMax] = {};
  uint32_t link_version = 0;  // nvmlDeviceGetNvLinkVersion's; 0: not told
  uint32_t link_speed = 0;    // MB/s, NVML_FI_DEV_NVLINK_GET_SPEED; 0: not told
  char reserved[388] = {};
};
static_assert(sizeof(DeviceSnapshot) == 2048);

// What the tenant that asks has of a device at present. Other tenants show as memory that is
// neither used nor free.
struct DeviceUse {
  uint64_t total_bytes = 0;
  uint64_t used_bytes = 0;    // the tenant's
  uint64_t free_bytes = 0;    // that it could still get
  uint32_t busy_percent = 0;  // of the last second, that kernels of the tenant ran
  uint32_t reserved_1 = 0;
  char reserved[32] = {};
};
static_assert(sizeof(DeviceUse) == 64);

// A process of the guest that asks, with a session on a device.
struct ProcessUse {
  uint32_t device = 0;
  uint32_t pid = 0;  // as its Hello said
  uint64_t memory_bytes = 0;
  uint32_t busy_percent = 0;  // as in DeviceUse
  uint32_t reserved_1 = 0;
  char application[128] = {};  // as its Hello said
  char reserved[8] = {};
};
static_assert(sizeof(ProcessUse) == 160);

}  // namespace consort::wire

#endif  // CONSORT_VMSOCK_WIRE_HANDSHAKE_H_
