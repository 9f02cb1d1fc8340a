// SPDX-License-Identifier: Apache-2.0
#include "gpool/mapper_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "gpool/limits.h"

namespace consort::gpool {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr Nanos kNow = 1'700'000'000 * kSecond;

// Node a has GPUs 1 and 2, node b GPU 3.
Gmap TwoNodes() {
  Gmap map;
  map.nodes["a"] = {"a", "10.0.0.1:7010", "x", {}};
  map.nodes["b"] = {"b", "10.0.0.2:7010", "y", {}};
  for (const Gid gid : {1u, 2u}) {
    map.nodes["a"].gpus.push_back({gid, gid - 1, absl::StrCat("GPU-", gid), "M", kGiB, {}, ""});
  }
  map.nodes["b"].gpus.push_back({3, 0, "GPU-3", "M", kGiB, {}, ""});
  return map;
}

class MapperStateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto state = MapperState::Make({"gmin", ""});
    ASSERT_TRUE(state.ok()) << state.status();
    state_ = *std::move(state);
    state_->SetMap(TwoNodes());
  }

  std::vector<Gid> Place(const std::string& node, uint64_t id, uint32_t vgpus, bool trial = false) {
    const auto placed = state_->Place(node, {id, "t", "app", {}}, vgpus, trial, kNow);
    EXPECT_TRUE(placed.ok()) << placed.status();
    std::vector<Gid> gids;
    if (!placed.ok()) return gids;
    for (const PlacedVgpu& one : *placed) {
      EXPECT_FALSE(one.why.empty());
      gids.push_back(one.gid);
    }
    return gids;
  }
  // In use, in the order of gids.
  std::vector<uint32_t> Bound() const {
    std::vector<uint32_t> bound;
    for (const GpuUse& use : state_->Uses()) bound.push_back(use.bound);
    return bound;
  }

  std::unique_ptr<MapperState> state_;
};

TEST_F(MapperStateTest, ApplicationsSpreadAndTheirFirstGpuCounts) {
  EXPECT_THAT(Place("a", 1, 1), ElementsAre(1));
  EXPECT_THAT(Place("a", 2, 1), ElementsAre(2));
  EXPECT_THAT(Place("a", 3, 1), ElementsAre(3));
  EXPECT_THAT(Bound(), ElementsAre(1, 1, 1));
  state_->Release("a", 2);
  EXPECT_THAT(Place("b", 1, 1), ElementsAre(2));  // the same number of another node's is another
  EXPECT_THAT(Bound(), ElementsAre(1, 1, 1));
}

TEST_F(MapperStateTest, AnApplicationGetsDifferentGpusAsFarAsThereAreSoMany) {
  EXPECT_THAT(Place("b", 1, 2), ElementsAre(3, 1));
  EXPECT_THAT(Place("b", 2, 64), ElementsAre(1, 3, 2));
  EXPECT_THAT(Bound(), ElementsAre(1, 0, 1));  // of each its first only
}

TEST_F(MapperStateTest, ATenantGetsOnlyWhatItMayUse) {
  const auto place = [this](uint64_t id, uint32_t vgpus, std::vector<Gid> only) {
    std::vector<Gid> gids;
    const auto placed =
        state_->Place("a", {id, "t", "app", {}, std::move(only)}, vgpus, false, kNow);
    if (!placed.ok()) return gids;
    for (const PlacedVgpu& one : *placed) gids.push_back(one.gid);
    return gids;
  };
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_THAT(place(id, 1, {3}), ElementsAre(3));
  EXPECT_THAT(place(5, 64, {2, 3}), ElementsAre(2, 3));
  EXPECT_THAT(Bound(), ElementsAre(0, 1, 4));
  EXPECT_THAT(place(6, 1, {7}), ElementsAre());
}

TEST_F(MapperStateTest, ATenantIsPlacedByThePolicyOfItsOwn) {
  const auto place = [this](uint64_t id, const std::string& policy) {
    return state_->Place("a", {id, "t", "app", {}, {}, policy}, 1, false, kNow);
  };
  // Always the first device of its node, however busy that is.
  for (uint64_t id = 1; id <= 4; ++id) {
    const auto placed = place(id, "static");
    ASSERT_TRUE(placed.ok()) << placed.status();
    EXPECT_EQ(placed->front().gid, 1u);
    EXPECT_THAT(placed->front().why, HasSubstr("by static"));
  }
  EXPECT_THAT(Place("a", 5, 1), ElementsAre(2));
  const auto unknown = place(6, "nosuch");
  EXPECT_TRUE(absl::IsResourceExhausted(unknown.status()));
  EXPECT_THAT(std::string(unknown.status().message()), HasSubstr("no placement policy nosuch"));
  EXPECT_THAT(Bound(), ElementsAre(4, 1, 0));
}

TEST_F(MapperStateTest, ATrialChangesNothing) {
  EXPECT_THAT(Place("a", 1, 3, /*trial=*/true), UnorderedElementsAre(1, 2, 3));
  EXPECT_THAT(Bound(), ElementsAre(0, 0, 0));
}

TEST_F(MapperStateTest, AskingTwiceCountsOnce) {
  Place("a", 1, 1);
  Place("a", 1, 1);
  EXPECT_THAT(Bound(), ElementsAre(1, 0, 0));
}

TEST_F(MapperStateTest, WhatIsUsedReplacesWhatWasToldBefore) {
  Place("a", 1, 3);
  state_->Use("a", {1, "t", "app", {2, 3, 99}}, kNow);
  EXPECT_THAT(Bound(), ElementsAre(0, 1, 1));
  state_->Use("b", {1, "t", "app", {3}}, kNow);
  state_->Clear("a");
  EXPECT_THAT(Bound(), ElementsAre(0, 0, 1));
}

TEST_F(MapperStateTest, WhatIsUsedAlreadyIsNoNewArrival) {
  auto state = MapperState::Make({"grr", ""});
  ASSERT_TRUE(state.ok()) << state.status();
  state_ = *std::move(state);
  state_->SetMap(TwoNodes());
  EXPECT_THAT(Place("b", 1, 1), ElementsAre(1));
  EXPECT_THAT(Place("a", 2, 1), ElementsAre(2));
  state_->Use("b", {1, "t", "app", {1}}, kNow);  // the turn of GPU 1 stays before that of GPU 2
  EXPECT_THAT(Place("a", 3, 1), ElementsAre(3));
  EXPECT_THAT(Place("a", 4, 1), ElementsAre(1));
}

TEST_F(MapperStateTest, ANodeThatIsGoneTakesItsGpusAndApplicationsAlong) {
  state_->Use("a", {1, "t", "app", {1, 3}}, kNow);
  state_->Use("b", {1, "t", "app", {1, 3}}, kNow);
  Gmap only_a = TwoNodes();
  only_a.nodes.erase("b");
  state_->SetMap(only_a);
  EXPECT_THAT(Bound(), ElementsAre(1, 0));  // a's own, on what is left
  state_->SetMap(TwoNodes());
  EXPECT_THAT(Bound(), ElementsAre(1, 0, 0));
  state_->SetMap(Gmap());
  EXPECT_TRUE(
      absl::IsResourceExhausted(state_->Place("a", {2, "t", "app", {}}, 1, false, kNow).status()));
}

FeedbackRecord Measured(const std::string& id, const std::string& application, Nanos gpu_time) {
  return {id, application, ModelKey("M", kGiB), kNow, 10 * kSecond, gpu_time, 0, 4096, 0.125};
}

TEST_F(MapperStateTest, AMeasurementThatIsToldAgainCountsOnce) {
  EXPECT_TRUE(state_->Record(Measured("1", "app", kSecond)));
  EXPECT_FALSE(state_->Record(Measured("1", "app", kSecond)));
  EXPECT_FALSE(state_->Record({"2", "app", "M", kNow, 0, 0, 0, 0, -1}));  // no time at all
}

TEST_F(MapperStateTest, HistoryDecidesForTheNextMapperToo) {
  auto make = [] {
    auto state = MapperState::Make({"gmin", "guf"});
    EXPECT_TRUE(state.ok()) << state.status();
    (*state)->SetMap(TwoNodes());
    return *std::move(state);
  };
  const auto arrivals = [](MapperState* state) {
    for (uint64_t id = 1; id <= 40; ++id) {
      EXPECT_TRUE(state->Place("a", {id, "t", "app", {}}, 1, false, kNow).ok());
    }
    return state->policy();
  };
  const auto first = make();
  EXPECT_EQ(arrivals(first.get()), "gmin");
  for (int i = 0; i < 8; ++i) first->Record(Measured(absl::StrCat(i), "app", 9 * kSecond));
  EXPECT_EQ(arrivals(first.get()), "guf");
  const auto second = make();
  second->Load(first->History());
  EXPECT_EQ(arrivals(second.get()), "guf");
  EXPECT_EQ(second->History(), first->History());
}

TEST_F(MapperStateTest, HistoryIsBoundedAndNonsenseInItIsPassedOver) {
  for (size_t i = 0; i < kFeedbackKept + 5; ++i) {
    state_->Record(Measured(absl::StrCat("id", i), "app", kSecond));
  }
  const std::string history = state_->History();
  EXPECT_THAT(history, ::testing::Not(HasSubstr("\"id4\"")));
  EXPECT_THAT(history, HasSubstr("\"id5\""));
  EXPECT_LT(history.size(), 1u << 20);  // etcd takes 1.5 MiB
  const std::string before = state_->History();
  for (const char* text : {"", "{", "[]", "{\"records\":1}", "{\"records\":[1,{},{\"id\":2}]}"}) {
    state_->Load(text);
  }
  EXPECT_EQ(state_->History(), before);
}

TEST(MapperState, KnowsPoliciesByName) {
  EXPECT_TRUE(absl::IsInvalidArgument(MapperState::Make({"none such", ""}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(MapperState::Make({"gmin", "none such"}).status()));
}

TEST(MapperState, APolicyOfTheOperatorsOwnDecides) {
  const std::string modules = absl::StrCat(CONSORT_MODULES, "/");
  // The example fills GPUs up, as far as its argument allows; the one with the least memory first.
  Gmap map = TwoNodes();
  map.nodes["a"].gpus[0].memory_bytes = 3 * kGiB;
  map.nodes["a"].gpus[1].memory_bytes = 2 * kGiB;
  auto state = MapperState::Make({absl::StrCat(modules, "best_fit_policy.so=2"), ""});
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ((*state)->policy(), "best-fit");
  (*state)->SetMap(map);
  std::vector<Gid> gids;
  for (uint64_t id = 1; id <= 6; ++id) {
    const auto placed = (*state)->Place("a", {id, "t", "app", {}}, 1, false, kNow);
    ASSERT_TRUE(placed.ok()) << placed.status();
    EXPECT_THAT((*placed)[0].why, HasSubstr("best-fit"));
    gids.push_back((*placed)[0].gid);
  }
  EXPECT_THAT(gids, ElementsAre(3, 3, 2, 2, 1, 1));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      MapperState::Make({absl::StrCat(modules, "no_policy.so"), ""}).status()));
  EXPECT_TRUE(
      absl::IsNotFound(MapperState::Make({absl::StrCat(modules, "none.so"), "mbf"}).status()));
}

// Weights are square roots of both rates' product.
GpuSpeed SpeedOf(double weight) { return {1e9, 1e9, 100e9 * weight, 1e12 * weight}; }

TEST_F(MapperStateTest, GpusGetApplicationsByTheirMeasuredWeight) {
  auto state = MapperState::Make({"gwtmin", ""});
  ASSERT_TRUE(state.ok()) << state.status();
  state_ = *std::move(state);
  Gmap map = TwoNodes();
  map.nodes["a"].gpus[0].speed = SpeedOf(1);
  map.nodes["a"].gpus[1].speed = SpeedOf(1.2);
  map.nodes["b"].gpus[0].speed = SpeedOf(3);
  state_->SetMap(map);
  for (uint64_t id = 1; id <= 10; ++id) Place("a", id, 1);
  EXPECT_THAT(Bound(), ElementsAre(2, 2, 6));
}

TEST(Weights, OfGpusThatAreAlikeAreEqual) {
  Gmap map;
  map.nodes["a"] = {"a", "10.0.0.1:7010", "x", {}};
  const std::vector<double> measured = {10, 10.4, 12.5, 12.6, 0, 40, 1e-9, 9.9e8};
  for (const double weight : measured) {
    GpuRecord& gpu = map.nodes["a"].gpus.emplace_back();
    gpu.gid = static_cast<Gid>(map.nodes["a"].gpus.size());
    gpu.speed = SpeedOf(weight);
  }
  std::vector<double> weights;
  for (const auto& [gid, weight] : Weights(map)) weights.push_back(weight);
  // The second and third are as the first, the fifth was not measured, the last two are at bounds.
  EXPECT_THAT(weights,
              ::testing::Pointwise(::testing::DoubleEq(),
                                   std::vector<double>{10, 10, 10, 12.6, 1, 40, 1e-6, 1e6}));
}

}  // namespace
}  // namespace consort::gpool
