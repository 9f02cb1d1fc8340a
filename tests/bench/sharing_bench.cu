// SPDX-License-Identifier: Apache-2.0
// A tenant's program for tests/bench/sharing.py: cycles of a copy in, kernels and a copy out.
//
//   sharing_bench [KEY=VALUE ...]
//     us=200        length of a kernel alone, found out at the start: a loop of multiplications
//     rounds=0      of that loop, instead of a length
//     blocks=1056   of a kernel, of 256 threads
//     memory=0      1: the kernel reads and writes device memory instead
//     kernels=1     a cycle; 0: none
//     in=0 out=0    MiB that a cycle copies to the device, and back, from pinned memory
//     depth=8       cycles between two synchronisations
//     streams=1     cycles take them in turn
//     cpu=0         microseconds that the program computes itself before each cycle
//     period=0      microseconds from one cycle's begin to the next; its latency is measured
//
// Prints "ready", and for each line on its standard input does what it says and prints one:
//   time SECONDS    done CYCLES SECONDS P50 P99   the latter in microseconds, 0 without a period
//   work CYCLES     likewise
//   rounds          rounds ROUNDS: what was found for the kernel's length
#include <cuda_runtime.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

constexpr int kThreads = 256;
constexpr size_t kMiB = 1 << 20;
constexpr size_t kMemoryBytes = 64 * kMiB;

#define CUDA_OK(call) Check(call, #call)
static void Check(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  fprintf(stderr, "sharing_bench: %s returned %s\n", call, cudaGetErrorString(result));
  exit(1);
}

static double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

__global__ void Multiply(float* values, int rounds) {
  const int i = (blockIdx.x * kThreads + threadIdx.x) & (kMiB - 1);
  float value = values[i];
  for (int round = 0; round < rounds; ++round) value = value * 1.0001f + 0.5f;
  values[i] = value;
}

__global__ void Touch(float4* values, long count, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    for (long i = blockIdx.x * static_cast<long>(kThreads) + threadIdx.x; i < count;
         i += static_cast<long>(gridDim.x) * kThreads) {
      float4 value = values[i];
      value.x += 1;
      value.w += value.y;
      values[i] = value;
    }
  }
}

class Tenant {
 public:
  explicit Tenant(std::map<std::string, double> shape) : shape_(std::move(shape)) {
    streams_.resize(static_cast<size_t>(shape_["streams"]));
    for (cudaStream_t& stream : streams_) {
      CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    }
    const size_t host_bytes =
        static_cast<size_t>(std::max({shape_["in"], shape_["out"], 1.0}) * kMiB);
    CUDA_OK(cudaMalloc(&memory_, std::max(kMemoryBytes, host_bytes)));
    CUDA_OK(cudaMemset(memory_, 0, std::max(kMemoryBytes, host_bytes)));
    CUDA_OK(cudaMallocHost(&host_, host_bytes));
    memset(host_, 0, host_bytes);
    rounds_ = std::max(1, static_cast<int>(shape_["rounds"]));
    if (shape_["kernels"] > 0 && shape_["rounds"] == 0) FindRounds();
  }

  // A cycle; its number chooses the stream.
  void Cycle(long number) {
    const cudaStream_t stream = streams_[static_cast<size_t>(number) % streams_.size()];
    for (const double until = Now() + shape_["cpu"] * 1e-6; Now() < until;) {
    }
    if (shape_["in"] > 0) {
      CUDA_OK(cudaMemcpyAsync(memory_, host_, static_cast<size_t>(shape_["in"] * kMiB),
                              cudaMemcpyHostToDevice, stream));
    }
    for (int i = 0; i < static_cast<int>(shape_["kernels"]); ++i) Launch(rounds_, stream);
    if (shape_["out"] > 0) {
      CUDA_OK(cudaMemcpyAsync(host_, memory_, static_cast<size_t>(shape_["out"] * kMiB),
                              cudaMemcpyDeviceToHost, stream));
    }
  }

  void Synchronize() {
    for (cudaStream_t stream : streams_) CUDA_OK(cudaStreamSynchronize(stream));
  }

  int rounds() const { return rounds_; }

  void Run(double seconds, long cycles) {
    std::vector<double> latencies;
    const double period = shape_["period"] * 1e-6;
    const auto depth = static_cast<long>(shape_["depth"]);
    const double begin = Now();
    long done = 0;
    while (cycles > 0 ? done < cycles : Now() - begin < seconds) {
      const double cycle_begin = Now();
      Cycle(done++);
      if (period > 0) {
        Synchronize();
        const double end = Now();
        latencies.push_back((end - cycle_begin) * 1e6);
        const double left = cycle_begin + period - end;
        poll(nullptr, 0, static_cast<int>(std::max(left, 0.0) * 1e3));
      } else if (done % depth == 0) {
        Synchronize();
      }
    }
    Synchronize();
    const double took = Now() - begin;
    std::sort(latencies.begin(), latencies.end());
    const auto quantile = [&](double q) {
      return latencies.empty()
                 ? 0.0
                 : latencies[static_cast<size_t>(q * static_cast<double>(latencies.size() - 1))];
    };
    printf("done %ld %.6f %.1f %.1f\n", done, took, quantile(0.5), quantile(0.99));
    fflush(stdout);
  }

 private:
  void Launch(int rounds, cudaStream_t stream) {
    const int blocks = static_cast<int>(shape_["blocks"]);
    if (shape_["memory"] > 0) {
      Touch<<<blocks, kThreads, 0, stream>>>(reinterpret_cast<float4*>(memory_),
                                             kMemoryBytes / sizeof(float4), rounds);
    } else {
      Multiply<<<blocks, kThreads, 0, stream>>>(memory_, rounds);
    }
    CUDA_OK(cudaGetLastError());
  }

  // How many rounds a kernel of the wanted length has: from two lengths, so that what a launch
  // takes does not count; the fastest of some tries.
  void FindRounds() {
    const auto time_of = [&](int rounds) {
      double best = 1e9;
      for (int i = 0; i < 5; ++i) {
        const double begin = Now();
        Launch(rounds, streams_[0]);
        CUDA_OK(cudaStreamSynchronize(streams_[0]));
        best = std::min(best, Now() - begin);
      }
      return best;
    };
    const double wanted = shape_["us"] * 1e-6;
    time_of(1);
    int more = shape_["memory"] > 0 ? 2 : 64;
    double base = time_of(1);
    double each = 0;
    // Long enough that the clock and the launch are small beside it.
    while ((each = time_of(more) - base) < 2e-3) more *= 2;
    rounds_ = std::max(1, static_cast<int>(wanted / (each / (more - 1))));
  }

  std::map<std::string, double> shape_;
  std::vector<cudaStream_t> streams_;
  float* memory_ = nullptr;
  float* host_ = nullptr;
  int rounds_;
};

int main(int argc, char** argv) {
  std::map<std::string, double> shape = {
      {"us", 200}, {"rounds", 0}, {"blocks", 1056}, {"memory", 0}, {"kernels", 1}, {"in", 0},
      {"out", 0},  {"depth", 8},  {"streams", 1},   {"cpu", 0},    {"period", 0}};
  for (int i = 1; i < argc; ++i) {
    const char* equals = strchr(argv[i], '=');
    const std::string key(argv[i], equals == nullptr ? strlen(argv[i]) : equals - argv[i]);
    if (equals == nullptr || shape.find(key) == shape.end()) {
      fprintf(stderr, "sharing_bench: no such thing: %s\n", argv[i]);
      return 2;
    }
    shape[key] = atof(equals + 1);
  }
  Tenant tenant(shape);
  puts("ready");
  fflush(stdout);
  char line[64];
  while (fgets(line, sizeof(line), stdin) != nullptr) {
    double seconds = 0;
    long cycles = 0;
    if (strcmp(line, "rounds\n") == 0) {
      printf("rounds %d\n", tenant.rounds());
      fflush(stdout);
      continue;
    }
    if (sscanf(line, "time %lf", &seconds) != 1 && sscanf(line, "work %ld", &cycles) != 1) return 2;
    tenant.Run(seconds, cycles);
  }
  return 0;
}
