// SPDX-License-Identifier: Apache-2.0
// Launches that come again and again, over a CPU driver whose calls are counted and can be made to
// fail: results are those of launches without a graph, and so are errors.
#include "host/session/repeated_launches.h"

#include <gtest/gtest.h>

#include "host/limits.h"
#include "host/session/launch_test_support.h"

namespace consort::host {
namespace {

// Launches of a kernel that are measured, and go without a graph, are fewer than this of a hundred.
constexpr uint32_t kMeasuredOfHundred = 20;

class RepeatedLaunchesTest : public LaunchTest {
 protected:
  explicit RepeatedLaunchesTest(bool chains = false) : LaunchTest(chains, /*repeats=*/true) {}

  // Each with another argument.
  void AddMany(uint32_t count, uint64_t stream = kLegacy, uint32_t threads = kThreads) {
    for (uint32_t i = 0; i < count; ++i) Add(i, stream, threads);
  }
};

TEST_F(RepeatedLaunchesTest, WhatComesAgainGoesByAGraph) {
  AddMany(RepeatedLaunches::kLaunchesPerGraph - 1);
  ExpectWords();
  EXPECT_EQ(calls.graphs, 0u);
  AddMany(300);
  ExpectWords();
  EXPECT_EQ(calls.graphs, 1u);
  EXPECT_GE(calls.graph_launches, 300 - 3 * kMeasuredOfHundred);
  EXPECT_GE(calls.changed_nodes, calls.graph_launches - 1);
  SessionEnded ended;
  peer_->Close();
  peer_->AwaitEnd(&ended);
  EXPECT_EQ(ended.kernel_launches, 2 + RepeatedLaunches::kLaunchesPerGraph - 1 + 300);
  EXPECT_EQ(calls.graphs_gone, calls.graphs);
}

TEST_F(RepeatedLaunchesTest, WhatTheNodeIsIsNotSetAgain) {
  for (int i = 0; i < 100; ++i) Add(5);
  ExpectWords();
  EXPECT_GE(calls.graph_launches, 50u);
  EXPECT_EQ(calls.changed_nodes, 0u);
}

TEST_F(RepeatedLaunchesTest, KernelsShapesAndStreamsHaveTheirOwn) {
  for (const uint64_t stream : {16, 17}) CreateStream(stream);
  for (int round = 0; round < 50; ++round) {
    // Blocking streams are in order with the default one alone.
    for (const uint64_t stream : {kLegacy, uint64_t{16}, kLegacy, uint64_t{17}}) {
      Add(round, stream);
      Add(round, stream, 2 * kThreads);
      Scale(3, round, stream);
    }
  }
  ExpectWords();
  EXPECT_EQ(calls.graphs, 9u);
  EXPECT_GE(calls.graph_launches, 100u);
  EXPECT_EQ(calls.elsewhere, 0u);
}

TEST_F(RepeatedLaunchesTest, AnErrorIsThatOfItsLaunchAlone) {
  AddMany(100);
  for (uint32_t i = 0; i < 3 * RepeatedLaunches::kLaunchesPerGraph; ++i) {
    PostImpossible();
    Add(i);
    EXPECT_EQ(peer_->Synchronize(), CUDA_ERROR_INVALID_VALUE);
  }
  AddMany(100);
  ExpectWords();
}

TEST_F(RepeatedLaunchesTest, WhatTheDriverRefusesGoesWithoutAGraph) {
  AddMany(100);
  ExpectWords();
  calls.refuse_nodes = true;
  AddMany(100);
  ExpectWords();
  calls.refuse_nodes = false;
  calls.refuse_graphs = true;
  AddMany(100);
  ExpectWords();
  calls.refuse_graphs = false;
  const uint32_t before = calls.graph_launches;
  AddMany(RepeatedLaunches::kLaunchesPerGraphMost + 100);
  ExpectWords();
  EXPECT_GT(calls.graph_launches, before) << "it was not tried again";
}

TEST_F(RepeatedLaunchesTest, OfMoreThanHaveRoomSomeKeepTheirGraphs) {
  constexpr uint32_t kShapes = kRepeatedGraphsPerSession + 40;
  constexpr uint32_t kRounds = 4 * RepeatedLaunches::kLaunchesPerGraph;
  const auto take_turns = [this](uint32_t first_threads, uint32_t rounds) {
    for (uint32_t round = 0; round < rounds; ++round) {
      for (uint32_t i = 0; i < kShapes; ++i) Add(i, kLegacy, first_threads + i);
    }
  };
  take_turns(kThreads, kRounds);
  ExpectWords();
  EXPECT_EQ(calls.graphs, kRepeatedGraphsPerSession);
  EXPECT_EQ(calls.graphs_gone, 0u);
  // Others that come instead of those get theirs.
  const uint32_t before = calls.graph_launches;
  take_turns(2 * kThreads + kShapes, kRounds);
  ExpectWords();
  EXPECT_EQ(calls.graphs, 2 * kRepeatedGraphsPerSession);
  EXPECT_EQ(calls.graphs_gone, kRepeatedGraphsPerSession);
  EXPECT_GE(calls.graph_launches, before + kRepeatedGraphsPerSession * kRounds / 2);
}

TEST_F(RepeatedLaunchesTest, GraphsThatAreNotWorthTheirMakingBecomeFewer) {
  // Each shape comes some times more often than it takes, and then not for long.
  constexpr uint32_t kShapes = 3 * kRepeatedGraphsPerSession;
  constexpr uint32_t kTimes = RepeatedLaunches::kLaunchesPerGraph * 3 / 2;
  for (int round = 0; round < 4; ++round) {
    for (uint32_t i = 0; i < kShapes; ++i) AddMany(kTimes, kLegacy, kThreads + i);
  }
  ExpectWords();
  EXPECT_GE(calls.graphs, kRepeatedGraphsPerSession);
  EXPECT_LE(calls.graphs, 2 * kRepeatedGraphsPerSession);
}

TEST_F(RepeatedLaunchesTest, WhatComesOnceHasNoGraph) {
  // More than are counted, so that counting begins anew, beside one that comes again and again.
  const uint64_t streams[] = {16, 17, 18};
  constexpr uint32_t kShapes = 800;
  static_assert(std::size(streams) * kShapes > 2 * kRepeatedKnownPerSession);
  for (const uint64_t stream : streams) {
    CreateStream(stream);
    for (uint32_t i = 1; i <= kShapes; ++i) {
      Add(i, stream, kThreads + i);
      Add(i);
    }
  }
  ExpectWords();
  EXPECT_EQ(calls.graphs, 1u);
  EXPECT_GE(calls.graph_launches, 2 * kShapes);
}

TEST_F(RepeatedLaunchesTest, AKernelIsForgottenWhenSomethingIsSetForIt) {
  AddMany(100);
  for (int i = 0; i < 100; ++i) Scale(3, 1);
  ExpectWords();
  SetSharedBytesOfAdd(1024);
  EXPECT_EQ(calls.graphs_gone, 1u);
  const uint32_t before = calls.graph_launches;
  for (int i = 0; i < 100; ++i) Scale(3, 1);
  AddMany(RepeatedLaunches::kLaunchesPerGraph - 1);
  ExpectWords();
  EXPECT_EQ(calls.graphs, 2u);
  EXPECT_GE(calls.graph_launches, before + 100 - kMeasuredOfHundred);
  AddMany(100);
  ExpectWords();
  EXPECT_EQ(calls.graphs, 3u);
}

TEST_F(RepeatedLaunchesTest, KernelsOfAnUnloadedLibraryAreForgotten) {
  AddMany(100);
  for (int i = 0; i < 100; ++i) Scale(3, 1);
  ExpectWords();
  EXPECT_EQ(calls.graphs, 2u);
  LoadAnew();
  EXPECT_EQ(calls.graphs_gone, 2u);
  for (int i = 0; i < 100; ++i) Scale(3, 1);
  ExpectWords();
  EXPECT_EQ(calls.graphs, 3u);
}

class RepeatedAndChainedTest : public RepeatedLaunchesTest {
 protected:
  RepeatedAndChainedTest() : RepeatedLaunchesTest(/*chains=*/true) {}
};

TEST_F(RepeatedAndChainedTest, StreamsKeepTheirOrder) {
  // By chains, by graphs of their own and without any, in blocking streams and the default one.
  const uint64_t streams[] = {kLegacy, 16, kLegacy, 17};
  for (const uint64_t stream : {16, 17}) CreateStream(stream);
  for (int round = 0; round < 40; ++round) {
    PostMany(round % 3 == 0 ? 100 : 7, streams[round % 4]);
    Add(1, streams[round % 4], kThreads + round);
  }
  ExpectWords();
  EXPECT_GE(calls.graph_launches, 20u);
  EXPECT_GE(calls.launches, 40u);
}

}  // namespace
}  // namespace consort::host
