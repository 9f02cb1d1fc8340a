// SPDX-License-Identifier: Apache-2.0
#include "host/session/stream_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <vector>

namespace consort::host {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr StreamOrder::Key kDefault = StreamOrder::kDefaultStream;

std::vector<StreamOrder::Key> Work(StreamOrder* order, StreamOrder::Key stream) {
  std::vector<StreamOrder::Key> wait_for;
  order->BeforeWork(stream, &wait_for);
  return wait_for;
}

TEST(StreamOrder, DefaultStreamWaitsForNewWorkOfBlockingStreamsOnce) {
  StreamOrder order;
  order.Add(1);
  order.Add(2);
  order.Add(3);
  EXPECT_THAT(Work(&order, 1), IsEmpty());
  EXPECT_THAT(Work(&order, 1), IsEmpty());
  EXPECT_THAT(Work(&order, 2), IsEmpty());
  EXPECT_THAT(Work(&order, kDefault), UnorderedElementsAre(1, 2));
  EXPECT_THAT(Work(&order, kDefault), IsEmpty());
}

TEST(StreamOrder, BlockingStreamWaitsForTheDefaultStreamOnce) {
  StreamOrder order;
  order.Add(1);
  EXPECT_THAT(Work(&order, kDefault), IsEmpty());
  EXPECT_THAT(Work(&order, 1), ElementsAre(kDefault));
  EXPECT_THAT(Work(&order, 1), IsEmpty());
  EXPECT_THAT(Work(&order, kDefault), ElementsAre(1));
  EXPECT_THAT(Work(&order, 1), ElementsAre(kDefault));
}

TEST(StreamOrder, NonBlockingStreamsTakeNoPart) {
  StreamOrder order;
  EXPECT_THAT(Work(&order, 9), IsEmpty());
  EXPECT_THAT(Work(&order, kDefault), IsEmpty());
  EXPECT_THAT(Work(&order, 9), IsEmpty());
}

TEST(StreamOrder, RemovedStreamSaysWhetherItsWorkIsStillToBeWaitedFor) {
  StreamOrder order;
  order.Add(1);
  order.Add(2);
  EXPECT_FALSE(order.Remove(2));
  Work(&order, 1);
  EXPECT_TRUE(order.Remove(1));
  EXPECT_THAT(Work(&order, kDefault), IsEmpty());
  EXPECT_FALSE(order.Remove(1));
}

// Random programs. A model computes for each piece of work which earlier ones must have ended,
// straight from the guide's sentences; the edges given must imply exactly those, through what waits
// for what.
TEST(StreamOrder, ImpliesWhatTheGuideSaysForRandomPrograms) {
  const char* given = std::getenv("CONSORT_TEST_SEED");
  const auto seed =
      given != nullptr ? static_cast<unsigned>(std::atoi(given)) : std::random_device()();
  SCOPED_TRACE(::testing::Message() << "CONSORT_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  for (int program = 0; program < 200; ++program) {
    StreamOrder order;
    constexpr int kStreams = 5;  // 0 the default, 1 to 3 blocking, 4 non-blocking
    for (StreamOrder::Key key = 1; key <= 3; ++key) order.Add(key);
    struct Piece {
      StreamOrder::Key stream;
      std::set<int> after_expected;
      std::set<int> after_given;  // transitive
    };
    std::vector<Piece> pieces;
    std::map<StreamOrder::Key, std::set<int>>
        ended_before;  // what the stream's present end implies
    for (int i = 0; i < 60; ++i) {
      Piece piece;
      piece.stream = random() % kStreams;
      for (int j = 0; j < i; ++j) {
        const StreamOrder::Key other = pieces[j].stream;
        const bool ordered = other == piece.stream || (piece.stream == 0 && other <= 3) ||
                             (piece.stream <= 3 && other == 0);
        if (!ordered) continue;
        piece.after_expected.insert(j);
        piece.after_expected.insert(pieces[j].after_expected.begin(),
                                    pieces[j].after_expected.end());
      }
      std::set<int>& end = ended_before[piece.stream];
      for (const StreamOrder::Key other : Work(&order, piece.stream)) {
        ASSERT_NE(other, piece.stream);
        end.insert(ended_before[other].begin(), ended_before[other].end());
      }
      piece.after_given = end;
      end.insert(i);
      ASSERT_EQ(piece.after_given, piece.after_expected) << "piece " << i;
      pieces.push_back(piece);
    }
  }
}

}  // namespace
}  // namespace consort::host
