// SPDX-License-Identifier: Apache-2.0
// tests/bench/crowd_bench.cu: one of several processes that share a device.
//
//   crowd_bench --start T --seconds S --blocks N --nanos K
//   crowd_bench --start T --seconds S --idle
//
// From second T of CLOCK_MONOTONIC on it launches kernels of N blocks, each of which takes K
// nanoseconds on the device, for S seconds, and prints how many ended in that time. With --idle it
// makes a context, computes once and then does nothing. Every kernel counts itself on the device;
// exit status 1 if that count is not the host's. An ordinary program of plain nvcc;
// tests/bench/crowd.py runs several at once.
#include <cuda_runtime.h>
#include <time.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

// Launches between two synchronisations: enough to keep a device busy, few enough to stop in time.
constexpr int kInFlight = 64;
constexpr int kThreads = 128;

void Check(cudaError_t result, const char* what) {
  if (result == cudaSuccess) return;
  std::fprintf(stderr, "crowd_bench: %s: %s\n", what, cudaGetErrorString(result));
  std::exit(1);
}
#define CUDA_OK(call) Check(call, #call)

__global__ void Work(unsigned long long* kernels, uint64_t nanos) {
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < nanos);
  if (blockIdx.x == 0 && threadIdx.x == 0) *kernels += 1;
}

double Seconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void SleepUntil(double when) {
  timespec until;
  until.tv_sec = static_cast<time_t>(when);
  until.tv_nsec = static_cast<long>((when - static_cast<double>(until.tv_sec)) * 1e9);
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) != 0) {
  }
}

}  // namespace

int main(int argc, char** argv) {
  double start = 0, seconds = 1;
  int blocks = 1;
  uint64_t nanos = 0;
  bool idle = false;
  for (int i = 1; i < argc; ++i) {
    const bool more = i + 1 < argc;
    if (std::strcmp(argv[i], "--idle") == 0)
      idle = true;
    else if (more && std::strcmp(argv[i], "--start") == 0)
      start = std::atof(argv[++i]);
    else if (more && std::strcmp(argv[i], "--seconds") == 0)
      seconds = std::atof(argv[++i]);
    else if (more && std::strcmp(argv[i], "--blocks") == 0)
      blocks = std::atoi(argv[++i]);
    else if (more && std::strcmp(argv[i], "--nanos") == 0)
      nanos = std::strtoull(argv[++i], nullptr, 10);
    else {
      std::fprintf(stderr, "crowd_bench: unknown argument %s\n", argv[i]);
      return 2;
    }
  }
  unsigned long long* counted = nullptr;
  CUDA_OK(cudaMalloc(&counted, sizeof *counted));
  cudaStream_t stream;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  // In the kernels' stream: one that does not block would not wait for the default stream's memset.
  CUDA_OK(cudaMemsetAsync(counted, 0, sizeof *counted, stream));
  Work<<<blocks, kThreads, 0, stream>>>(counted, 0);
  CUDA_OK(cudaDeviceSynchronize());

  SleepUntil(start);
  if (Seconds() > start + seconds / 2) {
    std::fprintf(stderr, "crowd_bench: started too late\n");
    return 1;
  }
  const double end = start + seconds;
  unsigned long long launched = 1;
  if (idle) {
    SleepUntil(end);
  } else {
    while (Seconds() < end) {
      for (int i = 0; i < kInFlight; ++i) Work<<<blocks, kThreads, 0, stream>>>(counted, nanos);
      CUDA_OK(cudaGetLastError());
      CUDA_OK(cudaStreamSynchronize(stream));
      launched += kInFlight;
    }
  }
  unsigned long long found = 0;
  CUDA_OK(cudaMemcpy(&found, counted, sizeof found, cudaMemcpyDeviceToHost));
  if (found != launched) {
    std::fprintf(stderr, "crowd_bench: %llu kernels ran, %llu were launched\n", found, launched);
    return 1;
  }
  std::printf("kernels %llu\n", launched - 1);
  return 0;
}
