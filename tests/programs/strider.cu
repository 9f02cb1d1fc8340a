// SPDX-License-Identifier: Apache-2.0
// An application of long kernels, until its input ends, which checks each word that comes back
// against what it computes itself: that it is computed again from a checkpoint must not show.
//
//   strider [STEPS [pinned|steps]]
//
// A kernel takes each word STEPS times further; copies within the device, fills, small copies from
// the host, two streams with an event between them, and memory, events and streams that come and go
// surround it. With `pinned` each round copies from pinned memory, too; with `steps` each waits for
// a line of input. It says how many rounds there were, each time.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "check.h"
#include "hold.h"

constexpr unsigned kWords = 256;
static const unsigned kFactor = 1664525u;
constexpr unsigned kSummand = 1013904223u;

// Each step waits for memory, so that no compiler takes many at once.
__global__ void Stride(unsigned* words, unsigned steps, const volatile unsigned* factor) {
  unsigned value = words[blockIdx.x * blockDim.x + threadIdx.x];
  for (unsigned i = 0; i < steps; ++i) value = value * *factor + kSummand;
  words[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

// As so many steps at once.
struct Leap {
  unsigned factor = 1;
  unsigned summand = 0;
};

static Leap LeapOf(unsigned steps) {
  Leap leap;
  Leap power = {kFactor, kSummand};
  for (; steps != 0; steps /= 2) {
    if (steps % 2 != 0)
      leap = {leap.factor * power.factor, leap.summand * power.factor + power.summand};
    power = {power.factor * power.factor, power.summand * power.factor + power.summand};
  }
  return leap;
}

int main(int argc, char** argv) {
  const unsigned steps = argc > 1 ? std::atoi(argv[1]) : 1'000'000;
  const char* const how = argc > 2 ? argv[2] : "";
  const bool pinned = std::strcmp(how, "pinned") == 0;
  const bool waits = std::strcmp(how, "steps") == 0;
  const Leap leap = LeapOf(steps);
  std::vector<unsigned> expected(kWords);
  for (unsigned i = 0; i < kWords; ++i) expected[i] = i * 2654435761u;
  unsigned* words = nullptr;
  unsigned* copy = nullptr;
  unsigned* factor = nullptr;
  unsigned* from = nullptr;
  CUDA_OK(cudaMalloc(&words, kWords * sizeof(unsigned)));
  CUDA_OK(cudaMalloc(&copy, kWords * sizeof(unsigned)));
  CUDA_OK(cudaMemcpy(words, expected.data(), kWords * sizeof(unsigned), cudaMemcpyHostToDevice));
  CUDA_OK(cudaMalloc(&factor, sizeof(unsigned)));
  CUDA_OK(cudaMemcpy(factor, &kFactor, sizeof(unsigned), cudaMemcpyHostToDevice));
  if (pinned) CUDA_OK(cudaMallocHost(&from, sizeof(unsigned)));
  cudaStream_t first = nullptr;
  CUDA_OK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  unsigned round = 0;
  for (; !programs::InputEnded(waits) || round < 4; ++round) {
    cudaStream_t second = nullptr;
    cudaEvent_t done = nullptr;
    unsigned* small = nullptr;
    CUDA_OK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    CUDA_OK(cudaEventCreateWithFlags(&done, cudaEventDisableTiming));
    CUDA_OK(cudaMalloc(&small, 4 + round * 97 % 20'000));
    const unsigned news = round * 40503u;
    if (pinned) {
      *from = news;
      CUDA_OK(cudaMemcpyAsync(words, from, sizeof(news), cudaMemcpyHostToDevice, first));
    } else {
      CUDA_OK(cudaMemcpyAsync(words, &news, sizeof(news), cudaMemcpyHostToDevice, first));
    }
    Stride<<<kWords / 64, 64, 0, first>>>(words, steps, factor);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaEventRecord(done, first));
    CUDA_OK(cudaStreamWaitEvent(second, done, 0));
    CUDA_OK(
        cudaMemcpyAsync(copy, words, kWords * sizeof(unsigned), cudaMemcpyDeviceToDevice, second));
    CUDA_OK(cudaMemsetAsync(copy + round % kWords, 0x5a, sizeof(unsigned), second));
    CUDA_OK(cudaMemsetAsync(small, 1, 4, second));
    expected[0] = news;
    for (unsigned& word : expected) word = word * leap.factor + leap.summand;
    if (round % 2 == 0) CUDA_OK(cudaStreamSynchronize(second));
    std::vector<unsigned> back(kWords);
    CUDA_OK(cudaMemcpyAsync(back.data(), copy, kWords * sizeof(unsigned), cudaMemcpyDeviceToHost,
                            second));
    CUDA_OK(cudaStreamSynchronize(second));
    std::vector<unsigned> wanted = expected;
    wanted[round % kWords] = 0x5a5a5a5au;
    EXPECT(back == wanted, "round %u", round);
    CUDA_OK(cudaFree(small));
    CUDA_OK(cudaEventDestroy(done));
    CUDA_OK(cudaStreamDestroy(second));
    std::printf("round %u\n", round);
    std::fflush(stdout);
  }
  CUDA_OK(cudaDeviceSynchronize());
  std::printf("%u rounds\n", round);
  return programs::Pass();
}
