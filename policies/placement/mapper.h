// SPDX-License-Identifier: Apache-2.0
// policies/placement/mapper.h: the affinity mapper without its surroundings: pool, policies, and
// the arbiter between them. The mapper process (gpool) and the simulator (policies/sim) drive the
// very same object, so that the same events bring the same decisions.
//
//   AddGpu, RemoveGpu, SetLoad, SetWeight ─▶ ┌────────┐
//   Record (feedback)                     ─▶ │ Mapper │ ─▶ Place: a decision, nothing else changes
//   Bind, Unbind (what became of it)      ─▶ └────────┘
//
// Arbiter. Decisions begin with `policy`. Where that needs no history and `feedback_policy` names
// one that does, the latter decides from when history covers `enter` of the latest arrivals'
// programs until it covers less than `leave` (it went stale, or other programs came).
//
// An application whose tenant has a policy of its own is placed by that one.
//
// Scope. An application whose sensitivity is above `sensitivity_max`, or whose node has a GPU with
// less than `offload_threshold` applications, stays on its node if a GPU there has the memory.
// Thread compatible.
#ifndef CONSORT_POLICIES_PLACEMENT_MAPPER_H_
#define CONSORT_POLICIES_PLACEMENT_MAPPER_H_

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "policies/placement/policy.h"
#include "policies/placement/pool.h"
#include "policies/placement/types.h"

namespace consort::placement {

struct MapperOptions {
  std::string policy = "gwtmin";
  std::string feedback_policy = "mbf";  // empty: `policy` always decides
  Ppm enter = 700'000;
  Ppm leave = 400'000;
  double sensitivity_max = 0.25;
  uint32_t offload_threshold = 0;  // 0: no application has to stay for a short queue
  FeedbackOptions feedback;
};

// Is told what happens to a mapper, when it has happened; what was refused did not happen.
class MapperRecorder {
 public:
  virtual ~MapperRecorder() = default;
  virtual void Begin(const MapperOptions& options) = 0;
  virtual void GpuAdded(const Gpu& gpu) = 0;
  virtual void GpuGone(Gid gid) = 0;
  virtual void LoadSet(Gid gid, const Load& load) = 0;
  virtual void WeightSet(Gid gid, double weight) = 0;
  virtual void Recorded(const Feedback& feedback, Nanos now) = 0;
  virtual void Placed(const Application& application, Nanos now, const Decision& decision) = 0;
  virtual void Bound(const Application& application, Gid gid, Nanos now) = 0;
  virtual void Unbound(ApplicationId id) = 0;
};

class Mapper {
 public:
  // Null: one of the names is unknown, `leave` is above `enter`, or a feedback option is out of its
  // range (half_life and enough above 0, weight_max at least 1).
  static std::unique_ptr<Mapper> Make(const MapperOptions& options);

  // `policy` decides instead of the one named in the options (the arbiter's first, or its second
  // if it goes by feedback). It must have been made for pool().
  void Install(std::unique_ptr<Policy> policy);

  // Makes a policy of the tree ready for applications that are to be placed by it; its name, for
  // Application::policy, for as long as the program runs. Empty: there is no such policy. O(GPUs)
  // the first time.
  std::string_view Know(std::string_view policy);

  // `recorder` is told of everything from here on; borrowed. Null: nobody any more. To replay, a
  // record must begin with a new mapper.
  void RecordTo(MapperRecorder* recorder);

  // False: see Pool.
  bool AddGpu(const Gpu& gpu);
  // The applications that are bound nowhere now: place them again, or tell them.
  std::vector<ApplicationId> RemoveGpu(Gid gid);
  bool SetLoad(Gid gid, const Load& load);
  bool SetWeight(Gid gid, double weight);
  bool Record(const Feedback& feedback, Nanos now);

  // Where the application should go now. Changes nothing: ask as often as you like. One that is
  // bound already is judged as if it came anew beside itself.
  Decision Place(const Application& application, Nanos now) const;
  // The same, by that policy of the tree; nullopt: unknown. O(GPUs): for showing.
  std::optional<Decision> PlaceBy(std::string_view policy, const Application& application,
                                  Nanos now);

  // It was put there (also against the decision, or moved). False: no such GPU, or too many.
  bool Bind(const Application& application, Gid gid, Nanos now);
  // False: it was not bound.
  bool Unbind(ApplicationId id);

  const Pool& pool() const { return pool_; }
  Pool* mutable_pool() { return &pool_; }
  bool by_feedback() const { return by_feedback_; }

 private:
  static constexpr uint32_t kArrivals = 32;    // looked at for coverage
  static constexpr uint32_t kArrivalsMin = 8;  // before history can be said to cover anything

  explicit Mapper(const MapperOptions& options) : options_(options), pool_(options.feedback) {}

  Ppm Coverage(Nanos now) const;
  bool FeedbackDecides(Ppm coverage) const;
  Scope ScopeOf(const Application& application) const;
  Decision PlaceWith(const Policy& policy, const Application& application, Nanos now) const;

  const MapperOptions options_;
  Pool pool_;
  std::unique_ptr<Policy> policy_;
  std::unique_ptr<Policy> feedback_policy_;
  std::map<std::string_view, std::unique_ptr<Policy>> tenants_policies_;  // by name
  std::array<ProgramId, kArrivals> arrivals_ = {};
  uint64_t arrival_count_ = 0;
  bool by_feedback_ = false;
  MapperRecorder* recorder_ = nullptr;
};

// What was decided and why, in one or two sentences for an operator.
std::string Explain(const Decision& decision, const Application& application);

}  // namespace consort::placement

#endif  // CONSORT_POLICIES_PLACEMENT_MAPPER_H_
