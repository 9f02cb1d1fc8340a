// SPDX-License-Identifier: Apache-2.0
// vmsock/vhost_user/message.h: vhost-user messages, from bytes of the control socket to checked
// values.
//
//   offset 0  u32 request
//          4  u32 flags: bits 0-1 version (1), bit 2 reply, bit 3 need_reply
//          8  u32 size of the payload
//         12  payload; descriptors ride as SCM_RIGHTS on the message's first bytes
//
// The sender is the VMM: trusted with its VM's memory, not with this process. A message that is too
// long, of another version, or with more descriptors than any message has ends the control
// connection. Thread compatible. Source: vhost-user specification, "Message Specification".
#ifndef CONSORT_VMSOCK_VHOST_USER_MESSAGE_H_
#define CONSORT_VMSOCK_VHOST_USER_MESSAGE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "vmsock/vhost_user/limits.h"

namespace consort::vhost_user {

// Those that we answer; numbers of the specification, "Front-end message types".
enum class Request : uint32_t {
  kGetFeatures = 1,
  kSetFeatures = 2,
  kSetOwner = 3,
  kResetOwner = 4,
  kSetMemTable = 5,
  kSetVringNum = 8,
  kSetVringAddr = 9,
  kSetVringBase = 10,
  kGetVringBase = 11,
  kSetVringKick = 12,
  kSetVringCall = 13,
  kSetVringErr = 14,
  kGetProtocolFeatures = 15,
  kSetProtocolFeatures = 16,
  kGetQueueNum = 17,
  kSetVringEnable = 18,
  kGetConfig = 24,
};

struct MessageHeader {
  uint32_t request = 0;
  uint32_t flags = 0;
  uint32_t size = 0;
};
inline constexpr size_t kMessageHeaderBytes = 12;
static_assert(sizeof(MessageHeader) == kMessageHeaderBytes);

inline constexpr uint32_t kMessageVersion = 1;
inline constexpr uint32_t kMessageVersionMask = 3;
inline constexpr uint32_t kMessageReply = 4;
inline constexpr uint32_t kMessageNeedReply = 8;

struct Message {
  Request request{};
  bool need_reply = false;
  std::vector<std::byte> payload;
  std::vector<UniqueFd> fds;
};

// Puts messages together from whatever pieces the socket delivers.
class MessageAssembler {
 public:
  // How many bytes may be passed to Consume next, at least 1. Reading exactly as many keeps the
  // descriptors of one message apart from those of the next.
  size_t wanted_bytes() const;
  // Takes bytes.size() <= wanted_bytes() and the descriptors that came with them.
  // kInvalidArgument: not a message that any frontend may send; the stream has no next message.
  absl::Status Consume(std::span<const std::byte> bytes, std::vector<UniqueFd> fds);
  // The message, once complete; the assembler then waits for the next one.
  std::optional<Message> Take();
  // Appends the bytes of the message that is not complete yet, and its descriptors' numbers: a new
  // assembler that consumes them stands where this one does.
  void Save(std::vector<std::byte>& bytes, std::vector<int>& fds) const;

 private:
  bool complete() const;

  std::array<std::byte, kMessageHeaderBytes> header_bytes_{};
  size_t header_filled_ = 0;
  MessageHeader header_;
  size_t payload_filled_ = 0;
  Message message_;
};

// --- payloads; each decoder returns kInvalidArgument for a payload of another size ---

struct VringState {
  uint32_t index = 0;
  uint32_t value = 0;
};
struct VringAddress {
  uint32_t index = 0;
  uint32_t flags = 0;
  uint64_t descriptors_user_addr = 0;
  uint64_t used_user_addr = 0;
  uint64_t available_user_addr = 0;
  uint64_t log_guest_addr = 0;
};
struct VringDescriptor {  // of SET_VRING_KICK, CALL and ERR
  uint32_t index = 0;
  bool has_fd = false;
};
struct MemoryRegionSpec {
  uint64_t guest_addr = 0;
  uint64_t bytes = 0;
  uint64_t user_addr = 0;  // in the frontend's address space
  uint64_t mmap_offset = 0;
  bool operator==(const MemoryRegionSpec&) const = default;
};
struct ConfigRequest {
  uint32_t offset = 0;
  uint32_t size = 0;
  uint32_t flags = 0;
};
inline constexpr size_t kConfigRequestBytes = 12;

absl::StatusOr<uint64_t> DecodeU64(const Message& message);
absl::StatusOr<VringState> DecodeVringState(const Message& message);
absl::StatusOr<VringAddress> DecodeVringAddress(const Message& message);
// Also checks that exactly one descriptor came along, or none if the message says so.
absl::StatusOr<VringDescriptor> DecodeVringDescriptor(const Message& message);
// Also checks that there are 1 to kMemoryRegionsMax regions and a descriptor for each.
absl::StatusOr<std::vector<MemoryRegionSpec>> DecodeMemoryTable(const Message& message);
// Also checks that the payload has room for the `size` bytes asked for.
absl::StatusOr<ConfigRequest> DecodeConfigRequest(const Message& message);

// The bytes of a reply to `request`.
std::vector<std::byte> EncodeReply(Request request, std::span<const std::byte> payload);

}  // namespace consort::vhost_user

#endif  // CONSORT_VMSOCK_VHOST_USER_MESSAGE_H_
