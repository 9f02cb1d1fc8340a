// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/account.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "host/control/control_socket.h"

namespace consort::host {
namespace {

TEST(AccountLine, NamesWhoUsedWhat) {
  SessionIdentity identity;
  identity.tenant = "research";
  identity.vm = "web-1";
  identity.front_door = "vhost-user";
  identity.application = "python3";
  identity.pid = 812;
  identity.device = "CPU";
  SessionEnded ended;
  ended.started_unix_seconds = 86400;
  ended.lasted_nanos = 1500000000;
  ended.kernel_launches = 3;
  ended.kernel_nanos = 2000;
  ended.weight = 2;
  ended.device_nanos = 1000000000;
  ended.queued_nanos = 250000000;
  SetText(ended.reason, "closed");
  EXPECT_EQ(AccountLine(identity, ended),
            "{\"tenant\":\"research\",\"vm\":\"web-1\",\"channel\":\"vhost-user\",\"application\":"
            "\"python3\",\"pid\":812,"
            "\"device\":\"CPU\",\"device_index\":0,\"started\":\"1970-01-02T00:00:00Z\","
            "\"seconds\":1.500000,\"calls\":0,\"round_trips\":0,\"bytes_to_device\":0,"
            "\"bytes_to_host\":0,\"kernel_launches\":3,\"kernel_seconds\":0.000002,"
            "\"weight\":2,\"device_seconds\":1.000000,\"queued_seconds\":0.250000,"
            "\"memory_peak_bytes\":0,\"memory_byte_seconds\":0,"
            "\"end\":\"closed\"}\n");
}

TEST(AccountLine, EscapesWhatAGuestChose) {
  SessionIdentity identity;
  identity.application = "a\"b\\c\n\x80";
  const std::string line = AccountLine(identity, SessionEnded{});
  EXPECT_NE(line.find(R"("application":"a\"b\\c\u000a?")"), std::string::npos) << line;
  EXPECT_EQ(line.find('\n'), line.size() - 1);
}

TEST(AccountSince, IsWhatTheLinesBeforeHaveNotTold) {
  SessionEnded told;
  told.started_unix_seconds = 1000;
  told.lasted_nanos = 600 * kSecond;
  told.calls = 10;
  told.device_nanos = 5;
  SessionEnded total = told;
  total.lasted_nanos = 630 * kSecond;
  total.calls = 12;
  total.memory_peak_bytes = 7;
  total.weight = 3;
  const SessionEnded rest = AccountSince(total, told);
  EXPECT_EQ(rest.started_unix_seconds, 1600u);
  EXPECT_EQ(rest.lasted_nanos, uint64_t{30 * kSecond});
  EXPECT_EQ(rest.calls, 2u);
  EXPECT_EQ(rest.device_nanos, 0u);
  EXPECT_EQ(rest.memory_peak_bytes, 7u);
  EXPECT_EQ(rest.weight, 3u);
  EXPECT_EQ(AccountSince(total, SessionEnded{}).calls, 12u);
}

TEST(AccountFile, AFullDiskIsToldAndTearsNoLaterLine) {
  // A limit on the file's size stands for the disk's end.
  const std::string path = ::testing::TempDir() + "/account_full.jsonl";
  unlink(path.c_str());
  auto file = AccountFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto ignored = signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 10;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_TRUE(file->Append("{\"a\":1}\n").ok());
  const absl::Status full = file->Append("{\"b\":2}\n");
  EXPECT_NE(full.ToString().find("make room there"), std::string::npos) << full;
  EXPECT_NE(full.ToString().find(path), std::string::npos) << full;
  EXPECT_FALSE(file->Append("{\"c\":3}\n").ok());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, ignored);
  EXPECT_TRUE(file->Append("{\"d\":4}\n").ok());
  EXPECT_TRUE(file->Append("{\"e\":5}\n").ok());
  std::ifstream in(path);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  EXPECT_EQ(text, "{\"a\":1}\n{\"\n{\"d\":4}\n{\"e\":5}\n");
}

TEST(AccountFile, AppendsToWhatIsThere) {
  const std::string path = ::testing::TempDir() + "/account_test.jsonl";
  std::ofstream(path) << "first\n";
  auto file = AccountFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->Append("second\n").ok());
  std::ifstream in(path);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  EXPECT_EQ(text, "first\nsecond\n");
}

TEST(AccountFile, SaysWhichPathCannotBeOpened) {
  auto file = AccountFile::Open("/nonexistent/account");
  EXPECT_EQ(file.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(file.status().ToString().find("/nonexistent/account"), std::string::npos);
}

}  // namespace
}  // namespace consort::host
