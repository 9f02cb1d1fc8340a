// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/place_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace consort::host {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

// A host of a pool: one program of its own on two GPUs, one of another host's here.
const char kStatus[] = R"({
  "node": "host-a",
  "devices": [{"index": 0, "model": "Fast"}],
  "sessions": [
    {"id": 1, "tenant": "t", "vm": "t", "application": "train", "pid": 7, "device": 0,
     "assembly": 99, "why": "GPU 1 by gmin"},
    {"id": 2, "tenant": "u", "vm": "u", "application": "infer", "pid": 8, "device": 0,
     "why": "for a program of node b"}],
  "pool": {"node": "a",
    "gpus": [{"gid": 1, "model": "Fast"}, {"gid": 2, "model": "Far"}],
    "assemblies": [{"tenant": "t", "vm": "t", "application": "train", "pid": 7, "vgpus": [
      {"gid": 1, "node": "a", "device": 0, "local": true, "why": "GPU 1 by gmin"},
      {"gid": 2, "node": "b", "device": 3, "local": false, "why": "on another node"}]}]}})";

TEST(PlaceCommand, ShowsEachDeviceOfAnApplicationOnce) {
  const auto placements = PlacementsOf(Json::parse(kStatus), "");
  ASSERT_TRUE(placements.ok()) << placements.status();
  EXPECT_EQ(
      PlacementTable(*placements),
      "TENANT  APPLICATION  PID  VGPU  NODE  DEVICE  MODEL  WHERE   WHY\n"
      "t       train          7     0  a          0  Fast   here    GPU 1 by gmin\n"
      "t       train          7     1  b          3  Far    remote  on another node\n"
      "u       infer          8     -  a          0  Fast   here    for a program of node b\n");
}

TEST(PlaceCommand, FindsAnApplicationByNameOrProcess) {
  for (const char* name : {"infer", "8"}) {
    const auto placements = PlacementsOf(Json::parse(kStatus), name);
    ASSERT_TRUE(placements.ok()) << placements.status();
    ASSERT_EQ(placements->size(), 1u);
    EXPECT_EQ(placements->front()["application"], "infer");
    EXPECT_EQ(placements->front()["why"], "for a program of node b");
  }
  const auto none = PlacementsOf(Json::parse(kStatus), "other");
  EXPECT_TRUE(absl::IsNotFound(none.status()));
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("consortctl apps"));
}

TEST(PlaceCommand, WithoutAPoolTheHostIsTheNode) {
  const auto placements = PlacementsOf(Json::parse(R"({"node": "host-a", "devices": [],
      "sessions": [{"tenant": "t", "vm": "t", "application": "x", "pid": 1, "device": 2, "vgpu": 1,
                    "why": "its device 1"}]})"),
                                       "");
  ASSERT_TRUE(placements.ok()) << placements.status();
  ASSERT_EQ(placements->size(), 1u);
  EXPECT_EQ(placements->front()["node"], "host-a");
  EXPECT_EQ(placements->front()["vgpu"], 1);
  EXPECT_TRUE(PlacementsOf(Json::parse(R"({"node": "host-a"})"), "")->empty());
}

}  // namespace
}  // namespace consort::host
