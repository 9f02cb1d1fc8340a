// SPDX-License-Identifier: Apache-2.0
// tests/programs/peer_access.cu: two GPUs that work on each other's memory: kernels that read and
// write what the other one has allocated, before and after access was enabled; atomics; copies
// between the two in the order of streams, and waits of one for the other's events.
//
//   peer_access          once, and says what copies cost
//   peer_access hold     again and again until its input ends
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "check.h"
#include "hold.h"
#include "two_gpus.h"

namespace {

constexpr unsigned kElements = 1 << 20;
constexpr size_t kBytes = kElements * sizeof(unsigned);
constexpr unsigned kBlocks = kElements / 256;
// Copied at a time where it is measured.
constexpr size_t kCopyBytes = size_t{64} << 20;
constexpr int kCopies = 10;

__global__ void Fill(unsigned* out, unsigned seed) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] = i * 2654435761u + seed;
}

__global__ void AddTo(unsigned* out, const unsigned* in) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  out[i] += in[i];
}

__global__ void Count(unsigned* counter) { atomicAdd_system(counter, 1u); }

unsigned* Allocate(int device, size_t bytes) {
  unsigned* memory = nullptr;
  CUDA_OK(cudaSetDevice(device));
  CUDA_OK(cudaMalloc(&memory, bytes));
  return memory;
}

void ExpectFilled(const unsigned* memory, unsigned factor, unsigned seeds, const char* what) {
  std::vector<unsigned> got(kElements);
  CUDA_OK(cudaMemcpy(got.data(), memory, kBytes, cudaMemcpyDefault));
  for (unsigned i = 0; i < kElements; ++i) {
    EXPECT(got[i] == i * 2654435761u * factor + seeds, "%s, element %u: %u", what, i, got[i]);
  }
}

// Kernels of each device on what the other one has: `mine[d]` is memory of device d.
void WorkOnEachOther(unsigned* const (&mine)[2], unsigned seed) {
  for (int device = 0; device < 2; ++device) {
    CUDA_OK(cudaSetDevice(device));
    Fill<<<kBlocks, 256>>>(mine[1 - device], seed + device);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaDeviceSynchronize());
  }
  // mine[1] has seed, mine[0] has seed + 1.
  CUDA_OK(cudaSetDevice(0));
  AddTo<<<kBlocks, 256>>>(mine[0], mine[1]);
  CUDA_OK(cudaDeviceSynchronize());
  CUDA_OK(cudaSetDevice(1));
  AddTo<<<kBlocks, 256>>>(mine[1], mine[0]);
  CUDA_OK(cudaDeviceSynchronize());
  ExpectFilled(mine[0], 2, 2 * seed + 1, "device 0's memory");
  ExpectFilled(mine[1], 3, 3 * seed + 1, "device 1's memory");
}

// A chain through both devices, in which nothing but events says what comes first. Without access
// copies alone go from one to the other.
void PassOn(unsigned* const (&mine)[2], unsigned seed, bool access) {
  unsigned* const copied = access ? nullptr : Allocate(1, kBytes);
  cudaStream_t streams[2];
  cudaEvent_t done[2];
  for (int device = 0; device < 2; ++device) {
    CUDA_OK(cudaSetDevice(device));
    CUDA_OK(cudaStreamCreateWithFlags(&streams[device], cudaStreamNonBlocking));
    CUDA_OK(cudaEventCreateWithFlags(&done[device], cudaEventDisableTiming));
  }
  CUDA_OK(cudaSetDevice(0));
  Fill<<<kBlocks, 256, 0, streams[0]>>>(mine[0], seed);
  CUDA_OK(cudaMemcpyPeerAsync(mine[1], 1, mine[0], 0, kBytes, streams[0]));
  Fill<<<kBlocks, 256, 0, streams[0]>>>(mine[0], seed + 1);
  CUDA_OK(cudaEventRecord(done[0], streams[0]));
  CUDA_OK(cudaSetDevice(1));
  CUDA_OK(cudaStreamWaitEvent(streams[1], done[0], 0));
  if (!access) CUDA_OK(cudaMemcpyPeerAsync(copied, 1, mine[0], 0, kBytes, streams[1]));
  AddTo<<<kBlocks, 256, 0, streams[1]>>>(mine[1], access ? mine[0] : copied);
  CUDA_OK(cudaEventRecord(done[1], streams[1]));
  CUDA_OK(cudaSetDevice(0));
  CUDA_OK(cudaStreamWaitEvent(streams[0], done[1], 0));
  CUDA_OK(cudaMemcpyAsync(mine[0], mine[1], kBytes, cudaMemcpyDefault, streams[0]));
  CUDA_OK(cudaStreamSynchronize(streams[0]));
  ExpectFilled(mine[0], 2, 2 * seed + 1, "what went through both");
  for (int device = 0; device < 2; ++device) {
    CUDA_OK(cudaSetDevice(device));
    CUDA_OK(cudaStreamDestroy(streams[device]));
    CUDA_OK(cudaEventDestroy(done[device]));
  }
  if (!access) CUDA_OK(cudaFree(copied));
}

void CountTogether(unsigned* const (&mine)[2]) {
  int atomic = 0;
  CUDA_OK(cudaDeviceGetP2PAttribute(&atomic, cudaDevP2PAttrNativeAtomicSupported, 1, 0));
  if (atomic == 0) return;
  CUDA_OK(cudaSetDevice(0));
  CUDA_OK(cudaMemset(mine[0], 0, sizeof(unsigned)));
  CUDA_OK(cudaDeviceSynchronize());
  for (int device = 0; device < 2; ++device) {
    CUDA_OK(cudaSetDevice(device));
    Count<<<1000, 100>>>(mine[0]);
    CUDA_OK(cudaGetLastError());
  }
  for (int device = 0; device < 2; ++device) {
    CUDA_OK(cudaSetDevice(device));
    CUDA_OK(cudaDeviceSynchronize());
  }
  unsigned counted = 0;
  CUDA_OK(cudaMemcpy(&counted, mine[0], sizeof counted, cudaMemcpyDefault));
  EXPECT(counted == 200000, "%u", counted);
}

void MeasureCopies(const char* when) {
  unsigned* const from = Allocate(0, kCopyBytes);
  unsigned* const to = Allocate(1, kCopyBytes);
  CUDA_OK(cudaSetDevice(0));
  cudaStream_t stream;
  cudaEvent_t begin, end;
  CUDA_OK(cudaStreamCreate(&stream));
  CUDA_OK(cudaEventCreate(&begin));
  CUDA_OK(cudaEventCreate(&end));
  CUDA_OK(cudaMemcpyPeerAsync(to, 1, from, 0, kCopyBytes, stream));
  CUDA_OK(cudaEventRecord(begin, stream));
  for (int i = 0; i < kCopies; ++i) {
    CUDA_OK(cudaMemcpyPeerAsync(to, 1, from, 0, kCopyBytes, stream));
  }
  CUDA_OK(cudaEventRecord(end, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  float ms = 0;
  CUDA_OK(cudaEventElapsedTime(&ms, begin, end));
  std::printf("%s: %.2f GB/s from device to device\n", when,
              static_cast<double>(kCopies) * kCopyBytes / ms / 1e6);
  CUDA_OK(cudaEventDestroy(begin));
  CUDA_OK(cudaEventDestroy(end));
  CUDA_OK(cudaStreamDestroy(stream));
  CUDA_OK(cudaFree(from));
  CUDA_OK(cudaFree(to));
}

}  // namespace

int main(int argc, char** argv) {
  const bool hold = argc > 1 && std::strcmp(argv[1], "hold") == 0;
  const programs::TwoGpus gpus = programs::FindTwoGpus();
  if (gpus != programs::TwoGpus::kReachEachOther) {
    std::printf("skipped: %s\n", gpus == programs::TwoGpus::kFewer
                                     ? "it needs two GPUs"
                                     : "the GPUs do not reach each other's memory");
    return programs::Pass();
  }
  unsigned* before[2];
  for (int device = 0; device < 2; ++device) before[device] = Allocate(device, kBytes);
  PassOn(before, 1, /*access=*/false);
  if (!hold) MeasureCopies("without access");
  for (int device = 0; device < 2; ++device) {
    CUDA_OK(cudaSetDevice(device));
    CUDA_ERROR_IS(cudaDeviceDisablePeerAccess(1 - device), cudaErrorPeerAccessNotEnabled);
    (void)cudaGetLastError();
    CUDA_OK(cudaDeviceEnablePeerAccess(1 - device, 0));
    CUDA_ERROR_IS(cudaDeviceEnablePeerAccess(1 - device, 0), cudaErrorPeerAccessAlreadyEnabled);
    (void)cudaGetLastError();
  }
  unsigned seed = 3;
  do {
    WorkOnEachOther(before, seed);
    unsigned* after[2];
    for (int device = 0; device < 2; ++device) after[device] = Allocate(device, kBytes);
    WorkOnEachOther(after, seed + 1);
    PassOn(after, seed + 2, /*access=*/true);
    unsigned* const crossed[2] = {after[0], before[1]};
    WorkOnEachOther(crossed, seed + 3);
    for (unsigned* memory : after) CUDA_OK(cudaFree(memory));
    CountTogether(before);
    seed += 4;
  } while (hold && !programs::InputEnded());
  if (!hold) MeasureCopies("with access");
  for (int device = 0; device < 2; ++device) {
    CUDA_OK(cudaSetDevice(device));
    CUDA_OK(cudaDeviceDisablePeerAccess(1 - device));
  }
  PassOn(before, seed, /*access=*/false);
  for (unsigned* memory : before) CUDA_OK(cudaFree(memory));
  return programs::Pass();
}
