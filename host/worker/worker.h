// SPDX-License-Identifier: Apache-2.0
// host/worker/worker.h: consort-worker: one device, many sessions, one thread each.
//
// Run belongs to the main thread, which waits for consortd's messages and for sessions that end.
// The worker ends when consortd tells it to or is gone, and, once retired, when its last session
// leaves.
#ifndef CONSORT_HOST_WORKER_WORKER_H_
#define CONSORT_HOST_WORKER_WORKER_H_

#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "host/control/control_socket.h"
#include "host/scheduler/scheduler.h"
#include "host/session/rate_limit.h"
#include "host/session/session.h"
#include "host/session/worker_device.h"

namespace consort::host {

class Worker {
 public:
  // All are borrowed for the worker's life.
  static absl::StatusOr<std::unique_ptr<Worker>> Create(ControlSocket* control,
                                                        const WorkerDevice* device,
                                                        Scheduler* scheduler, MemoryBroker* broker);

  // Sessions are to outlive the worker. Before Run.
  void set_keeps_memory() { keeps_memory_ = true; }
  // Sessions are to be saved by consortd, so often. Before Run.
  void set_save_after(Nanos after) { save_after_ = after; }
  // Launches go to the driver as graphs: many that wait as one, and what comes again and again.
  // Before Run.
  void set_launches_graphs() { launches_graphs_ = true; }

  // Serves until the worker's end. True: every session has ended and the device may be released.
  // False: a session is stuck in its device; the process must end without waiting for it.
  bool Run();

 private:
  struct Running {
    std::unique_ptr<Session> session;  // null once it serves no more
    // Its account once it serves no more, until it has been sent.
    std::optional<SessionEnded> account;
    std::string tenant;
    std::thread thread;
    SessionUsage reported;  // that consortd has been told
  };

  Worker(ControlSocket* control, const WorkerDevice* device, Scheduler* scheduler,
         MemoryBroker* broker, UniqueFd ended_event);
  // False: consortd is gone or says to end.
  bool HandlePacket();
  void Open(const OpenSession& open, UniqueFd connection);
  void Move(const MoveOut& move, UniqueFd link);
  // What a session here has exported, for one of another device.
  void FetchMemory(const MemoryFetch& fetch);
  // Null: it serves no more.
  Session* FindLocked(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A session's thread.
  void RunSession(Session* session, uint64_t id);
  void SwitchPolicy(const std::string& name);
  void SwitchTrace(const SetTrace& wanted);
  void MeasureSpeed();
  // Everything that was recorded so far goes to the trace's file; which ends when it is full.
  void WriteTrace();
  void AppendTrace(const std::string& lines);
  void EndTrace(const std::string& why);
  // Its file is complete.
  void TellTraceEnded(const std::string& why);
  void Send(const SessionEnded& ended);
  void Send(const std::vector<UnsupportedCalls>& unsupported);
  // Tells consortd of sessions that did something since the last report.
  void ReportUsage();
  void ReportMemory();
  void ReapEnded();
  bool EndAll();
  bool NoSessions();
  bool AllServed();
  void Wake();
  bool AllReleased();

  ControlSocket* const control_;
  const WorkerDevice* const device_;
  Scheduler* const scheduler_;
  MemoryBroker* const broker_;
  const UniqueFd ended_event_;  // readable when a session has come further
  DeviceHealth health_;
  bool keeps_memory_ = false;
  Nanos save_after_ = 0;  // 0: they are not
  bool launches_graphs_ = false;
  Nanos next_report_ = 0;
  MemoryReport memory_reported_;  // that consortd has been told
  std::ofstream trace_;
  SetTrace trace_terms_;      // where it goes, while it is open
  uint64_t trace_bytes_ = 0;  // that are in it
  // By tenant; kept when its last session has left, so that a new one does not begin with nothing
  // owed. The main thread's; sessions use what they were given.
  std::map<std::string, std::unique_ptr<RateLimit>> rates_;
  // What GiveVmMemory brought, for the session that is opened next.
  struct {
    uint64_t session = 0;
    UniqueFd file;
  } vm_memory_;

  absl::Mutex mutex_;
  std::map<uint64_t, Running> sessions_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> ended_ ABSL_GUARDED_BY(mutex_);  // whose threads are about to end
  bool any_stuck_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_WORKER_WORKER_H_
