// SPDX-License-Identifier: Apache-2.0
// vmsock/vhost_user/backend.h: what one frontend has told us, and the life of its queues.
//
// Owned by the device's thread, one for each frontend connection. A queue's states:
//
//   configuring -> (size, address, kick, enabled) running <-> (SET_VRING_ENABLE) paused
//   running, paused -> (GET_VRING_BASE) stopped -> (as configuring) running
//   running -> (the guest breaks its ring) broken -> (GET_VRING_BASE) stopped
//
// QEMU stops and starts queues in the same way when a VM is paused and resumed and when the guest
// resets the device. A queue that starts where it was stopped (same rings, same index, used ring
// untouched) continues and its connections live; any other start is a reset. Source: vhost-user
// specification, "Starting and stopping rings" and the messages; order observed with QEMU 7.2.
#ifndef CONSORT_VMSOCK_VHOST_USER_BACKEND_H_
#define CONSORT_VMSOCK_VHOST_USER_BACKEND_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/inherited_fds.h"
#include "base/unique_fd.h"
#include "vmsock/vhost_user/counters.h"
#include "vmsock/vhost_user/device_state.h"
#include "vmsock/vhost_user/event_set.h"
#include "vmsock/vhost_user/memory_map.h"
#include "vmsock/vhost_user/message.h"
#include "vmsock/vhost_user/virtqueue.h"

namespace consort::vhost_user {

// Ours; the event queue (2) stays in QEMU. Virtio 1.2, section 5.10.2.
inline constexpr uint32_t kRxQueue = 0;
inline constexpr uint32_t kTxQueue = 1;
inline constexpr uint32_t kQueueCount = 2;

// Feature bits (virtio 1.2, section 6; vhost-user specification).
inline constexpr uint64_t kFeatureIndirect = uint64_t{1} << 28;
inline constexpr uint64_t kFeatureEventIdx = uint64_t{1} << 29;
inline constexpr uint64_t kFeatureProtocolFeatures = uint64_t{1} << 30;
inline constexpr uint64_t kFeatureVersion1 = uint64_t{1} << 32;
inline constexpr uint64_t kFeaturesOffered =
    kFeatureIndirect | kFeatureEventIdx | kFeatureProtocolFeatures | kFeatureVersion1;

inline constexpr uint64_t kProtocolFeatureMq = uint64_t{1} << 0;
inline constexpr uint64_t kProtocolFeatureReplyAck = uint64_t{1} << 3;
inline constexpr uint64_t kProtocolFeatureConfig = uint64_t{1} << 9;
inline constexpr uint64_t kProtocolFeaturesOffered =
    kProtocolFeatureMq | kProtocolFeatureReplyAck | kProtocolFeatureConfig;

class Backend {
 public:
  struct Options {
    std::string name;  // of the VM, for log lines
    uint32_t guest_cid = 0;
    bool require_sealed_memory = false;
    uint64_t kick_token = 0;  // kicks of queue i are reported under kick_token + i
  };

  // Pointers are borrowed for the object's life.
  Backend(const Options& options, EventSet* events, Counters* counters);
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  // Carries out one message. The bytes to send back, none if it has no reply. An error means that
  // the frontend broke the protocol in a way that it cannot be told of: end its connection.
  absl::StatusOr<std::vector<std::byte>> Handle(Message message);

  // True once after a queue started anew: the guest remembers no connection.
  bool TakeReset();

  // Both queues run.
  bool running() const;
  // Only while running().
  Virtqueue& rx() { return *queues_[kRxQueue].ring; }
  Virtqueue& tx() { return *queues_[kTxQueue].ring; }
  // Interrupts the guest for queue `index`.
  void Interrupt(uint32_t index);
  // The guest broke a ring: rests until the frontend stops and starts the queues. Logs `why`, the
  // first kBreaksLoggedMax times.
  void Break(const absl::Status& why);

  // What both queues and the memory are; asks for no chain to be held.
  BackendState Save() const;
  // Goes on with what was saved, before anything else is called. `state` fits its bounds.
  // kInvalidArgument: the queues are not in that memory, or a descriptor is not what it must be.
  absl::Status Restore(const BackendState& state, InheritedFds* fds);

  const MemoryMap& memory() const { return memory_; }

 private:
  struct Queue {
    VirtqueueLayout layout;
    bool has_address = false;
    uint16_t base = 0;
    bool enabled = false;
    bool broken = false;
    std::optional<Virtqueue> ring;
    std::optional<StoppedQueueState> stopped;
    UniqueFd kick;
    EventSet::Watch kick_watch;  // after `kick`, so that it goes first
    UniqueFd call;
    UniqueFd err;
  };

  // Carries out a message without payload in its reply.
  absl::Status HandleSet(Message& message);
  absl::StatusOr<std::vector<std::byte>> HandleGet(const Message& message);
  absl::StatusOr<std::vector<std::byte>> GetConfig(const Message& message) const;
  absl::Status SetMemTable(Message& message);
  absl::Status SetVringAddress(const Message& message);
  absl::Status SetVringDescriptor(Message& message);
  absl::StatusOr<uint16_t> StopQueue(uint32_t index);
  // The queue that a message names. kInvalidArgument: there is none.
  absl::StatusOr<Queue*> FindQueue(uint32_t index);
  // The same, for a message that a started queue does not allow.
  absl::StatusOr<Queue*> FindStoppedQueue(uint32_t index);
  // Starts the queue if it has all that it needs.
  void TryStart(uint32_t index);
  absl::StatusOr<Virtqueue> Attach(const VirtqueueLayout& layout, uint16_t next_available) const;
  static StoppedQueueState StoppedAt(const Virtqueue& ring);
  // Waits for kicks of the queue.
  absl::Status WatchKick(uint32_t index, UniqueFd kick);

  const Options options_;
  EventSet* const events_;
  Counters* const counters_;
  uint64_t features_ = 0;
  bool reset_ = false;
  uint32_t breaks_ = 0;
  MemoryMap memory_;
  std::array<Queue, kQueueCount> queues_;
};

}  // namespace consort::vhost_user

#endif  // CONSORT_VMSOCK_VHOST_USER_BACKEND_H_
