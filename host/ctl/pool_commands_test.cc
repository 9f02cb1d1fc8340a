// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/pool_commands.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace consort::host {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

const char kPoolStatus[] =
    R"({"schema":1,"pool":{"pool":"default","node":"b","joined":true,"mapper":"a",
  "nodes":[{"node":"a","address":"10.0.0.1:7010","gpus":1},
           {"node":"b","address":"10.0.0.2:7010","gpus":0}],
  "gpus":[{"gid":3,"node":"a","device":0,"model":"M","uuid":"GPU-1",
           "memory_total_bytes":1073741824,"bound":2,"weight":12.5,
           "copy_to_device_bytes_per_second":25e9,"copy_to_host_bytes_per_second":24.5e9,
           "memory_bytes_per_second":1.5e12,"operations_per_second":19.5e12},
          {"gid":4,"node":"a","device":1,"model":"M","uuid":"GPU-2",
           "memory_total_bytes":1073741824}],
  "assemblies":[{"tenant":"t","vm":"","application":"busy","pid":7,"sessions":1,
    "vgpus":[{"gid":3,"node":"a","device":0,"local":false,"why":"least bound"}]}]}})";

TEST(PoolCommands, ShowHostsGpusAndWhatProgramsHave) {
  const auto pool = PoolOf(Json::parse(kPoolStatus));
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_EQ(NodesTable(*pool),
            "NODE  ADDRESS        GPUS  ROLE\n"
            "a     10.0.0.1:7010     1  mapper\n"
            "b     10.0.0.2:7010     0  this host\n");
  EXPECT_EQ(GpusTable(*pool),
            "GID  NODE  DEVICE  MODEL    MEMORY  IN USE  WEIGHT  IN GB/S  OUT GB/S  MEMORY GB/S  "
            "TFLOP/S\n"
            "  3  a          0  M      1.00 GiB       2    12.5     25.0      24.5       1500.0    "
            " 19.5\n"
            "  4  a          1  M      1.00 GiB       -       -        -         -            -    "
            "    -\n");
  EXPECT_EQ(SlicesTable(*pool),
            "TENANT  APPLICATION  PID  VGPU  GID  NODE  DEVICE  WHERE   WHY\n"
            "t       busy           7     0    3  a          0  remote  least bound\n");
}

TEST(PoolCommands, ShowTheDevicesOfAHostByItself) {
  EXPECT_EQ(DevicesTable(Json::parse(R"([{"index": 0, "state": "ready", "model": "M",
                "uuid": "GPU-01", "memory_total_bytes": 1073741824, "memory_used_bytes": 512,
                "sessions": 2}, {"index": 1, "state": "starting", "sessions": 0}])")),
            "DEVICE  MODEL  UUID      MEMORY   USED  SESSIONS  STATE\n"
            "     0  M      GPU-01  1.00 GiB  512 B         2  ready\n"
            "     1  -      -            0 B    0 B         0  starting\n");
}

TEST(PoolCommands, SayThatAHostIsOutOfThePoolOrInNone) {
  Json status = Json::parse(kPoolStatus);
  status["pool"]["joined"] = false;
  status["pool"]["problem"] = "etcd does not answer";
  EXPECT_THAT(NodesTable(status["pool"]), HasSubstr("not in the pool: etcd does not answer"));
  EXPECT_TRUE(absl::IsFailedPrecondition(PoolOf(Json::parse("{\"schema\":1}")).status()));
}

}  // namespace
}  // namespace consort::host
