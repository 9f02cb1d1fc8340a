// SPDX-License-Identifier: Apache-2.0
// host/session/vm_lender.h: parts of the memory that a session's virtual machine shares with the
// host, which consortd lends to it (host/daemon/vm_memory_file.h).
//
// The session's own thread asks, and waits for the answer: other sessions have threads of their
// own. What is not given back goes back when the session ends.
#ifndef CONSORT_HOST_SESSION_VM_LENDER_H_
#define CONSORT_HOST_SESSION_VM_LENDER_H_

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "host/control/messages.h"
#include "host/limits.h"

namespace consort::host {

class ControlSocket;

class VmLender {
 public:
  // Lend waits at most `answer_max` for an answer.
  explicit VmLender(uint64_t session, Nanos answer_max = kVmMemoryAnswerMax)
      : session_(session), answer_max_(answer_max) {}
  VmLender(const VmLender&) = delete;
  VmLender& operator=(const VmLender&) = delete;

  // Before any part is asked for. `consortd` is borrowed.
  void set_consortd(ControlSocket* consortd) { consortd_ = consortd; }
  void set_file(UniqueFd file) { file_ = std::move(file); }
  // The machine's memory; -1: it shares none.
  int file() const { return file_.get(); }

  // Where in the file the part is: all zero, whole pages of the host behind it. Nothing: the
  // machine or the host has no room, or consortd does not answer in time. The session's thread.
  std::optional<Bytes> Lend(Bytes bytes);
  // A part of these bytes is not needed any more. The session's thread.
  void TakeBack(Bytes offset, Bytes bytes);
  // consortd's answer. Any thread.
  void Take(const VmMemoryLent& lent);
  // Nobody waits for an answer from now on. Any thread.
  void Stop();

 private:
  void SendBack(Bytes offset);

  const uint64_t session_;
  const Nanos answer_max_;
  ControlSocket* consortd_ = nullptr;
  UniqueFd file_;
  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t asked_ ABSL_GUARDED_BY(mutex_) = 0;  // the number of the last question
  bool waits_ ABSL_GUARDED_BY(mutex_) = false;  // for its answer
  std::optional<VmMemoryLent> answer_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_VM_LENDER_H_
