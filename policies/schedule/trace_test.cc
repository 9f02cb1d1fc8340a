// SPDX-License-Identifier: Apache-2.0
#include "policies/schedule/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace consort::schedule {
namespace {

using ::testing::HasSubstr;

constexpr size_t kRoom = 64 << 20;

// Eight applications of four tenants that want the device again and again, for a while.
std::string RecordWork(std::string_view name) {
  TraceLog log(kRoom);
  const auto policy = Record(name, MakePolicy(name, Options()), &log);
  std::mt19937_64 random(17);
  struct State {
    bool waits = false;
    uint32_t in_flight = 0;
  };
  std::vector<State> states(8);
  Nanos now = kSecond;
  for (ApplicationId id = 0; id < states.size(); ++id) policy->Join({id, id / 2, 1 + id / 2}, now);
  for (int step = 0; step < 3000; ++step) {
    now += static_cast<Nanos>(random() % 400) * kMicrosecond;
    const auto id = static_cast<ApplicationId>(random() % states.size());
    State& state = states[id];
    if (state.in_flight != 0) {
      policy->Charge(id, ServedAlone(static_cast<Nanos>(random() % kMillisecond)), now);
      policy->Expect(id, static_cast<Nanos>(random() % kMillisecond), now);
      policy->Finish(id, now);
      --state.in_flight;
    }
    if (step == 1000) policy->SetWeight(3, 1, now);
    if (!state.waits) {
      const Batch batch = {static_cast<Phase>(random() % kPhases),
                           static_cast<Nanos>(random() % kMillisecond)};
      policy->Wait(id, batch, now);
      state.waits = true;
    } else if (random() % 50 == 0) {
      policy->Withdraw(id, now);
      state.waits = false;
    }
    while (const auto chosen = policy->Choose(now, random() % 64 == 0)) {
      policy->Start(*chosen, now);
      states[*chosen].waits = false;
      ++states[*chosen].in_flight;
    }
  }
  policy->Leave(0, now);
  return log.Take();
}

class TraceOf : public ::testing::TestWithParam<std::string_view> {};

TEST_P(TraceOf, GivesTheSameDecisionsAgain) {
  const Replay replay = ReplayTrace(RecordWork(GetParam()), std::nullopt, Options());
  EXPECT_EQ(replay.error, "");
  EXPECT_GT(replay.decisions, 3000u);
  EXPECT_EQ(replay.different, 0u) << "first in line " << replay.first_different;
}

TEST_P(TraceOf, WithOtherOptionsGivesOthers) {
  Options options;
  options.lead = 40 * kMillisecond;
  options.batches_in_flight = 1;
  options.idle_max = kSecond;
  const Replay replay = ReplayTrace(RecordWork(GetParam()), std::nullopt, options);
  EXPECT_EQ(replay.error, "");
  EXPECT_GT(replay.different, 0u);
  EXPECT_GT(replay.first_different, 0u);
}

INSTANTIATE_TEST_SUITE_P(Policies, TraceOf, ::testing::ValuesIn(PolicyNames()),
                         [](const auto& info) { return std::string(info.param); });

TEST(Trace, MayBeGivenToAnotherPolicy) {
  const Replay replay = ReplayTrace(RecordWork("fcfs"), "sjf", Options());
  EXPECT_EQ(replay.error, "");
  EXPECT_GT(replay.different, 0u);
}

TEST(Trace, NamesTheLineThatIsNone) {
  const std::string begin = "policy tfs\njoin 1 0 0 1\n";
  for (const char* line :
       {"policy", "policy fairest", "join 1 0 0 1", "join 1 1 0 0", "join 1 4000000000 0 1",
        "wait 1 9 0 0", "wait 1 0 7 0", "finish 1 0", "choose 1 0", "choose 1 x 0", "leave 1",
        "start 1 0 0", "charge 1 0", "expect 1 0", "weight 1 0 0", "later 1 0", "", "\xff"}) {
    const Replay replay = ReplayTrace(begin + line + "\nleave 1 0\n", std::nullopt, Options());
    EXPECT_THAT(replay.error, HasSubstr("line 3 ")) << line;
    EXPECT_EQ(replay.events, 2u) << line;
  }
  EXPECT_THAT(ReplayTrace("join 1 0 0 1\n", std::nullopt, Options()).error, HasSubstr("line 1 "));
}

TEST(TraceLog, EndsAtItsBoundAndNotInTheMiddleOfALine) {
  TraceLog log(8);
  log.Append("abc");
  EXPECT_EQ(log.Take(), "abc\n");
  log.Append("abc");
  log.Append("def");
  EXPECT_FALSE(log.full());
  log.Append("");
  EXPECT_TRUE(log.full());
  EXPECT_EQ(log.Take(), "abc\ndef\n");
  log.Append("ghi");
  EXPECT_EQ(log.Take(), "") << "after a gap nothing can be repeated";
}

}  // namespace
}  // namespace consort::schedule
