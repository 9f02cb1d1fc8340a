// SPDX-License-Identifier: Apache-2.0
// gpool/rpc_capnp.h: talk between a daemon and the pool's mapper, both sides, on one thread.
//
//   daemon's calls ──▶ RpcThread ──we are the mapper──▶ MapperState
//                          │                                ▲
//                          └──link──▶ other node's RpcThread┘
//
// Which node is the mapper can change at any time. Places that are asked for meanwhile wait, for at
// most kPlaceTimeout; what our applications use is told to each new mapper whole. So a mapper
// needs no store for that, and loses nothing with its predecessor.
//
// KJ stays in the implementation: nothing it throws leaves it. Thread safe; callbacks come from
// this thread and must not block.
#ifndef CONSORT_GPOOL_RPC_CAPNP_H_
#define CONSORT_GPOOL_RPC_CAPNP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "gpool/clock.h"
#include "gpool/gmap.h"
#include "gpool/mapper_state.h"
#include "gpool/member.h"

namespace consort::gpool {

struct MapperLoads {
  std::vector<GpuUse> uses;
  std::string policy;
  bool by_feedback = false;
};

class RpcThread {
 public:
  // A connected stream to the mapper; null: not reachable now. Called on a thread of its own.
  using Dial = std::function<UniqueFd(const MapperRecord& mapper)>;

  // `node` is ours. `state` is what we decide with while we are the mapper. `clock`, borrowed, in
  // place of the system's; then nothing happens by time alone but in TimeMoved.
  RpcThread(const std::string& node, std::unique_ptr<MapperState> state, Dial dial,
            const Clock* clock = nullptr);
  ~RpcThread();

  // A conversation that node `peer` begins.
  void Accept(const std::string& peer, UniqueFd fd);

  // Who the mapper is now (none: nobody is), and whether we are. `history` is what the store has,
  // given when we become it.
  void SetMapper(const std::optional<MapperRecord>& mapper, bool ours, const std::string& history);
  void SetMap(std::shared_ptr<const Gmap> map);

  // kUnavailable: no mapper answers in time. kResourceExhausted: the pool has no such place.
  void Place(const UsedAssembly& who, uint32_t vgpus, bool trial,
             std::function<void(absl::StatusOr<std::vector<PlacedVgpu>>)> done);
  void Use(const UsedAssembly& assembly);
  void Release(uint64_t id);
  void Record(const FeedbackRecord& record);
  // As the mapper told last: asked anew each kLoadsEvery.
  MapperLoads Loads() const;

  // The clock of the constructor was moved: what is due by it begins.
  void TimeMoved();

  // What there is to be stored since the last call, while we are the mapper.
  std::optional<std::string> TakeHistory();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace consort::gpool

#endif  // CONSORT_GPOOL_RPC_CAPNP_H_
