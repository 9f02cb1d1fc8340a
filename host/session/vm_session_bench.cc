// SPDX-License-Identifier: Apache-2.0
// host/session/vm_session_bench.cc: copies of a program in a virtual machine, from its driver's
// rings to the CPU device and back, in one process: through a conduit and through a socket.
//
// The guest's side is FakeGuest's, which copies more than a kernel does, most of all what it
// receives (three times): so ratios are smaller here than what the host's side gains.
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "host/session/vm_session_test_support.h"

namespace consort::host {
namespace {

std::string Door(const benchmark::State& state) {
  return state.range(0) != 0 ? kVhostUserDoor : "socket";
}

// range(0): whether there is a conduit; range(1): MiB.
void CopyToDevice(benchmark::State& state) {
  VmSessionPeer peer(Door(state));
  const auto bytes = static_cast<Bytes>(state.range(1)) * kMiB;
  const uint64_t address = peer.Allocate(bytes);
  const std::vector<std::byte> frames =
      peer.EncodeCopy(address, std::vector<std::byte>(bytes, std::byte{1}));
  for (auto _ : state) peer.SendEncodedCopy(frames);
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * bytes));
}

void CopyToHost(benchmark::State& state) {
  VmSessionPeer peer(Door(state));
  const auto bytes = static_cast<Bytes>(state.range(1)) * kMiB;
  const uint64_t address = peer.Allocate(bytes);
  for (auto _ : state) benchmark::DoNotOptimize(peer.CopyToHost(address, bytes));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * bytes));
}

BENCHMARK(CopyToDevice)
    ->ArgNames({"conduit", "MiB"})
    ->ArgsProduct({{0, 1}, {1, 64}})
    ->MeasureProcessCPUTime()
    ->UseRealTime();
BENCHMARK(CopyToHost)
    ->ArgNames({"conduit", "MiB"})
    ->ArgsProduct({{0, 1}, {1, 64}})
    ->MeasureProcessCPUTime()
    ->UseRealTime();

}  // namespace
}  // namespace consort::host

BENCHMARK_MAIN();
