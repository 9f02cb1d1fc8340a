// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/keeper.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "host/limits.h"
#include "host/session/redo_log.h"
#include "host/session/session_record.h"

namespace consort::host {

Keeper::~Keeper() {
  for (const auto& [session, delivery] : deliveries_) loop_->Unwatch(delivery->link.fd());
}

void Keeper::Hold(const Keep& keep, UniqueFd descriptor) {
  Kept& kept = sessions_[keep.session];
  if (!descriptor.valid()) {
    kept.why_not = "consortd has no descriptors left for its memory";
    return;
  }
  if (kept.descriptors.size() >= kKeptDescriptorsPerSession) {
    kept.why_not =
        absl::StrCat("it has more than ", kKeptDescriptorsPerSession, " pieces of memory to keep");
    return;
  }
  UniqueFd& place = kept.descriptors[{keep.role, keep.key}];
  if (!place.valid()) ++descriptors_;
  place = std::move(descriptor);
}

void Keeper::Drop(const LetGo& let_go) {
  const auto it = sessions_.find(let_go.session);
  if (it == sessions_.end()) return;
  descriptors_ -= it->second.descriptors.erase({let_go.role, let_go.key});
  if (it->second.descriptors.empty() && it->second.why_not.empty()) sessions_.erase(it);
}

absl::Status Keeper::CheckGoesOn(uint64_t session) const {
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return absl::FailedPreconditionError("nothing of it is kept");
  if (!it->second.why_not.empty()) return absl::FailedPreconditionError(it->second.why_not);
  const auto record = it->second.descriptors.find({KeptRole::kRecord, 0});
  if (record == it->second.descriptors.end()) {
    return absl::FailedPreconditionError("it had work in flight");
  }
  return CheckAtRest(record->second.get());
}

absl::Status Keeper::CheckRedo(uint64_t session) const {
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return absl::FailedPreconditionError("nothing of it is kept");
  const auto log = it->second.descriptors.find({KeptRole::kRedo, 0});
  if (log == it->second.descriptors.end()) {
    return absl::FailedPreconditionError("its channel has no shared memory");
  }
  return host::CheckRedo(log->second.get());
}

absl::StatusOr<LostSession> Keeper::Lend(uint64_t session) const {
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return absl::FailedPreconditionError("nothing of it is kept");
  LostSession lost;
  for (const auto& [key, descriptor] : it->second.descriptors) {
    UniqueFd* place = nullptr;
    if (key.first == KeptRole::kSocket) place = &lost.socket;
    if (key.first == KeptRole::kRings) place = &lost.rings;
    if (key.first == KeptRole::kRedo) place = &lost.redo;
    if (key.first == KeptRole::kSharedHost) place = &lost.shared_host[key.second];
    if (place == nullptr) continue;
    place->Reset(fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 0));
    if (!place->valid()) return absl::ResourceExhaustedError("consortd has no descriptors left");
  }
  if (!lost.socket.valid() || !lost.rings.valid() || !lost.redo.valid()) {
    return absl::FailedPreconditionError("its channel is not kept");
  }
  return lost;
}

void Keeper::DropMemory(uint64_t session) {
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return;
  descriptors_ -= std::erase_if(it->second.descriptors, [](const auto& kept) {
    return kept.first.first == KeptRole::kMemory || kept.first.first == KeptRole::kRecord;
  });
}

void Keeper::Rename(uint64_t session, uint64_t becomes) {
  auto node = sessions_.extract(session);
  if (node.empty()) return;
  node.key() = becomes;
  sessions_.insert(std::move(node));
}

absl::Status Keeper::PassOn(uint64_t session, UniqueFd link) {
  EndDelivery(session);
  auto delivery = std::make_unique<Delivery>(std::move(link));
  const int fd = delivery->link.fd();
  deliveries_[session] = std::move(delivery);
  const absl::Status watched =
      loop_->Watch(fd, EPOLLOUT, [this, session](uint32_t) { Continue(session); });
  if (!watched.ok()) deliveries_.erase(session);
  return watched;
}

void Keeper::Continue(uint64_t session) {
  const auto it = deliveries_.find(session);
  if (it == deliveries_.end()) return;
  const absl::Status sent = SendSome(session, it->second.get());
  if (absl::IsResourceExhausted(sent)) return;
  // Who does not get everything says so itself, or is gone.
  VLOG_IF(1, !sent.ok()) << "passing session " << session << " on: " << sent;
  EndDelivery(session);
}

absl::Status Keeper::SendSome(uint64_t session, Delivery* delivery) {
  const std::map<Key, UniqueFd>& descriptors = sessions_[session].descriptors;
  auto it = delivery->begun ? descriptors.lower_bound(delivery->next) : descriptors.begin();
  delivery->begun = true;
  for (; it != descriptors.end(); ++it) {
    Keep keep;
    keep.session = session;
    keep.role = it->first.first;
    keep.key = it->first.second;
    delivery->next = it->first;
    RETURN_IF_ERROR(delivery->link.Send(keep, it->second.get()));
  }
  // No key is after the last of the last role.
  delivery->next = {KeptRole::kMemory, UINT64_MAX};
  return delivery->link.Send(KeptEnd());
}

void Keeper::EndDelivery(uint64_t session) {
  const auto it = deliveries_.find(session);
  if (it == deliveries_.end()) return;
  loop_->Unwatch(it->second->link.fd());
  deliveries_.erase(it);
}

void Keeper::End(uint64_t session) {
  EndDelivery(session);
  const auto it = sessions_.find(session);
  if (it == sessions_.end()) return;
  const auto socket = it->second.descriptors.find({KeptRole::kSocket, 0});
  // While a copy is here the guest does not see that the worker's is gone.
  if (socket != it->second.descriptors.end()) shutdown(socket->second.get(), SHUT_RDWR);
  descriptors_ -= it->second.descriptors.size();
  sessions_.erase(it);
}

}  // namespace consort::host
