// SPDX-License-Identifier: Apache-2.0
// An application that uses the device half of its time, all of its memory each time: what shares a
// device whose memory does not hold several such.
//
//   working_set [MIB [PHASES [PASSES [CPU_MS [free]]]]]
//   working_set rate [MIB]
//
// Each phase changes every word PASSES times on the device, waits, and computes on the CPU for
// CPU_MS milliseconds. With PHASES 0 there are phases until its input ends. At the end every word
// is compared with what it must be. With `free` it has memory only while it uses the device: each
// phase reserves (consort.h; natively nothing happens), allocates, begins anew, compares and frees.
// `rate` measures copies of pinned memory instead, in GB/s: each way, and the sum of both at once.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "check.h"
#include "guest/consort.h"
#include "hold.h"

constexpr int kThreads = 256;
constexpr int kBlocks = 132 * 8;
// Its memory comes in so many pieces.
constexpr int kPieces = 4;
// Allocations take whole ones of these, at most.
constexpr size_t kGranuleBytes = size_t{2} << 20;
constexpr unsigned long long kReserveMilliseconds = 600'000;

__host__ __device__ unsigned Step(unsigned value, unsigned pass) {
  return value * 1664525u + (pass ^ 1013904223u);
}

__global__ void Begin(unsigned* words, size_t count, unsigned seed) {
  for (size_t i = blockIdx.x * size_t{kThreads} + threadIdx.x; i < count;
       i += size_t{kThreads} * gridDim.x)
    words[i] = static_cast<unsigned>(i) * 2654435761u ^ seed;
}

__global__ void Pass(unsigned* words, size_t count, unsigned pass) {
  for (size_t i = blockIdx.x * size_t{kThreads} + threadIdx.x; i < count;
       i += size_t{kThreads} * gridDim.x)
    words[i] = Step(words[i], pass);
}

// Counts the words that are not what the passes make: factor times the first value and sum.
__global__ void Compare(const unsigned* words, size_t count, unsigned seed, unsigned factor,
                        unsigned sum, unsigned* wrong) {
  for (size_t i = blockIdx.x * size_t{kThreads} + threadIdx.x; i < count;
       i += size_t{kThreads} * gridDim.x) {
    const unsigned first = static_cast<unsigned>(i) * 2654435761u ^ seed;
    if (words[i] != first * factor + sum) atomicAdd(wrong, 1u);
  }
}

using Clock = std::chrono::steady_clock;

static double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Work of the CPU's own; its result matters to nobody, but the compiler does not know.
static unsigned ComputeFor(double seconds) {
  unsigned value = 1;
  const auto begin = Clock::now();
  while (SecondsSince(begin) < seconds) {
    for (int i = 0; i < 10000; ++i) value = value * 1664525u + 1013904223u;
  }
  return value;
}

// The application's memory, in pieces.
class Words {
 public:
  explicit Words(size_t count) : count_(count) {
    CUDA_OK(cudaMalloc(&wrong_, sizeof(unsigned)));
    for (unsigned*& piece : pieces_) CUDA_OK(cudaMalloc(&piece, count_ * sizeof(unsigned)));
  }
  ~Words() {
    for (unsigned* piece : pieces_) CUDA_OK(cudaFree(piece));
    CUDA_OK(cudaFree(wrong_));
  }
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;

  static size_t RoomFor(size_t count) {
    const size_t piece = (count * sizeof(unsigned) + kGranuleBytes - 1) / kGranuleBytes;
    return (kPieces * piece + 1) * kGranuleBytes;
  }

  void Begin() {
    CUDA_OK(cudaMemsetAsync(wrong_, 0, sizeof(unsigned)));
    for (unsigned piece = 0; piece < kPieces; ++piece) {
      ::Begin<<<kBlocks, kThreads>>>(pieces_[piece], count_, piece);
      CUDA_OK(cudaGetLastError());
    }
  }
  void Change(unsigned pass) {
    for (unsigned* piece : pieces_) Pass<<<kBlocks, kThreads>>>(piece, count_, pass);
    CUDA_OK(cudaGetLastError());
  }
  // Whether they are what so many passes make.
  void Check(unsigned passes) {
    // Each step is linear, modulo 2^32: what they make of 0 and of 1 tells all.
    unsigned of_zero = 0, of_one = 1;
    for (unsigned pass = 0; pass < passes; ++pass) {
      of_zero = Step(of_zero, pass);
      of_one = Step(of_one, pass);
    }
    for (unsigned piece = 0; piece < kPieces; ++piece) {
      Compare<<<kBlocks, kThreads>>>(pieces_[piece], count_, piece, of_one - of_zero, of_zero,
                                     wrong_);
      CUDA_OK(cudaGetLastError());
    }
    unsigned wrong = 1;
    CUDA_OK(cudaMemcpy(&wrong, wrong_, sizeof(unsigned), cudaMemcpyDeviceToHost));
    EXPECT(wrong == 0, "%u words are wrong", wrong);
  }

 private:
  const size_t count_;
  unsigned* pieces_[kPieces] = {};
  unsigned* wrong_ = nullptr;
};

// Several that get piece by piece what they need would wait for each other.
static void Reserve(size_t bytes) {
  const int result = consort_reserve(bytes, kReserveMilliseconds);
  EXPECT(result == 0 || result == CONSORT_NOT_SUPPORTED, "%zu bytes are not reserved: %d", bytes,
         result);
}

static int Rate(size_t bytes) {
  void* host = nullptr;
  void* device = nullptr;
  CUDA_OK(cudaMallocHost(&host, bytes));
  CUDA_OK(cudaMalloc(&device, bytes));
  for (const bool out : {true, false}) {
    double best = 1e9;
    for (int i = 0; i < 5; ++i) {
      const auto begin = Clock::now();
      CUDA_OK(out ? cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost)
                  : cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
      best = std::min(best, SecondsSince(begin));
    }
    std::printf("pinned %s %.1f GB/s\n", out ? "out" : "in", bytes / best / 1e9);
  }
  cudaStream_t streams[2];
  for (cudaStream_t& stream : streams) CUDA_OK(cudaStreamCreate(&stream));
  const size_t half = bytes / 2;
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto begin = Clock::now();
    CUDA_OK(cudaMemcpyAsync(host, device, half, cudaMemcpyDeviceToHost, streams[0]));
    CUDA_OK(cudaMemcpyAsync(static_cast<char*>(device) + half, static_cast<char*>(host) + half,
                            half, cudaMemcpyHostToDevice, streams[1]));
    for (const cudaStream_t stream : streams) CUDA_OK(cudaStreamSynchronize(stream));
    best = std::min(best, SecondsSince(begin));
  }
  std::printf("pinned both %.1f GB/s\n", static_cast<double>(2 * half) / best / 1e9);
  for (const cudaStream_t stream : streams) CUDA_OK(cudaStreamDestroy(stream));
  CUDA_OK(cudaFree(device));
  CUDA_OK(cudaFreeHost(host));
  std::puts("PASS");
  return 0;
}

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "rate") == 0)
    return Rate(size_t(argc > 2 ? std::atoi(argv[2]) : 64) << 20);
  const size_t bytes = size_t(argc > 1 ? std::atoi(argv[1]) : 16) << 20;
  const unsigned phases = argc > 2 ? std::atoi(argv[2]) : 2;
  const unsigned passes = argc > 3 ? std::atoi(argv[3]) : 2;
  const double cpu_seconds = (argc > 4 ? std::atoi(argv[4]) : 20) / 1000.0;
  const size_t count = bytes / kPieces / sizeof(unsigned);
  const auto begin = Clock::now();

  const bool frees = argc > 5 && std::strcmp(argv[5], "free") == 0;
  // Reservations are of a context.
  CUDA_OK(cudaFree(nullptr));
  std::optional<Words> words;
  unsigned done = 0;
  double on_device = 0, for_memory = 0;
  unsigned cpu = 0;
  for (unsigned phase = 0; phases == 0 ? !programs::InputEnded() : phase < phases; ++phase) {
    const auto phase_begin = Clock::now();
    if (frees) Reserve(Words::RoomFor(count));
    if (!words.has_value()) words.emplace(count);
    const auto device_begin = Clock::now();
    for_memory += std::chrono::duration<double>(device_begin - phase_begin).count();
    if (done == 0) words->Begin();
    for (unsigned pass = 0; pass < passes; ++pass, ++done) words->Change(done);
    CUDA_OK(cudaDeviceSynchronize());
    if (frees) {
      words->Check(std::exchange(done, 0));
      words.reset();
      Reserve(0);
    }
    on_device += SecondsSince(device_begin);
    cpu ^= ComputeFor(cpu_seconds);
  }
  if (words.has_value()) words->Check(done);
  words.reset();
  std::printf("%.3f s, of them %.3f s for the device, %.3f s for memory (%u)\nPASS\n",
              SecondsSince(begin), on_device, for_memory, cpu & 1);
  return 0;
}
