// SPDX-License-Identifier: Apache-2.0
// What every placement policy promises (policy.h), over random pools and histories.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "policies/placement/mapper.h"
#include "policies/placement/test_pools.h"

namespace consort::placement {
namespace {

constexpr uint32_t kPerNode = 4;
constexpr uint32_t kNodes = 6;
constexpr uint32_t kModels = 3;
constexpr uint32_t kPrograms = 12;

MapperOptions OptionsOf(std::string_view policy) {
  MapperOptions options;
  options.policy = std::string(policy);
  options.feedback_policy.clear();
  options.feedback.enough = 1;
  return options;
}

class EveryPolicy : public ::testing::TestWithParam<std::string_view> {
 protected:
  std::unique_ptr<Mapper> MakeMapper() { return Mapper::Make(OptionsOf(GetParam())); }

  static void AddGpus(Mapper* mapper) {
    // The last node has none.
    for (uint32_t i = 0; i < kPerNode * (kNodes - 1); ++i) {
      ASSERT_TRUE(mapper->AddGpu(TestGpu(i, kPerNode, kModels)));
    }
  }

  static Application RandomApplication(TestRandom* random, ApplicationId id) {
    Application application{.id = id,
                            .program = random->Below(kPrograms),
                            .node = static_cast<NodeId>(random->Below(kNodes)),
                            .memory = random->Below(12) * kGiB,
                            .device = static_cast<uint32_t>(random->Below(kPerNode))};
    if (random->Below(2) == 0) {
      application.sensitivity = static_cast<double>(random->Below(50)) / 100;
    }
    if (random->Below(3) == 0) {
      // Some of all GPUs, and perhaps of those that are not there.
      for (Gid gid = 1; gid <= kPerNode * kNodes; ++gid) {
        if (random->Below(4) == 0) application.only.push_back(gid);
      }
    }
    return application;
  }

  bool IsStatic() const { return GetParam() == "static"; }
};

TEST_P(EveryPolicy, HasAPromise) { EXPECT_FALSE(PolicyPromise(GetParam()).empty()); }

TEST_P(EveryPolicy, AnEmptyPoolHasNoGpu) {
  const auto mapper = MakeMapper();
  EXPECT_EQ(mapper->Place({.id = 1}, 0).outcome, Decision::Outcome::kNoGpu);
}

TEST_P(EveryPolicy, ChoosesAGpuThatMayBeChosenWheneverThereIsOne) {
  const auto mapper = MakeMapper();
  AddGpus(mapper.get());
  TestRandom random(20);
  std::vector<ApplicationId> bound;
  int placed = 0;
  int refused = 0;
  for (ApplicationId id = 1; id <= 2000; ++id) {
    const auto now = static_cast<Nanos>(id) * kMillisecond;
    const Application application = RandomApplication(&random, id);
    const Decision decision = mapper->Place(application, now);
    bool some = false;
    bool some_local = false;
    uint32_t of_node = 0;  // that it may use, by local device
    for (const Slot slot : mapper->pool().AllGpus()) {
      const GpuState& state = mapper->pool().at(slot);
      if (!application.MayUse(state.gpu.gid)) continue;
      const bool local = state.gpu.node == application.node;
      const uint32_t ordinal = local ? of_node++ : 0;
      if (state.free() < application.memory) continue;
      some |= !IsStatic() || (local && ordinal == application.device);
      some_local |= local;
    }
    ASSERT_EQ(decision.outcome == Decision::Outcome::kPlaced, some) << "application " << id;
    if (some) {
      const GpuState* chosen = mapper->pool().Find(decision.gid);
      ASSERT_NE(chosen, nullptr);
      ASSERT_GE(chosen->free(), application.memory);
      ASSERT_TRUE(application.MayUse(decision.gid));
      ASSERT_EQ(chosen->gpu.node, decision.node);
      ASSERT_EQ(chosen->gpu.local_device, decision.local_device);
      ASSERT_EQ(decision.local, decision.node == application.node);
      if (decision.scope != Scope::kAnywhere) {
        ASSERT_TRUE(decision.local);
      }
      if (application.sensitivity > 0.25 && some_local) {
        ASSERT_TRUE(decision.local);
      }
      ASSERT_TRUE(mapper->Bind(application, decision.gid, now));
      bound.push_back(id);
      ++placed;
    } else {
      ++refused;
    }
    while (!bound.empty() && random.Below(100) < 48) {
      const size_t at = random.Below(bound.size());
      ASSERT_TRUE(mapper->Unbind(bound[at]));
      bound.erase(bound.begin() + static_cast<std::ptrdiff_t>(at));
    }
    const Gpu gpu = TestGpu(static_cast<uint32_t>(random.Below(20)), kPerNode, kModels);
    mapper->Record(TestFeedback(application.program, gpu), now);
    if (random.Below(20) == 0) {
      mapper->SetLoad(gpu.gid, {.memory_used = random.Below(8) * kGiB,
                                .utilisation = static_cast<Ppm>(random.Below(kWhole))});
    }
  }
  // Both happened, or the test has shown nothing.
  EXPECT_GT(placed, 500);
  EXPECT_GT(refused, 20);
}

TEST_P(EveryPolicy, EqualGpusMeanALocalOne) {
  const auto mapper = MakeMapper();
  for (uint32_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(mapper->AddGpu(TestGpu(i, 2, 1)));
  }
  if (GetParam() == "grr") GTEST_SKIP() << "no two GPUs are equal: each has its turn";
  for (NodeId node = 0; node < 4; ++node) {
    const Decision decision = mapper->Place({.id = 1, .node = node}, 0);
    EXPECT_EQ(decision.outcome, Decision::Outcome::kPlaced);
    EXPECT_TRUE(decision.local);
    EXPECT_EQ(decision.local_device, 0u);
  }
}

TEST_P(EveryPolicy, PlacingChangesNothing) {
  const auto mapper = MakeMapper();
  AddGpus(mapper.get());
  const Application application{.id = 1, .program = 3, .memory = kGiB};
  const Decision first = mapper->Place(application, 0);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(mapper->Place(application, 0).gid, first.gid);
  }
  EXPECT_EQ(mapper->pool().application_count(), 0u);
}

// Two mappers see the same GPUs and bindings; one of them saw others come and go before.
TEST_P(EveryPolicy, DecidesFromTheStateAndNotFromHowItCameAbout) {
  if (GetParam() == "grr") GTEST_SKIP() << "whose turn it is is what came before";
  const auto straight = MakeMapper();
  const auto winding = MakeMapper();
  AddGpus(straight.get());
  winding->AddGpu({.gid = 500, .node = 1, .local_device = 9, .memory_total = 80 * kGiB});
  AddGpus(winding.get());
  TestRandom random(5);
  for (ProgramId program = 0; program < kPrograms; ++program) {
    for (uint32_t i = 0; i < 6; ++i) {
      const Feedback feedback = TestFeedback(program, TestGpu(i, kPerNode, kModels));
      straight->Record(feedback, 0);
      winding->Record(feedback, 0);
    }
  }
  for (ApplicationId id = 1; id <= 60; ++id) {
    const Application application = RandomApplication(&random, id);
    const Gid gid = static_cast<Gid>(random.Below(20)) + 1;
    winding->Bind(application, static_cast<Gid>(random.Below(20)) + 1, 0);
    winding->Bind({.id = id + 1000, .program = id % kPrograms, .memory = 3 * kGiB}, gid, 0);
    straight->Bind(application, gid, 0);
    winding->Bind(application, gid, 0);
    winding->Unbind(id + 1000);
  }
  EXPECT_EQ(winding->RemoveGpu(500), std::vector<ApplicationId>{});
  for (ApplicationId id = 2000; id < 2300; ++id) {
    const Application application = RandomApplication(&random, id);
    const Decision one = straight->Place(application, 0);
    const Decision other = winding->Place(application, 0);
    ASSERT_EQ(one.outcome, other.outcome);
    ASSERT_EQ(one.gid, other.gid);
    ASSERT_EQ(one.score, other.score);
  }
}

TEST_P(EveryPolicy, AGpuThatLeftIsNotChosen) {
  const auto mapper = MakeMapper();
  AddGpus(mapper.get());
  const Application application{.id = 1, .program = 1, .node = 0, .device = 0};
  while (true) {
    const Decision decision = mapper->Place(application, 0);
    if (decision.outcome != Decision::Outcome::kPlaced) break;
    ASSERT_NE(mapper->pool().Find(decision.gid), nullptr);
    mapper->RemoveGpu(decision.gid);
  }
  EXPECT_EQ(mapper->pool().gpu_count(), IsStatic() ? kPerNode * (kNodes - 1) - 1 : 0u);
}

TEST_P(EveryPolicy, ExplainsItsDecisions) {
  const auto mapper = MakeMapper();
  AddGpus(mapper.get());
  const Application application{.id = 1};
  const std::string said = Explain(mapper->Place(application, 0), application);
  EXPECT_NE(said.find(GetParam()), std::string::npos) << said;
  EXPECT_NE(said.find("node 0"), std::string::npos) << said;
  const Application huge{.id = 2, .memory = kTiB};
  EXPECT_NE(Explain(mapper->Place(huge, 0), huge).find("memory"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicy, ::testing::ValuesIn(PolicyNames()),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace consort::placement
