// SPDX-License-Identifier: Apache-2.0
// An application that allocates, copies, fills and reads back long before it launches its first
// kernel.
//
//   first_launch [MIB [timed]]
//   first_launch reserve MIB
//
// Has MIB megabytes of device memory and a table of pointers to it, and writes all of it by copies
// of pageable and pinned memory, by rows and by fills. It compares what it reads back, prints
// "ready", waits for a byte of input, and launches kernels that follow the table; every word is
// compared again, and so are the pointers. Then it prints "computed", and waits for the end of its
// input. `timed`: an event that takes the time is recorded before the first launch, and one after
// the last. `reserve` only reserves so much memory (consort.h), prints "ready", and waits for the
// end of its input.

#include <cstdlib>
#include <cstring>
#include <vector>

#include "check.h"
#include "guest/consort.h"
#include "hold.h"

constexpr int kThreads = 256;
constexpr unsigned kPieces = 4;

// Adds to each word of each piece, by pointers that it finds in memory.
__global__ void Follow(unsigned* const* table, unsigned pieces, size_t count, unsigned value) {
  for (unsigned piece = 0; piece < pieces; ++piece) {
    for (size_t i = blockIdx.x * size_t{kThreads} + threadIdx.x; i < count;
         i += size_t{kThreads} * gridDim.x)
      table[piece][i] += value + piece;
  }
}

static unsigned WordAt(unsigned piece, size_t index) {
  return static_cast<unsigned>(index) * 2654435761u ^ (piece + 1);
}

static void Ready() {
  std::puts("ready");
  std::fflush(stdout);
}

static int ReserveOnly(size_t bytes) {
  CUDA_OK(cudaFree(nullptr));
  const int result = consort_reserve(bytes, 0);
  EXPECT(result == 0, "%zu bytes are not reserved: %d", bytes, result);
  Ready();
  while (!programs::InputEnded(/*wait=*/true)) {
  }
  return programs::Pass();
}

static void Compare(const std::vector<unsigned>& got, const std::vector<unsigned>& wanted,
                    unsigned piece, const char* when) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT(got[i] == wanted[i], "piece %u, word %zu, %s: %u, not %u", piece, i, when, got[i],
           wanted[i]);
  }
}

int main(int argc, char** argv) {
  if (argc > 2 && std::strcmp(argv[1], "reserve") == 0)
    return ReserveOnly(size_t(std::atoi(argv[2])) << 20);
  const size_t bytes = (size_t(argc > 1 ? std::atoi(argv[1]) : 8) << 20) / kPieces;
  const bool timed = argc > 2 && std::strcmp(argv[2], "timed") == 0;
  const size_t count = bytes / sizeof(unsigned);
  const size_t row = 1000 * sizeof(unsigned);

  unsigned* pieces[kPieces] = {};
  unsigned** table = nullptr;
  std::vector<unsigned> wanted[kPieces];
  for (unsigned piece = 0; piece < kPieces; ++piece) {
    CUDA_OK(cudaMalloc(&pieces[piece], bytes));
    wanted[piece].resize(count);
    for (size_t i = 0; i < count; ++i) wanted[piece][i] = WordAt(piece, i);
  }
  CUDA_OK(cudaMalloc(&table, sizeof(pieces)));
  CUDA_OK(cudaMemcpy(table, pieces, sizeof(pieces), cudaMemcpyHostToDevice));

  // Piece 0 from pageable memory, piece 1 from pinned memory, in two parts and two streams.
  CUDA_OK(cudaMemcpy(pieces[0], wanted[0].data(), bytes, cudaMemcpyHostToDevice));
  unsigned* pinned = nullptr;
  CUDA_OK(cudaMallocHost(&pinned, bytes));
  std::memcpy(pinned, wanted[1].data(), bytes);
  cudaStream_t streams[2];
  for (int i = 0; i < 2; ++i) {
    CUDA_OK(cudaStreamCreate(&streams[i]));
    CUDA_OK(cudaMemcpyAsync(pieces[1] + i * (count / 2), pinned + i * (count / 2), bytes / 2,
                            cudaMemcpyHostToDevice, streams[i]));
  }
  for (cudaStream_t stream : streams) CUDA_OK(cudaStreamSynchronize(stream));
  // Piece 2 is filled, and has rows of other words, a gap between each two.
  CUDA_OK(cudaMemset(pieces[2], 0xa5, bytes));
  for (unsigned& word : wanted[2]) word = 0xa5a5a5a5;
  CUDA_OK(cudaMemset2D(pieces[2], 2 * row, 0x11, row, 8));
  CUDA_OK(cudaMemcpy2D(pieces[2] + 16 * row / sizeof(unsigned), 2 * row, wanted[0].data(), row, row,
                       8, cudaMemcpyHostToDevice));
  for (size_t y = 0; y < 8; ++y) {
    for (size_t x = 0; x < row / sizeof(unsigned); ++x) {
      const size_t at = y * 2 * row / sizeof(unsigned) + x;
      wanted[2][at] = 0x11111111;
      wanted[2][at + 16 * row / sizeof(unsigned)] = wanted[0][y * row / sizeof(unsigned) + x];
    }
  }
  // Piece 3 is 0 but for its last word.
  CUDA_OK(cudaMemset(pieces[3], 0, bytes));
  for (unsigned& word : wanted[3]) word = 0;
  wanted[3][count - 1] = 77;
  CUDA_OK(cudaMemcpy(pieces[3] + count - 1, &wanted[3][count - 1], sizeof(unsigned),
                     cudaMemcpyHostToDevice));

  std::vector<unsigned> got(count);
  for (unsigned piece = 0; piece < kPieces; ++piece) {
    CUDA_OK(cudaMemcpy(got.data(), pieces[piece], bytes, cudaMemcpyDeviceToHost));
    Compare(got, wanted[piece], piece, "before the first launch");
    CUDA_OK(cudaMemcpy(pinned, pieces[piece], bytes, cudaMemcpyDeviceToHost));
    got.assign(pinned, pinned + count);
    Compare(got, wanted[piece], piece, "in pinned memory");
  }
  Ready();
  programs::InputEnded(/*wait=*/true);

  cudaEvent_t begin, end;
  CUDA_OK(cudaEventCreate(&begin));
  CUDA_OK(cudaEventCreate(&end));
  if (timed) CUDA_OK(cudaEventRecord(begin));
  constexpr unsigned kLaunches = 20;
  for (unsigned launch = 0; launch < kLaunches; ++launch) {
    Follow<<<64, kThreads>>>(table, kPieces, count, launch);
    CUDA_OK(cudaGetLastError());
  }
  if (timed) CUDA_OK(cudaEventRecord(end));
  CUDA_OK(cudaDeviceSynchronize());
  if (timed) {
    float milliseconds = -1;
    CUDA_OK(cudaEventElapsedTime(&milliseconds, begin, end));
    EXPECT(milliseconds >= 0, "%f ms", milliseconds);
  }
  for (unsigned piece = 0; piece < kPieces; ++piece) {
    for (unsigned& word : wanted[piece])
      word += kLaunches * (kLaunches - 1) / 2 + kLaunches * piece;
    CUDA_OK(cudaMemcpy(got.data(), pieces[piece], bytes, cudaMemcpyDeviceToHost));
    Compare(got, wanted[piece], piece, "after the launches");
  }
  unsigned* found[kPieces] = {};
  CUDA_OK(cudaMemcpy(found, table, sizeof(found), cudaMemcpyDeviceToHost));
  EXPECT(std::memcmp(found, pieces, sizeof(found)) == 0, "pointers in memory have changed");
  std::puts("computed");
  std::fflush(stdout);
  while (!programs::InputEnded(/*wait=*/true)) {
  }
  for (unsigned* piece : pieces) CUDA_OK(cudaFree(piece));
  CUDA_OK(cudaFree(table));
  CUDA_OK(cudaFreeHost(pinned));
  return programs::Pass();
}
