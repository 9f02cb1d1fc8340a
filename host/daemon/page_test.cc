// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "host/limits.h"

namespace consort::host {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(PageFile, ThePageComesWithEverythingItNeeds) {
  const auto html = PageFile("/");
  ASSERT_TRUE(html.has_value());
  EXPECT_THAT(html->body, HasSubstr("<!doctype html>"));
  for (const char* path : {"/page.css", "/page.js"}) {
    EXPECT_THAT(html->body, HasSubstr(path));
    const auto file = PageFile(path);
    ASSERT_TRUE(file.has_value()) << path;
    EXPECT_FALSE(file->body.empty());
    // Nothing is asked of another host.
    EXPECT_THAT(file->body, Not(HasSubstr("//cdn"))) << path;
    EXPECT_THAT(file->body, Not(HasSubstr("@import"))) << path;
  }
  EXPECT_FALSE(PageFile("/page.html").has_value());
}

TEST(ParsePagePath, TakesThreeNumbersAndWhatToLookForOrNone) {
  const auto all = ParsePagePath("/api/v1/page");
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(all->fine, 0u);
  const auto newer = ParsePagePath("/api/v1/page/7/8/9");
  ASSERT_TRUE(newer.has_value());
  EXPECT_EQ(newer->fine, 7u);
  EXPECT_EQ(newer->coarse, 8u);
  EXPECT_EQ(newer->event, 9u);
  EXPECT_EQ(newer->device, std::nullopt);
  const auto every = ParsePagePath("/api/v1/page/7/8/9/all/a/b c");
  ASSERT_TRUE(every.has_value());
  EXPECT_EQ(every->device, std::nullopt);
  EXPECT_EQ(every->find, "a/b c");
  const auto one = ParsePagePath("/api/v1/page/7/8/9/12/");
  ASSERT_TRUE(one.has_value());
  EXPECT_EQ(one->device, 12u);
  EXPECT_EQ(one->find, "");
  for (const char* path : {"/", "/api/v1/pages", "/api/v1/page/", "/api/v1/page/1/2",
                           "/api/v1/page/1/2/x", "/api/v1/page/1/2/-3", "/api/v1/page/1/2/3/4",
                           "/api/v1/page/1/2/3/none/", "/api/v1/page/1/2/3/-1/"}) {
    EXPECT_FALSE(ParsePagePath(path).has_value()) << path;
  }
}

TEST(PageJson, GivesOnlyWhatIsNew) {
  History history;
  std::map<UsageKey, UsageTotals> totals;
  for (uint64_t second = 0; second <= 3; ++second) {
    totals[{"a", "x", 0}].used.device_nanos += kSecond / 4;
    history.Add(
        totals, [](const std::string&) { return 1u; }, 1, static_cast<Nanos>(second) * kSecond,
        second * 1000);
  }
  EventLog events([] { return 5; });
  events.Add(EventLevel::kInfo, "one");
  events.Add(EventLevel::kError, "two");
  const auto all = nlohmann::json::parse(PageJson({}, history, events, {}, 3000));
  EXPECT_EQ(all["now_ms"], 3000);
  ASSERT_EQ(all["fine"].size(), 3u);
  EXPECT_EQ(all["fine"][0]["tenants"]["a"], nlohmann::json::array({0.25, 0.25}));
  EXPECT_EQ(all["fine"][0]["devices"][0], 0.25);
  EXPECT_EQ(all["events"].size(), 2u);
  EXPECT_EQ(all["status"]["schema"], 1);
  PageRequest seen;
  seen.fine = 2;
  seen.event = 1;
  const auto newer = nlohmann::json::parse(PageJson({}, history, events, seen, 3000));
  ASSERT_EQ(newer["fine"].size(), 1u);
  EXPECT_EQ(newer["fine"][0]["number"], 3);
  ASSERT_EQ(newer["events"].size(), 1u);
  EXPECT_EQ(newer["events"][0]["text"], "two");
  EXPECT_EQ(newer["events"][0]["level"], "error");
}

TEST(PageJson, ListsTheBusiestSessionsAndCountsAll) {
  DaemonStatus status;
  for (uint64_t id = 1; id <= kPageSessionsMax + 1; ++id) {
    SessionStatus& session = status.sessions.emplace_back();
    session.id = id;
    session.usage.device_nanos = id;
  }
  // What one does now counts more than what others did before.
  status.sessions[1].share = 0.5;
  const auto json =
      nlohmann::json::parse(PageJson(status, History(), EventLog([] { return 0; }), {}, 0));
  EXPECT_EQ(json["sessions_open"], kPageSessionsMax + 1);
  EXPECT_EQ(json["sessions_found"], kPageSessionsMax + 1);
  ASSERT_EQ(json["status"]["sessions"].size(), kPageSessionsMax);
  EXPECT_EQ(json["status"]["sessions"][0]["id"], 2);
  EXPECT_EQ(json["status"]["sessions"][1]["id"], kPageSessionsMax + 1);
  for (const auto& session : json["status"]["sessions"]) EXPECT_NE(session["id"], 1);
}

TEST(PageJson, FindsSessionsByDeviceAndText) {
  DaemonStatus status;
  for (uint64_t id = 1; id <= kPageSessionsMax + 1; ++id) {
    SessionStatus& session = status.sessions.emplace_back();
    session.id = id;
    session.tenant = "research";
    session.vm = "web-1";
    session.application = "python3";
    session.pid = static_cast<uint32_t>(1000 + id);
    session.usage.device_nanos = id;
  }
  SessionStatus& idlest = status.sessions[0];
  idlest.application = "Train\"er";
  idlest.device = 3;
  const auto ids = [&](const PageRequest& request) {
    const auto json =
        nlohmann::json::parse(PageJson(status, History(), EventLog([] { return 0; }), request, 0));
    std::vector<uint64_t> found;
    for (const auto& session : json["status"]["sessions"]) found.push_back(session["id"]);
    EXPECT_EQ(json["sessions_open"], kPageSessionsMax + 1);
    EXPECT_EQ(json["sessions_found"], std::max<size_t>(found.size(), json["sessions_found"]));
    return found;
  };
  PageRequest request;
  request.find = "rain\"ER";
  EXPECT_THAT(ids(request), ElementsAre(1));
  request.find = "1002";
  EXPECT_THAT(ids(request), ElementsAre(2));
  request.find = "100";
  EXPECT_THAT(ids(request), IsEmpty()) << "a part of a pid is none";
  request.find = "WEB";
  EXPECT_EQ(ids(request).size(), kPageSessionsMax);
  request.device = 3;
  EXPECT_THAT(ids(request), ElementsAre(1));
  request.find = "";
  EXPECT_THAT(ids(request), ElementsAre(1));
}

TEST(PageJson, NamesOfTenantsAreQuoted) {
  History history;
  std::map<UsageKey, UsageTotals> totals;
  for (uint64_t second = 0; second < 2; ++second) {
    totals[{"a\"\\b", "x", 0}].used.device_nanos += kSecond / 3;
    history.Add(
        totals, [](const std::string&) { return 1u; }, 2, static_cast<Nanos>(second) * kSecond,
        second * 1000);
  }
  const auto json = nlohmann::json::parse(PageJson({}, history, EventLog([] { return 0; }), {}, 0));
  EXPECT_EQ(json["fine"][0]["tenants"]["a\"\\b"], nlohmann::json::array({0.3333, 0.3333}));
  EXPECT_EQ(json["fine"][0]["devices"], nlohmann::json::array({0.3333, 0}));
  EXPECT_EQ(json["fine"][0]["memory_bytes"], nlohmann::json::array({0, 0}));
  EXPECT_EQ(json["coarse"], nlohmann::json::array());
}

}  // namespace
}  // namespace consort::host
