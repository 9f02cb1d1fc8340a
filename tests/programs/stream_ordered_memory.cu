// SPDX-License-Identifier: Apache-2.0
// tests/programs/stream_ordered_memory.cu: cudaMallocAsync and cudaFreeAsync: temporaries that come
// and go in the order of streams, in several streams at once, with pools of one's own.
#include <vector>

#include "check.h"

constexpr int kCount = 1 << 16, kThreads = 256, kGrid = kCount / kThreads;
constexpr size_t kBytes = kCount * sizeof(uint32_t);

__global__ void Fill(uint32_t* values, uint32_t value) {
  values[blockIdx.x * blockDim.x + threadIdx.x] = value;
}

__global__ void AddTo(uint32_t* to, const uint32_t* from) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  to[index] += from[index];
}

void ExpectAll(const uint32_t* device, uint32_t expected, const char* what) {
  std::vector<uint32_t> got(kCount);
  CUDA_OK(cudaMemcpy(got.data(), device, kBytes, cudaMemcpyDeviceToHost));
  for (int i = 0; i < kCount; ++i)
    EXPECT(got[i] == expected, "%s: element %d is %u, expected %u", what, i, got[i], expected);
}

// Each stream sums temporaries that are freed before they have been read by the device.
void TestTemporaries() {
  constexpr int kStreams = 4, kRounds = 50;
  cudaStream_t streams[kStreams];
  uint32_t* totals[kStreams];
  for (int s = 0; s < kStreams; ++s) {
    CUDA_OK(cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking));
    CUDA_OK(cudaMallocAsync(&totals[s], kBytes, streams[s]));
    CUDA_OK(cudaMemsetAsync(totals[s], 0, kBytes, streams[s]));
  }
  for (int round = 0; round < kRounds; ++round) {
    for (int s = 0; s < kStreams; ++s) {
      uint32_t* temporary;
      CUDA_OK(cudaMallocAsync(&temporary, kBytes, streams[s]));
      Fill<<<kGrid, kThreads, 0, streams[s]>>>(temporary, 100 * s + round);
      AddTo<<<kGrid, kThreads, 0, streams[s]>>>(totals[s], temporary);
      CUDA_OK(cudaGetLastError());
      CUDA_OK(cudaFreeAsync(temporary, streams[s]));
    }
  }
  for (int s = 0; s < kStreams; ++s) {
    CUDA_OK(cudaStreamSynchronize(streams[s]));
    ExpectAll(totals[s], kRounds * 100 * s + kRounds * (kRounds - 1) / 2, "sum of temporaries");
    CUDA_OK(cudaFreeAsync(totals[s], streams[s]));
    CUDA_OK(cudaStreamDestroy(streams[s]));
  }
}

// Allocated in one stream, used and freed in another behind an event.
void TestAcrossStreams() {
  cudaStream_t first, second;
  cudaEvent_t ready;
  CUDA_OK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  CUDA_OK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  CUDA_OK(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
  uint32_t *memory, *result;
  CUDA_OK(cudaMalloc(&result, kBytes));
  CUDA_OK(cudaMallocAsync(&memory, kBytes, first));
  Fill<<<kGrid, kThreads, 0, first>>>(memory, 42);
  CUDA_OK(cudaEventRecord(ready, first));
  CUDA_OK(cudaStreamWaitEvent(second, ready, 0));
  CUDA_OK(cudaMemcpyAsync(result, memory, kBytes, cudaMemcpyDeviceToDevice, second));
  CUDA_OK(cudaFreeAsync(memory, second));
  CUDA_OK(cudaStreamSynchronize(second));
  ExpectAll(result, 42, "across streams");
  CUDA_OK(cudaFree(result));
  CUDA_OK(cudaEventDestroy(ready));
  CUDA_OK(cudaStreamDestroy(first));
  CUDA_OK(cudaStreamDestroy(second));
}

void TestOwnPool() {
  int device;
  CUDA_OK(cudaGetDevice(&device));
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  cudaMemPool_t pool;
  CUDA_OK(cudaMemPoolCreate(&pool, &properties));
  uint64_t threshold = UINT64_MAX;
  CUDA_OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  uint32_t* memory;
  CUDA_OK(cudaMallocFromPoolAsync(&memory, kBytes, pool, cudaStreamPerThread));
  Fill<<<kGrid, kThreads, 0, cudaStreamPerThread>>>(memory, 5);
  CUDA_OK(cudaStreamSynchronize(cudaStreamPerThread));
  uint64_t used = 0;
  CUDA_OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
  EXPECT(used == kBytes, "%llu bytes in use", static_cast<unsigned long long>(used));
  ExpectAll(memory, 5, "own pool");
  CUDA_OK(cudaFree(memory));
  CUDA_OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used));
  EXPECT(used == 0, "%llu bytes in use after the free", static_cast<unsigned long long>(used));
  CUDA_OK(cudaMemPoolTrimTo(pool, 0));
  CUDA_OK(cudaMemPoolDestroy(pool));
}

int main() {
  int device, supported;
  CUDA_OK(cudaGetDevice(&device));
  CUDA_OK(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, device));
  EXPECT(supported == 1, "the device says that it has no memory pools");
  TestTemporaries();
  TestAcrossStreams();
  TestOwnPool();
  return programs::Pass();
}
