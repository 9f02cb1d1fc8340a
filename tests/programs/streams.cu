// SPDX-License-Identifier: Apache-2.0
// tests/programs/streams.cu: order inside streams, between streams by events, and with the legacy
// default stream.
//
// The kernels are long chains of dependent steps, so that a missing wait shows as a wrong number.
// Nothing is timed.
#include <vector>

#include "check.h"

constexpr uint32_t kMultiplier = 1664525u, kIncrement = 1013904223u;

// Each element goes `steps` steps of a linear congruential generator ahead.
__global__ void Advance(uint32_t* values, int count, int steps) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= count) return;
  uint32_t value = values[index];
  for (int i = 0; i < steps; ++i) value = value * kMultiplier + kIncrement;
  values[index] = value;
}

// to[i] = 3 * left[i] + right[i]: not symmetric, so that a swap shows.
__global__ void Combine(const uint32_t* left, const uint32_t* right, uint32_t* to, int count) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < count) to[index] = 3 * left[index] + right[index];
}

uint32_t AdvancedOnCpu(uint32_t value, int steps) {
  for (int i = 0; i < steps; ++i) value = value * kMultiplier + kIncrement;
  return value;
}

constexpr int kCount = 512, kThreads = 128, kGrid = kCount / kThreads;
constexpr size_t kBytes = kCount * sizeof(uint32_t);

void ExpectAll(const std::vector<uint32_t>& got, uint32_t expected, const char* what) {
  for (int i = 0; i < kCount; ++i)
    EXPECT(got[i] == expected, "%s: element %d is %u, expected %u", what, i, got[i], expected);
}

// Independent pipelines: copy in, work, copy out, each in its own stream.
void TestIndependentStreams() {
  constexpr int kStreams = 6;
  int lowest, highest;
  CUDA_OK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  EXPECT(highest <= lowest, "priorities [%d, %d]", highest, lowest);
  cudaStream_t streams[kStreams];
  uint32_t* device[kStreams];
  uint32_t* pinned[kStreams];
  for (int s = 0; s < kStreams; ++s) {
    const int priority = s % 2 ? highest : lowest;
    CUDA_OK(cudaStreamCreateWithPriority(&streams[s], cudaStreamNonBlocking, priority));
    int got_priority;
    unsigned flags;
    CUDA_OK(cudaStreamGetPriority(streams[s], &got_priority));
    CUDA_OK(cudaStreamGetFlags(streams[s], &flags));
    EXPECT(got_priority == priority, "priority %d, expected %d", got_priority, priority);
    EXPECT(flags == cudaStreamNonBlocking, "flags %u", flags);
    CUDA_OK(cudaMalloc(&device[s], kBytes));
    CUDA_OK(cudaMallocHost(&pinned[s], kBytes));
    for (int i = 0; i < kCount; ++i) pinned[s][i] = 1000u * s + i;
  }
  for (int s = 0; s < kStreams; ++s) {
    CUDA_OK(cudaMemcpyAsync(device[s], pinned[s], kBytes, cudaMemcpyHostToDevice, streams[s]));
    for (int round = 0; round < 3; ++round) {
      Advance<<<kGrid, kThreads, 0, streams[s]>>>(device[s], kCount, 50 + s);
      CUDA_OK(cudaGetLastError());
    }
    CUDA_OK(cudaMemcpyAsync(pinned[s], device[s], kBytes, cudaMemcpyDeviceToHost, streams[s]));
  }
  for (int s = kStreams - 1; s >= 0; --s) {
    CUDA_OK(cudaStreamSynchronize(streams[s]));
    CUDA_OK(cudaStreamQuery(streams[s]));
    for (int i = 0; i < kCount; ++i) {
      const uint32_t expected = AdvancedOnCpu(1000u * s + i, 3 * (50 + s));
      EXPECT(pinned[s][i] == expected, "stream %d element %d is %u, expected %u", s, i,
             pinned[s][i], expected);
    }
    CUDA_OK(cudaFree(device[s]));
    CUDA_OK(cudaFreeHost(pinned[s]));
    CUDA_OK(cudaStreamDestroy(streams[s]));
  }
}

// A diamond: `top` feeds `left` and `right`, `bottom` needs both.
void TestEventsOrderStreams() {
  constexpr int kSteps = 20000, kRounds = 4;
  cudaStream_t top, left, right, bottom;
  for (cudaStream_t* stream : {&top, &left, &right, &bottom})
    CUDA_OK(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking));
  cudaEvent_t top_done, left_done, right_done, bottom_done;
  for (cudaEvent_t* event : {&top_done, &left_done, &right_done, &bottom_done})
    CUDA_OK(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  uint32_t *device_left, *device_right, *device_result;
  for (uint32_t** pointer : {&device_left, &device_right, &device_result})
    CUDA_OK(cudaMalloc(pointer, kBytes));
  CUDA_OK(cudaMemset(device_result, 0, kBytes));
  CUDA_OK(cudaDeviceSynchronize());  // the streams do not wait for the default stream
  uint32_t expected = 0;
  for (int round = 0; round < kRounds; ++round) {
    if (round > 0) CUDA_OK(cudaStreamWaitEvent(top, bottom_done, 0));
    Advance<<<kGrid, kThreads, 0, top>>>(device_result, kCount, kSteps);
    CUDA_OK(cudaMemcpyAsync(device_left, device_result, kBytes, cudaMemcpyDeviceToDevice, top));
    CUDA_OK(cudaMemcpyAsync(device_right, device_result, kBytes, cudaMemcpyDeviceToDevice, top));
    CUDA_OK(cudaEventRecord(top_done, top));
    CUDA_OK(cudaStreamWaitEvent(left, top_done, 0));
    Advance<<<kGrid, kThreads, 0, left>>>(device_left, kCount, kSteps);
    CUDA_OK(cudaEventRecord(left_done, left));
    CUDA_OK(cudaStreamWaitEvent(right, top_done, 0));
    Advance<<<kGrid, kThreads, 0, right>>>(device_right, kCount, kSteps / 2);
    CUDA_OK(cudaEventRecord(right_done, right));
    CUDA_OK(cudaStreamWaitEvent(bottom, left_done, 0));
    CUDA_OK(cudaStreamWaitEvent(bottom, right_done, 0));
    Combine<<<kGrid, kThreads, 0, bottom>>>(device_left, device_right, device_result, kCount);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaEventRecord(bottom_done, bottom));
    const uint32_t at_top = AdvancedOnCpu(expected, kSteps);
    expected = 3 * AdvancedOnCpu(at_top, kSteps) + AdvancedOnCpu(at_top, kSteps / 2);
  }
  std::vector<uint32_t> result(kCount);
  CUDA_OK(cudaMemcpyAsync(result.data(), device_result, kBytes, cudaMemcpyDeviceToHost, bottom));
  CUDA_OK(cudaStreamSynchronize(bottom));
  ExpectAll(result, expected, "diamond");
  // Destroying with work pending is allowed: the resources go when the work is done.
  Advance<<<kGrid, kThreads, 0, left>>>(device_left, kCount, kSteps);
  CUDA_OK(cudaEventRecord(left_done, left));
  for (cudaEvent_t event : {top_done, left_done, right_done, bottom_done})
    CUDA_OK(cudaEventDestroy(event));
  for (cudaStream_t stream : {top, left, right, bottom}) CUDA_OK(cudaStreamDestroy(stream));
  CUDA_OK(cudaDeviceSynchronize());
  for (uint32_t* pointer : {device_left, device_right, device_result}) CUDA_OK(cudaFree(pointer));
}

// Blocking streams and the legacy default stream wait for each other without any event.
// Source: CUDA C++ Programming Guide, "Implicit Synchronization" and "Default Stream".
void TestLegacyDefaultStream() {
  constexpr int kSteps = 20000;
  cudaStream_t first, second;
  CUDA_OK(cudaStreamCreate(&first));
  CUDA_OK(cudaStreamCreate(&second));
  uint32_t *device_a, *device_b;
  CUDA_OK(cudaMalloc(&device_a, kBytes));
  CUDA_OK(cudaMalloc(&device_b, kBytes));
  CUDA_OK(cudaMemset(device_a, 0, kBytes));
  CUDA_OK(cudaMemset(device_b, 0, kBytes));
  Advance<<<kGrid, kThreads, 0, first>>>(device_a, kCount, kSteps);
  Combine<<<kGrid, kThreads>>>(device_a, device_a, device_b,
                               kCount);  // default stream: after `first`
  Advance<<<kGrid, kThreads, 0, second>>>(device_b, kCount, kSteps);  // after the default stream
  CUDA_OK(cudaGetLastError());
  std::vector<uint32_t> result(kCount);
  CUDA_OK(cudaMemcpy(result.data(), device_b, kBytes,
                     cudaMemcpyDeviceToHost));  // default stream: after `second`
  ExpectAll(result, AdvancedOnCpu(4 * AdvancedOnCpu(0, kSteps), kSteps), "default stream");
  CUDA_OK(cudaStreamDestroy(first));
  CUDA_OK(cudaStreamDestroy(second));
  CUDA_OK(cudaFree(device_a));
  CUDA_OK(cudaFree(device_b));
}

int main() {
  TestIndependentStreams();
  TestEventsOrderStreams();
  TestLegacyDefaultStream();
  std::printf(
      "streams: 6 independent, 4 in a diamond ordered by events, 2 ordered by the default "
      "stream\n");
  return programs::Pass();
}
