// SPDX-License-Identifier: Apache-2.0
// consortd: who has which part of the memory that a virtual machine shares with this host
// (vm_memory_file.h).
//
//   Hello with the token ─▶ LendRings ─▶ GiveVmMemory, OpenSession ─▶ worker
//   worker ─VmMemoryWanted─▶ a part, or none ─VmMemoryLent─▶ ... ─VmMemoryBack─▶
//   the session's end, or its worker's where the device may still use it ─▶ all of its parts
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "host/daemon/daemon.h"
#include "vmsock/listen.h"

namespace consort::host {

std::shared_ptr<VmMemoryFile> Daemon::SeenMemory(const Connection& connection,
                                                 const wire::Hello& hello) const {
  if ((hello.features & wire::kFeatureVmMemory) == 0 || vm_doors_ == nullptr) return nullptr;
  std::shared_ptr<VmMemoryFile> memory = vm_doors_->MemoryOf(connection.vm);
  // The machine may have been given another file, of a consortd that has ended.
  if (memory == nullptr || !wire::SameToken(memory->token(), hello.vm_memory)) return nullptr;
  return memory;
}

std::shared_ptr<VmLoan> Daemon::LendRings(const Connection& connection, const wire::Hello& hello,
                                          uint64_t* offset) {
  const std::shared_ptr<VmMemoryFile> memory = SeenMemory(connection, hello);
  if (memory == nullptr) {
    VLOG_IF(1, (hello.features & wire::kFeatureVmMemory) != 0)
        << "a program of VM " << connection.vm << " sees shared memory that is not this VM's";
    return nullptr;
  }
  auto loan = std::make_shared<VmLoan>(memory);
  const std::optional<Bytes> rings = loan->Take(VmRingBytes(kVmRingSizes));
  if (!rings.has_value()) {
    LOG(WARNING) << "VM " << connection.vm << ": no room for rings in its shared memory of "
                 << memory->bytes() / kMiB << " MiB; a program goes without";
    return nullptr;
  }
  *offset = *rings;
  return loan;
}

bool Daemon::OnVmMemoryPacket(WorkerProcess* worker, ControlPacket& packet) {
  VmMemoryWanted wanted;
  VmMemoryBack back;
  if (packet.As(&wanted)) {
    VmMemoryLent lent;
    lent.session = wanted.session;
    lent.number = wanted.number;
    const auto session = sessions_.find(wanted.session);
    if (session != sessions_.end() && session->second.loan != nullptr && wanted.bytes != 0) {
      if (const auto offset = session->second.loan->Take(wanted.bytes); offset.has_value()) {
        lent.offset = *offset;
        lent.bytes = wanted.bytes;
      }
    }
    // A session that hears nothing goes without; what it does not know of goes with its loan.
    const absl::Status sent = worker->control().Send(lent);
    LOG_IF(ERROR, !sent.ok()) << "lending session " << wanted.session << " memory: " << sent;
    return true;
  }
  if (packet.As(&back)) {
    const auto session = sessions_.find(back.session);
    if (session != sessions_.end() && session->second.loan != nullptr &&
        !session->second.loan->Return(back.offset)) {
      LOG(ERROR) << "session " << back.session << " gave back memory that it has not";
    }
    return true;
  }
  return false;
}

void Daemon::KeepLoan(const Session& session, pid_t pid) {
  if (session.loan != nullptr && children_.contains(pid)) {
    kept_loans_[pid].push_back(session.loan);
  }
}

absl::Status Daemon::RestoreLoans(const DaemonState& state) {
  for (const DaemonState::Session& one : state.sessions) {
    if (one.parts.empty()) continue;
    const std::shared_ptr<VmMemoryFile> memory = vm_doors_->MemoryOf(one.vm);
    auto loan = memory != nullptr ? std::make_shared<VmLoan>(memory) : nullptr;
    for (const DaemonState::Session::Part& part : one.parts) {
      if (loan == nullptr || !loan->TakeAt(part.offset, part.bytes)) {
        return absl::InternalError(absl::StrCat("session ", one.open.session,
                                                ": its part of its machine's memory is another's"));
      }
    }
    sessions_.at(one.open.session).loan = std::move(loan);
  }
  return absl::OkStatus();
}

}  // namespace consort::host
