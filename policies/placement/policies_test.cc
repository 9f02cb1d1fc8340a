// SPDX-License-Identifier: Apache-2.0
// What each policy's one sentence says, and that the search by index finds what a search through
// all GPUs finds.
#include "policies/placement/policies.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "policies/placement/mapper.h"
#include "policies/placement/test_pools.h"

namespace consort::placement {
namespace {

std::unique_ptr<Mapper> MakeMapper(std::string_view policy) {
  MapperOptions options;
  options.policy = std::string(policy);
  options.feedback_policy.clear();
  options.feedback.enough = 1;
  options.sensitivity_max = 1e9;
  return Mapper::Make(options);
}

Gpu Equal(uint32_t i) {
  return {.gid = i, .node = i, .memory_total = 16 * kGiB, .memory_bandwidth = 100e9};
}

Gid PlaceAndBind(Mapper* mapper, const Application& application) {
  const Decision decision = mapper->Place(application, 0);
  EXPECT_TRUE(mapper->Bind(application, decision.gid, 0));
  return decision.gid;
}

// Programs of one second: compute and transfer as parts of it, bandwidth as part of 100 GB/s.
void Teach(Mapper* mapper, ProgramId program, double compute, double transfer, double bandwidth) {
  mapper->Record({.program = program,
                  .runtime = kSecond,
                  .gpu_time = static_cast<Nanos>(compute * kSecond),
                  .transfer_time = static_cast<Nanos>(transfer * kSecond),
                  .bandwidth = bandwidth * 100e9},
                 0);
}

TEST(StaticPolicy, TakesTheDeviceThatWasAskedForOrNone) {
  const auto mapper = MakeMapper("static");
  mapper->AddGpu({.gid = 1, .node = 0, .local_device = 0, .memory_total = kGiB});
  mapper->AddGpu({.gid = 2, .node = 0, .local_device = 1, .memory_total = kGiB});
  for (ApplicationId id = 1; id <= 3; ++id) {
    EXPECT_EQ(PlaceAndBind(mapper.get(), {.id = id, .device = 1}), 2u);
  }
  EXPECT_EQ(mapper->Place({.id = 9, .device = 2}, 0).outcome, Decision::Outcome::kNoGpu);
  EXPECT_EQ(mapper->Place({.id = 9, .node = 5}, 0).outcome, Decision::Outcome::kNoGpu);
  EXPECT_EQ(mapper->Place({.id = 9, .memory = 2 * kGiB}, 0).outcome, Decision::Outcome::kNoMemory);
}

TEST(RoundRobinPolicy, GivesEachGpuItsTurnOverNodes) {
  const auto mapper = MakeMapper("grr");
  for (uint32_t i = 0; i < 4; ++i) mapper->AddGpu(Equal(i));
  for (ApplicationId id = 0; id < 12; ++id) {
    EXPECT_EQ(PlaceAndBind(mapper.get(), {.id = id, .node = 2}), id % 4);
    // Who is there does not matter, only whose turn it is.
    if (id % 3 == 0) mapper->Unbind(id);
  }
}

TEST(RoundRobinPolicy, OneThatWasPassedOverForMemoryIsNext) {
  const auto mapper = MakeMapper("grr");
  for (uint32_t i = 0; i < 3; ++i) mapper->AddGpu(Equal(i));
  mapper->SetLoad(0, {.memory_used = 16 * kGiB});
  EXPECT_EQ(PlaceAndBind(mapper.get(), {.id = 1, .memory = kGiB}), 1u);
  mapper->SetLoad(0, {});
  EXPECT_EQ(PlaceAndBind(mapper.get(), {.id = 2, .memory = kGiB}), 0u);
  EXPECT_EQ(PlaceAndBind(mapper.get(), {.id = 3, .memory = kGiB}), 2u);
}

TEST(LeastBoundPolicy, KeepsCountsWithinOneOfEachOther) {
  const auto mapper = MakeMapper("gmin");
  for (uint32_t i = 0; i < 5; ++i) mapper->AddGpu(Equal(i));
  std::map<Gid, int> counts;
  for (ApplicationId id = 0; id < 17; ++id) {
    ++counts[PlaceAndBind(mapper.get(), {.id = id, .node = 3})];
  }
  for (Gid gid = 0; gid < 5; ++gid) {
    EXPECT_GE(counts[gid], 3);
    EXPECT_LE(counts[gid], 4);
  }
  EXPECT_EQ(counts[3], 4);  // ties go local
}

TEST(LeastWeightedPolicy, BindsByWeight) {
  const auto mapper = MakeMapper("gwtmin");
  for (uint32_t i = 0; i < 3; ++i) {
    Gpu gpu = Equal(i);
    gpu.weight = 1 << i;
    mapper->AddGpu(gpu);
  }
  std::map<Gid, int> counts;
  for (ApplicationId id = 0; id < 70; ++id) {
    ++counts[PlaceAndBind(mapper.get(), {.id = id, .node = 9})];
  }
  EXPECT_EQ(counts[0], 10);
  EXPECT_EQ(counts[1], 20);
  EXPECT_EQ(counts[2], 40);
}

TEST(RuntimeFeedbackPolicy, GoesByWhatIsThereInTimeAndNotInNumber) {
  const auto mapper = MakeMapper("rtf");
  for (uint32_t i = 0; i < 2; ++i) mapper->AddGpu(Equal(i));
  mapper->Record({.program = 1, .runtime = 10 * kSecond, .gpu_time = kSecond}, 0);
  mapper->Record({.program = 2, .runtime = kSecond, .gpu_time = kSecond}, 0);
  EXPECT_EQ(PlaceAndBind(mapper.get(), {.id = 1, .program = 1}), 0u);
  for (ApplicationId id = 2; id <= 10; ++id) {
    EXPECT_EQ(PlaceAndBind(mapper.get(), {.id = id, .program = 2}), 1u);
  }
}

TEST(RuntimeFeedbackPolicy, TakesTheModelOnWhichTheProgramWasSeenToRunFaster) {
  const auto mapper = MakeMapper("rtf");
  Gpu slow = Equal(0);
  Gpu fast = Equal(1);
  fast.model = 1;
  fast.weight = 8;  // by its weight faster, but not for this program
  mapper->AddGpu(slow);
  mapper->AddGpu(fast);
  mapper->Record({.program = 1, .model = 0, .runtime = kSecond}, 0);
  mapper->Record({.program = 1, .model = 1, .runtime = 3 * kSecond}, 0);
  EXPECT_EQ(mapper->Place({.id = 1, .program = 1, .node = 7}, 0).gid, 0u);
}

TEST(UtilisationFeedbackPolicy, KeepsHighUtilisationApart) {
  const auto mapper = MakeMapper("guf");
  for (uint32_t i = 0; i < 2; ++i) mapper->AddGpu(Equal(i));
  Teach(mapper.get(), 1, 0.9, 0, 0);
  Teach(mapper.get(), 2, 0.1, 0, 0);
  EXPECT_EQ(PlaceAndBind(mapper.get(), {.id = 1, .program = 1}), 0u);
  for (ApplicationId id = 2; id <= 9; ++id) {
    EXPECT_EQ(PlaceAndBind(mapper.get(), {.id = id, .program = 2}), 1u);
  }
}

TEST(UtilisationFeedbackPolicy, SeesLoadThatIsNotItsOwn) {
  const auto mapper = MakeMapper("guf");
  for (uint32_t i = 0; i < 2; ++i) mapper->AddGpu(Equal(i));
  mapper->SetLoad(0, {.utilisation = kWhole / 2});
  EXPECT_EQ(mapper->Place({.id = 1, .node = 0}, 0).gid, 1u);
}

TEST(TransferFeedbackPolicy, PutsWhoCopiesBesideWhoComputes) {
  const auto mapper = MakeMapper("dtf");
  for (uint32_t i = 0; i < 2; ++i) mapper->AddGpu(Equal(i));
  Teach(mapper.get(), 1, 0.8, 0.0, 0.5);
  Teach(mapper.get(), 2, 0.1, 0.8, 0.5);
  const Gid computing = PlaceAndBind(mapper.get(), {.id = 1, .program = 1, .node = 0});
  const Gid copying = PlaceAndBind(mapper.get(), {.id = 2, .program = 2, .node = 1});
  EXPECT_NE(computing, copying);
  EXPECT_EQ(mapper->Place({.id = 3, .program = 2, .node = copying}, 0).gid, computing);
  EXPECT_EQ(mapper->Place({.id = 3, .program = 1, .node = computing}, 0).gid, copying);
}

TEST(BandwidthFeedbackPolicy, KeepsTwoBoundByBandwidthApart) {
  const auto mapper = MakeMapper("mbf");
  for (uint32_t i = 0; i < 2; ++i) mapper->AddGpu(Equal(i));
  Teach(mapper.get(), 1, 0.8, 0, 1.0);
  Teach(mapper.get(), 2, 0.8, 0, 0.05);
  const Gid memory = PlaceAndBind(mapper.get(), {.id = 1, .program = 1, .node = 0});
  const Gid arithmetic = PlaceAndBind(mapper.get(), {.id = 2, .program = 2, .node = 1});
  EXPECT_NE(memory, arithmetic);
  EXPECT_EQ(mapper->Place({.id = 3, .program = 1, .node = memory}, 0).gid, arithmetic);
  EXPECT_EQ(mapper->Place({.id = 3, .program = 2, .node = arithmetic}, 0).gid, memory);
}

TEST(FeedbackPolicies, OfTwoEmptyGpusTheFasterOneAlsoForOneThatOnlyComputes) {
  for (const std::string_view name : {"rtf", "dtf", "mbf"}) {
    const auto mapper = MakeMapper(name);
    mapper->AddGpu({.gid = 1, .model = 0, .weight = 1, .memory_total = kGiB});
    mapper->AddGpu({.gid = 2, .model = 1, .weight = 2, .memory_total = kGiB});
    Teach(mapper.get(), 1, 1.0, 0, 0.05);
    EXPECT_EQ(mapper->Place({.id = 1, .program = 1}, 0).gid, 2u) << name;
  }
}

TEST(FeedbackPolicies, ASensitiveProgramPaysForBeingRemote) {
  for (const std::string_view name : {"rtf", "dtf", "mbf"}) {
    const auto mapper = MakeMapper(name);
    for (uint32_t i = 0; i < 2; ++i) mapper->AddGpu(Equal(i));
    Teach(mapper.get(), 1, 0.4, 0, 0.5);
    mapper->Bind({.id = 1, .program = 1}, 0, 0);
    EXPECT_EQ(mapper->Place({.id = 2, .program = 1, .sensitivity = 0}, 0).gid, 1u) << name;
    EXPECT_EQ(mapper->Place({.id = 2, .program = 1, .sensitivity = 2}, 0).gid, 0u) << name;
  }
}

// The score of a GPU by the formulas of policies.h, written once more.
using Formula = std::function<double(const GpuState&, const Profile&, double slowdown)>;

Formula FormulaOf(std::string_view name) {
  if (name == "gmin")
    return [](const GpuState& gpu, const Profile&, double) { return gpu.bound(); };
  if (name == "grr") return [](const GpuState& gpu, const Profile&, double) { return gpu.turn; };
  if (name == "gwtmin") {
    return [](const GpuState& gpu, const Profile&, double) {
      return (gpu.bound() + 1.0) / gpu.gpu.weight;
    };
  }
  if (name == "rtf") {
    return [](const GpuState& gpu, const Profile& profile, double slowdown) {
      return static_cast<double>(gpu.runtime) + static_cast<double>(profile.runtime) * slowdown;
    };
  }
  if (name == "guf") {
    return [](const GpuState& gpu, const Profile& profile, double slowdown) {
      return (Part(std::max(gpu.compute, gpu.load.utilisation)) + Part(profile.compute)) * slowdown;
    };
  }
  return [name](const GpuState& gpu, const Profile& profile, double slowdown) {
    const double device = Part(profile.compute + profile.transfer);
    const double copying = device == 0 ? 0 : Part(profile.transfer) / device;
    double contention = 0;
    if (name == "dtf") {
      const double steps = std::round(copying * 4) / 4;
      contention = steps * Part(gpu.transfer) + (1 - steps) * Part(gpu.compute);
    } else {
      const double steps = std::round(copying * 2) / 2;
      const double bound = std::round(Part(profile.bandwidth) * 2) / 2;
      contention = steps * Part(gpu.transfer) +
                   (1 - steps) * (bound * Part(gpu.bandwidth) +
                                  (1 - bound) * (Part(gpu.compute) - 0.5 * Part(gpu.bandwidth)));
    }
    return std::sqrt(static_cast<double>(profile.runtime)) * slowdown * (contention + device);
  };
}

TEST(IndexedPolicies, ChooseWhatASearchThroughAllGpusWouldChoose) {
  for (const std::string_view name : PolicyNames()) {
    if (name == "static") continue;
    const Formula formula = FormulaOf(name);
    const auto mapper = MakeMapper(name);
    for (uint32_t i = 0; i < 60; ++i) mapper->AddGpu(TestGpu(i, 6, 3));
    TestRandom random(11);
    for (ApplicationId id = 1; id <= 1500; ++id) {
      const auto now = static_cast<Nanos>(id);
      const Gpu seen = TestGpu(static_cast<uint32_t>(random.Below(60)), 6, 3);
      const ProgramId program = random.Below(20);
      mapper->Record(TestFeedback(program, seen), now);
      const Application application{.id = id,
                                    .program = random.Below(25),
                                    .node = static_cast<NodeId>(random.Below(11)),
                                    .memory = random.Below(4) * kGiB,
                                    .sensitivity = static_cast<double>(random.Below(3)) / 4};
      double best = INFINITY;
      for (const Slot slot : mapper->pool().AllGpus()) {
        const GpuState& state = mapper->pool().at(slot);
        if (state.free() < application.memory) continue;
        const bool local = state.gpu.node == application.node;
        const Profile profile =
            mapper->pool().feedback().Estimate(application.program, state.gpu.model, now);
        best = std::min(best, formula(state, profile, local ? 1 : 1 + application.sensitivity));
      }
      const Decision decision = mapper->Place(application, now);
      ASSERT_EQ(decision.outcome == Decision::Outcome::kPlaced, best != INFINITY);
      if (best != INFINITY) {
        ASSERT_NEAR(decision.score, best, 1e-9 * std::abs(best)) << name << " " << id;
        mapper->Bind(application, decision.gid, now);
      }
      if (random.Below(3) != 0) mapper->Unbind(random.Below(id) + 1);
    }
  }
}

}  // namespace
}  // namespace consort::placement
