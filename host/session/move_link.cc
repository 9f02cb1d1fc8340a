// SPDX-License-Identifier: Apache-2.0
#include "host/session/move_link.h"

#include <poll.h>
#include <time.h>

#include <algorithm>

namespace consort::host {
namespace {

// Between two looks whether the session is to end.
constexpr Nanos kStopLookEvery = 50 * kMillisecond;

}  // namespace

absl::Status MoveLink::TryReceive(ControlPacket* packet) {
  absl::Status received = socket_.Receive(/*wait=*/false, packet);
  // That the other side went without reading all is told once, before what it had said.
  if (absl::IsUnavailable(received)) received = socket_.Receive(/*wait=*/false, packet);
  MoveFailed failed;
  if (received.ok() && packet->As(&failed)) return absl::AbortedError(GetText(failed.text));
  if (absl::IsUnavailable(received)) {
    return absl::UnavailableError("the other device's worker is gone");
  }
  return received;
}

absl::Status MoveLink::Receive(ControlPacket* packet, Nanos timeout) {
  const Deadline deadline(timeout);
  while (true) {
    const absl::Status received = TryReceive(packet);
    if (!absl::IsDeadlineExceeded(received)) return received;
    if (stopped_()) return absl::CancelledError("the session ends");
    if (deadline.Left() == 0) {
      return absl::DeadlineExceededError("the other device's worker does not answer");
    }
    Await(std::min(deadline.Left(), kStopLookEvery));
  }
}

void MoveLink::Await(Nanos timeout) {
  pollfd entry = {socket_.fd(), POLLIN, 0};
  const timespec time = {timeout / kSecond, timeout % kSecond};
  ppoll(&entry, 1, &time, nullptr);
}

absl::Status MoveLink::WhyGone() {
  ControlPacket packet;
  absl::Status said;
  while ((said = TryReceive(&packet)).ok()) {
  }
  return said;
}

absl::Status MoveLink::AwaitRoom() {
  const Deadline deadline(kMoveSilenceMax);
  while (deadline.Left() != 0 && !stopped_()) {
    pollfd entry = {socket_.fd(), POLLOUT, 0};
    if (poll(&entry, 1, Deadline::ToPollMs(kStopLookEvery)) > 0) return absl::OkStatus();
  }
  return absl::DeadlineExceededError("the other device's worker takes nothing");
}

}  // namespace consort::host
