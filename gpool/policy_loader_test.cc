// SPDX-License-Identifier: Apache-2.0
// Policies as shared objects: the example of the tree decides, others are refused or put right.
#include "gpool/policy_loader.h"

#include <gtest/gtest.h>

#include <string>

#include "policies/placement/mapper.h"

namespace consort::gpool {
namespace {

using placement::Application;
using placement::Decision;
using placement::Mapper;
using placement::MapperOptions;

const std::string kModules = std::string(CONSORT_MODULES) + "/";

std::unique_ptr<Mapper> MakeMapper() {
  MapperOptions options;
  options.policy = "gmin";
  options.feedback_policy.clear();
  auto mapper = Mapper::Make(options);
  for (uint32_t i = 0; i < 4; ++i) {
    mapper->AddGpu(
        {.gid = i, .node = i / 2, .local_device = i % 2, .memory_total = (i + 1) * 8 * kGiB});
  }
  return mapper;
}

absl::Status StatusOf(const std::string& module, const std::string& argument = "") {
  const auto mapper = MakeMapper();
  return LoadPolicy(kModules + module, argument, &mapper->pool()).status();
}

TEST(PolicyLoader, TheExampleOfTheTreeDecides) {
  const auto mapper = MakeMapper();
  auto policy = LoadPolicy(kModules + "best_fit_policy.so", "2", &mapper->pool());
  ASSERT_TRUE(policy.ok()) << policy.status();
  const placement::PluginPolicy* const loaded = policy->get();
  EXPECT_EQ(loaded->name(), "best-fit");
  mapper->Install(*std::move(policy));
  // The least GPU that has 10 GiB, until it has two applications or too little memory.
  const placement::Gid expected[] = {1, 2, 2, 3, 3};
  for (uint64_t id = 0; id < 5; ++id) {
    const Application application{.id = id, .memory = 10 * kGiB};
    const Decision decision = mapper->Place(application, 0);
    EXPECT_EQ(decision.policy, "best-fit");
    EXPECT_EQ(decision.gid, expected[id]) << id;
    mapper->Bind(application, decision.gid, 0);
  }
  EXPECT_EQ(loaded->replaced(), 0u);
  EXPECT_EQ(mapper->Place({.id = 9, .memory = 64 * kGiB}, 0).outcome, Decision::Outcome::kNoMemory);
}

TEST(PolicyLoader, OneBuiltForAnotherVersionIsRefusedAndNotRun) {
  const absl::Status version = StatusOf("other_version_policy.so");
  EXPECT_EQ(version.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(version.message().find("version 2"), absl::string_view::npos) << version;
  const absl::Status layout = StatusOf("other_layout_policy.so");
  EXPECT_EQ(layout.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(layout.message().find("layout"), absl::string_view::npos) << layout;
}

TEST(PolicyLoader, RefusesWhatIsNoPolicy) {
  EXPECT_EQ(StatusOf("no_policy.so").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(StatusOf("nosuch.so").code(), absl::StatusCode::kNotFound);
  const auto mapper = MakeMapper();
  EXPECT_EQ(LoadPolicy("mfb", "", &mapper->pool()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(PolicyLoader, APolicyMayRefuseItsArgument) {
  EXPECT_EQ(StatusOf("misbehaves_policy.so", "refuse").code(), absl::StatusCode::kInvalidArgument);
}

TEST(PolicyLoader, AChoiceThatMayNotBeMadeIsReplacedAndCounted) {
  for (const char* how : {"throw", "nobody", "absent"}) {
    const auto mapper = MakeMapper();
    auto policy = LoadPolicy(kModules + "misbehaves_policy.so", how, &mapper->pool());
    ASSERT_TRUE(policy.ok()) << policy.status();
    const placement::PluginPolicy* const loaded = policy->get();
    mapper->Install(*std::move(policy));
    const Decision decision = mapper->Place({.id = 1, .node = 1}, 0);
    EXPECT_EQ(decision.outcome, Decision::Outcome::kPlaced) << how;
    EXPECT_EQ(decision.gid, 2u) << how;  // of its node, as all have the same number
    EXPECT_EQ(loaded->replaced(), 1u) << how;
  }
}

}  // namespace
}  // namespace consort::gpool
