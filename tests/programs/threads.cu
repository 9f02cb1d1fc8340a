// SPDX-License-Identifier: Apache-2.0
// tests/programs/threads.cu: eight host threads at once, each with allocations, a stream, launches
// and copies of its own.
//
// Built twice: threads (streams that each thread creates) and threads_default_stream (with
// --default-stream per-thread, where stream 0 of each thread is its own).
#include <thread>
#include <vector>

#include "check.h"

__global__ void Advance(uint32_t* values, int count, int steps) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= count) return;
  uint32_t value = values[index];
  for (int i = 0; i < steps; ++i) value = value * 1664525u + 1013904223u;
  values[index] = value;
}

void RunThread(int thread) {
  CUDA_OK(cudaSetDevice(0));
  cudaStream_t stream = nullptr;
#ifndef CUDA_API_PER_THREAD_DEFAULT_STREAM
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
#endif
  constexpr int kRounds = 8, kSteps = 40;
  for (int round = 0; round < kRounds; ++round) {
    const int count = 100 + 37 * thread + round;
    const size_t bytes = count * sizeof(uint32_t);
    std::vector<uint32_t> values(count), result(count);
    for (int i = 0; i < count; ++i) values[i] = thread * 100000 + round * 1000 + i;
    uint32_t* device;
    cudaEvent_t event;
    CUDA_OK(cudaMalloc(&device, bytes));
    CUDA_OK(cudaEventCreate(&event));
    CUDA_OK(cudaMemcpyAsync(device, values.data(), bytes, cudaMemcpyHostToDevice, stream));
    Advance<<<(count + 63) / 64, 64, 0, stream>>>(device, count, kSteps);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaEventRecord(event, stream));
    CUDA_OK(cudaMemcpyAsync(result.data(), device, bytes, cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    CUDA_OK(cudaEventQuery(event));
    for (int i = 0; i < count; ++i) {
      uint32_t expected = values[i];
      for (int step = 0; step < kSteps; ++step) expected = expected * 1664525u + 1013904223u;
      EXPECT(result[i] == expected, "thread %d round %d: element %d is %u, expected %u", thread,
             round, i, result[i], expected);
    }
    // The last error belongs to the thread.
    if (thread % 2 == 0) {
      CUDA_ERROR_IS(cudaSetDevice(-1), cudaErrorInvalidDevice);
    } else {
      CUDA_OK(cudaPeekAtLastError());
    }
    if (thread % 2 == 0) CUDA_ERROR_IS(cudaGetLastError(), cudaErrorInvalidDevice);
    CUDA_OK(cudaEventDestroy(event));
    CUDA_OK(cudaFree(device));
  }
#ifndef CUDA_API_PER_THREAD_DEFAULT_STREAM
  CUDA_OK(cudaStreamDestroy(stream));
#endif
}

int main() {
  constexpr int kThreads = 8;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) threads.emplace_back(RunThread, thread);
  for (std::thread& thread : threads) thread.join();
#ifdef CUDA_API_PER_THREAD_DEFAULT_STREAM
  std::printf("threads: %d threads, each in its own default stream\n", kThreads);
#else
  std::printf("threads: %d threads, each in a stream of its own\n", kThreads);
#endif
  return programs::Pass();
}
