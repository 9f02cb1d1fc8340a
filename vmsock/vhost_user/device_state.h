// SPDX-License-Identifier: Apache-2.0
// vmsock/vhost_user/device_state.h: all of a running device that another image of the process goes
// on with (VsockDevice::Save and Restore).
//
// Each part saves and restores its own. Taken between two rounds of the device's loop: no chain is
// held, and all used ones are published, so what is in the rings is in guest memory. Not in it:
// ids and event tokens, which are given anew, and what the counters say. Descriptors are in it by
// their numbers. Plain values.
#ifndef CONSORT_VMSOCK_VHOST_USER_DEVICE_STATE_H_
#define CONSORT_VMSOCK_VHOST_USER_DEVICE_STATE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "vmsock/conduit.h"
#include "vmsock/vhost_user/memory_map.h"
#include "vmsock/vhost_user/virtqueue.h"

namespace consort::vhost_user {

inline constexpr int kNoDescriptor = -1;

// See Connection's members of these names, and the muxer's bookkeeping there.
struct ConnectionState {
  uint32_t guest_port = 0;
  uint32_t host_port = 0;
  uint32_t window_bytes = 0;
  int host = kNoDescriptor;                      // none: given back early
  std::vector<ConduitDeviceEnd::State> conduit;  // one or none

  std::vector<std::byte> backlog;
  uint32_t forwarded = 0;
  uint32_t forwarded_reported = 0;
  bool writable = true;
  bool write_ended = false;
  bool host_refuses = false;

  uint32_t peer_window = 0;
  uint32_t peer_forwarded = 0;
  uint32_t sent = 0;
  std::vector<uint32_t> unread_ends;
  bool readable = false;
  bool host_ended = false;

  uint32_t guest_shutdown = 0;
  uint32_t told_shutdown = 0;

  bool response_pending = false;
  bool credit_update_pending = false;
  bool credit_request_pending = false;
  bool credit_requested = false;
  bool stalled = false;
  bool detached = false;
  uint32_t read_chains = 1;

  bool operator==(const ConnectionState&) const = default;
};

// An answer that waits for an rx buffer, to a packet of no connection.
struct ResetState {
  uint64_t src_cid = 0;
  uint32_t guest_port = 0;
  uint32_t host_port = 0;
  uint32_t type = 0;
  bool operator==(const ResetState&) const = default;
};

struct MuxerState {
  std::vector<ConnectionState> connections;  // in the order in which their turns come
  std::vector<ResetState> resets;
  bool operator==(const MuxerState&) const = default;
};

// How a queue was left by GET_VRING_BASE.
struct StoppedQueueState {
  VirtqueueLayout layout;
  uint16_t next_available = 0;
  uint16_t used_index = 0;
  bool operator==(const StoppedQueueState&) const = default;
};

struct QueueState {
  VirtqueueLayout layout;
  bool has_address = false;
  uint16_t base = 0;
  bool enabled = false;
  bool broken = false;
  bool started = false;
  uint16_t next_available = 0;             // of one that has started
  std::vector<StoppedQueueState> stopped;  // one or none
  int kick = kNoDescriptor;
  int call = kNoDescriptor;
  int err = kNoDescriptor;
  bool operator==(const QueueState&) const = default;
};

struct BackendState {
  uint64_t features = 0;
  uint32_t breaks = 0;
  std::vector<RegionState> regions;
  std::vector<QueueState> queues;  // by index
  bool operator==(const BackendState&) const = default;
};

// The connection to the VMM, and the part of a message that has come.
struct ControlState {
  int socket = kNoDescriptor;
  std::vector<std::byte> bytes;
  std::vector<int> descriptors;
  bool operator==(const ControlState&) const = default;
};

struct FrontendState {
  ControlState control;
  BackendState backend;
  MuxerState muxer;
  bool operator==(const FrontendState&) const = default;
};

struct VsockDeviceState {
  int listener = kNoDescriptor;
  std::vector<FrontendState> frontends;  // one or none
  bool operator==(const VsockDeviceState&) const = default;
};

// Whether all numbers are within what this build's device could have. kInvalidArgument: which is
// not. Says nothing of descriptors, nor of what is in guest memory.
absl::Status Check(const VsockDeviceState& state);

// Every descriptor that it names.
std::vector<int> DescriptorsOf(const VsockDeviceState& state);

}  // namespace consort::vhost_user

#endif  // CONSORT_VMSOCK_VHOST_USER_DEVICE_STATE_H_
