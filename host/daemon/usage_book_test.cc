// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/usage_book.h"

#include <gtest/gtest.h>

#include <string>

#include "host/limits.h"

namespace consort::host {
namespace {

SessionUsage Calls(uint64_t session, uint64_t calls) {
  SessionUsage usage;
  usage.session = session;
  usage.calls = calls;
  return usage;
}

UsageTotals Of(const UsageBook& book, const UsageKey& key) {
  const auto it = book.totals().find(key);
  return it == book.totals().end() ? UsageTotals{} : it->second;
}

TEST(UsageBook, CountsWhatOpenSessionsUseAndKeepsItWhenTheyAreGone) {
  UsageBook book;
  const UsageKey who = {"web-1", "python3", 0};
  book.Begin(1, who);
  book.Begin(2, who);
  book.Update(Calls(1, 10));
  book.Update(Calls(2, 5));
  EXPECT_EQ(Of(book, who).used.calls, 15u);
  EXPECT_EQ(Of(book, who).sessions_open, 2u);
  EXPECT_EQ(book.Latest(1).calls, 10u);

  SessionEnded ended;
  ended.session = 1;
  ended.calls = 12;
  book.End(&ended);
  EXPECT_EQ(Of(book, who).used.calls, 17u);
  EXPECT_EQ(Of(book, who).sessions_open, 1u);
  EXPECT_EQ(Of(book, who).sessions_begun, 2u);
  EXPECT_EQ(book.Latest(1).calls, 0u);
}

TEST(UsageBook, NeverGoesBack) {
  UsageBook book;
  const UsageKey who = {"web-1", "python3", 0};
  book.Begin(1, who);
  book.Update(Calls(1, 10));
  book.Update(Calls(1, 7));
  EXPECT_EQ(Of(book, who).used.calls, 10u);
  // A report that crossed the session's end, and one of a session that never was.
  SessionEnded ended;
  ended.session = 1;
  ended.calls = 11;
  book.End(&ended);
  book.Update(Calls(1, 20));
  book.Update(Calls(9, 20));
  EXPECT_EQ(Of(book, who).used.calls, 11u);
}

TEST(UsageBook, AWorkerThatDiedLeavesWhatItHadTold) {
  UsageBook book;
  book.Begin(1, {"web-1", "python3", 0});
  book.Update(Calls(1, 10));
  SessionEnded ended;
  ended.session = 1;
  book.End(&ended);
  EXPECT_EQ(ended.calls, 10u);
}

TEST(UsageBook, KeepsTenantsApplicationsAndDevicesApart) {
  UsageBook book;
  book.Begin(1, {"a", "x", 0});
  book.Begin(2, {"a", "x", 1});
  book.Begin(3, {"a", "y", 0});
  book.Begin(4, {"b", "x", 0});
  EXPECT_EQ(book.totals().size(), 4u);
}

TEST(UsageBook, ApplicationsBeyondTheBoundAreOther) {
  UsageBook book;
  uint64_t session = 0;
  for (uint32_t i = 0; i < kUsageApplicationsPerTenant; ++i) {
    book.Begin(++session, {"a", "program-" + std::to_string(i), 0});
  }
  EXPECT_EQ(Of(book, {"a", "other", 0}).sessions_begun, 0u);
  book.Begin(++session, {"a", "one more", 0});
  book.Begin(++session, {"a", "and another", 0});
  EXPECT_EQ(Of(book, {"a", "other", 0}).sessions_begun, 2u);
  // Known names keep their own count; other tenants have their own bound.
  book.Begin(++session, {"a", "program-0", 0});
  book.Begin(++session, {"b", "one more", 0});
  EXPECT_EQ(Of(book, {"a", "program-0", 0}).sessions_begun, 2u);
  EXPECT_EQ(Of(book, {"b", "one more", 0}).sessions_begun, 1u);
}

TEST(UsageBook, TenantsBeyondTheBoundAreOther) {
  UsageBook book;
  uint64_t session = 0;
  for (uint32_t i = 0; i < kUsageTenantsMax; ++i) {
    book.Begin(++session, {"cid-" + std::to_string(i), "x", 0});
  }
  EXPECT_EQ(Of(book, {"other", "x", 0}).sessions_begun, 0u);
  book.Begin(++session, {"cid-9999", "x", 0});
  EXPECT_EQ(Of(book, {"other", "x", 0}).sessions_begun, 1u);
}

TEST(UsageBook, NamesAreMadePrintable) {
  EXPECT_EQ(PrintableName("py\xff\n\"3"), "py??\"3");
  EXPECT_EQ(PrintableName(""), "unknown");
}

}  // namespace
}  // namespace consort::host
