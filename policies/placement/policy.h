// SPDX-License-Identifier: Apache-2.0
// policies/placement/policy.h: which GPU for an application. Told of every change of the pool
// (PoolWatcher), asked for a choice.
//
// Promises of every policy, held by conformance_test.cc:
//   - It chooses a GPU that is there, that the application may use, that has the memory, and lies
//   in
//     the request's scope; and it chooses one wherever there is such a GPU (`static`: if it is the
//     one asked for).
//   - Of GPUs that it holds equal it takes one of the application's node, else the lowest gid.
//   - The same state and request bring the same choice, however the state came about.
// A choice is O(models * log GPUs + GPUs of the node); of an application that may use only some
// GPUs, O(those). Thread compatible.
// docs/howto/add_a_placement_policy.md says how to add one, in the tree or as a shared object.
#ifndef CONSORT_POLICIES_PLACEMENT_POLICY_H_
#define CONSORT_POLICIES_PLACEMENT_POLICY_H_

#include <memory>
#include <string_view>
#include <vector>

#include "policies/placement/pool.h"
#include "policies/placement/types.h"

namespace consort::placement {

struct Request {
  const Application& application;  // sensitivity is filled in
  Scope scope = Scope::kAnywhere;
  Nanos now = 0;
};

// Scores are the policy's own: less is better.
struct Choice {
  Slot slot = GpuIndex::kNone;  // kNone: there is none; `outcome` says why
  double score = 0;
  Decision::Outcome outcome = Decision::Outcome::kNoGpu;
  Slot local_best = GpuIndex::kNone;  // of the application's node
  double local_score = 0;
};

class Policy : public PoolWatcher {
 public:
  virtual std::string_view name() const = 0;
  virtual Choice Choose(const Request& request) const = 0;
  // Whether what it knows of programs matters: such a policy needs history to be of use.
  virtual bool by_feedback() const = 0;
};

// The names of all policies of the tree, in the order of the documentation.
const std::vector<std::string_view>& PolicyNames();
// One sentence on how it chooses; empty for an unknown name.
std::string_view PolicyPromise(std::string_view name);
// Null: there is no such policy. `pool` is borrowed; the policy watches it from then on, and both
// end together.
std::unique_ptr<Policy> MakePolicy(std::string_view name, Pool* pool);

}  // namespace consort::placement

#endif  // CONSORT_POLICIES_PLACEMENT_POLICY_H_
