// SPDX-License-Identifier: Apache-2.0
// tests/bench/remoting_bench.cu: what whole paths cost a CUDA program: from its call to the device
// and back.
//
//   remoting_bench [--big-mib N] [--quick]
//
// An ordinary program of plain nvcc and its static runtime; which driver library it meets is the
// loader's business, so natively and through Consort the same binary runs. Prints "name value unit"
// a measurement, and facts about the machine in lines that begin with '#'. Times are the caller's,
// medians but for those named p99. All but copies of N MiB is measured in several rounds, one after
// the other, since what takes microseconds is otherwise over in a few milliseconds and shows those.
// Data that was moved or computed is compared at the end: exit status 1 if it is wrong, and then
// the numbers are worth nothing. tests/bench/compare.py runs it.
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;

// Launches that are enqueued between two synchronisations. Fewer than the driver queues (1024), so
// that enqueueing never waits for room.
constexpr int kEnqueued = 200;
constexpr int kThroughputLaunches = 1000;
// A sequence of launches that a program does again and again.
constexpr int kSequence = 100;
constexpr int kGraphKernels = 64;

// The pipeline of a small inference: a megabyte in, some kernels, a page out.
constexpr size_t kPipelineInBytes = kMiB;
constexpr size_t kPipelineOutBytes = 4 * kKiB;
constexpr int kPipelineKernels = 20;

constexpr int kBigCopies = 15;

// Each with as many repetitions as are named below.
constexpr int kRounds = 5;

[[noreturn]] void Die(const char* what, const char* why) {
  std::fprintf(stderr, "remoting_bench: %s: %s\n", what, why);
  std::exit(1);
}

void Check(cudaError_t result, const char* what) {
  if (result != cudaSuccess) Die(what, cudaGetErrorString(result));
}
#define CUDA_OK(call) Check(call, #call)

__global__ void Nothing() {}

// Several kernels of three arguments, which do nothing: no launch passes no words.
template <int kernel>
__global__ void Idle(uint32_t* words, uint32_t index, float value) {
  if (words != nullptr) words[index] = static_cast<uint32_t>(kernel * value);
}

// Runs for so long by the device's own clock.
__global__ void Busy(uint64_t nanos) {
  uint64_t begin = 0;
  uint64_t now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < nanos);
}

__global__ void AddOne(uint32_t* values, uint32_t count) {
  const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < count) values[index] += 1;
}

double Microseconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(now).count();
}

// What repeated runs of `body` took, in microseconds, sorted. `between` runs untimed after each;
// one more run of both comes first and is not counted.
template <class Body, class Between>
std::vector<double> Times(int count, Body body, Between between) {
  std::vector<double> times;
  for (int run = -1; run < count; ++run) {
    const double begin = Microseconds();
    body();
    const double end = Microseconds();
    between();
    if (run >= 0) times.push_back(end - begin);
  }
  std::sort(times.begin(), times.end());
  return times;
}

template <class Body>
std::vector<double> Times(int count, Body body) {
  return Times(count, body, [] {});
}

double Quantile(const std::vector<double>& sorted, double part) {
  return sorted[static_cast<size_t>(part * static_cast<double>(sorted.size() - 1))];
}
double Median(const std::vector<double>& sorted) { return Quantile(sorted, 0.5); }

void Print(const std::string& name, double value, const char* unit) {
  std::printf("%s %.3f %s\n", name.c_str(), value, unit);
  std::fflush(stdout);
}

std::string SizeName(size_t bytes) {
  if (bytes >= kMiB) return std::to_string(bytes / kMiB) + "MiB";
  if (bytes >= kKiB) return std::to_string(bytes / kKiB) + "KiB";
  return std::to_string(bytes) + "B";
}

// What a row of the result is, of sorted times.
using Value = std::function<double(const std::vector<double>& sorted)>;

Value MedianOver(double items) {
  return [items](const std::vector<double>& sorted) { return Median(sorted) / items; };
}

// Rows of the result, whose times come in parts.
class Rows {
 public:
  void Add(const std::string& name, const char* unit, const std::vector<double>& times,
           Value value = MedianOver(1)) {
    Row* row = nullptr;
    for (Row& each : rows_) {
      if (each.name == name) row = &each;
    }
    if (row == nullptr) row = &rows_.emplace_back(Row{name, unit, std::move(value), {}});
    row->times.insert(row->times.end(), times.begin(), times.end());
  }
  void Print() {
    for (Row& row : rows_) {
      std::sort(row.times.begin(), row.times.end());
      ::Print(row.name, row.value(row.times), row.unit);
    }
    rows_.clear();
  }

 private:
  struct Row {
    std::string name;
    const char* unit;
    Value value;
    std::vector<double> times;  // microseconds
  };
  std::vector<Row> rows_;  // in the order in which they came
};

class Bench {
 public:
  Bench(size_t big_bytes, int divisor) : big_bytes_(big_bytes), divisor_(divisor) {}

  void Run() {
    Init();
    CUDA_OK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CUDA_OK(cudaMalloc(&device_, big_bytes_));
    std::vector<uint8_t> pageable(big_bytes_);
    uint8_t* pinned = nullptr;
    CUDA_OK(cudaMallocHost(&pinned, big_bytes_));
    for (int round = 0; round < std::max(kRounds / divisor_, 1); ++round) {
      Launches();
      Memory();
      Events();
      for (const size_t bytes : {size_t{64}, 4 * kKiB, 64 * kKiB, kMiB}) {
        Copies(bytes, Runs(bytes == kMiB ? 100 : 500), "pageable", pageable.data(), 1);
        Copies(bytes, Runs(bytes == kMiB ? 100 : 500), "pinned", pinned, 2);
      }
      Pipeline(reinterpret_cast<uint32_t*>(pinned));
    }
    Copies(big_bytes_, kBigCopies, "pageable", pageable.data(), 1);
    Copies(big_bytes_, kBigCopies, "pinned", pinned, 2);
    rows_.Print();
    CUDA_OK(cudaFreeHost(pinned));
    CUDA_OK(cudaFree(device_));
    CUDA_OK(cudaStreamDestroy(stream_));
  }

 private:
  int Runs(int count) const { return std::max(count / divisor_, 3); }

  void Init() {
    const double begin = Microseconds();
    CUDA_OK(cudaFree(nullptr));
    const double end = Microseconds();
    cudaDeviceProp properties;
    int driver = 0, runtime = 0;
    CUDA_OK(cudaGetDeviceProperties(&properties, 0));
    CUDA_OK(cudaDriverGetVersion(&driver));
    CUDA_OK(cudaRuntimeGetVersion(&runtime));
    std::printf("# device %s\n# driver %d runtime %d\n", properties.name, driver, runtime);
    Print("init", (end - begin) / 1e3, "ms");
  }

  void Launches() {
    const auto synchronise = [this] { CUDA_OK(cudaStreamSynchronize(stream_)); };
    const auto launch = [this](int count) {
      for (int i = 0; i < count; ++i) Nothing<<<1, 1, 0, stream_>>>();
      CUDA_OK(cudaGetLastError());
    };
    rows_.Add("launch_enqueue", "us",
              Times(
                  Runs(10), [&] { launch(kEnqueued); }, synchronise),
              MedianOver(kEnqueued));
    const auto many = [&] {
      launch(kThroughputLaunches);
      synchronise();
    };
    const Value a_launch = MedianOver(kThroughputLaunches);
    rows_.Add("launch_throughput", "us", Times(Runs(4), many), a_launch);
    const auto differing = [this](uint32_t first, uint32_t count) {
      for (uint32_t i = first; i < first + count; ++i) {
        switch (i % 4) {
          case 0:
            Idle<0><<<1, 1, 0, stream_>>>(nullptr, i, 1.5f);
            break;
          case 1:
            Idle<1><<<1, 32, 0, stream_>>>(nullptr, i, 2.5f);
            break;
          case 2:
            Idle<2><<<2, 32, 0, stream_>>>(nullptr, i, 3.5f);
            break;
          default:
            Idle<3><<<1, 64, 0, stream_>>>(nullptr, i, 4.5f);
        }
      }
      CUDA_OK(cudaGetLastError());
    };
    uint32_t next = 0;
    const auto many_differing = [&] {
      differing(next, kThroughputLaunches);
      next += kThroughputLaunches;
      synchronise();
    };
    rows_.Add("launch_different", "us", Times(Runs(4), many_differing), a_launch);
    const auto sequences = [&] {
      for (int i = 0; i < kThroughputLaunches; i += kSequence) differing(0, kSequence);
      synchronise();
    };
    rows_.Add("launch_repeated_100", "us", Times(Runs(4), sequences), a_launch);
    const auto one = [&] {
      launch(1);
      synchronise();
    };
    const std::vector<double> times = Times(Runs(2000), one);
    rows_.Add("launch_sync_p50", "us", times);
    rows_.Add("launch_sync_p99", "us", times,
              [](const std::vector<double>& sorted) { return Quantile(sorted, 0.99); });
    // The same kernels as a graph, one after the other; a launch of it, a kernel.
    cudaGraph_t graph;
    cudaGraphExec_t chain;
    CUDA_OK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    differing(0, kGraphKernels);
    CUDA_OK(cudaStreamEndCapture(stream_, &graph));
    CUDA_OK(cudaGraphInstantiate(&chain, graph, 0));
    const auto graphs = [&] {
      for (int i = 0; i < kThroughputLaunches; i += kGraphKernels)
        CUDA_OK(cudaGraphLaunch(chain, stream_));
      synchronise();
    };
    constexpr int kInAll =
        (kThroughputLaunches + kGraphKernels - 1) / kGraphKernels * kGraphKernels;
    rows_.Add("graph_of_64", "us", Times(Runs(4), graphs), MedianOver(kInAll));
    CUDA_OK(cudaGraphExecDestroy(chain));
    CUDA_OK(cudaGraphDestroy(graph));
    // What a wait takes beyond what it waits for.
    for (const int milliseconds : {1, 5}) {
      const double busy = milliseconds * 1e3;
      const auto wait = [&] {
        Busy<<<1, 1, 0, stream_>>>(static_cast<uint64_t>(busy * 1e3));
        CUDA_OK(cudaGetLastError());
        synchronise();
      };
      rows_.Add("wait_beyond_" + std::to_string(milliseconds) + "ms", "us", Times(Runs(8), wait),
                [busy](const std::vector<double>& sorted) { return Median(sorted) - busy; });
    }
  }

  void Memory() {
    const auto allocate = [] {
      void* memory = nullptr;
      CUDA_OK(cudaMalloc(&memory, kMiB));
      CUDA_OK(cudaFree(memory));
    };
    rows_.Add("malloc_free_1MiB", "us", Times(Runs(200), allocate));
  }

  void Events() {
    cudaEvent_t event;
    CUDA_OK(cudaEventCreate(&event));
    const auto record = [&] {
      CUDA_OK(cudaEventRecord(event, stream_));
      const cudaError_t state = cudaEventQuery(event);
      if (state != cudaErrorNotReady) CUDA_OK(state);
    };
    const auto settle = [&] { CUDA_OK(cudaEventSynchronize(event)); };
    rows_.Add("event_record_query", "us", Times(Runs(500), record, settle));
    CUDA_OK(cudaEventDestroy(event));
  }

  // In, out, and compared. `seed` tells the two kinds of memory apart.
  void Copies(size_t bytes, int runs, const char* kind, uint8_t* host, uint8_t seed) {
    const bool big = bytes == big_bytes_;
    for (size_t i = 0; i < bytes; ++i) host[i] = static_cast<uint8_t>(i * 7 + i / 251 + seed);
    const std::vector<double> to_device =
        Times(runs, [&] { CUDA_OK(cudaMemcpy(device_, host, bytes, cudaMemcpyHostToDevice)); });
    std::memset(host, 0, bytes);
    const std::vector<double> to_host =
        Times(runs, [&] { CUDA_OK(cudaMemcpy(host, device_, bytes, cudaMemcpyDeviceToHost)); });
    for (size_t i = 0; i < bytes; ++i) {
      if (host[i] != static_cast<uint8_t>(i * 7 + i / 251 + seed)) Die(kind, "a copy is wrong");
    }
    const std::string suffix = std::string("_") + kind + "_" + (big ? "big" : SizeName(bytes));
    const Value gigabytes = [bytes](const std::vector<double>& sorted) {
      return static_cast<double>(bytes) / Median(sorted) / 1e3;
    };
    rows_.Add("h2d" + suffix, big ? "GB/s" : "us", to_device, big ? gigabytes : MedianOver(1));
    rows_.Add("d2h" + suffix, big ? "GB/s" : "us", to_host, big ? gigabytes : MedianOver(1));
  }

  void Pipeline(uint32_t* pinned) {
    constexpr uint32_t kCount = kPipelineInBytes / sizeof(uint32_t);
    constexpr uint32_t kThreads = 256;
    // The result comes back behind the input, which every run sends again.
    uint32_t* const out = pinned + kCount;
    for (uint32_t i = 0; i < kCount; ++i) pinned[i] = i;
    auto* const values = static_cast<uint32_t*>(device_);
    const auto pass = [&] {
      CUDA_OK(cudaMemcpyAsync(values, pinned, kPipelineInBytes, cudaMemcpyHostToDevice, stream_));
      for (int kernel = 0; kernel < kPipelineKernels; ++kernel)
        AddOne<<<(kCount + kThreads - 1) / kThreads, kThreads, 0, stream_>>>(values, kCount);
      CUDA_OK(cudaGetLastError());
      CUDA_OK(cudaMemcpyAsync(out, values, kPipelineOutBytes, cudaMemcpyDeviceToHost, stream_));
      CUDA_OK(cudaStreamSynchronize(stream_));
    };
    rows_.Add("pipeline_1MiB_20_kernels_4KiB", "us", Times(Runs(100), pass));
    for (uint32_t i = 0; i < kPipelineOutBytes / sizeof(uint32_t); ++i) {
      if (out[i] != i + kPipelineKernels) Die("pipeline", "a result is wrong");
    }
  }

  const size_t big_bytes_;
  const int divisor_;  // of repetitions
  Rows rows_;
  cudaStream_t stream_ = nullptr;
  void* device_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  size_t big_mib = 256;
  int divisor = 1;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--quick") == 0) {
      divisor = 10;
    } else if (std::strcmp(argv[i], "--big-mib") == 0 && i + 1 < argc) {
      big_mib = std::strtoul(argv[++i], nullptr, 10);
    } else {
      std::fprintf(stderr, "usage: remoting_bench [--big-mib N] [--quick]\n");
      return 2;
    }
  }
  if (big_mib < 2) Die("--big-mib", "must be 2 or more");
  Bench(big_mib * kMiB, divisor).Run();
  return 0;
}
