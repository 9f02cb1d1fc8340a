// SPDX-License-Identifier: Apache-2.0
#include "host/session/vm_lender.h"

#include "absl/time/time.h"
#include "base/log.h"
#include "host/control/control_socket.h"
#include "vmsock/listen.h"

namespace consort::host {

std::optional<Bytes> VmLender::Lend(Bytes bytes) {
  if (consortd_ == nullptr || !file_.valid()) return std::nullopt;
  VmMemoryWanted wanted;
  wanted.session = session_;
  wanted.bytes = bytes;
  {
    absl::MutexLock lock(&mutex_);
    if (stopped_) return std::nullopt;
    wanted.number = ++asked_;
    waits_ = true;
    answer_.reset();
  }
  const absl::Status sent = consortd_->Send(wanted);
  std::optional<VmMemoryLent> answer;
  {
    absl::MutexLock lock(&mutex_);
    const auto over = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return stopped_ || answer_.has_value();
    };
    if (sent.ok()) {
      mutex_.AwaitWithTimeout(absl::Condition(&over), absl::Nanoseconds(answer_max_));
    }
    waits_ = false;
    answer.swap(answer_);
  }
  if (!answer.has_value()) {
    LOG(WARNING) << "session " << session_ << ": consortd does not say whether there is room in "
                 << "the machine's shared memory: " << sent;
    return std::nullopt;
  }
  if (answer->bytes != bytes) {
    VLOG(1) << "session " << session_ << ": the machine's shared memory has no " << bytes
            << " bytes in a row";
    return std::nullopt;
  }
  const absl::Status cleared = ClearVmMemory(file_.get(), answer->offset, bytes);
  if (cleared.ok()) return answer->offset;
  LOG(WARNING) << "session " << session_ << ": " << cleared.message();
  SendBack(answer->offset);
  return std::nullopt;
}

void VmLender::TakeBack(Bytes offset, Bytes bytes) {
  // Else it costs the host memory until somebody else has it.
  const absl::Status released = ReleaseVmMemory(file_.get(), offset, bytes);
  LOG_IF(WARNING, !released.ok()) << "session " << session_ << ": " << released.message();
  SendBack(offset);
}

void VmLender::SendBack(Bytes offset) {
  VmMemoryBack back;
  back.session = session_;
  back.offset = offset;
  const absl::Status sent = consortd_->Send(back);
  VLOG_IF(1, !sent.ok()) << "session " << session_ << " keeps memory until it ends: " << sent;
}

void VmLender::Take(const VmMemoryLent& lent) {
  {
    absl::MutexLock lock(&mutex_);
    if (waits_ && lent.number == asked_) {
      answer_ = lent;
      return;
    }
  }
  if (lent.bytes != 0) SendBack(lent.offset);  // too late
}

void VmLender::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
}

}  // namespace consort::host
