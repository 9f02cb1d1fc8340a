// SPDX-License-Identifier: Apache-2.0
// tests/integration/pool_decisions_test.cc: the daemons of a pool and the simulator take the same
// decisions, GPU and reason, for the same trace.
//
//   SimulatePool ─ trace, lines of text ─▶ Replay ─ each event, and the simulator's decision ─▶
//   Daemons
//
// Daemons is what consortd's have of a pool, on a clock that only the trace moves: a node's
// RpcThread each, Cap'n Proto over sockets between them, MapperState on the elected one, the gMap
// as the store keeps it. An arrival is a Place of the application's node, an end its Release, a
// measurement a Record of the node that has the GPU. Nothing here waits for time to pass.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "gpool/clock.h"
#include "gpool/limits.h"
#include "gpool/rpc_capnp.h"
#include "policies/placement/trace.h"
#include "policies/sim/pool_simulation.h"

namespace consort {
namespace {

using gpool::Gmap;
using gpool::MapperRecord;
using gpool::PlacedVgpu;
using gpool::RpcThread;
using placement::Application;
using placement::ApplicationId;
using placement::Decision;
using placement::Gid;

class ManualClock final : public gpool::Clock {
 public:
  Nanos Monotonic() const override { return monotonic_; }
  Nanos Unix() const override { return unix_; }
  void SetUnix(Nanos now) { unix_ = now; }
  void Pass(Nanos time) { monotonic_ += time; }

 private:
  std::atomic<Nanos> monotonic_ = kSecond;
  std::atomic<Nanos> unix_ = 0;
};

std::string NodeName(placement::NodeId node) { return absl::StrCat("node", node); }
std::string ProgramName(placement::ProgramId program) { return absl::StrCat("program", program); }

// Node 0 is the mapper; the others dial it.
class Daemons final : public placement::MapperRecorder {
 public:
  explicit Daemons(uint32_t nodes) : node_count_(nodes) {}

  ~Daemons() override {
    // Who dials must be gone before whom it dials.
    while (!nodes_.empty()) nodes_.pop_back();
  }

  void Begin(const placement::MapperOptions& options) override {
    options_ = {options.policy, options.feedback_policy};
    for (uint32_t node = 0; node < node_count_; ++node) {
      map_.nodes[NodeName(node)] = {NodeName(node), "192.0.2.1:7010", "boot", {}};
    }
  }

  void GpuAdded(const placement::Gpu& gpu) override {
    ASSERT_TRUE(nodes_.empty()) << "a GPU that comes later";
    gpool::NodeRecord& node = map_.nodes[NodeName(gpu.node)];
    gpool::GpuRecord& record = node.gpus.emplace_back();
    record.gid = gpu.gid;
    record.device = gpu.local_device;
    record.uuid = absl::StrCat("GPU-", gpu.gid);
    record.model = absl::StrCat("model ", gpu.model);
    record.memory_bytes = gpu.memory_total;
    // Whose weight is that of the trace.
    record.speed.memory = gpu.memory_bandwidth;
    record.speed.arithmetic = gpu.weight * gpu.weight * 100e9 / gpu.memory_bandwidth * 1e12;
    models_[gpu.model] = gpool::ModelKey(record.model, record.memory_bytes);
    owners_[gpu.model] = gpu.node;
  }

  void Placed(const Application& application, Nanos now, const Decision& decision) override {
    if (nodes_.empty()) Start();
    clock_.SetUnix(now);
    // Under the policy `static` a program means one of the devices that it sees.
    const uint32_t vgpu = decision.policy == "static" ? application.device : 0;
    const auto placed = Ask(application, application.device + 1, /*trial=*/false);
    ++decisions_;
    by_feedback_.push_back(decision.by_feedback);
    policies_.insert(std::string(decision.policy));
    const std::string why = placement::Explain(decision, application);
    if (decision.outcome != Decision::Outcome::kPlaced) {
      ++refused_;
      ASSERT_TRUE(absl::IsResourceExhausted(placed.status())) << placed.status() << "; " << why;
      EXPECT_EQ(placed.status().message(), why);
      return;
    }
    ASSERT_TRUE(placed.ok()) << placed.status() << "; " << why;
    ASSERT_LT(vgpu, placed->size()) << why;
    EXPECT_EQ((*placed)[vgpu].gid, decision.gid);
    EXPECT_EQ((*placed)[vgpu].why, why);
    bound_[application.id] = {application, (*placed)[0].gid};
  }

  void Bound(const Application& application, Gid gid, Nanos now) override {
    clock_.SetUnix(now);
    const auto it = bound_.find(application.id);
    ASSERT_NE(it, bound_.end());
    if (it->second.second == gid) return;
    // Its first session is on another of its vGPUs.
    nodes_[application.node]->Use({application.id, "t", ProgramName(application.program), {gid}});
    Arrived(application.node);
  }

  void Unbound(ApplicationId id) override {
    const auto it = bound_.find(id);
    ASSERT_NE(it, bound_.end());
    const placement::NodeId node = it->second.first.node;
    nodes_[node]->Release(id);
    bound_.erase(it);
    Arrived(node);
  }

  void Recorded(const placement::Feedback& feedback, Nanos now) override {
    clock_.SetUnix(now);
    const placement::NodeId node = owners_.at(feedback.model);
    nodes_[node]->Record({absl::StrCat(NodeName(node), "/", ++records_),
                          ProgramName(feedback.program), models_.at(feedback.model), now,
                          feedback.runtime, feedback.gpu_time, feedback.transfer_time,
                          feedback.transferred, feedback.sensitivity, feedback.bandwidth});
    // It is told with the next talk, of which there is one each kLoadsEvery.
    while (!nodes_[0]->TakeHistory().has_value()) {
      clock_.Pass(gpool::kLoadsEvery);
      nodes_[node]->TimeMoved();
    }
  }

  void GpuGone(Gid gid) override { FAIL() << "GPU " << gid << " goes"; }
  void LoadSet(Gid gid, const placement::Load&) override { FAIL() << "load of GPU " << gid; }
  void WeightSet(Gid gid, double) override { FAIL() << "weight of GPU " << gid; }

  uint64_t decisions() const { return decisions_; }
  uint64_t refused() const { return refused_; }
  // How often the arbiter changed its mind.
  int switches() const {
    int changes = 0;
    for (size_t i = 1; i < by_feedback_.size(); ++i) {
      changes += by_feedback_[i] != by_feedback_[i - 1];
    }
    return changes;
  }
  const std::set<std::string>& policies() const { return policies_; }

 private:
  using Placement = absl::StatusOr<std::vector<PlacedVgpu>>;

  void Start() {
    gpool::Entries stored;
    for (const auto& [name, node] : map_.nodes) stored[name] = {gpool::NodeJson(node), 0, 0};
    const auto map = std::make_shared<const Gmap>(gpool::MakeGmap(stored));
    ASSERT_EQ(map->nodes, map_.nodes);
    const MapperRecord mapper = {NodeName(0), "192.0.2.1:7010", "boot", 1};
    for (uint32_t node = 0; node < node_count_; ++node) {
      auto state = gpool::MapperState::Make(options_);
      ASSERT_TRUE(state.ok()) << state.status();
      nodes_.push_back(std::make_unique<RpcThread>(
          NodeName(node), *std::move(state),
          [this, node](const MapperRecord&) { return Dial(node); }, &clock_));
    }
    // Told of a mapper, they dial it on threads of their own: all nodes are there by then.
    for (uint32_t node = 0; node < node_count_; ++node) {
      nodes_[node]->SetMap(map);
      nodes_[node]->SetMapper(mapper, /*ours=*/node == 0, "");
    }
    // Until each has found the mapper and told it what it uses.
    for (uint32_t node = 0; node < node_count_; ++node) {
      Application nobody;
      nobody.node = node;
      while (true) {
        absl::Notification told;
        Placement placed;
        Begin(nobody, 1, /*trial=*/true, &told, &placed);
        while (!told.WaitForNotificationWithTimeout(absl::Milliseconds(1))) {
          clock_.Pass(gpool::kRpcTick);
          for (const auto& one : nodes_) one->TimeMoved();
        }
        if (!absl::IsUnavailable(placed.status())) break;
      }
    }
  }

  UniqueFd Dial(uint32_t node) {
    int ends[2];
    PCHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    nodes_[0]->Accept(NodeName(node), UniqueFd(ends[1]));
    return UniqueFd(ends[0]);
  }

  void Begin(const Application& application, uint32_t vgpus, bool trial, absl::Notification* told,
             Placement* placed) {
    nodes_[application.node]->Place({application.id, "t", ProgramName(application.program), {}},
                                    vgpus, trial, [told, placed](Placement answer) {
                                      *placed = std::move(answer);
                                      told->Notify();
                                    });
  }

  Placement Ask(const Application& application, uint32_t vgpus, bool trial) {
    absl::Notification told;
    Placement placed;
    Begin(application, vgpus, trial, &told, &placed);
    told.WaitForNotification();
    return placed;
  }

  // What the node has told the mapper has been heard: it hears an answer to what it asks after it.
  void Arrived(placement::NodeId node) {
    Application nobody;
    nobody.node = node;
    Ask(nobody, 1, /*trial=*/true).status().IgnoreError();
  }

  const uint32_t node_count_;
  ManualClock clock_;
  gpool::MapperOptions options_;
  Gmap map_;
  std::map<placement::ModelId, std::string> models_;
  std::map<placement::ModelId, placement::NodeId> owners_;  // a node that has one
  std::vector<std::unique_ptr<RpcThread>> nodes_;
  std::map<ApplicationId, std::pair<Application, Gid>> bound_;  // with its first vGPU
  uint64_t records_ = 0;
  uint64_t decisions_ = 0;
  uint64_t refused_ = 0;
  std::vector<bool> by_feedback_;
  std::set<std::string> policies_;
};

// Node 0 has no GPU; three models, six GPUs. Applications do not say how much memory they need:
// no daemon knows that.
sim::PoolScenario Pool(const std::string& policy, const std::string& feedback_policy) {
  sim::PoolScenario scenario;
  scenario.models = {{.name = "middle", .sms = 14, .memory_bandwidth = 144e9, .memory = 3 * kGiB},
                     {.name = "small", .sms = 4, .memory_bandwidth = 42e9, .memory = kGiB},
                     {.name = "large",
                      .sms = 60,
                      .sm_speed = 1.3,
                      .memory_bandwidth = 900e9,
                      .copy_bandwidth = 20e9,
                      .copy_engines = 2,
                      .memory = 40 * kGiB}};
  scenario.nodes = {{}, {0, 1}, {1, 2}, {2, 0}};
  scenario.programs = {{.name = "compute",
                        .cycles = 20,
                        .cpu = 2 * kMillisecond,
                        .to_device = kMiB,
                        .kernel = 20 * kMillisecond,
                        .sms = 14,
                        .bandwidth = 10e9,
                        .to_host = kMiB},
                       {.name = "memory",
                        .cycles = 20,
                        .cpu = 5 * kMillisecond,
                        .to_device = 8 * kMiB,
                        .kernel = 10 * kMillisecond,
                        .sms = 14,
                        .compute = 0.3,
                        .bandwidth = 130e9,
                        .to_host = 8 * kMiB},
                       // Would lose more than a quarter of its time to the network.
                       {.name = "chatty",
                        .cycles = 50,
                        .cpu = kMillisecond,
                        .kernel = kMillisecond,
                        .sms = 2,
                        .calls = 12}};
  scenario.streams = {
      {.program = 0, .node = 1, .gap_seconds = 0.3, .count = 25},
      {.program = 1, .node = 2, .gap_seconds = 0.2, .count = 25},
      {.program = 1, .node = 3, .device = 1, .gap_seconds = 0.4, .count = 25},
      {.program = 2, .node = 2, .device = 1, .gap_seconds = 0.3, .count = 25},
      // `static` has nothing for these.
      {.program = 0, .node = 0, .gap_seconds = 0.5, .count = 10},
  };
  scenario.placement.policy = policy;
  scenario.placement.feedback_policy = feedback_policy;
  return scenario;
}

// Simulates, and has the daemons decide along its trace.
void Follow(const sim::PoolScenario& scenario, Daemons* daemons) {
  std::vector<std::string> trace;
  placement::TraceWriter writer([&](std::string_view line) { trace.emplace_back(line); });
  std::string error;
  sim::SimulatePool(scenario, &writer, &error);
  ASSERT_EQ(error, "");
  placement::Replay replay(daemons);
  for (const std::string& line : trace) {
    ASSERT_EQ(replay.Line(line), placement::Replay::Result::kDone) << line;
    ASSERT_FALSE(testing::Test::HasFailure()) << "first at: " << line;
  }
  EXPECT_EQ(replay.decisions(), daemons->decisions());
}

class PoolDecisions : public testing::TestWithParam<std::string_view> {};

TEST_P(PoolDecisions, OfThePolicyAreTheSimulators) {
  const std::string policy(GetParam());
  const sim::PoolScenario scenario = Pool(policy, "");
  Daemons daemons(static_cast<uint32_t>(scenario.nodes.size()));
  Follow(scenario, &daemons);
  EXPECT_GE(daemons.decisions(), 110u);
  EXPECT_EQ(daemons.policies(), std::set<std::string>{policy});
  EXPECT_EQ(daemons.refused() > 0, policy == "static");
}

INSTANTIATE_TEST_SUITE_P(All, PoolDecisions, testing::ValuesIn(placement::PolicyNames()),
                         [](const auto& policy) { return std::string(policy.param); });

// Known programs bring the feedback policy, many new ones bring the first one back.
TEST(PoolDecisionsArbiter, GoesToFeedbackAndBackWhenTheSimulatorDoes) {
  for (const auto& [policy, feedback_policy] :
       std::vector<std::pair<std::string, std::string>>{{"static", "rtf"}, {"gwtmin", "mbf"}}) {
    SCOPED_TRACE(absl::StrCat(policy, " and ", feedback_policy));
    sim::PoolScenario scenario = Pool(policy, feedback_policy);
    for (uint32_t i = 0; i < 40; ++i) {
      sim::ProgramModel program = scenario.programs[i % 2];
      program.name = absl::StrCat("new ", i);
      scenario.programs.push_back(program);
      scenario.streams.push_back({.program = static_cast<uint32_t>(scenario.programs.size()) - 1,
                                  .node = 1 + i % 3,
                                  .device = i % 2,
                                  .gap_seconds = 0.5,
                                  .count = 3,
                                  .start = 12 * kSecond + i * 50 * kMillisecond});
    }
    Daemons daemons(static_cast<uint32_t>(scenario.nodes.size()));
    Follow(scenario, &daemons);
    EXPECT_GE(daemons.switches(), 2);
    EXPECT_EQ(daemons.policies(), (std::set<std::string>{policy, feedback_policy}));
  }
}

}  // namespace
}  // namespace consort
