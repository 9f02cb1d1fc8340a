// SPDX-License-Identifier: Apache-2.0
#include "host/session/peer_reach.h"

#include <sys/socket.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "device/driver/driver_loader.h"

namespace consort::host {

PeerReach::PeerReach(const WorkerDevice& device, const PeerReachOptions& options, UniqueFd link)
    : device_(device),
      options_(options),
      link_(std::move(link)),
      memory_(device.driver(), device.device(), options.addresses),
      thread_([this] { Run(); }) {}

PeerReach::~PeerReach() {
  shutdown(link_.fd(), SHUT_RDWR);
  thread_.join();
  if (options_.addresses == nullptr) return;
  absl::MutexLock lock(&mutex_);
  for (const auto& [address, mapping] : mappings_) device_.allocation_notes().Gone(mapping.here);
}

void PeerReach::Run() {
  absl::Status status = absl::OkStatus();
  if (const CUresult current = device_.MakeCurrent(); current != CUDA_SUCCESS) {
    status = absl::InternalError(device::ResultName(device_.driver(), current));
  }
  if (!status.ok()) {
    LOG(ERROR) << options_.name << ": " << status.message();
    state_.store(State::kFailed, std::memory_order_release);
    // Whoever lends is answered by the link's end.
    shutdown(link_.fd(), SHUT_RDWR);
    return;
  }
  ControlPacket packet;
  while (link_.Receive(/*wait=*/true, &packet).ok()) {
    const absl::Status took = Take(&packet);
    LOG_IF(ERROR, !took.ok()) << options_.name << ": " << took.message();
    PeerTaken taken;
    SetText(taken.text, std::string(took.message()));
    if (!took.ok() && state() == State::kMaps) {
      state_.store(State::kFailed, std::memory_order_release);
    }
    if (!link_.Send(taken).ok()) break;
  }
  State maps = State::kMaps;
  state_.compare_exchange_strong(maps, State::kFailed, std::memory_order_acq_rel);
}

absl::Status PeerReach::Take(ControlPacket* packet) {
  PeerMemoryMade made;
  PeerMemoryGone gone;
  PeerMemoryTold told;
  if (packet->As(&made)) {
    const absl::Status added = memory_.Add(made.address, made.bytes, packet->descriptor());
    if (!added.ok()) return added;
    const PeerMemory::Mapping mapping = memory_.mappings().at(made.address);
    if (options_.addresses != nullptr) {
      device_.allocation_notes().Placed(mapping.here, mapping.bytes);
    }
    absl::MutexLock lock(&mutex_);
    mappings_[made.address] = mapping;
    return absl::OkStatus();
  }
  if (packet->As(&gone)) {
    {
      absl::MutexLock lock(&mutex_);
      if (mappings_.erase(gone.address) == 0) return absl::OkStatus();
    }
    if (options_.addresses != nullptr) device_.allocation_notes().Gone(gone.address);
    memory_.Remove(gone.address);
    return absl::OkStatus();
  }
  if (packet->As(&told)) {
    State maps = State::kMaps;
    state_.compare_exchange_strong(maps, State::kReaches, std::memory_order_acq_rel);
    return absl::OkStatus();
  }
  return absl::InternalError("the other worker says something else");
}

std::optional<uint64_t> PeerReach::Find(uint64_t address, Bytes bytes) const {
  absl::MutexLock lock(&mutex_);
  return PeerMemory::Find(mappings_, address, bytes);
}

}  // namespace consort::host
