// SPDX-License-Identifier: Apache-2.0
// tests/programs/async_events.cu: events while the CPU works: record, query, synchronise, elapsed
// time, re-recording.
#include <vector>

#include "check.h"

__global__ void Advance(uint32_t* values, int count, int steps) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= count) return;
  uint32_t value = values[index];
  for (int i = 0; i < steps; ++i) value = value * 1664525u + 1013904223u;
  values[index] = value;
}

int main() {
  constexpr int kCount = 256, kRounds = 5, kSteps = 20000;
  constexpr size_t kBytes = kCount * sizeof(uint32_t);
  uint32_t *pinned, *device;
  CUDA_OK(cudaMallocHost(&pinned, kBytes));
  CUDA_OK(cudaMalloc(&device, kBytes));
  std::vector<uint32_t> expected(kCount);
  for (int i = 0; i < kCount; ++i) expected[i] = pinned[i] = i * 7919u;

  cudaStream_t stream;
  cudaEvent_t start, stop, untimed;
  CUDA_OK(cudaStreamCreate(&stream));
  CUDA_OK(cudaEventCreate(&start));
  CUDA_OK(cudaEventCreate(&stop));
  CUDA_OK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming | cudaEventBlockingSync));
  CUDA_OK(cudaEventQuery(stop));  // never recorded counts as complete
  float milliseconds = -1.0f;
  CUDA_ERROR_IS(cudaEventElapsedTime(&milliseconds, start, stop),
                cudaErrorInvalidResourceHandle);  // never recorded
  CUDA_ERROR_IS(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  CUDA_OK(cudaGetLastError());  // reading clears it

  long cpu_passes = 0, not_ready = 0;
  float milliseconds_total = 0.0f;
  for (int round = 0; round < kRounds; ++round) {
    CUDA_OK(cudaEventRecord(start, stream));
    CUDA_OK(cudaMemcpyAsync(device, pinned, kBytes, cudaMemcpyHostToDevice, stream));
    Advance<<<2, kCount / 2, 0, stream>>>(device, kCount, kSteps);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaMemcpyAsync(pinned, device, kBytes, cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaEventRecord(stop, stream));
    CUDA_OK(cudaEventRecord(untimed, stream));
    // The CPU computes the same numbers meanwhile, a slice of them between two looks at the event.
    int done = 0;
    while (true) {
      for (int slice_end = done + 1; done < kCount && done < slice_end; ++done) {
        for (int i = 0; i < kSteps; ++i) expected[done] = expected[done] * 1664525u + 1013904223u;
      }
      ++cpu_passes;
      const cudaError_t state = cudaEventQuery(stop);
      if (state == cudaErrorNotReady) {
        ++not_ready;
        if (done < kCount) continue;
        CUDA_OK(cudaEventSynchronize(stop));
        CUDA_OK(cudaEventQuery(stop));
      } else {
        CUDA_OK(state);
      }
      if (done == kCount) break;
    }
    CUDA_OK(cudaEventSynchronize(untimed));
    for (int i = 0; i < kCount; ++i)
      EXPECT(pinned[i] == expected[i], "round %d: element %d is %u, expected %u", round, i,
             pinned[i], expected[i]);
    CUDA_OK(cudaEventElapsedTime(&milliseconds, start, stop));
    EXPECT(milliseconds > 0.0f && milliseconds < 60000.0f, "%g ms between the events",
           milliseconds);
    milliseconds_total += milliseconds;
  }
  cudaGetLastError();  // the runtime may remember cudaErrorNotReady
  CUDA_ERROR_IS(cudaEventElapsedTime(&milliseconds, start, untimed),
                cudaErrorInvalidResourceHandle);
  CUDA_ERROR_IS(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  CUDA_OK(cudaEventDestroy(start));
  CUDA_OK(cudaEventDestroy(stop));
  CUDA_OK(cudaEventDestroy(untimed));
  CUDA_OK(cudaStreamDestroy(stream));
  CUDA_OK(cudaFreeHost(pinned));
  CUDA_OK(cudaFree(device));
  std::printf("async_events: %d rounds, %.3f ms on the device, %ld looks, %ld not ready\n", kRounds,
              milliseconds_total, cpu_passes, not_ready);
  return programs::Pass();
}
