// SPDX-License-Identifier: Apache-2.0
#include "host/session/keeper_line.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "device/driver/driver_loader.h"

namespace consort::host {

CUresult KeeperLine::Make(uint64_t address, Bytes bytes, const CUmemAllocationProp& properties,
                          CUmemGenericAllocationHandle* memory) {
  if (goes_on_) {
    const auto brought = brought_.find(address);
    // New memory instead would be of zeros.
    if (brought == brought_.end()) return CUDA_ERROR_INVALID_VALUE;
    const CUresult imported = driver_.cuMemImportFromShareableHandle(
        memory, reinterpret_cast<void*>(static_cast<intptr_t>(brought->second.get())),
        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (imported == CUDA_SUCCESS) brought_.erase(brought);
    return imported;
  }
  CUmemAllocationProp exportable = properties;
  exportable.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const CUresult made = driver_.cuMemCreate(memory, bytes, &exportable, 0);
  if (made != CUDA_SUCCESS) return made;
  int descriptor = -1;
  const CUresult exported = driver_.cuMemExportToShareableHandle(
      &descriptor, *memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (exported == CUDA_SUCCESS) {
    waiting_.push_back({KeptRole::kMemory, address, UniqueFd(descriptor)});
  } else {
    why_not_ = absl::StrCat("its device memory cannot be exported: ",
                            device::ResultName(driver_, exported));
  }
  return CUDA_SUCCESS;
}

void KeeperLine::Gone(uint64_t address) {
  LetGo(KeptRole::kMemory, address);
  // The memory is there for others only once nobody has it.
  Flush();
}

void KeeperLine::Keep(KeptRole role, uint64_t key, int descriptor) {
  UniqueFd copy(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) {
    why_not_ = absl::StrCat("copying a descriptor: ", strerror(errno));
    return;
  }
  waiting_.push_back({role, key, std::move(copy)});
}

void KeeperLine::LetGo(KeptRole role, uint64_t key) {
  const auto same = [&](const Waiting& waiting) {
    return waiting.role == role && waiting.key == key && waiting.descriptor.valid();
  };
  const auto untold = std::find_if(waiting_.begin(), waiting_.end(), same);
  if (untold != waiting_.end()) {
    waiting_.erase(untold);
  } else {
    waiting_.push_back({role, key, UniqueFd()});
  }
}

void KeeperLine::Restored() {
  goes_on_ = false;
  for (const auto& [address, memory] : brought_) LetGo(KeptRole::kMemory, address);
  brought_.clear();
}

bool KeeperLine::Flush() {
  while (!waiting_.empty()) {
    const Waiting& first = waiting_.front();
    absl::Status sent;
    if (first.descriptor.valid()) {
      host::Keep keep;
      keep.session = session_;
      keep.role = first.role;
      keep.key = first.key;
      sent = consortd_->Send(keep, first.descriptor.get());
    } else {
      host::LetGo let_go;
      let_go.session = session_;
      let_go.role = first.role;
      let_go.key = first.key;
      sent = consortd_->Send(let_go);
    }
    if (!sent.ok()) {
      VLOG(1) << "session " << session_ << ": " << sent;
      return false;
    }
    waiting_.pop_front();
  }
  return true;
}

bool KeeperLine::TellWantsSave() {
  SaveWanted told;
  told.session = session_;
  return consortd_->Send(told).ok();
}

void KeeperLine::TellGoesOn() {
  WentOn told;
  told.session = session_;
  const absl::Status sent = consortd_->Send(told);
  LOG_IF(ERROR, !sent.ok()) << "telling consortd that session " << session_ << " goes on: " << sent;
}

}  // namespace consort::host
