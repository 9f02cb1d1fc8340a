// SPDX-License-Identifier: Apache-2.0
// host/scheduler/scheduler.h: who of a worker's applications may put work on the device.
//
//   session loops ──TryStart──▶ policy (policies/schedule) ──granted──▶ the session submits a batch
//        └──Began, Ended, Poll──▶ ShareMeter ──device time──▶ policy, accounts
//
// A session asks for a turn before each batch of device work, and tells when its batches began and
// ended on the device. It never waits for the device here, and asks nothing while its application
// is the only one that is active: contended() is one relaxed load. Thread safe; no call to a driver
// is made under the lock. Times are CLOCK_MONOTONIC and given by the caller.
//
// The policy and weights change while sessions run: the new policy gets who is there, what waits
// and what is in flight, and goes on from there. See docs/ARCHITECTURE.md, scheduling.
#ifndef CONSORT_HOST_SCHEDULER_SCHEDULER_H_
#define CONSORT_HOST_SCHEDULER_SCHEDULER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/units.h"
#include "host/limits.h"
#include "host/scheduler/share_meter.h"
#include "policies/schedule/policy.h"
#include "policies/schedule/trace.h"

namespace consort::host {

// The name of having no policy.
inline constexpr std::string_view kNoScheduler = "none";

// The request control block: what is known of one application.
struct ApplicationUsage {
  // By phase, its part of what was measured; none is while it is alone.
  std::array<Nanos, schedule::kPhases> device_time = {};
  Nanos waited = 0;  // of its batches, for their turns
  uint64_t batches = 0;
  // Batches by how long each waited: see kQueueDelayBounds.
  std::array<uint64_t, kQueueDelayBuckets> delays = {};

  Nanos device_time_sum() const {
    Nanos sum = 0;
    for (const Nanos each : device_time) sum += each;
    return sum;
  }
};

// The same as it stands.
struct ApplicationState {
  uint64_t session = 0;
  ApplicationUsage usage;
  bool waits = false;
  uint32_t in_flight = 0;
};

// A policy by its name; "none" is none. False: there is no such policy.
bool MakeSchedulerPolicy(std::string_view name, std::unique_ptr<schedule::Policy>* policy);

class Scheduler {
 public:
  using Id = schedule::ApplicationId;
  using Interval = ShareMeter::Interval;
  using BatchNumber = uint64_t;  // of an application's batches, by when they were started

  // Null `policy`: nobody ever waits and nothing is measured.
  explicit Scheduler(std::unique_ptr<schedule::Policy> policy);

  // Another policy from now on. What waits goes on waiting, in the order in which it came, or is
  // let go where the new policy is null.
  void SetPolicy(std::string_view name, std::unique_ptr<schedule::Policy> policy, Nanos now)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void SetWeight(const std::string& tenant, uint32_t weight, Nanos now) ABSL_LOCKS_EXCLUDED(mutex_);
  // As SetPolicy, and writes down from now on what policies are told and decide. `policy`: a new
  // one, since a trace is of all that it knows.
  void StartTrace(std::string_view name, std::unique_ptr<schedule::Policy> policy, Nanos now)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // As SetPolicy, and writes nothing down any more. The rest of the trace.
  std::string StopTrace(std::string_view name, std::unique_ptr<schedule::Policy> policy, Nanos now)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // What was written since the last time. `full`: the trace has ended for want of room.
  std::string TakeTrace(bool* full) ABSL_LOCKS_EXCLUDED(mutex_);

  // `session`: what the application is called in States.
  Id Join(const std::string& tenant, uint32_t weight, Nanos now, uint64_t session = 0)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Its batches are forgotten, finished or not. The usage is final.
  ApplicationUsage Leave(Id id, Nanos now) ABSL_LOCKS_EXCLUDED(mutex_);

  // All that have joined, with all device time that is known of: how fast work goes on that has not
  // ended is taken from what its application did of late.
  std::vector<ApplicationState> States(Nanos now) ABSL_LOCKS_EXCLUDED(mutex_);

  // Whether the application has device work now and then. All begin as inactive.
  void SetActive(Id id, bool active) ABSL_LOCKS_EXCLUDED(mutex_);
  // More than one application is active: turns must be asked for.
  bool contended() const { return contended_.load(std::memory_order_relaxed); }
  // Likewise whatever the policy: so what is measured then is not of one alone.
  bool crowded() const { return crowded_.load(std::memory_order_relaxed); }
  // Whoever is ahead of its share waits.
  bool holds_back() const { return holds_back_.load(std::memory_order_relaxed); }
  // Batches should hold work of one phase each.
  bool tells_phases_apart() const { return tells_phases_apart_.load(std::memory_order_relaxed); }

  // Asks for a turn for `batch`. It may be submitted, and counts as in flight until Finish; or,
  // without a number, it waits; ask again, with the same batch, after Await.
  std::optional<BatchNumber> TryStart(Id id, const schedule::Batch& batch, Nanos now)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until the turn has come, at most `timeout`.
  void Await(Id id, Nanos timeout) ABSL_LOCKS_EXCLUDED(mutex_);
  // A batch is in flight that did not ask. Not while one waits.
  BatchNumber Start(Id id, Nanos now) ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives nobody a turn yet: the session asks for its next one first, or else calls Poll.
  void Finish(Id id, BatchNumber batch, Nanos now) ABSL_LOCKS_EXCLUDED(mutex_);

  // Work of the batch ran on the device from `begin`; with several streams there are several such
  // intervals at once.
  Interval Began(Id id, BatchNumber batch, schedule::Phase phase, Nanos begin)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Ended(Interval interval, Nanos end, const IntervalWork& work = {})
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The application has told all that began or ended before `known_until`. To be called often while
  // it has batches in flight: nobody's time is settled beyond it. Gives turns to whom they are due.
  void Poll(Id id, Nanos known_until, Nanos now) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // A batch that is not charged for as a whole.
  struct Started {
    Nanos alone = 0;         // that it would take if nobody else had work; 0: not known
    Nanos charged = 0;       // of that
    uint32_t intervals = 0;  // begun, of which more is to be charged
    bool finished = false;
  };
  struct Member {
    bool joined = false;
    uint64_t session = 0;
    schedule::Application application;
    bool active = false;
    bool waits = false;
    bool granted = false;  // and not taken yet
    uint32_t in_flight = 0;
    Nanos waits_since = 0;
    schedule::Batch batch;  // that waits, or was granted
    BatchNumber latest = 0;
    std::map<BatchNumber, Started> started;
    Nanos expected = 0;  // as the policy was told
    Nanos known_until = 0;
    ApplicationUsage usage;
    absl::CondVar turn;
  };
  // Puts the policy in place and tells it how things stand.
  void Install(std::string_view name, std::unique_ptr<schedule::Policy> policy, Nanos now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveTurn(Member* member, Nanos now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Grant(Nanos now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Tells the policy what is to come of what the member has started, if that is news.
  void TellExpected(Member* member, Nanos now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndIfCharged(Member* member, BatchNumber batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Settle(Nanos now, Nanos patience = kChargePatience) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountActive() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Relaxed: a session that sees it late has its next batch measured, not this one.
  std::atomic<bool> contended_{false};
  std::atomic<bool> crowded_{false};
  std::atomic<bool> tells_phases_apart_{false};
  std::atomic<bool> holds_back_{false};

  absl::Mutex mutex_;
  std::unique_ptr<schedule::TraceLog> trace_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<schedule::Policy> policy_ ABSL_GUARDED_BY(mutex_);
  struct Tenant {
    schedule::TenantId id = 0;
    // By SetWeight: newer than what a Join says, which may have been on its way.
    std::optional<uint32_t> weight;
  };
  Tenant& FindTenant(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::map<std::string, Tenant> tenants_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Member>> members_ ABSL_GUARDED_BY(mutex_);  // by id
  ShareMeter meter_ ABSL_GUARDED_BY(mutex_);
  ShareMeter::Charges charges_ ABSL_GUARDED_BY(mutex_);  // scratch of Settle
  std::map<Interval, std::pair<Id, BatchNumber>> batch_of_ ABSL_GUARDED_BY(mutex_);
  Nanos last_progress_ ABSL_GUARDED_BY(mutex_) = 0;
  Nanos last_look_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SCHEDULER_SCHEDULER_H_
