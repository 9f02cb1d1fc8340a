// SPDX-License-Identifier: Apache-2.0
// Chains of launches, over a CPU driver whose calls are counted and can be made to fail: results
// are those of launches one by one, and so are errors.
#include "host/session/launch_chain.h"

#include <gtest/gtest.h>

#include "host/session/launch_test_support.h"

namespace consort::host {
namespace {

class LaunchChainTest : public LaunchTest {
 protected:
  LaunchChainTest() : LaunchTest(/*chains=*/true, /*repeats=*/false) {}
};

TEST_F(LaunchChainTest, ManyThatWaitGoAsOneAndInOrder) {
  PostMany(600);
  ExpectWords();
  EXPECT_GE(calls.graph_launches, 3u);
  EXPECT_LE(calls.launches, 602 - 3 * LaunchChains::kLengthLeast);
  SessionEnded ended;
  peer_->Close();
  peer_->AwaitEnd(&ended);
  EXPECT_EQ(ended.kernel_launches, 602u);
}

TEST_F(LaunchChainTest, FewGoOneByOne) {
  for (int round = 0; round < 20; ++round) {
    PostMany(LaunchChains::kLengthLeast - 1);
    ASSERT_EQ(peer_->Synchronize(), CUDA_SUCCESS);
  }
  ExpectWords();
  EXPECT_EQ(calls.graph_launches, 0u);
  EXPECT_EQ(calls.graphs, 0u);
}

TEST_F(LaunchChainTest, WhatANodeHasIsNotSetAgain) {
  // Of the same kind throughout: wherever chains begin, nodes stay as they are.
  const auto same = [this](uint32_t count) {
    calls.held = true;
    for (uint32_t i = 0; i < count; ++i) Add(5);
    calls.held = false;
  };
  same(1000);
  ExpectWords();
  EXPECT_GE(calls.graph_launches, 3u);
  EXPECT_EQ(calls.changed_nodes, 0u);
  PostMany(600);
  ExpectWords();
  EXPECT_GE(calls.changed_nodes, 10u);
}

TEST_F(LaunchChainTest, WhatIsRepeatedFindsItsGraphsWhereverItIsCut) {
  // Two kernels in turns, an odd number each time: what began with the one begins with the other.
  constexpr uint32_t kLaunches = 97;
  uint32_t next = 0;
  const auto rounds = [&](int count) {
    for (int round = 0; round < count; ++round) {
      calls.held = true;
      for (uint32_t i = 0; i < kLaunches; ++i) {
        if (++next % 2 == 0) {
          Add(5);
        } else {
          Scale(3, 1);
        }
      }
      calls.held = false;
      ASSERT_EQ(peer_->Synchronize(), CUDA_SUCCESS);
    }
  };
  rounds(60);
  const uint32_t before = calls.changed_nodes;
  const uint32_t chains = calls.graph_launches;
  rounds(20);
  ExpectWords();
  EXPECT_GE(calls.graph_launches, chains + 20);
  // Each node of each chain, if any graph would do.
  EXPECT_LE(calls.changed_nodes - before, 20 * kLaunches / 4);
}

TEST_F(LaunchChainTest, StreamsKeepTheirOrder) {
  // Blocking streams and the default stream, each for some launches at a time.
  const uint64_t streams[] = {kLegacy, 16, kLegacy, 17};
  for (const uint64_t stream : {16, 17}) CreateStream(stream);
  for (int round = 0; round < 12; ++round) PostMany(100, streams[round % 4]);
  ExpectWords();
  EXPECT_GE(calls.graph_launches, 8u);
}

TEST_F(LaunchChainTest, NoGraphIsUsedWhileItRuns) {
  calls.busy = true;
  PostMany(1500);
  calls.busy = false;
  ExpectWords();
  EXPECT_GE(calls.graph_launches, 3u);
  EXPECT_EQ(calls.relaunched, 0u);
}

TEST_F(LaunchChainTest, AnErrorIsThatOfItsLaunchAlone) {
  PostMany(400);
  calls.held = true;
  for (uint32_t i = 0; i < 100; ++i) {
    if (i == 70) {
      PostImpossible();
    } else {
      Add(i);
    }
  }
  calls.held = false;
  EXPECT_EQ(peer_->Synchronize(), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(peer_->Synchronize(), CUDA_SUCCESS);
  PostMany(400);
  ExpectWords();
}

TEST_F(LaunchChainTest, WhatTheDriverRefusesGoesOneByOne) {
  PostMany(400);
  ExpectWords();
  EXPECT_GE(calls.graph_launches, 3u);
  calls.refuse_nodes = true;
  PostMany(600);
  ExpectWords();
  calls.refuse_nodes = false;
  calls.refuse_graphs = true;
  PostMany(600);
  ExpectWords();
}

TEST_F(LaunchChainTest, ARefusedChainWasNotLaunched) {
  calls.refuse_graphs = true;
  PostMany(600);
  ExpectWords();
  EXPECT_EQ(calls.graphs, 1u) << "it was tried again";
}

TEST_F(LaunchChainTest, KernelsOfAnUnloadedLibraryAreForgotten) {
  PostMany(600);
  ExpectWords();
  const uint32_t graphs = calls.graphs;
  EXPECT_GE(graphs, 1u);
  LoadAnew();
  PostMany(600);
  ExpectWords();
  EXPECT_GT(calls.graphs, graphs);
}

}  // namespace
}  // namespace consort::host
