// SPDX-License-Identifier: Apache-2.0
// An application that computes on the device in every ordinary way until its input ends, and checks
// each word against the CPU: what is moved between devices while it runs must not notice.
//
//   wanderer [MIB [textures|steps|address]]
//
// Four streams change buffers of their own, which kernels find through pointers in device memory;
// events order them; module variables count, one in constant memory changes, and kernels are given
// its address; they count in the one variable of an image without code, too; results come back
// through pinned memory that the device reaches itself, where it can; streams, events and small
// buffers come and go; host functions run. It prints how many rounds there were once a second, and
// at the end "PASS". With `textures` it holds a CUDA array, too, with `address` the address of a
// variable that kernels write; with `steps` each round waits for a line of input, and says when it
// has ended.

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "check.h"
#include "hold.h"

constexpr int kStreams = 4;
constexpr int kThreads = 128;
constexpr size_t kTable = 257;

struct Buffer {
  unsigned* words;
  size_t count;
};

// Not asked for by the program, but with `address`: only kernels know where they are.
__device__ unsigned rounds_seen;
__device__ unsigned table[kTable] = {1, 2, 3, 5, 7, 11};
// Written by the program. By name and through its address it is the same.
__constant__ unsigned multipliers[3] = {0, 1664525u, 0};

__host__ __device__ unsigned Step(unsigned value, unsigned factor, unsigned round, unsigned entry) {
  return value * factor + (round ^ 1013904223u) + entry;
}

__global__ void Change(const Buffer* const* buffers, int which, unsigned round,
                       const unsigned* multiplier) {
  const Buffer& buffer = *buffers[which];
  const unsigned entry = table[(round + which) % kTable];
  for (size_t i = blockIdx.x * size_t{kThreads} + threadIdx.x; i < buffer.count;
       i += size_t{kThreads} * gridDim.x)
    buffer.words[i] =
        Step(buffer.words[i], i % 2 == 0 ? *multiplier : multipliers[1], round, entry);
}

// As libraries have them.
constexpr char kVariableOnly[] =
    ".version 7.5\n.target sm_75\n.address_size 64\n"
    ".visible .global .align 4 .u32 alone = 5;\n";

// After all four of a round: one block.
__global__ void EndRound(unsigned round, unsigned* seen, unsigned* alone) {
  for (size_t i = threadIdx.x; i < kTable; i += kThreads) table[i] = table[i] * 5 + round;
  if (threadIdx.x == 0) {
    *seen = ++rounds_seen;
    *alone += round;
  }
}

static void Count(void* to) { ++*static_cast<std::atomic<unsigned>*>(to); }

int main(int argc, char** argv) {
  const size_t bytes = size_t(argc > 1 ? std::atoi(argv[1]) : 8) << 20;
  cudaArray_t array = nullptr;
  if (argc > 2 && std::strcmp(argv[2], "textures") == 0) {
    const cudaChannelFormatDesc words = cudaCreateChannelDesc<unsigned>();
    CUDA_OK(cudaMallocArray(&array, &words, 64, 64));
  }

  // From some hundred bytes, which share their granule with others, to most of the memory.
  const size_t counts[kStreams] = {100, 30'000, bytes / 16, bytes / 8};
  std::vector<unsigned> expected[kStreams];
  Buffer buffers[kStreams];
  Buffer* on_device[kStreams];
  Buffer** directory = nullptr;
  cudaStream_t streams[kStreams];
  cudaEvent_t changed[kStreams];
  cudaEvent_t ended;
  for (int s = 0; s < kStreams; ++s) {
    expected[s].resize(counts[s]);
    for (size_t i = 0; i < counts[s]; ++i) expected[s][i] = unsigned(i) * 2654435761u + s;
    buffers[s].count = counts[s];
    CUDA_OK(cudaMalloc(&buffers[s].words, counts[s] * sizeof(unsigned)));
    CUDA_OK(cudaMemcpy(buffers[s].words, expected[s].data(), counts[s] * sizeof(unsigned),
                       cudaMemcpyHostToDevice));
    CUDA_OK(cudaMalloc(&on_device[s], sizeof(Buffer)));
    CUDA_OK(cudaMemcpy(on_device[s], &buffers[s], sizeof(Buffer), cudaMemcpyHostToDevice));
    CUDA_OK(
        cudaStreamCreateWithFlags(&streams[s], s % 2 ? cudaStreamNonBlocking : cudaStreamDefault));
    CUDA_OK(cudaEventCreateWithFlags(&changed[s], cudaEventDisableTiming));
  }
  CUDA_OK(cudaEventCreate(&ended));
  CUDA_OK(cudaMalloc(&directory, sizeof(on_device)));
  CUDA_OK(cudaMemcpy(directory, on_device, sizeof(on_device), cudaMemcpyHostToDevice));
  // In a virtual machine the device does not reach the program's memory.
  int reaches = 0;
  CUDA_OK(cudaDeviceGetAttribute(&reaches, cudaDevAttrCanMapHostMemory, 0));
  unsigned* seen = nullptr;
  unsigned* seen_by_device = nullptr;
  unsigned* back = nullptr;
  if (reaches) {
    CUDA_OK(cudaHostAlloc(&seen, sizeof(unsigned), cudaHostAllocMapped));
    CUDA_OK(cudaHostGetDevicePointer(&seen_by_device, seen, 0));
  } else {
    CUDA_OK(cudaMallocHost(&seen, sizeof(unsigned)));
    CUDA_OK(cudaMalloc(&seen_by_device, sizeof(unsigned)));
  }
  CUDA_OK(cudaMallocHost(&back, counts[kStreams - 1] * sizeof(unsigned)));
  unsigned expected_table[kTable] = {1, 2, 3, 5, 7, 11};
  unsigned* multiplier_on_device = nullptr;
  CUDA_OK(cudaGetSymbolAddress(reinterpret_cast<void**>(&multiplier_on_device), multipliers));
  cudaLibrary_t library = nullptr;
  CUDA_OK(cudaLibraryLoadData(&library, kVariableOnly, nullptr, nullptr, 0, nullptr, nullptr, 0));
  unsigned* alone = nullptr;
  CUDA_OK(cudaLibraryGetGlobal(reinterpret_cast<void**>(&alone), nullptr, library, "alone"));
  unsigned expected_alone = 5;
  unsigned* table_on_device = nullptr;
  if (argc > 2 && std::strcmp(argv[2], "address") == 0) {
    CUDA_OK(cudaGetSymbolAddress(reinterpret_cast<void**>(&table_on_device), table));
  }
  unsigned multiplier = 1664525u;
  std::atomic<unsigned> functions{0};
  unsigned functions_sent = 0;

  unsigned round = 0;
  auto told = std::chrono::steady_clock::now();
  const bool steps = argc > 2 && std::strcmp(argv[2], "steps") == 0;
  for (; !programs::InputEnded(steps) || round < 8; ++round) {
    // Something short-lived each round.
    unsigned* small = nullptr;
    CUDA_OK(cudaMalloc(&small, 4 + round * 97 % 20'000));
    cudaStream_t extra = nullptr;
    if (round % 5 == 0) CUDA_OK(cudaStreamCreate(&extra));
    for (int s = 0; s < kStreams; ++s) {
      Change<<<16, kThreads, 0, streams[s]>>>(directory, s, round, multiplier_on_device + 1);
      CUDA_OK(cudaGetLastError());
      CUDA_OK(cudaEventRecord(changed[s], streams[s]));
    }
    for (int s = 1; s < kStreams; ++s) CUDA_OK(cudaStreamWaitEvent(streams[0], changed[s], 0));
    EndRound<<<1, kThreads, 0, streams[0]>>>(round, seen_by_device, alone);
    expected_alone += round;
    CUDA_OK(cudaGetLastError());
    if (!reaches) {
      CUDA_OK(cudaMemcpyAsync(seen, seen_by_device, sizeof(unsigned), cudaMemcpyDeviceToHost,
                              streams[0]));
    }
    // Between this round's kernels and the next one's.
    const unsigned next_multiplier = round % 3 == 0 ? multiplier + 4 * round : multiplier;
    if (round % 3 == 0) {
      CUDA_OK(cudaMemcpyToSymbolAsync(multipliers, &next_multiplier, sizeof(unsigned),
                                      sizeof(unsigned), cudaMemcpyHostToDevice, streams[0]));
    }
    CUDA_OK(cudaEventRecord(ended, streams[0]));
    for (int s = 1; s < kStreams; ++s) CUDA_OK(cudaStreamWaitEvent(streams[s], ended, 0));
    const int checked = round % kStreams;
    CUDA_OK(cudaMemcpyAsync(back, buffers[checked].words, counts[checked] * sizeof(unsigned),
                            cudaMemcpyDeviceToHost, streams[checked]));
    if (round % 7 == 0) {
      CUDA_OK(cudaLaunchHostFunc(streams[1], Count, &functions));
      ++functions_sent;
    }
    // Meanwhile the same here.
    for (int s = 0; s < kStreams; ++s) {
      const unsigned entry = expected_table[(round + s) % kTable];
      for (unsigned& word : expected[s]) word = Step(word, multiplier, round, entry);
    }
    for (unsigned& entry : expected_table) entry = entry * 5 + round;
    multiplier = next_multiplier;

    CUDA_OK(cudaStreamSynchronize(streams[checked]));
    EXPECT(std::memcmp(back, expected[checked].data(), counts[checked] * sizeof(unsigned)) == 0,
           "round %u, stream %d", round, checked);
    CUDA_OK(cudaEventSynchronize(ended));
    EXPECT(*const_cast<volatile unsigned*>(seen) == round + 1, "%u in round %u", *seen, round);
    if (extra != nullptr) CUDA_OK(cudaStreamDestroy(extra));
    CUDA_OK(cudaFree(small));
    const auto now = std::chrono::steady_clock::now();
    if (steps || now - told > std::chrono::seconds(1)) {
      std::printf("round %u\n", round);
      std::fflush(stdout);
      told = now;
    }
  }
  CUDA_OK(cudaDeviceSynchronize());
  for (int s = 0; s < kStreams; ++s) {
    std::vector<unsigned> words(counts[s]);
    CUDA_OK(cudaMemcpy(words.data(), buffers[s].words, counts[s] * sizeof(unsigned),
                       cudaMemcpyDeviceToHost));
    EXPECT(words == expected[s], "stream %d", s);
  }
  if (table_on_device != nullptr) {
    unsigned words[kTable];
    CUDA_OK(cudaMemcpy(words, table_on_device, sizeof(words), cudaMemcpyDeviceToHost));
    EXPECT(std::memcmp(words, expected_table, sizeof(words)) == 0, "the table is another");
  }
  unsigned counted = 0;
  CUDA_OK(cudaMemcpy(&counted, alone, sizeof(counted), cudaMemcpyDeviceToHost));
  EXPECT(counted == expected_alone, "%u counted, expected %u", counted, expected_alone);
  CUDA_OK(cudaLibraryUnload(library));
  EXPECT(functions == functions_sent, "%u of %u", functions.load(), functions_sent);
  if (array != nullptr) CUDA_OK(cudaFreeArray(array));
  std::printf("%u rounds\n", round);
  return programs::Pass();
}
