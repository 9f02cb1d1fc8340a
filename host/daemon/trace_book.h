// SPDX-License-Identifier: Apache-2.0
// host/daemon/trace_book.h: whether schedulers' traces are recorded, and the files that were.
//
//   Begin ─▶ NextFile for each worker that runs or starts ─▶ Ended by a worker that had enough
//     └─▶ End ─▶ Ended by each of the others, or WorkerGone ─▶ complete
//
// consortd's --trace records from its start on, without a bound; consortctl trace while it runs,
// with one. No file is written over. Owned by consortd's loop.
#ifndef CONSORT_HOST_DAEMON_TRACE_BOOK_H_
#define CONSORT_HOST_DAEMON_TRACE_BOOK_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/units.h"

namespace consort::host {

struct TraceFile {
  uint32_t device = 0;
  int64_t worker = 0;  // pid of who writes it
  std::string path;
  std::string ended;  // why; nothing more comes into it. Empty: it is being written
};

// The one that goes on, or the last one.
struct TraceRecording {
  bool on = false;
  std::string folder;
  Bytes bytes_max = 0;  // of each file; 0: no bound
  std::string by;
  uint64_t since = 0;
  std::vector<TraceFile> files;
};

class TraceBook {
 public:
  // Of files that begin now. `bytes_max` of each; 0: no bound. kFailedPrecondition: it is on, the
  // last one is not complete, or there is no folder.
  // kUnavailable: the folder cannot be made.
  absl::Status Begin(const std::string& folder, Bytes bytes_max, const std::string& who,
                     uint64_t unix_seconds);
  // Its files are complete when all their workers have written what they still had.
  // kFailedPrecondition: it is off.
  absl::Status End();
  bool recording() const { return now_.on; }
  // Nothing is being recorded or written.
  bool complete() const;
  Bytes bytes_max() const { return now_.bytes_max; }
  const TraceRecording& now() const { return now_; }
  // That of an earlier process image of this daemon.
  void Restore(TraceRecording recording) { now_ = std::move(recording); }

  // The file for a worker of that device, while recording. kResourceExhausted: kTraceFilesMax.
  absl::StatusOr<std::string> NextFile(uint32_t device, int64_t worker);
  // `why`: empty, since End said so.
  void Ended(const std::string& path, const std::string& why);
  void WorkerGone(int64_t worker);

  // As consortctl shows it: {"recording": true, "by": "uid 0", "since": 1767225600, "bytes_max": 0,
  // "files": [{"device": 0, "worker": 4711, "path": "...", "bytes": 17, "ended": "stopped"}]}.
  std::string Json() const;

 private:
  TraceRecording now_;
};

// What PUT /api/v1/trace asks for: {"record": true, "bytes_max": 1048576} or {"record": false}; a
// size may be text. kInvalidArgument: none of these.
struct TraceRequest {
  bool record = false;
  Bytes bytes_max = 0;
};
absl::StatusOr<TraceRequest> ParseTraceRequest(std::string_view json);

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_TRACE_BOOK_H_
