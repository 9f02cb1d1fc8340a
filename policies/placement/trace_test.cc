// SPDX-License-Identifier: Apache-2.0
#include "policies/placement/trace.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "policies/placement/test_pools.h"

namespace consort::placement {
namespace {

// A life of a pool: GPUs come and go, programs arrive, are measured, leave, move.
std::vector<std::string> RecordedLife(std::string_view policy, uint64_t seed) {
  MapperOptions options;
  options.policy = std::string(policy);
  options.feedback_policy = policy == "grr" ? "mbf" : "";
  options.offload_threshold = static_cast<uint32_t>(seed % 3);
  options.feedback.enough = 1;
  const auto mapper = Mapper::Make(options);
  std::vector<std::string> lines;
  TraceWriter writer([&](std::string_view line) { lines.emplace_back(line); });
  mapper->RecordTo(&writer);
  TestRandom random(seed);
  for (uint32_t i = 0; i < 12; ++i) mapper->AddGpu(TestGpu(i, 3, 3));
  for (ApplicationId id = 1; id <= 400; ++id) {
    const auto now = static_cast<Nanos>(id) * 37 * kMillisecond;
    Application application{.id = id,
                            .program = random.Below(6),
                            .tenant = static_cast<TenantId>(random.Below(3)),
                            .node = static_cast<NodeId>(random.Below(5)),
                            .memory = random.Below(5) * kGiB,
                            .device = static_cast<uint32_t>(random.Below(4)),
                            .sensitivity = random.Below(2) == 0 ? -1 : 1.0 / 3};
    if (random.Below(4) == 0) {
      for (Gid gid = 1; gid <= 12; ++gid) {
        if (random.Below(3) == 0) application.only.push_back(gid);
      }
    }
    const Decision decision = mapper->Place(application, now);
    if (decision.outcome == Decision::Outcome::kPlaced)
      mapper->Bind(application, decision.gid, now);
    if (random.Below(3) != 0) mapper->Unbind(random.Below(id) + 1);
    const Gpu gpu = TestGpu(static_cast<uint32_t>(random.Below(12)), 3, 3);
    mapper->Record(TestFeedback(random.Below(6), gpu), now);
    if (random.Below(9) == 0) mapper->SetLoad(gpu.gid, {random.Below(4) * kGiB, kWhole / 3});
    if (random.Below(50) == 0) mapper->SetWeight(gpu.gid, 1.0 / 7 * static_cast<double>(id));
    if (random.Below(60) == 0) mapper->RemoveGpu(gpu.gid);
    if (random.Below(40) == 0) mapper->AddGpu(gpu);
  }
  return lines;
}

TEST(Trace, ReplaysToTheSameDecisionsUnderEveryPolicy) {
  for (const std::string_view policy : PolicyNames()) {
    const std::vector<std::string> lines = RecordedLife(policy, policy.size());
    Replay replay;
    for (const std::string& line : lines) {
      ASSERT_EQ(replay.Line(line), Replay::Result::kDone) << policy << ": " << line;
    }
    EXPECT_EQ(replay.decisions(), 400u);
  }
}

TEST(Trace, HasWhatATenantMayUseAndIsPlacedBy) {
  std::vector<std::string> lines;
  TraceWriter writer([&](std::string_view line) { lines.emplace_back(line); });
  MapperOptions options;
  options.policy = "gmin";
  const auto mapper = Mapper::Make(options);
  mapper->RecordTo(&writer);
  mapper->AddGpu(TestGpu(0, 2, 1));
  mapper->AddGpu(TestGpu(1, 2, 1));
  const Application application{.id = 1, .only = {2}, .policy = mapper->Know("rtf")};
  EXPECT_EQ(mapper->Place(application, 0).policy, "rtf");
  EXPECT_TRUE(lines.back().ends_with(" only=2 policy=rtf")) << lines.back();
  Replay replay;
  for (const std::string& line : lines) {
    ASSERT_EQ(replay.Line(line), Replay::Result::kDone) << line;
  }
  EXPECT_EQ(replay.decisions(), 1u);
  std::string bad = lines.back();
  bad.replace(bad.find("policy=rtf"), std::string::npos, "policy=rft");
  EXPECT_EQ(replay.Line(bad), Replay::Result::kBadLine);
}

TEST(Trace, LooksAsDescribed) {
  const std::vector<std::string> lines = RecordedLife("mbf", 3);
  EXPECT_EQ(lines[0], kTraceHead);
  EXPECT_EQ(lines[1], "options mbf - 700000 400000 0.25 0 1800000000000 1 16");
  EXPECT_EQ(lines[2], "gpu 1 0 0 0 1 8589934592 1e+11");
}

TEST(Trace, TellsWhereDecisionsPart) {
  std::vector<std::string> lines = RecordedLife("gmin", 1);
  Replay replay;
  bool differs = false;
  bool changed = false;
  for (std::string& line : lines) {
    const size_t at = line.find(" placed 3 gmin");
    if (!changed && at != std::string::npos) {
      line.replace(at, std::string::npos, " placed 4 gmin");
      changed = true;
      EXPECT_EQ(replay.Line(line), Replay::Result::kDiffers);
      EXPECT_EQ(replay.decision().gid, 3u);
      differs = true;
      continue;
    }
    ASSERT_EQ(replay.Line(line), Replay::Result::kDone) << line;
  }
  EXPECT_TRUE(differs);
}

TEST(Trace, RefusesWhatIsNoTrace) {
  const std::string head(kTraceHead);
  const std::string options = "options gmin - 700000 400000 0.25 0 1800000000000 1 16";
  for (const std::string& bad : std::vector<std::string>{
           "gpu 1 0 0 0 1 5", "gpu 1 0 0 0 1 5 0 0", "gpu x 0 0 0 1 5 0", "gpu -1 0 0 0 1 5 0",
           "gpu 1  0 0 0 1 5 0", "gpu 99999999999 0 0 0 1 5 0", "nosuch 1", " ", "unbind",
           "place 0 1 1 1 1 1 1 1 placed 1", "bind 0 1 1 1 1 1 1 1", "load 1 2", "weight 1",
           "feedback 1 2", "gone", "bind -1 1 1 1 1 1 1 1 1",
           "bind 9223372036854775807 1 1 1 1 1 1 1 1", options}) {
    Replay replay;
    ASSERT_EQ(replay.Line(head), Replay::Result::kDone);
    ASSERT_EQ(replay.Line(options), Replay::Result::kDone);
    EXPECT_EQ(replay.Line(bad), Replay::Result::kBadLine) << bad;
  }
  Replay headless;
  EXPECT_EQ(headless.Line(options), Replay::Result::kBadLine);
  Replay early;
  EXPECT_EQ(early.Line(head), Replay::Result::kDone);
  EXPECT_EQ(early.Line("gone 1"), Replay::Result::kBadLine);
  EXPECT_EQ(early.Line("options nosuch - 700000 400000 0.25 0 1800000000000 1 16"),
            Replay::Result::kBadLine);
}

TEST(Trace, SaysWhatTheMapperRefused) {
  Replay replay;
  ASSERT_EQ(replay.Line(kTraceHead), Replay::Result::kDone);
  ASSERT_EQ(replay.Line("options gmin - 700000 400000 0.25 0 1800000000000 1 16"),
            Replay::Result::kDone);
  EXPECT_EQ(replay.Line("# GPUs"), Replay::Result::kDone);
  EXPECT_EQ(replay.Line("gpu 1 0 0 0 1 8589934592 0"), Replay::Result::kDone);
  EXPECT_EQ(replay.Line("gpu 1 0 0 0 1 8589934592 0"), Replay::Result::kRefused);
  EXPECT_EQ(replay.Line("gone 2"), Replay::Result::kRefused);
  EXPECT_EQ(replay.Line("unbind 7"), Replay::Result::kRefused);
  EXPECT_EQ(replay.Line("weight 1 0"), Replay::Result::kRefused);
}

}  // namespace
}  // namespace consort::placement
