// SPDX-License-Identifier: Apache-2.0
#include "gpool/rpc_capnp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

namespace consort::gpool {
namespace {

using ::testing::ElementsAre;

std::unique_ptr<MapperState> State() { return *MapperState::Make({"gmin", ""}); }

std::shared_ptr<const Gmap> Map() {
  auto map = std::make_shared<Gmap>();
  map->nodes["m"] = {"m", "10.0.0.1:7010", "x", {{1, 0, "GPU-1", "M", kGiB, {}, ""}}};
  map->nodes["n"] = {"n", "10.0.0.2:7010", "y", {{2, 0, "GPU-2", "M", kGiB, {}, ""}}};
  return map;
}

// Two nodes, and who answers when one of them dials the mapper.
class NodePair {
 public:
  NodePair() : m_(Node("m")), n_(Node("n")) {}
  // Nobody answers any more before the nodes end, one after the other.
  ~NodePair() { SetMapper(nullptr); }

  RpcThread* m() { return m_.get(); }
  RpcThread* n() { return n_.get(); }
  void SetMapper(RpcThread* mapper) {
    absl::MutexLock lock(&mutex_);
    mapper_ = mapper;
  }

 private:
  std::unique_ptr<RpcThread> Node(const std::string& name) {
    auto node = std::make_unique<RpcThread>(
        name, State(), [this, name](const MapperRecord&) { return Dial(name); });
    node->SetMap(Map());
    return node;
  }

  UniqueFd Dial(const std::string& name) {
    int ends[2];
    absl::MutexLock lock(&mutex_);
    if (mapper_ == nullptr ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
      return UniqueFd();
    }
    mapper_->Accept(name, UniqueFd(ends[1]));
    return UniqueFd(ends[0]);
  }

  absl::Mutex mutex_;
  RpcThread* mapper_ = nullptr;
  const std::unique_ptr<RpcThread> m_;
  const std::unique_ptr<RpcThread> n_;
};

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
  NodePair nodes;
  RpcThread* const m = nodes.m();
  RpcThread* const n = nodes.n();
  nodes.SetMapper(m);
  m->SetMapper(MapperRecord{"m", "", "x", 1}, /*ours=*/true, "");
  n->SetMapper(MapperRecord{"m", "", "x", 1}, /*ours=*/false, "");
  const auto first = Place(n, 1);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT(*first, ElementsAre(2));  // both are free: the near one
  // The next mapper has never heard of that place but from the node.
  nodes.SetMapper(n);
  n->SetMapper(MapperRecord{"n", "", "y", 2}, /*ours=*/true, "");
  m->SetMapper(MapperRecord{"n", "", "y", 2}, /*ours=*/false, "");
  const auto second = Place(n, 2);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_THAT(*second, ElementsAre(1));  // 2 is in use
  n->Release(1);
  const auto third = Place(n, 3);
  ASSERT_TRUE(third.ok()) << third.status();
  EXPECT_THAT(*third, ElementsAre(2));
}

TEST(RpcThread, WithoutAMapperAPlaceIsRefusedInTime) {
  NodePair nodes;
  nodes.n()->SetMapper(std::nullopt, /*ours=*/false, "");
  EXPECT_TRUE(absl::IsUnavailable(Place(nodes.n(), 1).status()));
}

TEST(RpcThread, WhatIsMeasuredElsewhereIsStoredByTheMapper) {
  NodePair nodes;
  RpcThread* const m = nodes.m();
  RpcThread* const n = nodes.n();
  nodes.SetMapper(m);
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
