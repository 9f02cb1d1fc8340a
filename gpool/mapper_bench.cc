// SPDX-License-Identifier: Apache-2.0
// How many applications a second the mapper places over RPC: one node's RpcThread asks another's,
// with so many questions under way. No TLS in between.
#include <benchmark/benchmark.h>
#include <sys/socket.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "base/log.h"
#include "gpool/rpc_capnp.h"

namespace consort::gpool {
namespace {

constexpr uint32_t kNodes = 128;
constexpr uint32_t kGpusOfNode = 8;

std::unique_ptr<MapperState> State() { return *MapperState::Make({"gwtmin", "mbf"}); }

std::shared_ptr<const Gmap> Map() {
  auto map = std::make_shared<Gmap>();
  Gid gid = 1;
  for (uint32_t i = 0; i < kNodes; ++i) {
    NodeRecord& node = map->nodes[absl::StrCat("n", i)];
    node = {absl::StrCat("n", i), "10.0.0.1:7010", "boot", {}};
    for (uint32_t device = 0; device < kGpusOfNode; ++device) {
      node.gpus.push_back({gid, device, absl::StrCat("GPU-", gid), "M", 80 * kGiB, {}, ""});
      ++gid;
    }
  }
  return map;
}

void BM_PlaceAndReleaseOver1024Gpus(benchmark::State& state) {
  const auto under_way = static_cast<int>(state.range(0));
  RpcThread mapper("n0", State(), [](const MapperRecord&) { return UniqueFd(); });
  mapper.SetMap(Map());
  const MapperRecord record = {"n0", "10.0.0.1:7010", "boot", 1};
  mapper.SetMapper(record, /*ours=*/true, "");
  RpcThread node("n1", State(), [&mapper](const MapperRecord&) {
    int ends[2];
    PCHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    mapper.Accept("n1", UniqueFd(ends[1]));
    return UniqueFd(ends[0]);
  });
  node.SetMapper(record, /*ours=*/false, "");
  uint64_t id = 0;
  const auto place = [&](int count) {
    absl::BlockingCounter left(count);
    for (int i = 0; i < count; ++i) {
      node.Place({++id, "tenant", "application", {}}, 1, /*trial=*/false,
                 [&left](const absl::StatusOr<std::vector<PlacedVgpu>>& placed) {
                   CHECK(placed.ok()) << placed.status();
                   left.DecrementCount();
                 });
    }
    left.Wait();
    for (int i = 0; i < count; ++i) node.Release(id - static_cast<uint64_t>(i));
  };
  place(1);  // it waits until the mapper has gathered what nodes use
  for (auto _ : state) place(under_way);
  state.SetItemsProcessed(state.iterations() * under_way);
}
BENCHMARK(BM_PlaceAndReleaseOver1024Gpus)
    ->Arg(1)
    ->Arg(64)
    ->MeasureProcessCPUTime()  // of both nodes
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace consort::gpool
