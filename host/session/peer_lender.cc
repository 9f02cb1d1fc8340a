// SPDX-License-Identifier: Apache-2.0
#include "host/session/peer_lender.h"

#include <errno.h>
#include <poll.h>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "device/driver/driver_loader.h"
#include "host/limits.h"
#include "vmsock/deadline.h"

namespace consort::host {

template <class Message>
absl::Status PeerLender::Tell(const Message& message, int descriptor) {
  const absl::Status sent = link_.Send(message, descriptor);
  return sent.ok() ? AwaitTaken() : sent;
}

absl::Status PeerLender::AwaitTaken() {
  const Deadline deadline(kPeerAnswerMax);
  while (deadline.Left() != 0) {
    pollfd entry = {link_.fd(), POLLIN, 0};
    if (poll(&entry, 1, Deadline::ToPollMs(deadline.Left())) <= 0) continue;
    ControlPacket packet;
    const absl::Status received = link_.Receive(/*wait=*/false, &packet);
    if (absl::IsDeadlineExceeded(received)) continue;
    if (!received.ok()) return received;
    PeerTaken taken;
    if (!packet.As(&taken)) return absl::InternalError("the other worker says something else");
    if (taken.text[0] != '\0') return absl::AbortedError(GetText(taken.text));
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError("the other device's worker does not answer");
}

void PeerLender::Note(const absl::Status& status) {
  if (status.ok() || over_) return;
  over_ = true;
  // Its other end has gone: that is how it ends.
  if (absl::IsUnavailable(status)) return;
  LOG(ERROR) << name_ << ": memory is not lent any more, and what is made from now on is no legal "
             << "address there: " << status.message();
}

bool PeerLender::Begin() {
  window_->Watch(this);
  if (!over_) Note(Tell(PeerMemoryTold()));
  return !over_;
}

bool PeerLender::Lends() {
  ControlPacket packet;
  // Nothing comes unasked.
  if (!over_ && !absl::IsDeadlineExceeded(link_.Receive(/*wait=*/false, &packet))) over_ = true;
  return !over_;
}

void PeerLender::Made(uint64_t address, Bytes bytes, CUmemGenericAllocationHandle memory) {
  if (over_) return;
  int descriptor = -1;
  const CUresult exported = driver_.cuMemExportToShareableHandle(
      &descriptor, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (exported != CUDA_SUCCESS) {
    return Note(absl::FailedPreconditionError(absl::StrCat("its device memory cannot be exported: ",
                                                           device::ResultName(driver_, exported))));
  }
  const UniqueFd owned(descriptor);
  PeerMemoryMade made;
  made.address = address;
  made.bytes = bytes;
  const absl::Status told = Tell(made, owned.get());
  if (told.ok()) lent_.insert(address);
  Note(told);
}

void PeerLender::Going(uint64_t address) {
  if (lent_.erase(address) == 0 || over_) return;
  PeerMemoryGone gone;
  gone.address = address;
  Note(Tell(gone));
}

}  // namespace consort::host
