// SPDX-License-Identifier: Apache-2.0
#include "host/session/work_gate.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "host/limits.h"
#include "vmsock/deadline.h"

namespace consort::host {
namespace {

// Looking costs some driver calls.
constexpr Nanos kLookEvery = 10 * kMicrosecond;

}  // namespace

schedule::Phase WorkGate::PhaseOf(RequestCost cost) {
  switch (cost) {
    case RequestCost::kKernel:
      return schedule::Phase::kKernel;
    case RequestCost::kToDevice:
      return schedule::Phase::kToDevice;
    case RequestCost::kToHost:
      return schedule::Phase::kToHost;
    case RequestCost::kCopy:
    case RequestCost::kNone:
      break;
  }
  return schedule::Phase::kNone;
}

WorkGate::WorkGate(const device::DriverTable& driver, Scheduler* scheduler, RateLimit* rate,
                   Streams* streams)
    : driver_(driver), scheduler_(scheduler), rate_(rate), streams_(streams), events_(driver, 0) {
  streams_->set_observer(this);
}

WorkGate::~WorkGate() {
  Leave();
  streams_->set_observer(nullptr);
}

void WorkGate::Join(const std::string& tenant, uint32_t weight, uint64_t session) {
  id_ = scheduler_->Join(tenant, weight, MonotonicNow(), session);
}

void WorkGate::Leave() {
  if (!id_.has_value()) return;
  usage_ = scheduler_->Leave(*id_, MonotonicNow());
  id_.reset();
  active_ = false;
  if (batch_.has_value()) in_flight_.push_back(*std::exchange(batch_, std::nullopt));
  for (const Batch& batch : in_flight_) {
    for (const Part& part : batch.parts) {
      if (part.begin != nullptr) events_.Return(part.begin);
      if (part.end != nullptr) events_.Return(part.end);
      part.stream->parts.ended = part.stream->parts.begun;
    }
  }
  in_flight_.clear();
  last_ended_.reset();
  idle_fence_.reset();
  if (base_ != nullptr) events_.Return(std::exchange(base_, nullptr));
}

bool WorkGate::WithinRate(RequestCost cost) {
  const Nanos now = MonotonicNow();
  if (over_rate()) rate_waited_ += now - rate_since_;
  rate_since_ = now;
  rate_wait_ = rate_->WaitOf(cost, now);
  return !over_rate();
}

void WorkGate::ChargeRate(RequestCost cost, uint64_t bytes) {
  rate_->Charge(cost, bytes, MonotonicNow());
}

bool WorkGate::AdmitSlowly(RequestCost cost) {
  if (!id_.has_value()) return true;
  worked_ = true;
  latest_ = cost;
  if (!active_) {
    active_ = true;
    last_work_ = last_progress_ = MonotonicNow();
    scheduler_->SetActive(*id_, true);
  }
  if (batch_.has_value()) {
    if (PhaseOf(cost) == batch_->phase || !scheduler_->tells_phases_apart()) return true;
    Close(MonotonicNow());
  }
  const Nanos now = MonotonicNow();
  if (!waiting_ && !scheduler_->contended()) {
    // Without a policy others may be at work all the same.
    bool due = unmeasured_ >= kMeasuredEvery && in_flight_.empty() && !scheduler_->crowded();
    if (due && now - measured_ < kMeasuredPause) {
      unmeasured_ = kMeasuredEvery - kMeasuredLookEvery;
      due = false;
    }
    if (!due) {
      untracked_ = true;
      return true;
    }
    unmeasured_ = 0;
    measured_ = now;
    FinishLast(now);
    Open(scheduler_->Start(*id_, now), cost, now);
    batch_->alone_measured = true;
    return true;
  }
  if (untracked_) TrackWhatIsBusy(now);
  waiting_ = true;
  if (!asked_ && !HasRoom(now)) return false;
  asked_ = true;
  const std::optional<Scheduler::BatchNumber> started =
      scheduler_->TryStart(*id_, {PhaseOf(cost), estimate_last_, alone_last_}, now);
  FinishLast(now);
  if (!started.has_value()) return false;
  asked_ = waiting_ = false;
  Open(*started, cost, now);
  return true;
}

void WorkGate::Open(Scheduler::BatchNumber number, RequestCost cost, Nanos now) {
  batch_ = Batch();
  batch_->number = number;
  batch_->phase = PhaseOf(cost);
  batch_->opened = now;
}

bool WorkGate::HasRoom(Nanos now) const {
  if (in_flight_.size() < kBatchesInFlightLeast) return true;
  if (in_flight_.size() < kBatchesInFlightMost && estimate_in_flight_ < kBatchesShort) return true;
  // What is in flight may wait for what comes after it; or it is long, or the host is busy, and all
  // that comes after it would let the session get far ahead. So one more each time.
  const Nanos stalls = (now - last_progress_) / kSchedulerStall;
  return in_flight_.size() < kBatchesInFlightLeast + static_cast<uint64_t>(stalls);
}

void WorkGate::BeforeWork(Stream* stream) {
  if (!in_request_ || !batch_.has_value()) return;
  for (size_t i = 0; i < batch_->parts.size(); ++i) {
    Part& part = batch_->parts[i];
    if (part.stream.get() != stream || part.closed) continue;
    if (part.phase == phase_ || batch_->parts.size() >= kBatchPhasePartsMax) {
      part_ = i;
      return;
    }
    ClosePart(&part, stream->work - 1);
  }
  Part part;
  part.stream = stream->shared_from_this();
  part.phase = phase_;
  part.not_before = MonotonicNow();
  // This piece is counted already. What is in front of it has finished, or is all in parts. While
  // nobody else is active the session looks seldom, so that the host's clock would be too coarse.
  const bool orderly = !batch_->alone_measured && (stream->work_finished + 1 >= stream->work ||
                                                   stream->parts.work + 1 == stream->work);
  // What runs beside it on other streams keeps it from having the device to itself.
  if (batch_->alone_measured) {
    streams_->ForEachBusy([&](const std::shared_ptr<Stream>& busy) {
      if (busy.get() != stream) part.counted = false;
    });
  }
  if (!orderly) {
    // Without an event the part is not measured; only a broken context brings that.
    if (events_.Take(&part.begin) != CUDA_SUCCESS) return;
    if (driver_.cuEventRecord(part.begin, stream->driver) != CUDA_SUCCESS) {
      events_.Return(part.begin);
      return;
    }
  }
  part.place = ++stream->parts.begun;
  if (orderly && IsFirst(part)) Begin(&part, batch_->number, part.not_before);
  part_ = batch_->parts.size();
  batch_->parts.push_back(std::move(part));
}

bool WorkGate::IsFirst(const Part& part) { return part.stream->parts.ended + 1 == part.place; }

void WorkGate::Begin(Part* part, Scheduler::BatchNumber batch, Nanos time) {
  part->began = part->not_before = time;
  part->interval = scheduler_->Began(*id_, batch, part->phase, time);
}

void WorkGate::Count(const RequestWork& work) {
  if (part_.has_value()) {
    Part& part = batch_->parts[*part_];
    part.alone += work.alone;
    part.alone_known &= work.alone != 0;
    part.fills &= work.fills;
  }
  batch_->requests += work.requests;
  batch_->alone += work.alone;
  batch_->alone_known &= work.alone != 0;
  batch_->estimate += work.estimate == 0 ? kBatchTime : work.estimate;
  if (batch_->requests >= requests_max_ || batch_->estimate >= kBatchTime) Close(MonotonicNow());
}

IntervalWork WorkGate::Part::Work() const {
  if (!counted) return {};
  // Copies leave the multiprocessors to others. What they take alone is not known.
  if (phase != schedule::Phase::kKernel) return {.alone = std::nullopt, .room = Room::kLeft};
  if (!alone_known || alone == 0) return {};
  return {.alone = alone, .room = fills ? Room::kNone : Room::kLeft};
}

void WorkGate::BeforeEnd(Stream* stream) {
  if (!batch_.has_value()) return;
  for (Part& part : batch_->parts) {
    if (part.stream.get() == stream) ClosePart(&part, stream->work);
  }
}

void WorkGate::ClosePart(Part* part, uint64_t work) {
  if (std::exchange(part->closed, true)) return;
  part->stream->parts.work = work;
  CHECK(part->stream->driver != nullptr);  // BeforeEnd has closed it: a driver would crash
  if (events_.Take(&part->end) != CUDA_SUCCESS) return;
  if (driver_.cuEventRecord(part->end, part->stream->driver) == CUDA_SUCCESS) return;
  events_.Return(std::exchange(part->end, nullptr));
}

void WorkGate::Close(Nanos now) {
  Batch batch = *std::exchange(batch_, std::nullopt);
  for (Part& part : batch.parts) ClosePart(&part, part.stream->work);
  if (batch.parts.empty()) {
    // Every request of it was refused by a handler or the driver.
    scheduler_->Finish(*id_, batch.number, now);
    return;
  }
  estimate_last_ = batch.estimate;
  alone_last_ = batch.alone_known ? batch.alone : 0;
  estimate_in_flight_ += batch.estimate;
  in_flight_.push_back(std::move(batch));
}

// Work that was let through while nobody else was active: as one batch that begins now.
void WorkGate::TrackWhatIsBusy(Nanos now) {
  untracked_ = false;
  Batch batch;
  batch.opened = now;
  streams_->ForEachBusy([&](const std::shared_ptr<Stream>& stream) {
    Part part;
    part.stream = stream;
    part.not_before = now;
    ClosePart(&part, stream->work);
    if (part.end == nullptr) return;
    part.place = ++stream->parts.begun;
    part.phase = PhaseOf(latest_);
    part.counted = false;
    batch.parts.push_back(std::move(part));
  });
  if (batch.parts.empty()) return;
  batch.number = scheduler_->Start(*id_, now);
  for (Part& part : batch.parts) Begin(&part, batch.number, now);
  batch.estimate = kBatchTime;
  estimate_in_flight_ += batch.estimate;
  in_flight_.push_back(std::move(batch));
}

bool WorkGate::Passed(Part* part, CUevent* event, Nanos* time) {
  const Nanos asked = MonotonicNow();
  const CUresult state = driver_.cuEventQuery(*event);
  if (state == CUDA_ERROR_NOT_READY) {
    part->not_before = asked;
    return false;
  }
  const Nanos now = MonotonicNow();
  *time = now;
  CUevent done = std::exchange(*event, nullptr);
  float milliseconds = 0;
  if (state != CUDA_SUCCESS) {
    // The context is broken; times mean nothing any more.
  } else if (!timeline_.has_base()) {
    timeline_.SetFirstBase(now);
    std::swap(base_, done);
  } else if (driver_.cuEventElapsedTime(&milliseconds, base_, done) == CUDA_SUCCESS) {
    const auto after = static_cast<Nanos>(static_cast<double>(milliseconds) * kMillisecond);
    *time = timeline_.Place(after, part->not_before, now);
    if (after > Timeline::kBaseAgeMax) {
      timeline_.MoveBase(after);
      std::swap(base_, done);
    }
  }
  part->not_before = *time;
  if (done != nullptr) events_.Return(done);
  return true;
}

bool WorkGate::LookAt(Batch* batch) {
  bool all = true;
  for (Part& part : batch->parts) {
    if (part.ended) continue;
    if (!IsFirst(part)) {
      all = false;
      continue;
    }
    Stream::Parts& parts = part.stream->parts;
    Nanos time = 0;
    if (part.interval == 0) {
      if (part.begin == nullptr) {
        time = std::max(part.not_before, parts.last_end);
      } else if (Passed(&part, &part.begin, &time)) {
        last_progress_ = time;
      } else {
        all = false;
        continue;
      }
      Begin(&part, batch->number, time);
    }
    if (part.end != nullptr && !Passed(&part, &part.end, &time)) {
      all = false;
      continue;
    }
    if (!part.closed) continue;
    // Somebody has come meanwhile, of whose work nothing may be known.
    if (batch->alone_measured && scheduler_->crowded()) part.counted = false;
    const Nanos end = std::max(time, part.not_before);
    scheduler_->Ended(part.interval, end, part.Work());
    part.ended = true;
    parts.ended = part.place;
    parts.last_end = end;
    batch->took = std::max(batch->took, end - part.began);
    last_progress_ = std::max(last_progress_, time);
  }
  return all;
}

void WorkGate::AdaptTo(const Batch& batch) {
  if (batch.requests == 0) return;  // of work that was let through: nobody counted
  if (batch.took > kBatchTookMax) {
    const auto fits = static_cast<uint32_t>(batch.requests * kBatchTookMax / batch.took);
    requests_max_ = std::clamp(fits, 1u, kBatchRequestsMax);
  } else {
    requests_max_ = std::min(2 * requests_max_, kBatchRequestsMax);
  }
}

bool WorkGate::Look(Nanos now) {
  if (now - last_look_ < kLookEvery) return false;
  last_look_ = now;
  std::vector<Scheduler::BatchNumber> finished;
  for (auto it = in_flight_.begin(); it != in_flight_.end();) {
    if (LookAt(&*it)) {
      AdaptTo(*it);
      estimate_in_flight_ -= it->estimate;
      finished.push_back(it->number);
      it = in_flight_.erase(it);
    } else {
      ++it;
    }
  }
  // Its parts come after those.
  if (batch_.has_value()) LookAt(&*batch_);
  // Whatever passes from now on passes after `now`.
  scheduler_->Poll(*id_, now, now);
  if (!finished.empty() && in_flight_.empty() && !batch_.has_value() && !waiting_ &&
      !last_ended_.has_value()) {
    last_ended_ = now;
    last_ended_number_ = finished.back();
    finished.pop_back();
  }
  for (const Scheduler::BatchNumber number : finished) scheduler_->Finish(*id_, number, now);
  return !finished.empty() || last_ended_.has_value();
}

void WorkGate::FinishLast(Nanos now) {
  if (!std::exchange(last_ended_, std::nullopt).has_value()) return;
  scheduler_->Finish(*id_, last_ended_number_, now);
}

bool WorkGate::TurnActive(bool quiet, bool awaited) {
  if (HasNoBatch() && !quiet && !finished_ && (!untracked_ || !scheduler_->contended()))
    return false;
  const Nanos now = MonotonicNow();
  if (last_ended_.has_value()) {
    if (now - *last_ended_ > kAnticipation) FinishLast(now);
    finished_ = true;
  }
  // The session has had the chance to ask again.
  if (std::exchange(finished_, false)) scheduler_->Poll(*id_, now, now);
  if (std::exchange(worked_, false)) {
    last_work_ = now;
    idle_fence_.reset();
  }
  if (untracked_ && !waiting_ && scheduler_->contended()) TrackWhatIsBusy(now);
  if (batch_.has_value() && !in_request_ && quiet &&
      (awaited || now - batch_->opened > kBatchAgeMax)) {
    Close(now);
  }
  if (batch_.has_value() || !in_flight_.empty()) finished_ = Look(now);
  if (HasNoBatch() && quiet && now - last_work_ > kActiveFor) GoIdle(now);
  return finished_;
}

void WorkGate::GoIdle(Nanos now) {
  // Work that was let through may still run.
  if (idle_fence_ == nullptr && streams_->FenceAll(&idle_fence_) != CUDA_SUCCESS) return;
  if (!idle_fence_->Reached()) return;
  idle_fence_.reset();
  last_work_ = now;
  untracked_ = false;
  active_ = false;
  scheduler_->SetActive(*id_, false);
}

void WorkGate::Await(Nanos timeout) { scheduler_->Await(*id_, timeout); }

Nanos WorkGate::sleep_max() const {
  if (over_rate()) return std::min(rate_wait_, kRatePoll);
  if (last_ended_.has_value()) return kAnticipation;
  if (waiting_ || batch_.has_value() || !in_flight_.empty()) return kGatePoll;
  return active_ ? kActiveFor : kNoLimit;
}

}  // namespace consort::host
