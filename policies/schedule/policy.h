// SPDX-License-Identifier: Apache-2.0
// policies/schedule/policy.h: who may put work on a device next. One object a device.
//
// A scheduler (host/scheduler) or the simulator (policies/sim) tells a policy what happens and asks
// for decisions. Work comes in batches: a bounded piece of an application's kernels and copies.
//
//   Join ─▶ idle ──Wait──▶ waiting ──Start──▶ in flight ──Finish──▶ ... ─▶ Leave
//             ▲──Withdraw────┘                    └──Charge, any number of times, also later;
//                                                    Expect: how much of that is to come
//
// An application may have several batches in flight and one that waits. Times are given, never
// read; nothing here is random, so the same calls always bring the same decisions. Promises of
// every policy, tested by conformance_test.cc:
//   - Choose names an application that waits.
//   - Work conserving: while nothing is in flight and somebody waits, Choose names somebody.
//   - No starvation: one that waits is chosen in the end, as long as others' batches finish.
// Thread compatible. Decisions are O(log applications) or better where not stated otherwise.
// docs/howto/add_a_policy.md says how to add one.
#ifndef CONSORT_POLICIES_SCHEDULE_POLICY_H_
#define CONSORT_POLICIES_SCHEDULE_POLICY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace consort::schedule {

// Small numbers, chosen by the caller, used again after Leave.
using ApplicationId = uint32_t;
// Chosen by the caller; stands for the same tenant over the policy's life.
using TenantId = uint32_t;

// What an application's work uses first.
enum class Phase : uint8_t { kNone, kKernel, kToDevice, kToHost };
inline constexpr int kPhases = 4;

struct Application {
  ApplicationId id = 0;
  TenantId tenant = 0;
  uint32_t weight = 1;  // of the tenant: what was told last, here or by SetWeight. Not 0
};

// What is known of a batch before it runs.
struct Batch {
  Phase phase = Phase::kKernel;
  Nanos estimate = 0;  // of its device time; 0: nothing is known
  Nanos alone = 0;     // that it would take if nobody else had work; 0: not known
};

// What an application got of the device.
struct Service {
  // Of time in which the device had work: split between those whose work ran, so that all parts
  // add up to it.
  Nanos device_time = 0;
  // How long what it got done would have taken if nobody else had had work; at least device_time.
  // Of those that fill the device both are the same; where work overlaps that leaves parts of it to
  // others, this is more.
  Nanos alone_time = 0;
};
// Of a time in which nobody else had work.
inline Service ServedAlone(Nanos time) { return {time, time}; }

class Policy {
 public:
  virtual ~Policy() = default;

  virtual void Join(const Application& application, Nanos now) = 0;
  // Whatever it had waiting or in flight is forgotten.
  virtual void Leave(ApplicationId id, Nanos now) = 0;

  // The weight of a tenant that has applications here. What it has had so far stays as it counted.
  virtual void SetWeight(TenantId tenant, uint32_t weight, Nanos now) = 0;

  // The application has a batch that it wants to start; it had none waiting.
  virtual void Wait(ApplicationId id, const Batch& batch, Nanos now) = 0;
  // That batch is not wanted any more.
  virtual void Withdraw(ApplicationId id, Nanos now) = 0;
  // A batch is put on the device: the one that waits, or one that was not announced.
  virtual void Start(ApplicationId id, Nanos now) = 0;
  // A batch of the application has left the device.
  virtual void Finish(ApplicationId id, Nanos now) = 0;
  // What was measured since the last call.
  virtual void Charge(ApplicationId id, const Service& service, Nanos now) = 0;
  // What all that the application has started, and has not been charged for, is expected to come
  // to, as far as that is known: told when it changes, which is after Start and Charge.
  virtual void Expect(ApplicationId /*id*/, Nanos /*expected*/, Nanos /*now*/) {}

  // The application whose batch should be started now; the caller calls Start and asks again.
  // `stalled`: what is in flight has not moved for long (it may wait for something that is not the
  // device), so it is no reason to leave anybody waiting.
  virtual std::optional<ApplicationId> Choose(Nanos now, bool stalled) = 0;

  // Batches should hold work of one phase each, as the policy tells phases apart.
  virtual bool tells_phases_apart() const { return false; }
  // Who is ahead of its share waits, so that nobody gets more of the device for being served first
  // there.
  virtual bool holds_back() const { return false; }
};

struct Options {
  // How much device time a tenant may be ahead of its share while others have work (tfs).
  // Less follows the weights over shorter times, more lets more work overlap.
  Nanos lead = 8 * kMillisecond;
  // Of what a tenant left unused it may claim this much later (tfs, credit).
  Nanos memory = 20 * kMillisecond;
  // Batches in flight of all applications together (all but tfs).
  uint32_t batches_in_flight = 4;
  // Of accounts that are closed and opened again (las, credit).
  Nanos epoch = 10 * kMillisecond;
  // How long the application that has the device may leave it idle before it loses it (idle).
  Nanos idle_max = 10 * kMillisecond;
  // How long it may have it at all while others wait (idle).
  Nanos tenure_max = 250 * kMillisecond;
  // A batch that waits longer goes first, where the rule alone would let it wait for ever.
  Nanos patience = 500 * kMillisecond;
};

// The names of all policies, in the order of the documentation.
const std::vector<std::string_view>& PolicyNames();
// One sentence on what the policy promises; empty for an unknown name.
std::string_view PolicyPromise(std::string_view name);
// Null: there is no such policy.
std::unique_ptr<Policy> MakePolicy(std::string_view name, const Options& options);

}  // namespace consort::schedule

#endif  // CONSORT_POLICIES_SCHEDULE_POLICY_H_
