// SPDX-License-Identifier: Apache-2.0
// tests/programs/big_copy.cu [MiB]: large copies both ways, pageable and pinned, with checksums on
// both sides, and single words that are read back. Default 64 MiB.
#include <chrono>
#include <cstdlib>
#include <memory>

#include "check.h"

// sums[t] = sum over thread t's words of word * (index | 1): a moved or repeated word changes it.
// Wraps on purpose.
__global__ void Checksum(const uint32_t* words, size_t count, uint32_t* sums) {
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  const size_t thread = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  uint32_t sum = 0;
  for (size_t i = thread; i < count; i += stride) sum += words[i] * (static_cast<uint32_t>(i) | 1u);
  sums[thread] = sum;
}

// So that what comes back is not what went in.
__global__ void Flip(uint32_t* words, size_t count, uint32_t mask) {
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride)
    words[i] ^= mask;
}

uint32_t ChecksumOnCpu(const uint32_t* words, size_t count, uint32_t mask) {
  uint32_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += (words[i] ^ mask) * (static_cast<uint32_t>(i) | 1u);
  return sum;
}

constexpr int kGrid = 32, kThreads = 128;
constexpr size_t kWordsRead = 200;

void Run(uint32_t* source, uint32_t* result, size_t count, uint32_t* device, uint32_t* device_sums,
         const char* what) {
  using Clock = std::chrono::steady_clock;
  constexpr uint32_t kMask = 0x5bd1e995u;
  const size_t bytes = count * sizeof(uint32_t);
  for (size_t i = 0; i < count; ++i)
    source[i] = static_cast<uint32_t>(i) * 2654435761u + static_cast<uint32_t>(i >> 7);
  const Clock::time_point start = Clock::now();
  CUDA_OK(cudaMemcpy(device, source, bytes, cudaMemcpyHostToDevice));
  CUDA_OK(cudaDeviceSynchronize());
  const Clock::time_point sent = Clock::now();
  Checksum<<<kGrid, kThreads>>>(device, count, device_sums);
  CUDA_OK(cudaGetLastError());
  Flip<<<kGrid, kThreads>>>(device, count, kMask);
  CUDA_OK(cudaGetLastError());
  uint32_t sums[kGrid * kThreads];
  CUDA_OK(cudaMemcpy(sums, device_sums, sizeof sums, cudaMemcpyDeviceToHost));
  CUDA_OK(cudaDeviceSynchronize());
  const Clock::time_point computed = Clock::now();
  CUDA_OK(cudaMemcpy(result, device, bytes, cudaMemcpyDeviceToHost));
  const Clock::time_point received = Clock::now();
  uint32_t device_sum = 0;
  for (uint32_t sum : sums) device_sum += sum;
  const uint32_t source_sum = ChecksumOnCpu(source, count, 0);
  EXPECT(device_sum == source_sum, "%s: the device sees checksum %#x, the host sent %#x", what,
         device_sum, source_sum);
  const uint32_t result_sum = ChecksumOnCpu(result, count, kMask);
  if (result_sum != source_sum) {
    for (size_t i = 0; i < count; ++i)
      EXPECT(result[i] == (source[i] ^ kMask), "%s: word %zu came back as %#x, expected %#x", what,
             i, result[i], source[i] ^ kMask);
  }
  EXPECT(result_sum == source_sum, "%s: came back with checksum %#x, expected %#x", what,
         result_sum, source_sum);
  const auto rate = [bytes](Clock::duration time) {
    return bytes / 1e6 / std::chrono::duration<double>(time).count();
  };
  std::printf("big_copy: %s %zu MiB, to the device %.0f MB/s, back %.0f MB/s\n", what, bytes >> 20,
              rate(sent - start), rate(received - computed));
  std::fflush(stdout);
}

// As programs look at results: one here, one there.
void ReadWords(const uint32_t* device, const uint32_t* expected, size_t count) {
  for (size_t i = 0; i < count; i += count / kWordsRead) {
    uint32_t word = 0;
    CUDA_OK(cudaMemcpy(&word, device + i, sizeof word, cudaMemcpyDeviceToHost));
    EXPECT(word == expected[i], "word %zu is %#x, expected %#x", i, word, expected[i]);
  }
}

int main(int argc, char** argv) {
  const long mebibytes = argc > 1 ? std::strtol(argv[1], nullptr, 10) : 64;
  if (mebibytes < 1 || mebibytes > 65536) {
    std::fprintf(stderr, "usage: %s [MiB, 1 to 65536]\n", argv[0]);
    return 2;
  }
  const size_t count = static_cast<size_t>(mebibytes) * (1u << 20) / sizeof(uint32_t);
  uint32_t *device, *device_sums;
  CUDA_OK(cudaMalloc(&device, count * sizeof(uint32_t)));
  CUDA_OK(cudaMalloc(&device_sums, kGrid * kThreads * sizeof(uint32_t)));
  {
    const auto source = std::make_unique<uint32_t[]>(count),
               result = std::make_unique<uint32_t[]>(count);
    Run(source.get(), result.get(), count, device, device_sums, "pageable");
  }
  uint32_t *source, *result;
  CUDA_OK(cudaMallocHost(&source, count * sizeof(uint32_t)));
  CUDA_OK(cudaMallocHost(&result, count * sizeof(uint32_t)));
  Run(source, result, count, device, device_sums, "pinned");
  ReadWords(device, result, count);
  CUDA_OK(cudaFreeHost(source));
  CUDA_OK(cudaFreeHost(result));
  CUDA_OK(cudaFree(device));
  CUDA_OK(cudaFree(device_sums));
  return programs::Pass();
}
