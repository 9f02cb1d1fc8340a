// SPDX-License-Identifier: Apache-2.0
#include "vmsock/vhost_user/message.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace consort::vhost_user {
namespace {

constexpr uint64_t kVringIndexMask = 0xff;
constexpr uint64_t kVringNoDescriptor = 0x100;

absl::Status WrongSize(const Message& message) {
  return absl::InvalidArgumentError(absl::StrCat("request ", static_cast<uint32_t>(message.request),
                                                 " with a payload of ", message.payload.size(),
                                                 " bytes"));
}

// A payload that is exactly one T.
template <typename T>
absl::StatusOr<T> DecodeExactly(const Message& message) {
  if (message.payload.size() != sizeof(T)) return WrongSize(message);
  T value;
  std::memcpy(&value, message.payload.data(), sizeof(T));
  return value;
}

}  // namespace

bool MessageAssembler::complete() const {
  return header_filled_ == kMessageHeaderBytes && payload_filled_ == header_.size;
}

size_t MessageAssembler::wanted_bytes() const {
  if (header_filled_ < kMessageHeaderBytes) return kMessageHeaderBytes - header_filled_;
  return header_.size - payload_filled_;
}

absl::Status MessageAssembler::Consume(std::span<const std::byte> bytes,
                                       std::vector<UniqueFd> fds) {
  CHECK(!complete() && bytes.size() <= wanted_bytes());
  if (message_.fds.size() + fds.size() > kMemoryRegionsMax) {
    return absl::InvalidArgumentError("too many descriptors in one message");
  }
  std::move(fds.begin(), fds.end(), std::back_inserter(message_.fds));
  if (header_filled_ == kMessageHeaderBytes) {
    std::copy(bytes.begin(), bytes.end(), message_.payload.begin() + payload_filled_);
    payload_filled_ += bytes.size();
    return absl::OkStatus();
  }
  std::copy(bytes.begin(), bytes.end(), header_bytes_.begin() + header_filled_);
  header_filled_ += bytes.size();
  if (header_filled_ < kMessageHeaderBytes) return absl::OkStatus();

  std::memcpy(&header_, header_bytes_.data(), sizeof(header_));
  if ((header_.flags & kMessageVersionMask) != kMessageVersion || (header_.flags & kMessageReply)) {
    return absl::InvalidArgumentError(absl::StrCat("message flags ", header_.flags));
  }
  if (header_.size > kMessagePayloadBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("message of ", header_.size, " bytes"));
  }
  message_.request = static_cast<Request>(header_.request);
  message_.need_reply = (header_.flags & kMessageNeedReply) != 0;
  message_.payload.resize(header_.size);
  return absl::OkStatus();
}

std::optional<Message> MessageAssembler::Take() {
  if (!complete()) return std::nullopt;
  header_filled_ = 0;
  payload_filled_ = 0;
  return std::exchange(message_, Message());
}

void MessageAssembler::Save(std::vector<std::byte>& bytes, std::vector<int>& fds) const {
  const auto append = [&bytes](std::span<const std::byte> piece) {
    bytes.insert(bytes.end(), piece.begin(), piece.end());
  };
  append(std::span(header_bytes_).first(header_filled_));
  append(std::span(message_.payload).first(payload_filled_));
  for (const UniqueFd& fd : message_.fds) fds.push_back(fd.get());
}

absl::StatusOr<uint64_t> DecodeU64(const Message& message) {
  return DecodeExactly<uint64_t>(message);
}

absl::StatusOr<VringState> DecodeVringState(const Message& message) {
  return DecodeExactly<VringState>(message);
}

absl::StatusOr<VringAddress> DecodeVringAddress(const Message& message) {
  return DecodeExactly<VringAddress>(message);
}

absl::StatusOr<VringDescriptor> DecodeVringDescriptor(const Message& message) {
  ASSIGN_OR_RETURN(const uint64_t value, DecodeU64(message));
  if (value & ~(kVringIndexMask | kVringNoDescriptor)) {
    return absl::InvalidArgumentError(absl::StrCat("vring descriptor value ", value));
  }
  const VringDescriptor result{.index = static_cast<uint32_t>(value & kVringIndexMask),
                               .has_fd = (value & kVringNoDescriptor) == 0};
  if (message.fds.size() != (result.has_fd ? 1u : 0u)) {
    return absl::InvalidArgumentError(
        absl::StrCat("vring descriptor message with ", message.fds.size(), " descriptors"));
  }
  return result;
}

absl::StatusOr<std::vector<MemoryRegionSpec>> DecodeMemoryTable(const Message& message) {
  constexpr size_t kCountBytes = 8;  // u32 count, u32 padding
  if (message.payload.size() < kCountBytes) return WrongSize(message);
  uint32_t count = 0;
  std::memcpy(&count, message.payload.data(), sizeof(count));
  if (count == 0 || count > kMemoryRegionsMax || message.fds.size() != count) {
    return absl::InvalidArgumentError(absl::StrCat("memory table of ", count, " regions with ",
                                                   message.fds.size(), " descriptors"));
  }
  if (message.payload.size() != kCountBytes + count * sizeof(MemoryRegionSpec)) {
    return WrongSize(message);
  }
  std::vector<MemoryRegionSpec> regions(count);
  std::memcpy(regions.data(), message.payload.data() + kCountBytes,
              count * sizeof(MemoryRegionSpec));
  return regions;
}

absl::StatusOr<ConfigRequest> DecodeConfigRequest(const Message& message) {
  static_assert(sizeof(ConfigRequest) == kConfigRequestBytes);
  if (message.payload.size() < kConfigRequestBytes) return WrongSize(message);
  ConfigRequest request;
  std::memcpy(&request, message.payload.data(), sizeof(request));
  if (request.size != message.payload.size() - kConfigRequestBytes) return WrongSize(message);
  return request;
}

std::vector<std::byte> EncodeReply(Request request, std::span<const std::byte> payload) {
  const MessageHeader header{.request = static_cast<uint32_t>(request),
                             .flags = kMessageVersion | kMessageReply,
                             .size = static_cast<uint32_t>(payload.size())};
  std::vector<std::byte> bytes(sizeof(header) + payload.size());
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::copy(payload.begin(), payload.end(), bytes.begin() + sizeof(header));
  return bytes;
}

}  // namespace consort::vhost_user
