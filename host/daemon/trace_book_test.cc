// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/trace_book.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "host/limits.h"

namespace consort::host {
namespace {

using ::testing::HasSubstr;

class TraceBookTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/traces-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  nlohmann::json Shown() const { return nlohmann::json::parse(book_.Json()); }

  std::string folder_;
  TraceBook book_;
};

TEST_F(TraceBookTest, NamesFilesThatAreNotThereAndTellsHowTheyStand) {
  EXPECT_FALSE(Shown()["recording"]);
  ASSERT_TRUE(book_.Begin(folder_ + "/new", 4096, "uid 7", 1000).ok());
  const auto first = book_.NextFile(0, 17);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*first, folder_ + "/new/device-0-0.trace");
  std::ofstream(*first) << "policy tfs\n";
  const auto second = book_.NextFile(0, 18);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(*second, folder_ + "/new/device-0-1.trace");
  book_.Ended(*first, "its file is full");
  nlohmann::json shown = Shown();
  EXPECT_EQ(shown["by"], "uid 7");
  EXPECT_EQ(shown["bytes_max"], 4096);
  EXPECT_EQ(shown["files"][0]["bytes"], 11);
  EXPECT_EQ(shown["files"][0]["ended"], "its file is full");
  EXPECT_EQ(shown["files"][0]["worker"], 17);
  EXPECT_FALSE(shown["files"][1].contains("ended"));
  EXPECT_TRUE(book_.End().ok());
  book_.Ended(*second, "");
  shown = Shown();
  EXPECT_FALSE(shown["recording"]);
  EXPECT_EQ(shown["files"][0]["ended"], "its file is full");
  EXPECT_EQ(shown["files"][1]["ended"], "stopped");
}

TEST_F(TraceBookTest, IsCompleteWhenEachWorkerHasWrittenWhatItHad) {
  EXPECT_TRUE(book_.complete());
  ASSERT_TRUE(book_.Begin(folder_, 0, "uid 7", 1000).ok());
  EXPECT_FALSE(book_.complete());
  const auto first = book_.NextFile(0, 17);
  const auto second = book_.NextFile(1, 18);
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE(book_.End().ok());
  EXPECT_FALSE(book_.complete());
  EXPECT_FALSE(Shown()["files"][0].contains("ended"));
  // What is written still must not become files of another recording.
  EXPECT_TRUE(absl::IsFailedPrecondition(book_.Begin(folder_, 0, "uid 8", 1001)));
  book_.Ended(*first, "");
  EXPECT_FALSE(book_.complete());
  book_.WorkerGone(17);
  EXPECT_FALSE(book_.complete());
  book_.WorkerGone(18);
  EXPECT_TRUE(book_.complete());
  EXPECT_EQ(Shown()["files"][0]["ended"], "stopped");
  EXPECT_EQ(Shown()["files"][1]["ended"], "its worker is gone");
  EXPECT_TRUE(book_.Begin(folder_, 0, "uid 8", 1001).ok());
}

TEST_F(TraceBookTest, BeginsAndEndsByTurns) {
  EXPECT_TRUE(absl::IsFailedPrecondition(book_.End()));
  ASSERT_TRUE(book_.Begin(folder_, 0, "uid 7", 1000).ok());
  const absl::Status again = book_.Begin(folder_, 0, "uid 8", 1001);
  EXPECT_TRUE(absl::IsFailedPrecondition(again));
  EXPECT_THAT(std::string(again.message()), HasSubstr("uid 7"));
  EXPECT_TRUE(book_.End().ok());
  EXPECT_TRUE(book_.Begin(folder_, 0, "uid 8", 1001).ok());
}

TEST_F(TraceBookTest, HasBoundedFilesAndNeedsItsFolder) {
  std::ofstream(folder_ + "/file") << "x";
  EXPECT_TRUE(absl::IsUnavailable(book_.Begin(folder_ + "/file/below", 0, "x", 1)));
  EXPECT_FALSE(book_.recording());
  ASSERT_TRUE(book_.Begin(folder_, 0, "x", 1).ok());
  for (uint32_t i = 0; i < kTraceFilesMax; ++i) ASSERT_TRUE(book_.NextFile(i, 17).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(book_.NextFile(0, 17).status()));
}

TEST(TraceRequest, IsReadOrRefused) {
  const auto start = ParseTraceRequest(R"({"record": true, "bytes_max": "1MiB"})");
  ASSERT_TRUE(start.ok()) << start.status();
  EXPECT_TRUE(start->record);
  EXPECT_EQ(start->bytes_max, kMiB);
  EXPECT_FALSE(ParseTraceRequest(R"({"record": false})")->record);
  for (const char* text :
       {"", "[]", "{}", R"({"record": 1})", R"({"record": true})",
        R"({"record": true, "bytes_max": 0})", R"({"record": true, "bytes_max": "much"})",
        R"({"record": true, "bytes_max": 1099511627776})",
        R"({"record": false, "bytes_max": "1MiB"})"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseTraceRequest(text).status())) << text;
  }
}

}  // namespace
}  // namespace consort::host
