// SPDX-License-Identifier: Apache-2.0
#include "gpool/rpc_capnp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "absl/synchronization/notification.h"

namespace consort::gpool {
namespace {

using ::testing::ElementsAre;

std::unique_ptr<MapperState> State() { return *MapperState::Make({"gmin", ""}); }

std::shared_ptr<const Gmap> Map() {
  auto map = std::make_shared<Gmap>();
  map->nodes["m"] = {"m", "10.0.0.1:7010", "x", {{1, 0, "GPU-1", "M", kGiB, 1, ""}}};
  map->nodes["n"] = {"n", "10.0.0.2:7010", "y", {{2, 0, "GPU-2", "M", kGiB, 1, ""}}};
  return map;
}

// A node whose mapper `mapper` is, whoever that is when it dials.
std::unique_ptr<RpcThread> Node(const std::string& name, RpcThread** mapper) {
  auto node = std::make_unique<RpcThread>(name, State(), [name, mapper](const MapperRecord&) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
      return UniqueFd();
    }
    (*mapper)->Accept(name, UniqueFd(ends[1]));
    return UniqueFd(ends[0]);
  });
  node->SetMap(Map());
  return node;
}

absl::StatusOr<std::vector<Gid>> Place(RpcThread* node, uint64_t id) {
  absl::Notification told;
  absl::StatusOr<std::vector<Gid>> gids;
  node->Place({id, "t", "app", {}}, 1, /*trial=*/false,
              [&](const absl::StatusOr<std::vector<PlacedVgpu>>& placed) {
                if (placed.ok()) {
                  gids = std::vector<Gid>();
                  for (const PlacedVgpu& one : *placed) gids->push_back(one.gid);
                } else {
                  gids = placed.status();
                }
                told.Notify();
              });
  told.WaitForNotification();
  return gids;
}

// "m" is the mapper, then "n" itself; both end while they still talk.
TEST(RpcThread, ANewMapperKnowsWhatTheOldOneKnew) {
  RpcThread* mapper = nullptr;
  const auto m = Node("m", &mapper);
  const auto n = Node("n", &mapper);
  mapper = m.get();
  m->SetMapper(MapperRecord{"m", "", "x", 1}, /*ours=*/true, "");
  n->SetMapper(MapperRecord{"m", "", "x", 1}, /*ours=*/false, "");
  const auto first = Place(n.get(), 1);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT(*first, ElementsAre(2));  // both are free: the near one
  // The next mapper has never heard of that place but from the node.
  mapper = n.get();
  n->SetMapper(MapperRecord{"n", "", "y", 2}, /*ours=*/true, "");
  m->SetMapper(MapperRecord{"n", "", "y", 2}, /*ours=*/false, "");
  const auto second = Place(n.get(), 2);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_THAT(*second, ElementsAre(1));  // 2 is in use
  n->Release(1);
  const auto third = Place(n.get(), 3);
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_THAT(*third, ElementsAre(2));
}

TEST(RpcThread, WithoutAMapperAPlaceIsRefusedInTime) {
  RpcThread* nobody = nullptr;
  const auto n = Node("n", &nobody);
  n->SetMapper(std::nullopt, /*ours=*/false, "");
  EXPECT_TRUE(absl::IsUnavailable(Place(n.get(), 1).status()));
}

TEST(RpcThread, WhatIsMeasuredElsewhereIsStoredByTheMapper) {
  RpcThread* mapper = nullptr;
  const auto m = Node("m", &mapper);
  const auto n = Node("n", &mapper);
  mapper = m.get();
  m->SetMapper(MapperRecord{"m", "", "x", 1}, /*ours=*/true, "");
  n->SetMapper(MapperRecord{"m", "", "x", 1}, /*ours=*/false, "");
  n->Record({"n/1", "app", ModelKey("M", kGiB), kSecond, kSecond, kSecond / 2, 0, 0, 0});
  std::optional<std::string> history;
  while (!history.has_value()) history = m->TakeHistory();
  EXPECT_THAT(*history, ::testing::HasSubstr("\"n/1\""));
  EXPECT_FALSE(m->TakeHistory().has_value());  // nothing new
}

}  // namespace
}  // namespace consort::gpool
