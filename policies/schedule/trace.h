// SPDX-License-Identifier: Apache-2.0
// policies/schedule/trace.h: what happened to a policy and what it decided, to be repeated later.
//
// A trace is text, a line an event, times in nanoseconds:
//
//   policy NAME                                         decisions are this policy's from here on;
//                                                       it knows nobody
//   join TIME APPLICATION TENANT WEIGHT                 leave TIME APPLICATION
//   weight TIME TENANT WEIGHT
//   charge TIME APPLICATION DEVICE-TIME ALONE-TIME      expect TIME APPLICATION TIME-TO-COME
//   wait TIME APPLICATION PHASE ESTIMATE ALONE-TIME     withdraw TIME APPLICATION
//   start TIME APPLICATION                              finish TIME APPLICATION
//   choose TIME STALLED APPLICATION                     what was decided; "-" instead of an
//                                                       application: nobody
//
// A worker records one (host/scheduler), consort-sim replays it. Pure; thread compatible.
#ifndef CONSORT_POLICIES_SCHEDULE_TRACE_H_
#define CONSORT_POLICIES_SCHEDULE_TRACE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "policies/schedule/policy.h"

namespace consort::schedule {

// Where lines go. Bounded: what comes beyond is counted, and the trace ends there, since what
// follows a gap could not be repeated.
class TraceLog {
 public:
  explicit TraceLog(size_t bytes_max) : bytes_max_(bytes_max) {}

  void Append(std::string_view line);
  // What was appended since the last time.
  std::string Take();
  bool full() const { return full_; }

 private:
  const size_t bytes_max_;  // that lie here untaken
  std::string text_;
  bool full_ = false;
};

// A policy that is another one, and writes down what happens to it. `log` is borrowed.
std::unique_ptr<Policy> Record(std::string_view name, std::unique_ptr<Policy> policy,
                               TraceLog* log);

struct Replay {
  uint64_t events = 0;
  uint64_t decisions = 0;
  uint64_t different = 0;        // decisions that were not the trace's
  uint64_t first_different = 0;  // its line, from 1; 0: there is none
  std::string error;  // of a line that is none of the above; what follows was not replayed
};
// Brings a policy the events of a trace and compares what it decides. `name`: of a policy to use
// instead of the trace's; after a different decision it still goes as the trace says, and counts
// on.
Replay ReplayTrace(std::string_view text, const std::optional<std::string>& name,
                   const Options& options);

}  // namespace consort::schedule

#endif  // CONSORT_POLICIES_SCHEDULE_TRACE_H_
