// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "host/limits.h"

namespace consort::host {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Pair;

TenantChange Weight(const std::string& tenant, std::optional<uint32_t> weight) {
  TenantChange change;
  change.tenant = tenant;
  change.weight.emplace(weight);
  return change;
}

class SettingsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/settings-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // As consortd starts, with a file of tenants that gives "web" 2.
  absl::StatusOr<Settings> Load() {
    TenantsFile file;
    file.tenants.emplace_back();
    file.tenants[0].name = "web";
    file.tenants[0].weight = 2;
    return Settings::Load(file, "tfs", Path());
  }
  std::string Path() const { return folder_ + "/state.json"; }
  void Write(const std::string& text) const { std::ofstream(Path()) << text; }
  std::string Text() const {
    std::ostringstream text;
    text << std::ifstream(Path()).rdbuf();
    return text.str();
  }

  std::string folder_;
};

TEST_F(SettingsTest, WithoutAStateTheFilesHold) {
  const auto settings = Load();
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->policy(), "tfs");
  EXPECT_EQ(settings->WeightOf("web"), 2u);
  EXPECT_EQ(settings->WeightOf("other"), 1u);
}

TEST_F(SettingsTest, WhatIsSetHoldsAfterARestartWithWhoAndWhen) {
  {
    auto settings = Load();
    ASSERT_TRUE(settings.ok());
    EXPECT_TRUE(settings->SetPolicy("las", "uid 7", 1000).ok());
    EXPECT_TRUE(settings->SetTenant(Weight("web", 5), "uid 8", 1001).ok());
    EXPECT_TRUE(settings->SetTenant(Weight("other", 3), "uid 8", 1002).ok());
    EXPECT_EQ(settings->WeightOf("web"), 5u);
  }
  auto settings = Load();
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_EQ(settings->policy(), "las");
  EXPECT_THAT(settings->Tenants(), ElementsAre(Pair("other", Field(&Tenant::weight, 3)),
                                               Pair("web", Field(&Tenant::weight, 5))));
  EXPECT_THAT(Text(), HasSubstr("uid 7"));
  EXPECT_THAT(Text(), HasSubstr("1001"));
  EXPECT_TRUE(settings->SetPolicy(std::nullopt, "uid 7", 2000).ok());
  EXPECT_TRUE(settings->SetTenant(Weight("web", std::nullopt), "uid 7", 2000).ok());
  settings = Load();
  ASSERT_TRUE(settings.ok());
  EXPECT_EQ(settings->policy(), "tfs");
  EXPECT_EQ(settings->WeightOf("web"), 2u);
  EXPECT_EQ(settings->WeightOf("other"), 3u);
}

TEST_F(SettingsTest, WhatThePoolSaysIsOverTheFilesAndUnderWhatIsSetHere) {
  auto settings = Load();
  ASSERT_TRUE(settings.ok());
  EXPECT_TRUE(settings
                  ->ReplacePool({{"web", R"({"weight":7,"by":"uid 0 of node a","at":5})"},
                                 {"other", R"({"gpus":["0"],"max_launches_per_second":100})"}})
                  .ok());
  EXPECT_EQ(settings->WeightOf("web"), 7u);
  EXPECT_EQ(settings->PoolSetter("web"), "uid 0 of node a");
  EXPECT_EQ(settings->PoolSetter("nobody"), "");
  EXPECT_THAT(settings->Find("other").gpus.names, ElementsAre("0"));
  EXPECT_EQ(settings->Find("other").rates.launches_per_second, 100u);
  EXPECT_EQ(settings->Tenants().size(), 2u);
  EXPECT_TRUE(settings->SetTenant(Weight("web", 5), "uid 8", 1001).ok());
  EXPECT_EQ(settings->WeightOf("web"), 5u);
  EXPECT_TRUE(settings->SetTenant(Weight("web", std::nullopt), "uid 8", 1002).ok());
  EXPECT_EQ(settings->WeightOf("web"), 7u);
  // It is not this host's to keep.
  EXPECT_THAT(Text(), ::testing::Not(HasSubstr("7,")));
  EXPECT_TRUE(settings->ReplacePool({}).ok());
  EXPECT_EQ(settings->WeightOf("web"), 2u);
}

TEST_F(SettingsTest, WhatCannotBeReadOfThePoolSaysNothingAndIsNamed) {
  auto settings = Load();
  ASSERT_TRUE(settings.ok());
  const absl::Status read = settings->ReplacePool(
      {{"web", R"({"weight":0,"gpus":["1"]})"}, {"bad", "{"}, {"good", R"({"weight":3})"}});
  EXPECT_TRUE(absl::IsInvalidArgument(read));
  EXPECT_THAT(std::string(read.message()), HasSubstr("bad, the weight of web"));
  EXPECT_EQ(settings->WeightOf("web"), 2u);
  EXPECT_THAT(settings->Find("web").gpus.names, ElementsAre("1"));
  EXPECT_EQ(settings->WeightOf("good"), 3u);
}

TEST_F(SettingsTest, ThePoolsValueChangesByWhatIsSaid) {
  auto value = Settings::PoolValue("", Weight("web", 4), "uid 0", 7);
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(*value, R"({"weight":4,"by":"uid 0","at":7})");
  TenantChange change;
  change.tenant = "web";
  change.launches_per_second.emplace(200);
  value = Settings::PoolValue(*value, change, "uid 1", 8);
  ASSERT_TRUE(value.ok());
  EXPECT_THAT(*value, HasSubstr(R"("weight":4)"));
  EXPECT_THAT(*value, HasSubstr(R"("max_launches_per_second":200)"));
  value = Settings::PoolValue(*value, Weight("web", std::nullopt), "uid 1", 9);
  ASSERT_TRUE(value.ok());
  EXPECT_THAT(*value, ::testing::Not(HasSubstr("weight")));
  change.launches_per_second.emplace(std::nullopt);
  value = Settings::PoolValue(*value, change, "uid 1", 10);
  ASSERT_TRUE(value.ok());
  EXPECT_EQ(*value, "");
  EXPECT_TRUE(
      absl::IsInvalidArgument(Settings::PoolValue("", Weight("web", 0), "uid 1", 10).status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(Settings::PoolValue("", Weight("", 2), "uid 1", 10).status()));
}

TEST_F(SettingsTest, GpusAndRatesAreSetBesideEachOtherAndGoBackOneByOne) {
  {
    auto settings = Load();
    ASSERT_TRUE(settings.ok());
    TenantChange change;
    change.tenant = "web";
    change.gpus.emplace(GpuList{{"0", "NVIDIA H200"}});
    change.launches_per_second.emplace(100);
    EXPECT_TRUE(settings->SetTenant(change, "uid 7", 1000).ok());
    change = {};
    change.tenant = "web";
    change.copy_bytes_per_second.emplace(kCopyRateLeast);
    EXPECT_TRUE(settings->SetTenant(change, "uid 8", 1001).ok());
  }
  auto settings = Load();
  ASSERT_TRUE(settings.ok()) << settings.status();
  Tenant web = settings->Find("web");
  EXPECT_EQ(web.weight, 2u);  // of the file
  EXPECT_THAT(web.gpus.names, ElementsAre("0", "NVIDIA H200"));
  EXPECT_EQ(web.rates, (TenantRates{100, kCopyRateLeast}));
  EXPECT_TRUE(settings->tenants().Find("web").gpus.all());
  TenantChange back;
  back.tenant = "web";
  back.gpus.emplace(std::nullopt);
  back.launches_per_second.emplace(std::nullopt);
  EXPECT_TRUE(settings->SetTenant(back, "uid 7", 1002).ok());
  web = settings->Find("web");
  EXPECT_TRUE(web.gpus.all());
  EXPECT_EQ(web.rates, (TenantRates{0, kCopyRateLeast}));
}

TEST_F(SettingsTest, FlagsComeBeforeTheFileAndWhatWasSetBeforeBoth) {
  TenantsFile file;
  auto settings = Settings::Load(file, "", "");
  ASSERT_TRUE(settings.ok());
  EXPECT_EQ(settings->policy(), kDefaultPolicy);
  file.scheduler = "ps";
  settings->Replace(file);
  EXPECT_EQ(settings->policy(), "ps");
  settings = Settings::Load(file, "las", "");
  ASSERT_TRUE(settings.ok());
  EXPECT_EQ(settings->policy(), "las");
  EXPECT_TRUE(settings->SetPolicy("sjf", "x", 1).ok());
  settings->Replace({});
  EXPECT_EQ(settings->policy(), "sjf");
}

TEST_F(SettingsTest, WrongValuesChangeNothing) {
  auto settings = Load();
  ASSERT_TRUE(settings.ok());
  EXPECT_TRUE(absl::IsInvalidArgument(settings->SetPolicy("fairest", "x", 1)));
  EXPECT_TRUE(absl::IsInvalidArgument(settings->SetTenant(Weight("web", 0), "x", 1)));
  EXPECT_TRUE(
      absl::IsInvalidArgument(settings->SetTenant(Weight("web", kTenantWeightMax + 1), "x", 1)));
  EXPECT_TRUE(absl::IsInvalidArgument(settings->SetTenant(Weight("", 2), "x", 1)));
  EXPECT_TRUE(
      absl::IsInvalidArgument(settings->SetTenant(Weight(std::string(64, 'x'), 2), "x", 1)));
  EXPECT_TRUE(settings->SetTenant(Weight(std::string(63, 'x'), kTenantWeightMax), "x", 1).ok());
  EXPECT_EQ(settings->policy(), "tfs");
  EXPECT_EQ(settings->WeightOf("web"), 2u);
  TenantChange change;
  change.tenant = "web";
  change.weight.emplace(7);  // good, and beside it one that is not
  change.copy_bytes_per_second.emplace(kCopyRateLeast - 1);
  EXPECT_TRUE(absl::IsInvalidArgument(settings->SetTenant(change, "x", 1)));
  change.copy_bytes_per_second.reset();
  change.gpus.emplace(GpuList{{"0", "0"}});
  EXPECT_TRUE(absl::IsInvalidArgument(settings->SetTenant(change, "x", 1)));
  EXPECT_EQ(settings->WeightOf("web"), 2u);
}

TEST_F(SettingsTest, BeyondTheBoundNoMoreWeightsAreSet) {
  TenantsFile none;
  auto settings = Settings::Load(none, "tfs", "");
  ASSERT_TRUE(settings.ok());
  for (uint32_t i = 0; i < kSetTenantsMax; ++i) {
    ASSERT_TRUE(settings->SetTenant(Weight("t" + std::to_string(i), 2), "x", 1).ok());
  }
  EXPECT_TRUE(absl::IsInvalidArgument(settings->SetTenant(Weight("more", 2), "x", 1)));
  EXPECT_TRUE(settings->SetTenant(Weight("t0", 3), "x", 1).ok());
}

TEST_F(SettingsTest, WhatCannotBeWrittenIsNotInForce) {
  auto settings = Settings::Load({}, "tfs", folder_ + "/none/state.json");
  ASSERT_TRUE(settings.ok()) << settings.status();
  EXPECT_THAT(std::string(settings->SetPolicy("las", "x", 1).message()), HasSubstr("/none/"));
  EXPECT_EQ(settings->policy(), "tfs");
}

TEST_F(SettingsTest, AFileThatIsNoneOfOursIsNamed) {
  for (const char* text :
       {"", "[]", "{}", R"({"schema":2})", R"({"schema":1,"policy":{"name":"fairest"}})",
        R"({"schema":1,"policy":"las"})", R"({"schema":1,"weights":[]})",
        R"({"schema":1,"weights":{"web":{"weight":0}}})",
        R"({"schema":1,"weights":{"web":{"weight":-1}}})", R"({"schema":1,"weights":{"web":4}})",
        R"({"schema":1,"gpus":{"web":{"gpus":"0"}}})",
        R"({"schema":1,"gpus":{"web":{"gpus":[0]}}})",
        R"({"schema":1,"launch_rates":{"web":{"max_launches_per_second":-1}}})",
        R"({"schema":1,"copy_rates":{"web":{"max_copy_bytes_per_second":1}}})"}) {
    Write(text);
    const auto settings = Load();
    EXPECT_TRUE(absl::IsInvalidArgument(settings.status())) << text;
    EXPECT_THAT(std::string(settings.status().message()), HasSubstr(Path())) << text;
  }
}

}  // namespace
}  // namespace consort::host
