// SPDX-License-Identifier: Apache-2.0
// policies/placement/trace.h: what happened to a mapper, as lines of text, and again as what
// happened. The daemon's trace replays in the simulator, and the other way round: the same events
// bring the same decisions, or Replay says where they part.
//
// First line: `consort-placement-trace 1`. Then one event a line, words separated by one space, in
// this order; `#` begins a comment. Numbers are exact: doubles are written with all their digits.
//
//   options POLICY FEEDBACK_POLICY|- ENTER LEAVE SENSITIVITY_MAX OFFLOAD_THRESHOLD HALF_LIFE ENOUGH
//           WEIGHT_MAX                                     once, before all others
//   gpu GID NODE LOCAL_DEVICE MODEL WEIGHT MEMORY_TOTAL MEMORY_BANDWIDTH
//   gone GID
//   load GID MEMORY_USED UTILISATION
//   weight GID WEIGHT
//   feedback NOW PROGRAM MODEL RUNTIME GPU_TIME TRANSFER_TIME TRANSFERRED BANDWIDTH SENSITIVITY
//   place NOW APPLICATION PROGRAM TENANT NODE MEMORY DEVICE SENSITIVITY OUTCOME GID POLICY
//         [only=GID,GID,...]
//   bind NOW APPLICATION PROGRAM TENANT NODE MEMORY DEVICE SENSITIVITY GID
//   unbind APPLICATION
//
// only: of an application that may use only these. Times in nanoseconds, sizes in bytes, OUTCOME
// placed, no-gpu or no-memory. Thread compatible.
#ifndef CONSORT_POLICIES_PLACEMENT_TRACE_H_
#define CONSORT_POLICIES_PLACEMENT_TRACE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "policies/placement/mapper.h"

namespace consort::placement {

inline constexpr std::string_view kTraceHead = "consort-placement-trace 1";

// Makes the lines, without their ends.
class TraceWriter final : public MapperRecorder {
 public:
  // `line` gets each line when it happens, the head first; it must not call the mapper.
  explicit TraceWriter(std::function<void(std::string_view)> line) : line_(std::move(line)) {}

  void Begin(const MapperOptions& options) override;
  void GpuAdded(const Gpu& gpu) override;
  void GpuGone(Gid gid) override;
  void LoadSet(Gid gid, const Load& load) override;
  void WeightSet(Gid gid, double weight) override;
  void Recorded(const Feedback& feedback, Nanos now) override;
  void Placed(const Application& application, Nanos now, const Decision& decision) override;
  void Bound(const Application& application, Gid gid, Nanos now) override;
  void Unbound(ApplicationId id) override;

 private:
  const std::function<void(std::string_view)> line_;
};

// Takes a trace's lines one after the other and does what they say.
class Replay {
 public:
  // `follower` is told of everything that the replayed mapper does, its decisions included;
  // borrowed. Null: nobody.
  explicit Replay(MapperRecorder* follower = nullptr) : follower_(follower) {}

  enum class Result {
    kDone,
    kBadLine,  // not a line of a trace, or not at this place; the replay is over
    kDiffers,  // a decision is not the one of the trace; the replay may go on
    kRefused,  // the mapper refused what the trace says it did; likewise
  };
  Result Line(std::string_view line);

  // Null before the line `options`.
  const Mapper* mapper() const { return mapper_.get(); }
  // Of the latest line `place`.
  const Decision& decision() const { return decision_; }
  uint64_t decisions() const { return decisions_; }

 private:
  MapperRecorder* const follower_;
  bool head_ = false;
  std::unique_ptr<Mapper> mapper_;
  Decision decision_;
  uint64_t decisions_ = 0;
};

}  // namespace consort::placement

#endif  // CONSORT_POLICIES_PLACEMENT_TRACE_H_
