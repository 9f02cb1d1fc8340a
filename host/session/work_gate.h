// SPDX-License-Identifier: Apache-2.0
// host/session/work_gate.h: a session's side of the scheduler: turns for its device work, and what
// that took on the device.
//
// While the application is the only active one a request passes with one look, and next to nothing
// is measured: a batch after kMeasuredEvery requests and kMeasuredPause at least, by which the
// scheduler learns how long its work takes in fact when it has the device to itself. Where each
// launch is waited for, three are some 5 us later for that (an H200). Else all requests go in
// batches:
//
//   Admit ─ turn of the scheduler ─▶ open: BeforeWork begins each stream's part
//      ▲                               │ so many requests, so much time, or nothing more to do
//      └─ at most some in flight ◀─ closed: an event behind each part ─▶ Turn sees them pass
//
// A part begins where the one before it on its stream ends, or at once where its stream has nothing
// to do. Where something else is in front of it, which may wait for whatever, an event tells.
//
// Before that a request waits for its tenant's rates (rate_limit.h); one that has asked for a turn
// has been through there, so no turn is held meanwhile.
//
// Requests that are no device work pass always, so order within the session is the caller's: what
// comes after a request that waits must wait too. Owned by the session loop, which never blocks
// here but in Await. Calls need the worker's context.
#ifndef CONSORT_HOST_SESSION_WORK_GATE_H_
#define CONSORT_HOST_SESSION_WORK_GATE_H_

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gen/device/driver_table.h"
#include "gen/host/handlers.h"
#include "host/limits.h"
#include "host/scheduler/scheduler.h"
#include "host/scheduler/timeline.h"
#include "host/session/event_pool.h"
#include "host/session/rate_limit.h"
#include "host/session/streams.h"

namespace consort::host {

// What is known of a request that has been carried out.
struct RequestWork {
  Nanos estimate = 0;     // of its device time; 0: nothing is known
  Nanos alone = 0;        // likewise, if no other application had work
  bool fills = false;     // it leaves no room on the device for others' work
  uint64_t bytes = 0;     // copied between host and device
  uint32_t requests = 1;  // that have been carried out as one
};

class WorkGate final : public WorkObserver {
 public:
  // All are borrowed for the gate's life.
  WorkGate(const device::DriverTable& driver, Scheduler* scheduler, RateLimit* rate,
           Streams* streams);
  ~WorkGate() override;
  WorkGate(const WorkGate&) = delete;
  WorkGate& operator=(const WorkGate&) = delete;

  // `session`: its number in the scheduler's States.
  void Join(const std::string& tenant, uint32_t weight, uint64_t session);
  // Forgets what is in flight. Idempotent.
  void Leave();

  // Whether a request may be carried out now; if not, ask again later, for the same request.
  bool Admit(RequestCost cost) {
    if (cost == RequestCost::kNone) return true;
    if ((rate_->limited() || rate_wait_ != 0) && !waiting_ && !WithinRate(cost)) return false;
    if (active_ && !waiting_ && !batch_.has_value() && !scheduler_->contended() &&
        ++unmeasured_ < kMeasuredEvery) {
      worked_ = untracked_ = true;
      latest_ = cost;
      return true;
    }
    return AdmitSlowly(cost);
  }
  // Around carrying one out: work put on streams in between belongs to the open batch.
  void BeginRequest(RequestCost cost) {
    in_request_ = cost != RequestCost::kNone;
    if (in_request_ && batch_.has_value()) phase_ = PhaseOf(cost);
    part_.reset();
  }
  void EndRequest(RequestCost cost, const RequestWork& work) {
    in_request_ = false;
    if (cost != RequestCost::kNone && rate_->limited()) ChargeRate(cost, work.bytes);
    if (cost != RequestCost::kNone && batch_.has_value()) Count(work);
  }
  // Whether the device time of such work is measured.
  bool measures() const { return batch_.has_value(); }
  // Whether one more request belongs to the open batch after so many, of so much estimate, if there
  // is one.
  bool HasRoomAfter(uint32_t requests, Nanos estimate) const {
    return !batch_.has_value() || (batch_->requests + requests < requests_max_ &&
                                   batch_->estimate + estimate < kBatchTime);
  }
  // Each request has to be within its tenant's rates.
  bool limited() const { return rate_->limited(); }
  // Who gets more than its share waits for its turn, whatever comes first on the device.
  bool holds_back() const { return scheduler_->holds_back(); }
  // No other application has work.
  bool alone() const { return !batch_.has_value() && !scheduler_->crowded(); }
  void BeforeWork(Stream* stream) override;
  void BeforeEnd(Stream* stream) override;

  // Looks at what has passed. `quiet`: the session has nothing to do; `awaited`: its guest waits
  // for the device. True: batches have finished, so there may be room for what waits.
  bool Turn(bool quiet, bool awaited) { return active_ && TurnActive(quiet, awaited); }
  // A request was refused and waits: for its turn, or for its tenant's rates.
  bool waiting() const { return waiting_ || over_rate(); }
  bool over_rate() const { return rate_wait_ != 0; }
  // Time in which requests waited for rates.
  Nanos rate_waited() const { return rate_waited_; }
  // Until its turn may have come.
  void Await(Nanos timeout);
  // How long the session may sleep at most; kNoLimit: as long as it likes.
  static constexpr Nanos kNoLimit = INT64_MAX;
  Nanos sleep_max() const;

  // Of the latest work; kNone: there has been none of late.
  schedule::Phase phase() const { return active_ ? PhaseOf(latest_) : schedule::Phase::kNone; }

  // After Leave.
  const ApplicationUsage& usage() const { return usage_; }

 private:
  // A stream's part of a batch.
  struct Part {
    std::shared_ptr<Stream> stream;
    schedule::Phase phase = schedule::Phase::kNone;
    uint64_t place = 0;                // among its stream's parts, from 1
    CUevent begin = nullptr;           // null: passed, or it begins where the one before it ends
    CUevent end = nullptr;             // null: not closed, or passed
    Nanos not_before = 0;              // of what is looked for next: begin, then end
    Scheduler::Interval interval = 0;  // 0: not begun
    Nanos began = 0;
    Nanos alone = 0;  // what all of it would take if no other application had work
    bool alone_known = true;
    bool fills = true;    // all of it
    bool counted = true;  // all that it has went through Count
    bool closed = false;  // nothing follows behind `end`
    bool ended = false;

    IntervalWork Work() const;
  };
  struct Batch {
    Scheduler::BatchNumber number = 0;
    schedule::Phase phase = schedule::Phase::kNone;  // of its first request
    std::vector<Part> parts;
    uint32_t requests = 0;
    Nanos estimate = 0;
    Nanos alone = 0;  // if no other application had work
    bool alone_known = true;
    bool alone_measured = false;  // to learn what the application's work takes by itself
    Nanos opened = 0;
    Nanos took = 0;  // the longest of its parts that have ended
  };

  static schedule::Phase PhaseOf(RequestCost cost);
  bool WithinRate(RequestCost cost);
  void ChargeRate(RequestCost cost, uint64_t bytes);
  bool AdmitSlowly(RequestCost cost);
  // Whether all that were before it on its stream have ended.
  static bool IsFirst(const Part& part);
  void Begin(Part* part, Scheduler::BatchNumber batch, Nanos time);
  // Puts the event behind a part, and behind so many pieces of its stream's work. The stream may
  // have another one after it.
  void ClosePart(Part* part, uint64_t work);
  bool HasRoom(Nanos now) const;
  // None is open, asked for or in flight, as far as the scheduler knows.
  bool HasNoBatch() const {
    return in_flight_.empty() && !batch_.has_value() && !waiting_ && !last_ended_.has_value();
  }
  bool TurnActive(bool quiet, bool awaited);
  void Open(Scheduler::BatchNumber number, RequestCost cost, Nanos now);
  void Count(const RequestWork& work);
  void Close(Nanos now);
  void TrackWhatIsBusy(Nanos now);
  // True: a batch has finished.
  bool Look(Nanos now);
  // True: every part has ended.
  bool LookAt(Batch* batch);
  // Makes the next batches longer or shorter, by what one took.
  void AdaptTo(const Batch& batch);
  // Whether the device has passed `*event`, and when. The event is given back then.
  bool Passed(Part* part, CUevent* event, Nanos* time);
  // Tells the scheduler of the last batch that ended, if that was put off (kAnticipation).
  void FinishLast(Nanos now);
  void GoIdle(Nanos now);

  const device::DriverTable& driver_;
  Scheduler* const scheduler_;
  RateLimit* const rate_;
  Streams* const streams_;
  EventPool events_;  // with timing
  std::optional<Scheduler::Id> id_;

  static constexpr uint32_t kMeasuredEvery = 512;
  // Chosen: some 2,000 launches that are waited for one by one.
  static constexpr Nanos kMeasuredPause = 20 * kMillisecond;
  // While the pause is not over, the clock is looked at each so many requests.
  static constexpr uint32_t kMeasuredLookEvery = 64;

  bool active_ = false;
  // Requests since a batch was measured while nobody else was active, and when one was.
  uint32_t unmeasured_ = 0;
  Nanos measured_ = 0;
  bool worked_ = false;     // since TurnActive last looked
  bool untracked_ = false;  // work was let through that no batch has
  bool waiting_ = false;
  bool asked_ = false;  // the scheduler for a turn
  bool in_request_ = false;
  RequestCost latest_ = RequestCost::kNone;         // let through
  schedule::Phase phase_ = schedule::Phase::kNone;  // of the request that is carried out
  bool finished_ = false;  // a batch, and the scheduler has given no turns since
  uint32_t requests_max_ = kBatchRequestsMax;  // of a batch
  std::optional<Batch> batch_;                 // open
  std::optional<size_t> part_;                 // of it, that the present request uses
  std::deque<Batch> in_flight_;
  std::optional<Nanos> last_ended_;  // a batch, of which the scheduler does not know yet
  Scheduler::BatchNumber last_ended_number_ = 0;
  Nanos estimate_in_flight_ = 0;
  Nanos estimate_last_ = 0;  // of the latest closed batch
  Nanos alone_last_ = 0;     // likewise; 0: not known
  Nanos last_work_ = 0;
  Nanos last_look_ = 0;
  Nanos last_progress_ = 0;
  std::shared_ptr<Fence> idle_fence_;
  Nanos rate_wait_ = 0;   // that is left of a request's wait for its tenant's rates
  Nanos rate_since_ = 0;  // when the wait was last looked at
  Nanos rate_waited_ = 0;

  Timeline timeline_;
  CUevent base_ = nullptr;
  ApplicationUsage usage_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_WORK_GATE_H_
