// SPDX-License-Identifier: Apache-2.0
// Keeps the device busy for a time and counts: what a tenant of its own is in tests of sharing.
//
//   busy [SECONDS [ROUNDS [SYNC_EVERY [wait]]]]
//
// Kernels of ROUNDS rounds each, on two streams by turns; after SYNC_EVERY of them it waits for the
// device (0: only at the end). With `wait` it prints "ready" when its first kernel has run and
// begins when a line comes on its standard input. Prints how many kernels ran; what they computed
// is checked.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "check.h"

constexpr int kBlocks = 2;
constexpr int kThreads = 32;
constexpr int kElements = kBlocks * kThreads;
// How far it is ahead of the device: not by long, so that it ends soon after its time, but by
// enough that the device does not wait for it where the machine keeps it from running for a while.
constexpr double kAheadSeconds = 0.3;
constexpr int kMarks = 4;
constexpr int kStrideMax = 4096;
constexpr int kTimedKernels = 5;

__global__ void Spin(unsigned* values, int rounds) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  unsigned value = values[i];
  for (int round = 0; round < rounds; ++round) value = value * 1664525u + 1013904223u;
  values[i] = value;
}

// What Spin makes of 0 in so many rounds: x -> a x + c applied n times, by squaring.
static unsigned FromZero(long n) {
  unsigned a = 1664525u, c = 1013904223u, value = 0;
  for (; n != 0; n /= 2) {
    if (n % 2 != 0) value = value * a + c;
    c = c * a + c;
    a *= a;
  }
  return value;
}

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? atof(argv[1]) : 0.2;
  const int rounds = argc > 2 ? atoi(argv[2]) : 1000;
  const long sync_every = argc > 3 ? atol(argv[3]) : 0;
  const bool wait = argc > 4 && strcmp(argv[4], "wait") == 0;

  unsigned* values[2];
  cudaStream_t streams[2];
  for (int i = 0; i < 2; ++i) {
    CUDA_OK(cudaMalloc(&values[i], kElements * sizeof(unsigned)));
    CUDA_OK(cudaMemset(values[i], 0, kElements * sizeof(unsigned)));
    CUDA_OK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
  }
  CUDA_OK(cudaDeviceSynchronize());
  long launched[2] = {};
  const auto launch = [&](int i) {
    Spin<<<kBlocks, kThreads, 0, streams[i]>>>(values[i], rounds);
    CUDA_OK(cudaGetLastError());
    ++launched[i];
  };
  using Clock = std::chrono::steady_clock;
  launch(0);
  CUDA_OK(cudaDeviceSynchronize());
  // The fastest of several: what else the machine does only makes them seem longer.
  double kernel_seconds = kAheadSeconds;
  for (int i = 0; i < kTimedKernels; ++i) {
    const auto begin = Clock::now();
    launch(0);
    CUDA_OK(cudaDeviceSynchronize());
    kernel_seconds =
        std::min(kernel_seconds, std::chrono::duration<double>(Clock::now() - begin).count());
  }
  // Every so often an event; it waits for the one of kMarks before.
  const int stride =
      std::clamp(static_cast<int>(kAheadSeconds / kernel_seconds / kMarks), 1, kStrideMax);
  cudaEvent_t marks[kMarks];
  for (cudaEvent_t& mark : marks) {
    CUDA_OK(cudaEventCreateWithFlags(&mark, cudaEventDisableTiming));
  }
  if (wait) {
    printf("ready\n");
    fflush(stdout);
    if (getchar() == EOF) return 1;
  }

  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  long count = 0;
  for (; Clock::now() < end; ++count) {
    const int stream = static_cast<int>(count % 2);
    launch(stream);
    if (count % stride == 0) {
      cudaEvent_t mark = marks[count / stride % kMarks];
      CUDA_OK(cudaEventSynchronize(mark));
      CUDA_OK(cudaEventRecord(mark, streams[stream]));
    }
    if (sync_every != 0 && (count + 1) % sync_every == 0) CUDA_OK(cudaDeviceSynchronize());
  }
  CUDA_OK(cudaDeviceSynchronize());

  for (int i = 0; i < 2; ++i) {
    std::vector<unsigned> result(kElements);
    CUDA_OK(
        cudaMemcpy(result.data(), values[i], kElements * sizeof(unsigned), cudaMemcpyDeviceToHost));
    const unsigned expected = FromZero(launched[i] * rounds);
    for (const unsigned value : result) {
      if (value != expected) {
        programs::Fail(__FILE__, __LINE__, "stream %d: %u instead of %u after %ld kernels", i,
                       value, expected, launched[i]);
      }
    }
  }
  printf("%ld kernels\n", count + 1 + kTimedKernels);
  return programs::Pass();
}
