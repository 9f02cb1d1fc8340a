// SPDX-License-Identifier: Apache-2.0
// host/session/shared_output.h: what kernels print where the driver prints for the whole process.
//
// NVIDIA's driver has one buffer a context, and so one for all sessions of a worker, and writes it
// to the process's own stdout whenever anybody launches or synchronises (CUDA C++ Programming
// Guide, "Formatted Output"). To know whose a text is, only one session at a time may have launches
// of kernels that print which have not ended and been written out: it has the turn.
//
//   nobody ──Take──▶ held by A ──Pass: A's launches have ended, their text is drained──▶ nobody
//                      │ Take of B: waits, and A may launch no more of them until B had its turn
//
// Both descriptors become files in memory, to which a write never waits for a reader; what is read
// is given back to the system. Text of nobody (other libraries', warnings of the driver) goes to
// where stderr went before, as does what an assert says when several sessions might have failed.
// Thread safe.
#ifndef CONSORT_HOST_SESSION_SHARED_OUTPUT_H_
#define CONSORT_HOST_SESSION_SHARED_OUTPUT_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "host/session/device_output.h"

namespace consort::host {

class SharedOutput {
 public:
  // Replaces this process's stdout and stderr, for as long as the result lives; at most one.
  static absl::StatusOr<std::unique_ptr<SharedOutput>> Capture();
  // Puts the descriptors back.
  ~SharedOutput();
  SharedOutput(const SharedOutput&) = delete;
  SharedOutput& operator=(const SharedOutput&) = delete;

  // What stderr was.
  int log_descriptor() const { return log_.get(); }

  // A session is known by where its text goes. One that has joined leaves before its end.
  void Join();
  void Leave(DeviceOutput* session);

  // Whether the session has the turn and may launch; if not it waits for it, and asks again later.
  bool Take(DeviceOutput* session);
  // Whether others wait for the turn. A hint.
  bool wanted() const { return waiting_count_.load(std::memory_order_relaxed) != 0; }
  // Hands what was written to the session, which has the turn.
  void Drain(DeviceOutput* session);
  // Ends the turn of the session, whose text is drained.
  void Pass(DeviceOutput* session);

  // Hands what the driver said of a failed assert to the session, if there is no other that may
  // have failed.
  void DrainErrors(DeviceOutput* session);

 private:
  // A descriptor of the process and the file behind it.
  struct File {
    int replaces = -1;
    UniqueFd before;
    UniqueFd memory;
    off_t read = 0;  // so much of it
  };
  SharedOutput() = default;
  static absl::Status Replace(int descriptor, File* file);
  // What was written since the last time.
  static std::string Read(File* file);
  void Log(const std::string& text) const;

  UniqueFd log_;
  std::atomic<size_t> waiting_count_{0};
  absl::Mutex mutex_;
  File out_ ABSL_GUARDED_BY(mutex_);
  File error_ ABSL_GUARDED_BY(mutex_);
  uint32_t sessions_ ABSL_GUARDED_BY(mutex_) = 0;
  DeviceOutput* holder_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::deque<DeviceOutput*> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_SHARED_OUTPUT_H_
