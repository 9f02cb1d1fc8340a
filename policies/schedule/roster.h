// SPDX-License-Identifier: Apache-2.0
// policies/schedule/roster.h: the applications of a policy and what state each is in. Every policy
// has one; what differs is the order. Thread compatible.
#ifndef CONSORT_POLICIES_SCHEDULE_ROSTER_H_
#define CONSORT_POLICIES_SCHEDULE_ROSTER_H_

#include <cstdint>
#include <vector>

#include "policies/schedule/policy.h"

namespace consort::schedule {

class Roster {
 public:
  struct Entry {
    bool joined = false;
    Application application;
    bool waits = false;
    Batch batch;  // of the one that waits
    Nanos waits_since = 0;
    uint64_t sequence = 0;  // of its Wait: no two are equal
    uint32_t in_flight = 0;
    Phase phase = Phase::kNone;  // of the batch that was started last
  };

  Entry& Join(const Application& application) {
    if (entries_.size() <= application.id) entries_.resize(application.id + size_t{1});
    Entry& entry = entries_[application.id];
    entry = Entry{};
    entry.joined = true;
    entry.application = application;
    return entry;
  }
  Entry& at(ApplicationId id) { return entries_[id]; }

  void Leave(ApplicationId id) {
    Withdraw(id);
    in_flight_ -= entries_[id].in_flight;
    entries_[id] = Entry{};
  }
  void Wait(ApplicationId id, const Batch& batch, Nanos now) {
    Entry& entry = entries_[id];
    entry.waits = true;
    entry.batch = batch;
    entry.waits_since = now;
    entry.sequence = next_sequence_++;
    ++waiting_;
  }
  void Withdraw(ApplicationId id) {
    Entry& entry = entries_[id];
    if (entry.waits) --waiting_;
    entry.waits = false;
  }
  void Start(ApplicationId id) {
    Entry& entry = entries_[id];
    if (entry.waits) entry.phase = entry.batch.phase;
    Withdraw(id);
    ++entry.in_flight;
    ++in_flight_;
  }
  void Finish(ApplicationId id) {
    --entries_[id].in_flight;
    --in_flight_;
  }

  uint32_t waiting() const { return waiting_; }
  uint32_t in_flight() const { return in_flight_; }

 private:
  std::vector<Entry> entries_;  // by id
  uint64_t next_sequence_ = 0;
  uint32_t waiting_ = 0;
  uint32_t in_flight_ = 0;
};

}  // namespace consort::schedule

#endif  // CONSORT_POLICIES_SCHEDULE_ROSTER_H_
