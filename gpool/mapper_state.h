// SPDX-License-Identifier: Apache-2.0
// gpool/mapper_state.h: what the pool's mapper knows and decides, without threads, store or RPC.
//
//   gMap ─────────▶ ┌──────────────┐ ◀── Place, Use, Release of every node's daemon
//   Feedback ─────▶ │ MapperState  │ ──▶ GPUs and reasons
//   stored history ─┴──────────────┘     history to be stored
//
// It drives a placement::Mapper and adds what that does not know: nodes and programs by name,
// applications with several vGPUs, and history that outlives this process: the latest
// kFeedbackKept measurements, as they came. Times are of the wall's clock, since history is
// carried from one mapper to the next. Thread compatible.
#ifndef CONSORT_GPOOL_MAPPER_STATE_H_
#define CONSORT_GPOOL_MAPPER_STATE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gpool/gmap.h"
#include "policies/placement/mapper.h"

namespace consort::gpool {

struct MapperOptions {
  // Names of policies/placement: who decides, and who does once there is history; empty: the first
  // always does. The first may be PATH or PATH=ARGUMENT of a shared object (policy_loader.h), which
  // has a slash in it.
  std::string policy = "gwtmin";
  std::string feedback_policy = "mbf";
};

// A mapper with these policies, whose first is named then. kInvalidArgument: no such policy; errors
// of LoadPolicy.
absl::StatusOr<std::unique_ptr<placement::Mapper>> MakeMapper(MapperOptions* options);

// What stands for the program by this name.
placement::ProgramId ProgramOf(const std::string& application);

// Whether that names a shared object.
bool IsOwnPolicy(const std::string& policy);

struct PlacedVgpu {
  Gid gid = 0;
  std::string why;
};

// An application of a node, and the GPUs that it uses.
struct UsedAssembly {
  uint64_t id = 0;
  std::string tenant;
  std::string application;
  std::vector<Gid> gids;
  // Of Place: the only ones that its tenant may use, ascending; empty: all.
  std::vector<Gid> only = {};
  std::string policy = {};  // likewise: that decides for it; empty: the pool's
};

struct FeedbackRecord {
  std::string id;  // the same when it is told again
  std::string application;
  std::string model;
  Nanos ended_unix = 0;
  Nanos runtime = 0;
  Nanos gpu_time = 0;
  Nanos transfer_time = 0;
  uint64_t bytes = 0;
  double sensitivity = -1;
  double bandwidth = 0;  // of device memory while its kernels ran, bytes a second
};

// What each GPU counts for: its weight as measured, but where that is not more than kEqualWeights
// times the least of those like it, that one's: equal GPUs are never measured quite equal, and
// between equals nearness decides. One that was not measured counts 1.
std::map<Gid, double> Weights(const Gmap& map);

// GPUs that behave alike: FeedbackRecord::model.
std::string ModelKey(const std::string& model, uint64_t memory_bytes);

struct GpuUse {
  Gid gid = 0;
  uint32_t bound = 0;
};

class MapperState {
 public:
  // kInvalidArgument: no such policy; errors of LoadPolicy.
  static absl::StatusOr<std::unique_ptr<MapperState>> Make(const MapperOptions& options);

  // The GPUs and nodes that there are now. Applications of nodes that are gone are forgotten.
  void SetMap(const Gmap& map);

  // `vgpus` different GPUs for an application of `node`, as far as there are so many; the first
  // counts as used from now on, unless it is a `trial`. kResourceExhausted: no GPU, or no such
  // policy, with the reason.
  absl::StatusOr<std::vector<PlacedVgpu>> Place(const std::string& node, const UsedAssembly& who,
                                                uint32_t vgpus, bool trial, Nanos now);
  // Replaces what is known of the application; GPUs that there are not are left out. It does not
  // arrive once more: what it is bound to already stays, or moves.
  void Use(const std::string& node, const UsedAssembly& assembly, Nanos now);
  // Forgets all applications of the node.
  void Clear(const std::string& node);
  void Release(const std::string& node, uint64_t id);

  // True: it was new, and History has changed.
  bool Record(const FeedbackRecord& record);
  // The latest measurements as JSON, and the same back; what cannot be read is passed over.
  std::string History() const;
  void Load(const std::string& history);

  std::vector<GpuUse> Uses() const;
  std::string policy() const;
  bool by_feedback() const { return mapper_->by_feedback(); }

 private:
  using AssemblyKey = std::pair<std::string, uint64_t>;  // node, id

  explicit MapperState(const MapperOptions& options) : options_(options) {}
  placement::Application Describe(const std::string& node, const UsedAssembly& who);
  bool Bind(const AssemblyKey& key, const placement::Application& application, Gid gid, Nanos now);
  void Forget(const AssemblyKey& key);
  placement::NodeId NodeOf(const std::string& node);
  placement::ModelId ModelOf(const GpuRecord& gpu);

  MapperOptions options_;  // with the loaded policy by its own name
  std::unique_ptr<placement::Mapper> mapper_;
  std::map<Gid, std::pair<std::string, GpuRecord>> gpus_;  // by gid: node, record
  std::map<std::string, placement::NodeId> node_ids_;
  std::map<std::string, placement::ModelId> model_ids_;
  placement::ApplicationId next_application_ = 1;
  std::map<AssemblyKey, std::vector<placement::ApplicationId>> bound_;
  std::deque<FeedbackRecord> history_;
  std::set<std::string> known_records_;
};

}  // namespace consort::gpool

#endif  // CONSORT_GPOOL_MAPPER_STATE_H_
