// SPDX-License-Identifier: Apache-2.0
#include "vmsock/vhost_user/vsock_device.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "vmsock/deadline.h"
#include "vmsock/vhost_user/backend.h"
#include "vmsock/vhost_user/control_socket.h"
#include "vmsock/vhost_user/event_set.h"

namespace consort::vhost_user {
namespace {

// Event tokens; connections have those from kFirstConnectionToken on.
constexpr uint64_t kStopToken = 0;
constexpr uint64_t kListenerToken = 1;
constexpr uint64_t kFrontendToken = 2;
constexpr uint64_t kKickToken = 3;  // and one more for each queue
constexpr uint64_t kFirstConnectionToken = 16;
static_assert(kKickToken + kQueueCount <= kFirstConnectionToken);

// 0 to 2 have other meanings (virtio 1.2, section 5.10.4).
constexpr uint32_t kGuestCidMin = 3;

}  // namespace

// All that belongs to one frontend, and goes with it.
struct VsockDevice::Frontend {
  Frontend(UniqueFd fd, const VsockDeviceOptions& options, const ConnectHandler* handler,
           EventSet* events, Counters* counters)
      : socket(std::move(fd)),
        backend({.name = options.socket_path,
                 .guest_cid = options.guest_cid,
                 .require_sealed_memory = options.require_sealed_memory,
                 .kick_token = kKickToken},
                events, counters),
        muxer({.guest_cid = options.guest_cid,
               .receive_window_bytes_max = static_cast<uint32_t>(options.receive_window_bytes_max),
               .first_connection_id = kFirstConnectionToken,
               .crew = options.copy_crew},
              handler, events, counters) {}

  ControlSocket socket;
  EventSet::Watch watch;
  Backend backend;
  Muxer muxer;
};

VsockDevice::VsockDevice(const VsockDeviceOptions& options, ConnectHandler handler)
    : options_(options), handler_(std::move(handler)) {}

VsockDevice::~VsockDevice() = default;

absl::StatusOr<std::unique_ptr<VsockDevice>> VsockDevice::New(const VsockDeviceOptions& options,
                                                              ConnectHandler handler) {
  CHECK(handler != nullptr);
  if (options.guest_cid < kGuestCidMin || options.guest_cid == UINT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("guest CID ", options.guest_cid));
  }
  if (options.receive_window_bytes_max < kReceiveWindowBytesMin ||
      options.receive_window_bytes_max > kReceiveBudgetBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("receive window of ", options.receive_window_bytes_max, " bytes"));
  }
  std::unique_ptr<VsockDevice> device(new VsockDevice(options, std::move(handler)));
  ASSIGN_OR_RETURN(EventSet events, EventSet::Create());
  device->events_ = std::make_unique<EventSet>(std::move(events));
  device->stop_event_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!device->stop_event_.valid()) {
    return absl::ResourceExhaustedError(absl::StrCat("eventfd: ", std::strerror(errno)));
  }
  ASSIGN_OR_RETURN(device->stop_watch_,
                   device->events_->Add(device->stop_event_.get(), EPOLLIN, kStopToken));
  return device;
}

absl::StatusOr<std::unique_ptr<VsockDevice>> VsockDevice::Create(const VsockDeviceOptions& options,
                                                                 ConnectHandler handler) {
  ASSIGN_OR_RETURN(std::unique_ptr<VsockDevice> device, New(options, std::move(handler)));
  ASSIGN_OR_RETURN(ListeningSocket listener,
                   ListeningSocket::Create({.path = options.socket_path,
                                            .mode = options.socket_mode,
                                            .group = options.socket_group}));
  device->listener_ = std::make_unique<ListeningSocket>(std::move(listener));
  RETURN_IF_ERROR(device->WatchListener());
  return device;
}

absl::StatusOr<std::unique_ptr<VsockDevice>> VsockDevice::Restore(const VsockDeviceOptions& options,
                                                                  ConnectHandler handler,
                                                                  const VsockDeviceState& state,
                                                                  InheritedFds* fds) {
  RETURN_IF_ERROR(Check(state));
  ASSIGN_OR_RETURN(std::unique_ptr<VsockDevice> device, New(options, std::move(handler)));
  ASSIGN_OR_RETURN(ListeningSocket listener,
                   ListeningSocket::Adopt(options.socket_path, fds->Take(state.listener)));
  device->listener_ = std::make_unique<ListeningSocket>(std::move(listener));
  if (state.frontends.empty()) {
    RETURN_IF_ERROR(device->WatchListener());
  } else {
    RETURN_IF_ERROR(device->RestoreFrontend(state.frontends.front(), fds));
  }
  return device;
}

VsockDeviceState VsockDevice::Save() const {
  VsockDeviceState state;
  state.listener = listener_->fd();
  if (frontend_ != nullptr) {
    state.frontends.push_back(
        {frontend_->socket.Save(), frontend_->backend.Save(), frontend_->muxer.Save()});
  }
  return state;
}

absl::Status VsockDevice::RestoreFrontend(const FrontendState& state, InheritedFds* fds) {
  auto frontend = std::make_unique<Frontend>(fds->Take(state.control.socket), options_, &handler_,
                                             events_.get(), &counters_);
  RETURN_IF_ERROR(frontend->socket.Restore(state.control, fds));
  RETURN_IF_ERROR(frontend->backend.Restore(state.backend, fds));
  RETURN_IF_ERROR(frontend->muxer.Restore(state.muxer, fds));
  RETURN_IF_ERROR(WatchFrontend(std::move(frontend)));
  // Kicks may have come to the last image that it did not see.
  pump_again_ = true;
  LOG(INFO) << "vhost-user: frontend of " << options_.socket_path << " goes on with "
            << state.muxer.connections.size() << " connections";
  return absl::OkStatus();
}

absl::Status VsockDevice::WatchListener() {
  ASSIGN_OR_RETURN(listener_watch_, events_->Add(listener_->fd(), EPOLLIN, kListenerToken));
  return absl::OkStatus();
}

void VsockDevice::Stop() {
  const uint64_t one = 1;
  // Fails only when full, and then Run has been told.
  [[maybe_unused]] const ssize_t written = write(stop_event_.get(), &one, sizeof(one));
}

absl::Status VsockDevice::Run() {
  std::array<epoll_event, 64> storage;
  while (true) {
    int timeout_ms = -1;
    if (frontend_ != nullptr) {
      timeout_ms = frontend_->muxer.TakeTime(std::chrono::steady_clock::now());
      if (pump_again_) timeout_ms = 0;
    } else if (!listener_watch_.valid()) {
      timeout_ms = kAcceptRetryMs;
    }
    const std::span<const epoll_event> events = events_->Wait(storage, timeout_ms);
    if (frontend_ == nullptr && !listener_watch_.valid()) RETURN_IF_ERROR(WatchListener());
    bool messages = false;
    bool stop = false;
    for (const epoll_event& event : events) {
      const uint64_t token = event.data.u64;
      if (token == kStopToken) {
        stop = true;  // after this round, whose edges do not come again
        uint64_t stops = 0;
        [[maybe_unused]] const ssize_t got = read(stop_event_.get(), &stops, sizeof(stops));
      } else if (token == kListenerToken) {
        AcceptFrontend();
      } else if (token == kFrontendToken) {
        messages = true;  // last, so that no event of this round meets another frontend
      } else if (token >= kFirstConnectionToken && frontend_ != nullptr) {
        frontend_->muxer.TakeHostEvents(token, event.events);
      } else if (token >= kKickToken) {
        counters_.kicks.Add();  // needs nothing but the pump below
      }
    }
    if (frontend_ != nullptr) {
      PumpQueues();
      const absl::Status status = messages ? ServeMessages() : absl::OkStatus();
      // What the guest posted between the pump and its frontend's end.
      if (absl::IsUnavailable(status)) PumpQueues();
      if (!status.ok()) RETURN_IF_ERROR(DropFrontend(status));
    }
    if (stop) {
      FinishCopies();
      return absl::OkStatus();
    }
  }
}

absl::Status VsockDevice::DropFrontend(const absl::Status& why) {
  if (absl::IsUnavailable(why)) {
    LOG(INFO) << "vhost-user: frontend of " << options_.socket_path << " has gone";
  } else {
    counters_.protocol_errors.Add();
    LOG(WARNING) << "vhost-user: frontend of " << options_.socket_path << " dropped: " << why;
  }
  frontend_.reset();
  counters_.frontends_now.Set(0);
  pump_again_ = false;
  return WatchListener();
}

void VsockDevice::AcceptFrontend() {
  absl::StatusOr<UniqueFd> fd = listener_->Accept();
  if (!fd.ok()) {
    // Gone again, or there are no descriptors: then it stays, and an event at once would be a busy
    // loop.
    LOG(WARNING) << "vhost-user: " << options_.socket_path << ": " << fd.status();
    listener_watch_.Reset();
    return;
  }
  auto frontend =
      std::make_unique<Frontend>(*std::move(fd), options_, &handler_, events_.get(), &counters_);
  const absl::Status watched = WatchFrontend(std::move(frontend));
  if (!watched.ok()) {
    LOG(ERROR) << "vhost-user: frontend of " << options_.socket_path << ": " << watched;
    return;
  }
  listener_watch_.Reset();
  LOG(INFO) << "vhost-user: frontend of " << options_.socket_path << " connected";
}

absl::Status VsockDevice::WatchFrontend(std::unique_ptr<Frontend> frontend) {
  ASSIGN_OR_RETURN(frontend->watch, events_->Add(frontend->socket.fd(), EPOLLIN, kFrontendToken));
  frontend_ = std::move(frontend);
  counters_.frontends.Add();
  counters_.frontends_now.Set(1);
  return absl::OkStatus();
}

absl::Status VsockDevice::ServeMessages() {
  for (int i = 0; i < kMessagesPerRound; ++i) {
    ASSIGN_OR_RETURN(std::optional<Message> message, frontend_->socket.Receive());
    if (!message.has_value()) return absl::OkStatus();
    // It may change memory or stop a queue.
    FinishCopies();
    ASSIGN_OR_RETURN(const std::vector<std::byte> reply,
                     frontend_->backend.Handle(*std::move(message)));
    if (!reply.empty()) RETURN_IF_ERROR(frontend_->socket.Send(reply));
    if (frontend_->backend.TakeReset()) {
      frontend_->muxer.Reset();
      counters_.device_resets.Add();
    }
    // A queue that has just started may hold chains that no kick will tell of.
    pump_again_ = true;
  }
  return absl::OkStatus();
}

bool VsockDevice::PumpOnce(bool rests) {
  Backend& backend = frontend_->backend;
  const absl::StatusOr<Muxer::PumpResult> result =
      frontend_->muxer.Pump(backend.rx(), backend.tx(), rests);
  if (!result.ok()) {
    backend.Break(result.status());
    if (backend.TakeReset()) frontend_->muxer.Reset();
    return false;
  }
  Interrupt(*result);
  idle_pumps_ = result->moved ? 0 : idle_pumps_ + 1;
  if (idle_pumps_ > 0) {
    frontend_->muxer.HelpCopying(backend.rx(), backend.tx(), /*idle=*/idle_pumps_ >= kIdlePumps);
  }
  return result->more;
}

void VsockDevice::Interrupt(const Muxer::PumpResult& result) {
  if (result.interrupt_rx) frontend_->backend.Interrupt(kRxQueue);
  if (result.interrupt_tx) frontend_->backend.Interrupt(kTxQueue);
}

void VsockDevice::FinishCopies() {
  if (frontend_ == nullptr || !frontend_->muxer.copying()) return;
  // Queues that do not run have no copies: what stops them comes here first.
  CHECK(frontend_->backend.running());
  Interrupt(frontend_->muxer.FinishCopies(frontend_->backend.rx(), frontend_->backend.tx()));
}

void VsockDevice::PumpQueues() {
  pump_again_ = false;
  const Backend& backend = frontend_->backend;
  if (!backend.running()) return;
  const auto packets = [this] {
    return counters_.packets_from_guest.Get() + counters_.packets_to_guest.Get();
  };
  const uint64_t before = packets();
  for (int pumps = 0; pumps < kPumpsPerRound; ++pumps) {
    pump_again_ = PumpOnce(/*rests=*/false);
    if (!backend.running()) return;
    if (!frontend_->muxer.copying()) break;
  }
  const bool came = packets() != before || frontend_->muxer.copying();
  if (attention_.LookOn(came, MonotonicNow())) {
    pump_again_ = true;
  } else if (!pump_again_) {
    pump_again_ = PumpOnce(/*rests=*/true);
  }
}

VsockDeviceStats VsockDevice::stats() const {
  return {.frontends = counters_.frontends.Get(),
          .frontends_now = counters_.frontends_now.Get(),
          .connections_opened = counters_.connections_opened.Get(),
          .connections_refused = counters_.connections_refused.Get(),
          .connections_reset = counters_.connections_reset.Get(),
          .connections_now = counters_.connections_now.Get(),
          .packets_from_guest = counters_.packets_from_guest.Get(),
          .packets_to_guest = counters_.packets_to_guest.Get(),
          .bytes_from_guest = counters_.bytes_from_guest.Get(),
          .bytes_to_guest = counters_.bytes_to_guest.Get(),
          .socket_bytes_from_guest = counters_.socket_bytes_from_guest.Get(),
          .socket_bytes_to_guest = counters_.socket_bytes_to_guest.Get(),
          .kicks = counters_.kicks.Get(),
          .interrupts = counters_.interrupts.Get(),
          .device_resets = counters_.device_resets.Get(),
          .protocol_errors = counters_.protocol_errors.Get(),
          .broken_rings = counters_.broken_rings.Get()};
}

}  // namespace consort::vhost_user
