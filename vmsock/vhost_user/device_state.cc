// SPDX-License-Identifier: Apache-2.0
#include "vmsock/vhost_user/device_state.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "vmsock/vhost_user/backend.h"
#include "vmsock/vhost_user/limits.h"
#include "vmsock/vhost_user/packet.h"

namespace consort::vhost_user {
namespace {

absl::Status Wrong(const char* what, uint64_t value) {
  return absl::InvalidArgumentError(absl::StrCat("a vsock device's state: ", what, " ", value));
}

absl::Status CheckConnection(const ConnectionState& connection) {
  if (connection.window_bytes < kReceiveWindowBytesMin) {
    return Wrong("window of", connection.window_bytes);
  }
  if (connection.conduit.size() > 1) return Wrong("conduits:", connection.conduit.size());
  if (connection.backlog.size() > connection.window_bytes) {
    return Wrong("bytes that the host has not taken:", connection.backlog.size());
  }
  if (connection.peer_window > kPeerWindowBytesMax) {
    return Wrong("guest's window of", connection.peer_window);
  }
  if (connection.sent - connection.peer_forwarded > kPeerWindowBytesMax) {
    return Wrong("bytes on the way:", connection.sent - connection.peer_forwarded);
  }
  if (connection.unread_ends.size() > kUnreadPacketsMax) {
    return Wrong("unread packets:", connection.unread_ends.size());
  }
  if ((connection.guest_shutdown | connection.told_shutdown) & ~kShutdownBoth) {
    return Wrong("shutdown of", connection.guest_shutdown | connection.told_shutdown);
  }
  if (connection.read_chains == 0 || connection.read_chains > kPacketsPerBatchMax) {
    return Wrong("buffers to read into:", connection.read_chains);
  }
  return absl::OkStatus();
}

absl::Status CheckMuxer(const MuxerState& muxer) {
  const size_t count = muxer.connections.size();
  if (count > kConnectionsPerVmMax) return Wrong("connections:", count);
  // Each connection that is reset adds one to those that a guest can ask for.
  if (muxer.resets.size() > kPendingResetsMax + kConnectionsPerVmMax) {
    return Wrong("resets:", muxer.resets.size());
  }
  Bytes granted = 0;
  std::set<std::pair<uint32_t, uint32_t>> ports;
  for (const ConnectionState& connection : muxer.connections) {
    RETURN_IF_ERROR(CheckConnection(connection));
    granted += connection.window_bytes;
    if (!connection.detached &&
        !ports.emplace(connection.guest_port, connection.host_port).second) {
      return Wrong("two connections of guest port", connection.guest_port);
    }
  }
  // Those that may still come have theirs.
  if (granted + (kConnectionsPerVmMax - count) * kReceiveWindowBytesMin > kReceiveBudgetBytes) {
    return Wrong("windows of", granted);
  }
  for (const ResetState& reset : muxer.resets) {
    if (reset.type > UINT16_MAX) return Wrong("reset of type", reset.type);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Check(const VsockDeviceState& state) {
  if (state.frontends.size() > 1) return Wrong("VMMs:", state.frontends.size());
  for (const FrontendState& frontend : state.frontends) {
    const BackendState& backend = frontend.backend;
    if (backend.features & ~kFeaturesOffered) return Wrong("features", backend.features);
    if (backend.regions.size() > kMemoryRegionsMax)
      return Wrong("regions:", backend.regions.size());
    if (backend.queues.size() != kQueueCount) return Wrong("queues:", backend.queues.size());
    for (const QueueState& queue : backend.queues) {
      if (queue.stopped.size() > 1) return Wrong("stops of a queue:", queue.stopped.size());
    }
    if (frontend.control.bytes.size() > kMessageHeaderBytes + kMessagePayloadBytesMax) {
      return Wrong("part of a message of", frontend.control.bytes.size());
    }
    RETURN_IF_ERROR(CheckMuxer(frontend.muxer));
  }
  return absl::OkStatus();
}

std::vector<int> DescriptorsOf(const VsockDeviceState& state) {
  std::vector<int> descriptors;
  const auto add = [&](int descriptor) {
    if (descriptor != kNoDescriptor) descriptors.push_back(descriptor);
  };
  add(state.listener);
  for (const FrontendState& frontend : state.frontends) {
    add(frontend.control.socket);
    for (const int descriptor : frontend.control.descriptors) add(descriptor);
    for (const RegionState& region : frontend.backend.regions) add(region.file);
    for (const QueueState& queue : frontend.backend.queues) {
      for (const int descriptor : {queue.kick, queue.call, queue.err}) add(descriptor);
    }
    for (const ConnectionState& connection : frontend.muxer.connections) {
      add(connection.host);
      for (const ConduitDeviceEnd::State& conduit : connection.conduit) add(conduit.memory);
    }
  }
  return descriptors;
}

}  // namespace consort::vhost_user
