// SPDX-License-Identifier: Apache-2.0
// host/session/session_bench.cc: what a session does for each launch besides the driver's own work.
//
// The driver's functions on the way of a launch are replaced by ones that return at once. Launches
// lie in the ring before the first is let go, so what is measured is the session's thread alone,
// from the first call of the driver to the last. DirectLaunch is the same calls of the driver in a
// loop.
#include <atomic>
#include <chrono>
#include <vector>

#include "base/log.h"
#include "benchmark/benchmark.h"
#include "host/session/session_test_support.h"

namespace consort::host {
namespace {

// Between two synchronisations, as in remoting_bench's launch_throughput.
constexpr uint32_t kLaunches = 1000;
constexpr uint64_t kKernelNanos = 2000;

double Seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// What Launch is told and tells. Written by the benchmark between rounds, while no launch is on its
// way, and read by it after a synchronisation: the ring orders both. But for `held`.
struct Round {
  std::atomic<bool> held{false};  // the first launch waits while it is set
  uint32_t launches = 0;
  double begin = 0;
  double end = 0;
};
Round round_of_launches;

void CountLaunch() {
  Round& round = round_of_launches;
  if (round.launches == 0) {
    while (round.held.load(std::memory_order_acquire)) __builtin_ia32_pause();
    round.begin = Seconds();
  }
  if (++round.launches == kLaunches) round.end = Seconds();
}

CUresult CUDAAPI Launch(const CUlaunchConfig*, CUfunction, void**, void**) {
  CountLaunch();
  return CUDA_SUCCESS;
}
CUresult CUDAAPI LaunchGraph(CUgraphExec, CUstream) {
  CountLaunch();
  return CUDA_SUCCESS;
}
CUresult CUDAAPI ChangeNode(CUgraphExec, CUgraphNode, const CUDA_KERNEL_NODE_PARAMS*) {
  return CUDA_SUCCESS;
}
CUresult CUDAAPI Record(CUevent, CUstream) { return CUDA_SUCCESS; }
CUresult CUDAAPI QueryEvent(CUevent) { return CUDA_SUCCESS; }
CUresult CUDAAPI QueryStream(CUstream) { return CUDA_SUCCESS; }
CUresult CUDAAPI Elapsed(float* milliseconds, CUevent, CUevent) {
  *milliseconds = kKernelNanos / 1e6f;
  return CUDA_SUCCESS;
}

// The CPU device, on which nothing is launched; kept.
const WorkerDevice& Device() {
  static const WorkerDevice* const device = [] {
    device::LoadedDriver driver = CpuDriver();
    driver.table.cuLaunchKernelEx = Launch;
    driver.table.cuGraphLaunch = LaunchGraph;
    driver.table.cuGraphExecKernelNodeSetParams_v2 = ChangeNode;
    driver.table.cuEventRecord = Record;
    driver.table.cuEventQuery = QueryEvent;
    driver.table.cuStreamQuery = QueryStream;
    driver.table.cuEventElapsedTime = Elapsed;
    return OpenDevice(driver).release();
  }();
  return *device;
}

void DirectLaunch(benchmark::State& state) {
  const device::DriverTable& driver = Device().driver();
  const std::byte params[24] = {};
  size_t bytes = sizeof(params);
  for (auto _ : state) {
    round_of_launches.launches = 0;
    for (uint32_t i = 0; i < kLaunches; ++i) {
      CUlaunchConfig config = {};
      config.gridDimX = config.gridDimY = config.gridDimZ = 1;
      config.blockDimX = config.blockDimY = config.blockDimZ = 1;
      void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<std::byte*>(params),
                       CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
      benchmark::DoNotOptimize(driver.cuLaunchKernelEx(&config, nullptr, nullptr, extra));
    }
    state.SetIterationTime(round_of_launches.end - round_of_launches.begin);
  }
  state.SetItemsProcessed(state.iterations() * (kLaunches - 1));
}

// range(0): kernels that are launched in turns; range(1): streams, likewise; range(2): whether what
// comes again and again goes by a graph of its own.
void SessionLaunch(benchmark::State& state) {
  const auto kernels = static_cast<uint32_t>(state.range(0));
  const auto streams = static_cast<uint32_t>(state.range(1));
  PeerOptions options;
  options.device = &Device();
  options.repeats = state.range(2) != 0;
  SessionPeer peer(options);
  LoadLibrary(&peer, "", std::vector<std::string>(kernels - 1, "add"));
  for (uint32_t i = 0; i < streams; ++i) {
    wire::StreamCreateRequest create;
    create.stream = 16 + i;
    peer.Post(create);
  }
  struct {
    uint64_t words;
    uint32_t count;
    uint32_t value;
  } params = {peer.welcome().window_base, 1, 1};
  wire::LaunchRequest launch;
  launch.grid_x = launch.grid_y = launch.grid_z = 1;
  launch.block_x = launch.block_y = launch.block_z = 1;
  launch.params = std::as_bytes(std::span(&params, 1));
  Round& round = round_of_launches;
  for (auto _ : state) {
    round.launches = 0;
    round.held.store(true, std::memory_order_release);
    for (uint32_t i = 0; i < kLaunches; ++i) {
      params.value = i;
      launch.kernel = GuestId(kKernelKind, 1 + i % kernels);
      launch.stream = 16 + i % streams;
      peer.Post(launch);
    }
    round.held.store(false, std::memory_order_release);
    for (uint32_t i = 0; i < streams; ++i) {
      CHECK(peer.Synchronize(16 + i) == CUDA_SUCCESS) << "a launch was refused";
    }
    CHECK_EQ(round.launches, kLaunches);
    state.SetIterationTime(round.end - round.begin);
  }
  state.SetItemsProcessed(state.iterations() * (kLaunches - 1));
}

BENCHMARK(DirectLaunch)->UseManualTime();
BENCHMARK(SessionLaunch)
    ->ArgNames({"kernels", "streams", "graphs"})
    ->ArgsProduct({{1}, {1}, {0, 1}})
    ->ArgsProduct({{64}, {1, 4}, {0, 1}})
    ->UseManualTime();

}  // namespace
}  // namespace consort::host

BENCHMARK_MAIN();
