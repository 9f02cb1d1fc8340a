// SPDX-License-Identifier: Apache-2.0
// The arbiter, the scope of applications, and the pool's books.
#include "policies/placement/mapper.h"

#include <gtest/gtest.h>

#include "policies/placement/test_pools.h"

namespace consort::placement {
namespace {

constexpr Nanos kHalfLife = 100 * kSecond;

MapperOptions Arbiter() {
  MapperOptions options;
  options.policy = "gmin";
  options.feedback_policy = "rtf";
  options.feedback.half_life = kHalfLife;
  options.feedback.enough = 1;
  return options;
}

std::unique_ptr<Mapper> MakeMapper(const MapperOptions& options, uint32_t gpus = 4) {
  auto mapper = Mapper::Make(options);
  for (uint32_t i = 0; i < gpus; ++i) mapper->AddGpu(TestGpu(i, 2, 1));
  return mapper;
}

// An arrival of the program, whose applications come and go.
void Arrive(Mapper* mapper, ProgramId program, Nanos now) {
  static ApplicationId next = 0;
  const Application application{.id = ++next, .program = program};
  mapper->Bind(application, mapper->Place(application, now).gid, now);
  mapper->Unbind(application.id);
}

TEST(Mapper, RefusesOptionsThatMakeNoSense) {
  MapperOptions options = Arbiter();
  options.policy = "nosuch";
  EXPECT_EQ(Mapper::Make(options), nullptr);
  options = Arbiter();
  options.feedback_policy = "nosuch";
  EXPECT_EQ(Mapper::Make(options), nullptr);
  options = Arbiter();
  options.leave = options.enter + 1;
  EXPECT_EQ(Mapper::Make(options), nullptr);
  options = Arbiter();
  options.feedback.half_life = 0;
  EXPECT_EQ(Mapper::Make(options), nullptr);
}

TEST(Mapper, ATenantsOwnPolicyDecidesForItAlone) {
  const auto mapper = MakeMapper(Arbiter());
  EXPECT_EQ(mapper->Know("nosuch"), "");
  EXPECT_EQ(mapper->Know(""), "");
  const std::string_view own = mapper->Know(std::string("mbf"));
  EXPECT_EQ(own, "mbf");
  // It knows the GPUs that were there before it, and those that come.
  ASSERT_TRUE(mapper->AddGpu(TestGpu(9, 2, 1)));
  const Decision decision = mapper->Place({.id = 1, .program = 1, .policy = own}, 0);
  EXPECT_EQ(decision.outcome, Decision::Outcome::kPlaced);
  EXPECT_EQ(decision.policy, "mbf");
  EXPECT_TRUE(decision.by_feedback);
  const Application only_new{.id = 1, .only = {10}, .policy = own};
  EXPECT_EQ(mapper->Place(only_new, 0).gid, 10u);
  EXPECT_EQ(mapper->Place({.id = 2, .program = 1}, 0).policy, "gmin");
  // Nor does the arbiter change what the tenant chose.
  for (int i = 0; i < 16; ++i) Arrive(mapper.get(), 1, 0);
  mapper->Record({.program = 1, .runtime = kSecond}, 0);
  EXPECT_EQ(mapper->Place({.id = 3, .program = 1}, 0).policy, "rtf");
  EXPECT_EQ(mapper->Place({.id = 3, .program = 1, .policy = own}, 0).policy, "mbf");
}

TEST(Arbiter, SwitchesToFeedbackWhenHistoryCoversTheArrivals) {
  const auto mapper = MakeMapper(Arbiter());
  for (int i = 0; i < 16; ++i) Arrive(mapper.get(), 1, 0);
  EXPECT_EQ(mapper->Place({.id = 1000, .program = 1}, 0).policy, "gmin");
  mapper->Record({.program = 1, .runtime = kSecond}, 0);
  const Decision decision = mapper->Place({.id = 1000, .program = 1}, 0);
  EXPECT_EQ(decision.policy, "rtf");
  EXPECT_TRUE(decision.by_feedback);
  EXPECT_EQ(decision.coverage, kWhole);
}

TEST(Arbiter, AFewArrivalsAreNotEnough) {
  const auto mapper = MakeMapper(Arbiter());
  mapper->Record({.program = 1, .runtime = kSecond}, 0);
  for (int i = 0; i < 7; ++i) Arrive(mapper.get(), 1, 0);
  EXPECT_EQ(mapper->Place({.id = 1000, .program = 1}, 0).policy, "gmin");
  Arrive(mapper.get(), 1, 0);
  EXPECT_EQ(mapper->Place({.id = 1000, .program = 1}, 0).policy, "rtf");
}

TEST(Arbiter, SwitchesBackWhenHistoryIsStale) {
  const auto mapper = MakeMapper(Arbiter());
  for (int i = 0; i < 2; ++i) mapper->Record({.program = 1, .runtime = kSecond}, 0);
  for (int i = 0; i < 32; ++i) Arrive(mapper.get(), 1, 0);
  EXPECT_EQ(mapper->Place({.id = 1000}, kHalfLife - kSecond).policy, "rtf");
  EXPECT_EQ(mapper->Place({.id = 1000}, kHalfLife + kSecond).policy, "gmin");
}

TEST(Arbiter, BetweenTheThresholdsItStaysWithWhatItHas) {
  const auto mapper = MakeMapper(Arbiter());
  mapper->Record({.program = 1, .runtime = kSecond}, 0);
  const auto mix = [&](int known, int of) {
    for (int i = 0; i < 32; ++i) Arrive(mapper.get(), i % of < known ? 1 : 2, 0);
    return mapper->Place({.id = 1000}, 0);
  };
  EXPECT_EQ(mix(2, 4).policy, "gmin");  // half: not enough to enter
  EXPECT_EQ(mix(3, 4).policy, "rtf");   // three quarters
  EXPECT_EQ(mix(2, 4).policy, "rtf");   // half: enough to stay
  EXPECT_EQ(mix(1, 4).policy, "gmin");
  EXPECT_EQ(mix(2, 4).policy, "gmin");
}

TEST(Mapper, ASensitiveApplicationStaysOnItsNodeWhileAGpuThereHasTheMemory) {
  MapperOptions options = Arbiter();
  options.sensitivity_max = 0.25;
  const auto mapper =
      MakeMapper(options);  // node 0: GPUs 1 and 2, node 1: GPUs 3 and 4; 8 GiB each
  for (ApplicationId id = 1; id <= 6; ++id) mapper->Bind({.id = id}, 1 + id % 2, 0);
  EXPECT_FALSE(mapper->Place({.id = 10, .sensitivity = 0.25}, 0).local);
  const Decision decision = mapper->Place({.id = 10, .sensitivity = 0.26}, 0);
  EXPECT_TRUE(decision.local);
  EXPECT_EQ(decision.scope, Scope::kNodeSensitive);
  mapper->SetLoad(1, {.memory_used = 8 * kGiB});
  mapper->SetLoad(2, {.memory_used = 8 * kGiB});
  EXPECT_FALSE(mapper->Place({.id = 10, .memory = kGiB, .sensitivity = 0.26}, 0).local);
}

TEST(Mapper, SensitivityComesFromHistoryWhereTheApplicationsIsNotKnown) {
  const auto mapper = MakeMapper(Arbiter());
  mapper->Record({.program = 1, .runtime = kSecond, .sensitivity = 0.9}, 0);
  for (ApplicationId id = 1; id <= 6; ++id) mapper->Bind({.id = id}, 1 + id % 2, 0);
  EXPECT_TRUE(mapper->Place({.id = 10, .program = 1}, 0).local);
  EXPECT_FALSE(mapper->Place({.id = 10, .program = 2}, 0).local);
}

TEST(Mapper, OffloadsWhenEveryLocalQueueHasReachedTheThreshold) {
  MapperOptions options = Arbiter();
  options.offload_threshold = 3;
  const auto mapper = MakeMapper(options);
  std::vector<bool> local;
  for (ApplicationId id = 1; id <= 8; ++id) {
    const Application application{.id = id};
    const Decision decision = mapper->Place(application, 0);
    local.push_back(decision.local);
    mapper->Bind(application, decision.gid, 0);
  }
  EXPECT_EQ(local, (std::vector<bool>{true, true, true, true, true, true, false, false}));
}

TEST(Mapper, AGpuThatLeavesNamesItsApplications) {
  const auto mapper = MakeMapper(Arbiter());
  for (ApplicationId id = 1; id <= 4; ++id) mapper->Bind({.id = id}, id % 2 == 0 ? 1 : 2, 0);
  EXPECT_EQ(mapper->RemoveGpu(1), (std::vector<ApplicationId>{2, 4}));
  EXPECT_EQ(mapper->pool().application_count(), 2u);
  EXPECT_FALSE(mapper->Unbind(2));
  EXPECT_TRUE(mapper->RemoveGpu(1).empty());
  EXPECT_FALSE(mapper->Bind({.id = 2}, 1, 0));
}

TEST(Mapper, AnApplicationThatMovesIsCountedOnce) {
  const auto mapper = MakeMapper(Arbiter());
  const Application application{.id = 1, .memory = 3 * kGiB};
  mapper->Bind(application, 1, 0);
  mapper->Bind(application, 2, 0);
  EXPECT_EQ(mapper->pool().Find(1)->bound(), 0u);
  EXPECT_EQ(mapper->pool().Find(1)->reserved, 0u);
  EXPECT_EQ(mapper->pool().Find(2)->bound(), 1u);
  EXPECT_EQ(mapper->pool().Find(2)->reserved, 3 * kGiB);
  EXPECT_EQ(mapper->pool().application_count(), 1u);
}

TEST(Mapper, RefusesGpusThatCannotBe) {
  const auto mapper = MakeMapper(Arbiter(), 1);
  EXPECT_FALSE(mapper->AddGpu(TestGpu(0, 1, 1)));  // its gid is taken
  Gpu gpu = TestGpu(1, 1, 1);
  gpu.weight = 0;
  EXPECT_FALSE(mapper->AddGpu(gpu));
  gpu.weight = 1;
  gpu.model = kModelsMax;
  EXPECT_FALSE(mapper->AddGpu(gpu));
  gpu.model = 0;
  gpu.gid = kNoGid;
  EXPECT_FALSE(mapper->AddGpu(gpu));
  EXPECT_FALSE(mapper->SetWeight(1, -1));
  EXPECT_FALSE(mapper->SetWeight(99, 1));
  EXPECT_FALSE(mapper->SetLoad(99, {}));
  EXPECT_EQ(mapper->pool().gpu_count(), 1u);
}

TEST(Mapper, BoundsTheGpusOfANode) {
  const auto mapper = Mapper::Make(Arbiter());
  for (uint32_t i = 0; i < kGpusOfNodeMax; ++i) {
    ASSERT_TRUE(mapper->AddGpu({.gid = i, .node = 1, .local_device = i}));
  }
  EXPECT_FALSE(mapper->AddGpu({.gid = 1000, .node = 1, .local_device = 1000}));
  EXPECT_TRUE(mapper->AddGpu({.gid = 1000, .node = 2}));
}

TEST(Mapper, JudgesByAnotherPolicyOnRequest) {
  const auto mapper = MakeMapper(Arbiter());
  mapper->Bind({.id = 1}, 1, 0);
  const auto by_static = mapper->PlaceBy("static", {.id = 2, .device = 0}, 0);
  ASSERT_TRUE(by_static.has_value());
  EXPECT_EQ(by_static->gid, 1u);
  EXPECT_EQ(by_static->policy, "static");
  EXPECT_EQ(mapper->PlaceBy("gmin", {.id = 2}, 0)->gid, 2u);
  EXPECT_FALSE(mapper->PlaceBy("nosuch", {.id = 2}, 0).has_value());
  // The one that was asked is gone, and hears nothing more.
  EXPECT_TRUE(mapper->Bind({.id = 3}, 1, 0));
}

}  // namespace
}  // namespace consort::placement
