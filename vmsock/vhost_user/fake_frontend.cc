// SPDX-License-Identifier: Apache-2.0
#include "vmsock/vhost_user/fake_frontend.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "base/log.h"

namespace consort::vhost_user {
namespace {

constexpr uint64_t kHighGuestAddr = 4 * kGiB;
constexpr uint64_t kLowUserAddr = 0x7f1200000000;
constexpr uint64_t kHighUserAddr = 0x7e0000000000;

void ReadAll(int fd, void* out, size_t bytes, bool* closed) {
  char* to = static_cast<char*>(out);
  while (bytes > 0) {
    const ssize_t count = read(fd, to, bytes);
    if (count <= 0) {
      *closed = true;
      return;
    }
    to += count;
    bytes -= static_cast<size_t>(count);
  }
}

}  // namespace

FakeFrontend::FakeFrontend(const std::string& socket_path, uint64_t features)
    : features_(features) {
  socket_.Reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  CHECK_LT(socket_path.size(), sizeof(address.sun_path));
  std::memcpy(address.sun_path, socket_path.data(), socket_path.size());
  PCHECK(connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
  memory_.Reset(memfd_create("guest-ram", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  PCHECK(ftruncate(memory_.get(), kRamBytes) == 0);
  PCHECK(fcntl(memory_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0);
  void* ram = mmap(nullptr, kRamBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), 0);
  PCHECK(ram != MAP_FAILED);
  ram_ = static_cast<std::byte*>(ram);
  for (uint32_t i = 0; i < kQueueCount; ++i) {
    kicks_[i].Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    calls_[i].Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    errors_[i].Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  }
}

FakeFrontend::~FakeFrontend() { munmap(ram_, kRamBytes); }

uint64_t FakeFrontend::GuestAddr(uint64_t ram_offset) {
  return ram_offset < kHalfBytes ? ram_offset : kHighGuestAddr + (ram_offset - kHalfBytes);
}

uint64_t FakeFrontend::UserAddr(uint64_t ram_offset) {
  return ram_offset < kHalfBytes ? kLowUserAddr + ram_offset
                                 : kHighUserAddr + (ram_offset - kHalfBytes);
}

std::array<MemoryRegionSpec, 2> FakeFrontend::DefaultRegions() {
  return {MemoryRegionSpec{
              .guest_addr = 0, .bytes = kHalfBytes, .user_addr = kLowUserAddr, .mmap_offset = 0},
          MemoryRegionSpec{.guest_addr = kHighGuestAddr,
                           .bytes = kHalfBytes,
                           .user_addr = kHighUserAddr,
                           .mmap_offset = kHalfBytes}};
}

uint64_t FakeFrontend::Initialise() {
  const uint64_t offered = GetU64(Request::kGetFeatures);
  CHECK_EQ(features_ & ~offered, 0u);
  const uint64_t protocol_features = GetU64(Request::kGetProtocolFeatures);
  SendU64(Request::kSetProtocolFeatures, protocol_features);
  CHECK_EQ(GetU64(Request::kGetQueueNum), kQueueCount);
  Send(Request::kSetOwner, {});
  GetU64(Request::kGetFeatures);
  for (uint32_t i = 0; i < kQueueCount; ++i) {
    const uint64_t index = i;
    const int call = calls_[i].get();
    const int error = errors_[i].get();
    Send(Request::kSetVringCall, std::as_bytes(std::span(&index, 1)), {&call, 1});
    Send(Request::kSetVringErr, std::as_bytes(std::span(&index, 1)), {&error, 1});
  }
  struct {
    ConfigRequest request{.offset = 0, .size = 8, .flags = 0};
    uint32_t config[2] = {0, 0};
  } config;
  Send(Request::kGetConfig, std::as_bytes(std::span(&config, 1)));
  const auto reply = Receive();
  CHECK(reply.has_value() && reply->size() == sizeof(config));
  uint64_t cid = 0;
  std::memcpy(&cid, reply->data() + kConfigRequestBytes, sizeof(cid));
  return cid;
}

void FakeFrontend::StartQueues(std::array<uint16_t, kQueueCount> bases) {
  SendU64(Request::kSetFeatures, features_);
  const auto regions = DefaultRegions();
  CHECK_EQ(SendMemTable(regions), 0u);
  for (uint32_t i = 0; i < kQueueCount; ++i) {
    const uint64_t rings = kRingsOffset + i * kRingStride;
    SendState(Request::kSetVringNum, i, kRingEntries);
    SendState(Request::kSetVringBase, i, bases[i]);
    SendValue(Request::kSetVringAddr,
              VringAddress{.index = i,
                           .flags = 0,
                           .descriptors_user_addr = UserAddr(rings),
                           .used_user_addr = UserAddr(rings + kUsedOffset),
                           .available_user_addr = UserAddr(rings + kAvailableOffset),
                           .log_guest_addr = 0});
    const uint64_t index = i;
    const int kick = kicks_[i].get();
    Send(Request::kSetVringKick, std::as_bytes(std::span(&index, 1)), {&kick, 1});
  }
  for (uint32_t i = 0; i < kQueueCount; ++i) SendState(Request::kSetVringEnable, i, 1);
  for (uint32_t i = 0; i < kQueueCount; ++i) {
    const uint64_t index = i;
    const int call = calls_[i].get();
    Send(Request::kSetVringCall, std::as_bytes(std::span(&index, 1)), {&call, 1});
  }
}

std::array<uint16_t, kQueueCount> FakeFrontend::StopQueues() {
  std::array<uint16_t, kQueueCount> bases{};
  for (uint32_t i = 0; i < kQueueCount; ++i) SendState(Request::kSetVringEnable, i, 0);
  for (uint32_t i = 0; i < kQueueCount; ++i) {
    SendState(Request::kGetVringBase, i, 0);
    const auto reply = Receive();
    CHECK(reply.has_value() && reply->size() == sizeof(VringState));
    VringState state;
    std::memcpy(&state, reply->data(), sizeof(state));
    CHECK_EQ(state.index, i);
    bases[i] = static_cast<uint16_t>(state.value);
  }
  return bases;
}

void FakeFrontend::Kick(uint32_t queue) {
  const uint64_t one = 1;
  PCHECK(write(kicks_[queue].get(), &one, sizeof(one)) == sizeof(one));
}

bool FakeFrontend::WaitInterrupt(int timeout_ms) {
  pollfd waits[kQueueCount]{};
  for (uint32_t i = 0; i < kQueueCount; ++i) waits[i] = {calls_[i].get(), POLLIN, 0};
  if (poll(waits, kQueueCount, timeout_ms) <= 0) return false;
  for (const pollfd& wait : waits) {
    uint64_t count = 0;
    if (wait.revents & POLLIN) PCHECK(read(wait.fd, &count, sizeof(count)) == sizeof(count));
  }
  return true;
}

bool FakeFrontend::TakeError(uint32_t queue, int timeout_ms) {
  pollfd wait{errors_[queue].get(), POLLIN, 0};
  uint64_t count = 0;
  return poll(&wait, 1, timeout_ms) == 1 && read(wait.fd, &count, sizeof(count)) == sizeof(count);
}

void FakeFrontend::Send(Request request, std::span<const std::byte> payload,
                        std::span<const int> fds, bool need_reply) {
  const MessageHeader header{.request = static_cast<uint32_t>(request),
                             .flags = kMessageVersion | (need_reply ? kMessageNeedReply : 0),
                             .size = static_cast<uint32_t>(payload.size())};
  SendPieces(header, payload, fds);
}

void FakeFrontend::SendCut(Request request, std::span<const std::byte> payload,
                           std::span<const int> fds, size_t payload_bytes) {
  const MessageHeader header{.request = static_cast<uint32_t>(request),
                             .flags = kMessageVersion,
                             .size = static_cast<uint32_t>(payload.size())};
  SendPieces(header, payload.first(payload_bytes), fds);
}

void FakeFrontend::SendPieces(const MessageHeader& header, std::span<const std::byte> payload,
                              std::span<const int> fds) {
  iovec pieces[2] = {{const_cast<MessageHeader*>(&header), sizeof(header)},
                     {const_cast<std::byte*>(payload.data()), payload.size()}};
  msghdr message{};
  message.msg_iov = pieces;
  message.msg_iovlen = 2;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * 32)> control{};
  if (!fds.empty()) {
    CHECK_LE(fds.size(), 32u);
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(part), fds.data(), fds.size_bytes());
  }
  // A device that has closed shows at the next Receive or Closed.
  [[maybe_unused]] const ssize_t sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
}

void FakeFrontend::SendRaw(std::span<const std::byte> bytes) {
  [[maybe_unused]] const ssize_t sent =
      send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

std::optional<std::vector<std::byte>> FakeFrontend::Receive() {
  MessageHeader header;
  bool closed = false;
  ReadAll(socket_.get(), &header, sizeof(header), &closed);
  if (closed) return std::nullopt;
  CHECK_EQ(header.flags, kMessageVersion | kMessageReply);
  std::vector<std::byte> payload(header.size);
  ReadAll(socket_.get(), payload.data(), payload.size(), &closed);
  if (closed) return std::nullopt;
  return payload;
}

uint64_t FakeFrontend::GetU64(Request request) {
  Send(request, {});
  const auto reply = Receive();
  CHECK(reply.has_value() && reply->size() == sizeof(uint64_t));
  uint64_t value = 0;
  std::memcpy(&value, reply->data(), sizeof(value));
  return value;
}

uint64_t FakeFrontend::SendMemTable(std::span<const MemoryRegionSpec> regions) {
  const uint64_t count = regions.size();
  std::vector<std::byte> payload(sizeof(count) + regions.size_bytes());
  std::memcpy(payload.data(), &count, sizeof(count));
  std::memcpy(payload.data() + sizeof(count), regions.data(), regions.size_bytes());
  const std::vector<int> fds(regions.size(), memory_.get());
  Send(Request::kSetMemTable, payload, fds, /*need_reply=*/true);
  const auto reply = Receive();
  CHECK(reply.has_value() && reply->size() == sizeof(uint64_t));
  uint64_t value = 0;
  std::memcpy(&value, reply->data(), sizeof(value));
  return value;
}

bool FakeFrontend::Closed(int timeout_ms) {
  pollfd wait{socket_.get(), POLLIN, 0};
  char byte = 0;
  return poll(&wait, 1, timeout_ms) == 1 && recv(socket_.get(), &byte, 1, MSG_DONTWAIT) <= 0;
}

}  // namespace consort::vhost_user
