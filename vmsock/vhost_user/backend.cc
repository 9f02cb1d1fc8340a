// SPDX-License-Identifier: Apache-2.0
#include "vmsock/vhost_user/backend.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "vmsock/vhost_user/limits.h"

namespace consort::vhost_user {
namespace {

template <typename T>
std::vector<std::byte> ReplyWith(Request request, const T& value) {
  return EncodeReply(request, std::as_bytes(std::span(&value, 1)));
}

bool IsGet(Request request) {
  return request == Request::kGetFeatures || request == Request::kGetProtocolFeatures ||
         request == Request::kGetQueueNum || request == Request::kGetVringBase ||
         request == Request::kGetConfig;
}

// An eventfd that is full would block its writer: the frontend could stop our thread with it.
absl::Status SetNonBlocking(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("O_NONBLOCK: ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

void WriteEvent(const UniqueFd& eventfd) {
  if (!eventfd.valid()) return;
  const uint64_t one = 1;
  // A full counter has an event in it already; any other failure is the frontend's own loss.
  [[maybe_unused]] const ssize_t written = write(eventfd.get(), &one, sizeof(one));
}

}  // namespace

Backend::Backend(const Options& options, EventSet* events, Counters* counters)
    : options_(options), events_(events), counters_(counters) {}

absl::StatusOr<std::vector<std::byte>> Backend::Handle(Message message) {
  const Request request = message.request;
  VLOG(2) << options_.name << ": vhost-user request " << static_cast<uint32_t>(request) << ", "
          << message.payload.size() << " bytes, " << message.fds.size() << " descriptors";
  if (IsGet(request)) return HandleGet(message);
  const absl::Status status = HandleSet(message);
  if (!status.ok()) {
    if (!message.need_reply) return status;
    counters_->protocol_errors.Add();
    LOG(WARNING) << options_.name << ": vhost-user request " << static_cast<uint32_t>(request)
                 << " refused: " << status;
  }
  if (!message.need_reply) return std::vector<std::byte>();
  // REPLY_ACK: 0 is success.
  return ReplyWith<uint64_t>(request, status.ok() ? 0 : 1);
}

absl::StatusOr<std::vector<std::byte>> Backend::HandleGet(const Message& message) {
  switch (message.request) {
    case Request::kGetFeatures:
      return ReplyWith(message.request, kFeaturesOffered);
    case Request::kGetProtocolFeatures:
      return ReplyWith(message.request, kProtocolFeaturesOffered);
    case Request::kGetQueueNum:
      return ReplyWith<uint64_t>(message.request, kQueueCount);
    case Request::kGetVringBase: {
      ASSIGN_OR_RETURN(VringState state, DecodeVringState(message));
      ASSIGN_OR_RETURN(state.value, StopQueue(state.index));
      return ReplyWith(message.request, state);
    }
    default:
      return GetConfig(message);
  }
}

absl::StatusOr<std::vector<std::byte>> Backend::GetConfig(const Message& message) const {
  ASSIGN_OR_RETURN(const ConfigRequest request, DecodeConfigRequest(message));
  // struct virtio_vsock_config: one little-endian u64 (virtio 1.2, section 5.10.4).
  const uint64_t guest_cid = options_.guest_cid;
  if (request.offset > sizeof(guest_cid) || request.size > sizeof(guest_cid) - request.offset) {
    return EncodeReply(message.request, {});  // "On error": a reply without payload
  }
  std::vector<std::byte> payload = message.payload;
  std::memcpy(payload.data() + kConfigRequestBytes,
              reinterpret_cast<const std::byte*>(&guest_cid) + request.offset, request.size);
  return EncodeReply(message.request, payload);
}

absl::Status Backend::HandleSet(Message& message) {
  switch (message.request) {
    case Request::kSetFeatures: {
      ASSIGN_OR_RETURN(const uint64_t features, DecodeU64(message));
      if (features & ~kFeaturesOffered) {
        return absl::InvalidArgumentError(absl::StrCat("features ", features));
      }
      features_ = features;
      return absl::OkStatus();
    }
    case Request::kSetProtocolFeatures: {
      ASSIGN_OR_RETURN(const uint64_t features, DecodeU64(message));
      if (features & ~kProtocolFeaturesOffered) {
        return absl::InvalidArgumentError(absl::StrCat("protocol features ", features));
      }
      return absl::OkStatus();
    }
    case Request::kSetOwner:
    case Request::kResetOwner:  // "no longer used"; nothing to do
      return absl::OkStatus();
    case Request::kSetMemTable:
      return SetMemTable(message);
    case Request::kSetVringNum: {
      ASSIGN_OR_RETURN(const VringState state, DecodeVringState(message));
      ASSIGN_OR_RETURN(Queue* const queue, FindStoppedQueue(state.index));
      queue->layout.entries = state.value;
      return absl::OkStatus();
    }
    case Request::kSetVringBase: {
      ASSIGN_OR_RETURN(const VringState state, DecodeVringState(message));
      ASSIGN_OR_RETURN(Queue* const queue, FindStoppedQueue(state.index));
      queue->base = static_cast<uint16_t>(state.value);
      return absl::OkStatus();
    }
    case Request::kSetVringAddr:
      return SetVringAddress(message);
    case Request::kSetVringKick:
    case Request::kSetVringCall:
    case Request::kSetVringErr:
      return SetVringDescriptor(message);
    case Request::kSetVringEnable: {
      ASSIGN_OR_RETURN(const VringState state, DecodeVringState(message));
      ASSIGN_OR_RETURN(Queue* const queue, FindQueue(state.index));
      queue->enabled = state.value != 0;
      TryStart(state.index);
      return absl::OkStatus();
    }
    default:
      return absl::UnimplementedError(
          absl::StrCat("request ", static_cast<uint32_t>(message.request)));
  }
}

absl::Status Backend::SetMemTable(Message& message) {
  ASSIGN_OR_RETURN(const std::vector<MemoryRegionSpec> specs, DecodeMemoryTable(message));
  RETURN_IF_ERROR(memory_.Update(specs, std::move(message.fds), options_.require_sealed_memory));
  for (Queue& queue : queues_) {
    if (!queue.ring.has_value()) continue;
    const absl::Status status = queue.ring->Translate();
    if (!status.ok()) {
      Break(status);
      break;
    }
  }
  return absl::OkStatus();
}

absl::Status Backend::SetVringAddress(const Message& message) {
  ASSIGN_OR_RETURN(const VringAddress address, DecodeVringAddress(message));
  ASSIGN_OR_RETURN(Queue* const queue, FindStoppedQueue(address.index));
  if (address.flags != 0) return absl::InvalidArgumentError("dirty logging was not offered");
  queue->layout.descriptors_user_addr = address.descriptors_user_addr;
  queue->layout.available_user_addr = address.available_user_addr;
  queue->layout.used_user_addr = address.used_user_addr;
  queue->has_address = true;
  return absl::OkStatus();
}

absl::Status Backend::SetVringDescriptor(Message& message) {
  ASSIGN_OR_RETURN(const VringDescriptor descriptor, DecodeVringDescriptor(message));
  ASSIGN_OR_RETURN(Queue* const queue, FindQueue(descriptor.index));
  UniqueFd fd;
  if (descriptor.has_fd) {
    fd = std::move(message.fds[0]);
    RETURN_IF_ERROR(SetNonBlocking(fd.get()));
  }
  if (message.request == Request::kSetVringCall) {
    queue->call = std::move(fd);
    // An interrupt may have gone to the old one unseen.
    if (queue->ring.has_value()) WriteEvent(queue->call);
    return absl::OkStatus();
  }
  if (message.request == Request::kSetVringErr) {
    queue->err = std::move(fd);
    return absl::OkStatus();
  }
  if (!descriptor.has_fd) return absl::UnimplementedError("polled rings");
  RETURN_IF_ERROR(WatchKick(descriptor.index, std::move(fd)));
  TryStart(descriptor.index);
  return absl::OkStatus();
}

absl::Status Backend::WatchKick(uint32_t index, UniqueFd kick) {
  Queue& queue = queues_[index];
  queue.kick_watch.Reset();
  queue.kick = std::move(kick);
  // Edges: the counter need not be read, which saves a system call for each kick.
  ASSIGN_OR_RETURN(queue.kick_watch,
                   events_->Add(queue.kick.get(), EPOLLIN | EPOLLET, options_.kick_token + index));
  return absl::OkStatus();
}

absl::StatusOr<uint16_t> Backend::StopQueue(uint32_t index) {
  ASSIGN_OR_RETURN(Queue* const queue, FindQueue(index));
  queue->kick_watch.Reset();
  queue->kick.Reset();
  queue->broken = false;
  if (queue->ring.has_value()) {
    queue->stopped = StoppedAt(*queue->ring);
    queue->base = queue->ring->next_available();
    queue->ring.reset();
  }
  return queue->base;
}

absl::StatusOr<Backend::Queue*> Backend::FindQueue(uint32_t index) {
  if (index >= kQueueCount) return absl::InvalidArgumentError(absl::StrCat("queue ", index));
  return &queues_[index];
}

absl::StatusOr<Backend::Queue*> Backend::FindStoppedQueue(uint32_t index) {
  ASSIGN_OR_RETURN(Queue* const queue, FindQueue(index));
  if (queue->ring.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat("queue ", index, " is running"));
  }
  return queue;
}

void Backend::TryStart(uint32_t index) {
  Queue& queue = queues_[index];
  // Without PROTOCOL_FEATURES a queue is enabled from the start.
  const bool enabled = queue.enabled || !(features_ & kFeatureProtocolFeatures);
  if (queue.ring.has_value() || queue.broken || !enabled || !queue.kick.valid() ||
      !queue.has_address || queue.layout.entries == 0) {
    return;
  }
  absl::StatusOr<Virtqueue> ring = Attach(queue.layout, queue.base);
  if (!ring.ok()) {
    Break(ring.status());
    return;
  }
  const bool continues = queue.stopped.has_value() && queue.stopped->layout == queue.layout &&
                         queue.stopped->next_available == queue.base &&
                         queue.stopped->used_index == ring->used_index();
  queue.stopped.reset();
  queue.ring = *std::move(ring);
  if (!continues) reset_ = true;
  VLOG(1) << options_.name << ": queue " << index << (continues ? " continues" : " starts")
          << " at " << queue.base;
}

absl::StatusOr<Virtqueue> Backend::Attach(const VirtqueueLayout& layout,
                                          uint16_t next_available) const {
  return Virtqueue::Attach(&memory_, {.layout = layout,
                                      .next_available = next_available,
                                      .event_idx = (features_ & kFeatureEventIdx) != 0,
                                      .indirect = (features_ & kFeatureIndirect) != 0});
}

StoppedQueueState Backend::StoppedAt(const Virtqueue& ring) {
  return {.layout = ring.layout(),
          .next_available = ring.next_available(),
          .used_index = ring.used_index()};
}

BackendState Backend::Save() const {
  BackendState state = {
      .features = features_, .breaks = breaks_, .regions = memory_.Save(), .queues = {}};
  for (const Queue& queue : queues_) {
    QueueState& out = state.queues.emplace_back();
    out.layout = queue.layout;
    out.has_address = queue.has_address;
    out.base = queue.base;
    out.enabled = queue.enabled;
    out.broken = queue.broken;
    if (queue.stopped.has_value()) out.stopped = {*queue.stopped};
    if (queue.ring.has_value() && queue.broken) {
      // Its memory may be gone; what the frontend will be told when it stops the queue is this.
      out.stopped = {StoppedAt(*queue.ring)};
      out.base = queue.ring->next_available();
    } else if (queue.ring.has_value()) {
      out.started = true;
      out.next_available = queue.ring->next_available();
    }
    out.kick = queue.kick.get();
    out.call = queue.call.get();
    out.err = queue.err.get();
  }
  return state;
}

absl::Status Backend::Restore(const BackendState& state, InheritedFds* fds) {
  features_ = state.features;
  breaks_ = state.breaks;
  std::vector<MemoryRegionSpec> specs;
  std::vector<UniqueFd> files;
  for (const RegionState& region : state.regions) {
    specs.push_back(region.spec);
    files.push_back(fds->Take(region.file));
  }
  RETURN_IF_ERROR(memory_.Update(specs, std::move(files), options_.require_sealed_memory));
  for (uint32_t i = 0; i < kQueueCount; ++i) {
    const QueueState& one = state.queues[i];
    Queue& queue = queues_[i];
    queue.layout = one.layout;
    queue.has_address = one.has_address;
    queue.base = one.base;
    queue.enabled = one.enabled;
    queue.broken = one.broken;
    if (!one.stopped.empty()) queue.stopped = one.stopped.front();
    if (one.started) {
      ASSIGN_OR_RETURN(queue.ring, Attach(one.layout, one.next_available));
    }
    if (one.kick != kNoDescriptor) RETURN_IF_ERROR(WatchKick(i, fds->Take(one.kick)));
    queue.call = fds->Take(one.call);
    queue.err = fds->Take(one.err);
  }
  return absl::OkStatus();
}

bool Backend::TakeReset() { return std::exchange(reset_, false); }

bool Backend::running() const {
  for (const Queue& queue : queues_) {
    const bool enabled = queue.enabled || !(features_ & kFeatureProtocolFeatures);
    if (!queue.ring.has_value() || queue.broken || !enabled) return false;
  }
  return true;
}

void Backend::Interrupt(uint32_t index) {
  WriteEvent(queues_[index].call);
  counters_->interrupts.Add();
}

void Backend::Break(const absl::Status& why) {
  if (++breaks_ <= kBreaksLoggedMax) {
    LOG(WARNING) << "vsock device of " << options_.name << " stops: " << why;
  }
  counters_->broken_rings.Add();
  reset_ = true;
  for (Queue& queue : queues_) {
    queue.broken = true;
    WriteEvent(queue.err);
  }
}

}  // namespace consort::vhost_user
