// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace consort::host {
namespace {

using Json = nlohmann::ordered_json;

const char kStatus[] = R"({
  "sessions": [
    {"id": 3, "tenant": "a", "vm": "web-1", "application": "python3", "pid": 70, "device": 1,
     "phase": "kernel", "memory_bytes": 1048576, "device_seconds": 1.25, "queued_seconds": 0.5,
     "started": 100},
    {"id": 4, "tenant": "b", "vm": "web-1", "application": "x", "pid": 71, "device": 0,
     "started": 100}],
  "vms": [{"name": "web-1", "tenant": "a", "vgpus": 2, "socket": "/run/x",
           "shared_memory_bytes": 16777216, "shared_memory_lent_bytes": 1048576},
          {"name": "web-2", "tenant": "b", "socket": "/run/y"}]})";

TEST(Tables, ApplicationsOfOneTenant) {
  const Json status = Json::parse(kStatus);
  EXPECT_EQ(ApplicationsOf(status, "").size(), 2u);
  const Json mine = ApplicationsOf(status, "a");
  ASSERT_EQ(mine.size(), 1u);
  EXPECT_EQ(ApplicationTable(mine, 190),
            "SESSION  TENANT  VM     APPLICATION  PID  DEVICE  PHASE     MEMORY  DEVICE S  QUEUED "
            "S  AGE\n"
            "      3  a       web-1  python3       70       1  kernel  1.00 MiB     1.250     "
            "0.500   1m\n");
  EXPECT_EQ(ApplicationsOf(Json::object(), "").size(), 0u);
  Json waits = mine;
  waits[0]["bound"] = false;
  EXPECT_THAT(ApplicationTable(waits, 190), ::testing::HasSubstr("1  unbound  1.00 MiB"));
}

TEST(Tables, MachinesWithTheirSessions) {
  const Json machines = MachinesOf(Json::parse(kStatus));
  EXPECT_EQ(machines[0]["sessions"], 2);
  EXPECT_EQ(MachineTable(machines),
            "VM     TENANT  VGPUS  SESSIONS         SHARED MEMORY  SOCKET\n"
            "web-1  a           2         2  1.00 MiB of 16.0 MiB  /run/x\n"
            "web-2  b         all         0                  none  /run/y\n");
}

TEST(Tables, EventsWithHowOften) {
  const Json events = Json::parse(R"([
    {"time": 0, "level": "info", "text": "one", "times": 1},
    {"time": 86400, "level": "error", "text": "two", "times": 3}])");
  EXPECT_EQ(EventTable(events),
            "TIME                  LEVEL  EVENT\n"
            "1970-01-01T00:00:00Z  info   one\n"
            "1970-01-02T00:00:00Z  error  two (3 times)\n");
}

TEST(Tables, ShowTraces) {
  using Json = nlohmann::ordered_json;
  EXPECT_EQ(TraceTable(Json::parse(R"({"recording": false, "files": []})")),
            "nothing is recorded\n");
  EXPECT_EQ(TraceTable(Json::parse(R"({"recording": true, "files": [
                {"device": 0, "path": "/t/device-0-0.trace", "bytes": 2048},
                {"device": 1, "path": "/t/device-1-0.trace", "bytes": 4,
                 "ended": "its file is full"}]})")),
            "DEVICE      SIZE  STATE             FILE\n"
            "     0  2.00 KiB  recording         /t/device-0-0.trace\n"
            "     1       4 B  its file is full  /t/device-1-0.trace\n");
  EXPECT_EQ(TraceTable(Json::parse(R"({"recording": false, "files": [
                {"device": 0, "path": "/t/device-0-0.trace", "bytes": 2048}]})")),
            "DEVICE      SIZE  STATE          FILE\n"
            "     0  2.00 KiB  being written  /t/device-0-0.trace\n");
}

}  // namespace
}  // namespace consort::host
