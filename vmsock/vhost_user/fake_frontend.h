// SPDX-License-Identifier: Apache-2.0
// vmsock/vhost_user/fake_frontend.h: the VMM's half of vhost-user for tests: guest RAM, ring
// descriptors and messages in the order in which QEMU 7.2 sends them. One thread. For tests only.
//
// Guest RAM is one memfd in two regions, as QEMU has it above the low split:
//   RAM offset [0, half): guest-physical 0,  [half, end): guest-physical 4 GiB; user addresses are
//   made up.
#ifndef CONSORT_VMSOCK_VHOST_USER_FAKE_FRONTEND_H_
#define CONSORT_VMSOCK_VHOST_USER_FAKE_FRONTEND_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "base/units.h"
#include "vmsock/vhost_user/backend.h"
#include "vmsock/vhost_user/message.h"

namespace consort::vhost_user {

class FakeFrontend {
 public:
  static constexpr uint64_t kRamBytes = 64 * kMiB;
  static constexpr uint64_t kHalfBytes = kRamBytes / 2;
  static constexpr uint32_t kRingEntries = 128;
  // Where each queue's rings lie in RAM.
  static constexpr uint64_t kRingsOffset = 64 * kKiB;
  static constexpr uint64_t kRingStride = 64 * kKiB;
  static constexpr uint64_t kAvailableOffset = 16 * kKiB;
  static constexpr uint64_t kUsedOffset = 32 * kKiB;

  // Connects to the device at `socket_path`; `features` is what the guest's driver accepts.
  FakeFrontend(const std::string& socket_path, uint64_t features);
  ~FakeFrontend();
  FakeFrontend(const FakeFrontend&) = delete;
  FakeFrontend& operator=(const FakeFrontend&) = delete;

  std::byte* At(uint64_t ram_offset) { return ram_ + ram_offset; }
  static uint64_t GuestAddr(uint64_t ram_offset);
  static uint64_t UserAddr(uint64_t ram_offset);
  bool event_idx() const { return (features_ & kFeatureEventIdx) != 0; }
  bool indirect() const { return (features_ & kFeatureIndirect) != 0; }

  // What QEMU does when it starts. Returns the CID from the device's configuration.
  uint64_t Initialise();
  // What it does when the guest's driver starts, or the VM continues; each queue begins at its
  // base.
  void StartQueues(std::array<uint16_t, kQueueCount> bases = {0, 0});
  // What it does on stop and on reset: the bases that the device answers.
  std::array<uint16_t, kQueueCount> StopQueues();

  void Kick(uint32_t queue);
  // Waits until the device has interrupted for either queue; false after timeout_ms.
  bool WaitInterrupt(int timeout_ms);
  // The device has signalled its error descriptor for `queue`.
  bool TakeError(uint32_t queue, int timeout_ms);

  // --- single messages ---
  void Send(Request request, std::span<const std::byte> payload, std::span<const int> fds = {},
            bool need_reply = false);
  // The first part of a message: its header, its descriptors, `payload_bytes` of its payload.
  void SendCut(Request request, std::span<const std::byte> payload, std::span<const int> fds,
               size_t payload_bytes);
  // Payload of the next reply; nothing if the device closes instead.
  std::optional<std::vector<std::byte>> Receive();
  void SendU64(Request request, uint64_t value) { SendValue(request, value); }
  void SendState(Request request, uint32_t index, uint32_t value) {
    SendValue(request, VringState{.index = index, .value = value});
  }
  uint64_t GetU64(Request request);
  // The device's answer to SET_MEM_TABLE: 0 for success.
  uint64_t SendMemTable(std::span<const MemoryRegionSpec> regions);
  static std::array<MemoryRegionSpec, 2> DefaultRegions();
  void SendRaw(std::span<const std::byte> bytes);
  // The device has closed the connection (waits up to timeout_ms).
  bool Closed(int timeout_ms);

 private:
  void SendPieces(const MessageHeader& header, std::span<const std::byte> payload,
                  std::span<const int> fds);
  template <typename T>
  void SendValue(Request request, const T& value) {
    Send(request, std::as_bytes(std::span(&value, 1)));
  }

  const uint64_t features_;
  UniqueFd socket_;
  UniqueFd memory_;
  std::byte* ram_ = nullptr;
  std::array<UniqueFd, kQueueCount> kicks_;
  std::array<UniqueFd, kQueueCount> calls_;
  std::array<UniqueFd, kQueueCount> errors_;
};

}  // namespace consort::vhost_user

#endif  // CONSORT_VMSOCK_VHOST_USER_FAKE_FRONTEND_H_
