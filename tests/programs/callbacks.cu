// SPDX-License-Identifier: Apache-2.0
// tests/programs/callbacks.cu: cudaLaunchHostFunc and cudaStreamAddCallback, in order with copies
// and kernels.
//
// Host functions read what a copy before them wrote and write what a copy after them reads; each of
// several host threads does so in a stream of its own.
#include <atomic>
#include <thread>
#include <vector>

#include "check.h"

__global__ void Step(uint32_t* values, int count) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= count) return;
  uint32_t value = values[index];
  for (int i = 0; i < 500; ++i) value = value * 1664525u + 1013904223u;
  values[index] = value;
}

uint32_t StepOnCpu(uint32_t value) {
  for (int i = 0; i < 500; ++i) value = value * 1664525u + 1013904223u;
  return value;
}

constexpr int kCount = 256;
constexpr size_t kBytes = kCount * sizeof(uint32_t);

// One per stream. Host functions of one stream run one after another, so only `callbacks` needs to
// be atomic.
struct Work {
  uint32_t* pinned;
  uint32_t expected;  // of every element at the next host function
  int position = 0;   // how many host functions and callbacks of this stream have run
  bool wrong = false;
  std::atomic<int> callbacks{0};
};

// One of the enqueued calls: what it belongs to and which place in the stream's order it must find.
struct Call {
  Work* work;
  int position;
};

void Visit(const Call& call) {
  Work& work = *call.work;
  if (work.position != call.position) work.wrong = true;
  ++work.position;
  for (int i = 0; i < kCount; ++i) {
    if (work.pinned[i] != work.expected) work.wrong = true;
    work.pinned[i] += 17;  // the next copy to the device must take this
  }
  work.expected = StepOnCpu(work.expected + 17);
}

void CUDART_CB HostFunction(void* data) { Visit(*static_cast<Call*>(data)); }

void CUDART_CB Callback(cudaStream_t, cudaError_t status, void* data) {
  Call* call = static_cast<Call*>(data);
  if (status != cudaSuccess) call->work->wrong = true;
  Visit(*call);
  call->work->callbacks.fetch_add(1);
}

void RunThread(int thread, int rounds) {
  Work work;
  uint32_t* device;
  cudaStream_t stream;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA_OK(cudaMallocHost(&work.pinned, kBytes));
  CUDA_OK(cudaMalloc(&device, kBytes));
  const uint32_t first = 1000u * thread;
  for (int i = 0; i < kCount; ++i) work.pinned[i] = first;
  work.expected = StepOnCpu(first);
  std::vector<Call> calls(2 * rounds);
  for (int i = 0; i < 2 * rounds; ++i) calls[i] = Call{&work, i};
  for (int i = 0; i < 2 * rounds; ++i) {
    CUDA_OK(cudaMemcpyAsync(device, work.pinned, kBytes, cudaMemcpyHostToDevice, stream));
    Step<<<kCount / 64, 64, 0, stream>>>(device, kCount);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaMemcpyAsync(work.pinned, device, kBytes, cudaMemcpyDeviceToHost, stream));
    if (i % 2 == 0) {
      CUDA_OK(cudaLaunchHostFunc(stream, HostFunction, &calls[i]));
    } else {
      CUDA_OK(cudaStreamAddCallback(stream, Callback, &calls[i], 0));
    }
  }
  CUDA_OK(cudaStreamSynchronize(stream));
  EXPECT(!work.wrong, "thread %d: a host function ran out of order or saw old data", thread);
  EXPECT(work.position == 2 * rounds, "thread %d: %d host functions ran, expected %d", thread,
         work.position, 2 * rounds);
  EXPECT(work.callbacks.load() == rounds, "thread %d: %d callbacks ran, expected %d", thread,
         work.callbacks.load(), rounds);
  CUDA_OK(cudaFree(device));
  CUDA_OK(cudaFreeHost(work.pinned));
  CUDA_OK(cudaStreamDestroy(stream));
}

void CUDART_CB SetFlag(void* data) { static_cast<std::atomic<bool>*>(data)->store(true); }

// An event recorded behind a host function completes after it, and a second stream that waits for
// the event comes later still.
void TestEventAfterHostFunction() {
  cudaStream_t first, second;
  cudaEvent_t event;
  CUDA_OK(cudaStreamCreate(&first));
  CUDA_OK(cudaStreamCreate(&second));
  CUDA_OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  std::atomic<bool> first_ran{false}, second_ran{false};
  CUDA_OK(cudaLaunchHostFunc(first, SetFlag, &first_ran));
  CUDA_OK(cudaEventRecord(event, first));
  CUDA_OK(cudaStreamWaitEvent(second, event, 0));
  CUDA_OK(cudaLaunchHostFunc(second, SetFlag, &second_ran));
  CUDA_OK(cudaEventSynchronize(event));
  EXPECT(first_ran.load(), "the event completed before the host function in front of it");
  CUDA_OK(cudaDeviceSynchronize());
  EXPECT(second_ran.load(), "cudaDeviceSynchronize did not wait for a host function");
  CUDA_OK(cudaEventDestroy(event));
  CUDA_OK(cudaStreamDestroy(first));
  CUDA_OK(cudaStreamDestroy(second));
}

int main() {
  constexpr int kThreads = 4, kRounds = 8;
  TestEventAfterHostFunction();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread)
    threads.emplace_back(RunThread, thread, kRounds);
  for (std::thread& thread : threads) thread.join();
  std::printf("callbacks: %d threads, %d host functions and %d callbacks each, in order\n",
              kThreads, kRounds, kRounds);
  return programs::Pass();
}
