// SPDX-License-Identifier: Apache-2.0
// tests/programs/peer_ring.cu: a process a GPU, up to four, that add up what all of them have, in a
// ring: a kernel writes into memory of the next GPU, which is another process's, and the kernels of
// all wait for each other by words in it. NCCL does its work so between GPUs with links.
// Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", JPDC 2009.
//
//   peer_ring          three times
//   peer_ring hold     again and again until its input ends
#include <cuda.h>
#include <cuda_runtime.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "check.h"
#include "hold.h"
#include "line.h"
#include "mapped_memory.h"

namespace {

constexpr int kRanksMax = 4;
constexpr int kStepsMax = 2 * (kRanksMax - 1);
constexpr int kChannels = 8;        // blocks, each with memory of its own from its neighbours
constexpr unsigned kThreads = 128;  // of a block
constexpr unsigned kPart = 8192;    // words of a channel that go over at once

// What a channel is sent; in memory of the GPU that reads it.
struct Inbox {
  unsigned came[kStepsMax];  // the last round of which that step's part is here
  unsigned parts[kStepsMax][kPart];
};

struct Channels {
  const Inbox* mine[kChannels];
  Inbox* next[kChannels];
};

__device__ void Publish(unsigned* word, unsigned value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__device__ unsigned Look(const unsigned* word) {
  unsigned value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(word) : "memory");
  return value;
}

// Of `numbers` each channel has `ranks` parts. First each part goes round and gathers what the
// others add, until one rank has its sum; then the sums go round.
__global__ void AllReduce(unsigned* numbers, Channels channels, int rank, int ranks,
                          unsigned round) {
  const Inbox* const mine = channels.mine[blockIdx.x];
  Inbox* const next = channels.next[blockIdx.x];
  unsigned* const parts = numbers + static_cast<size_t>(blockIdx.x) * ranks * kPart;
  for (int step = 0; step < 2 * (ranks - 1); ++step) {
    const unsigned* const sent = parts + (rank - step + 2 * ranks) % ranks * kPart;
    for (unsigned i = threadIdx.x; i < kPart; i += blockDim.x) next->parts[step][i] = sent[i];
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
      Publish(&next->came[step], round);
      while (Look(&mine->came[step]) != round) {
      }
    }
    __syncthreads();
    unsigned* const got = parts + (rank - step - 1 + 2 * ranks) % ranks * kPart;
    for (unsigned i = threadIdx.x; i < kPart; i += blockDim.x) {
      const unsigned came = mine->parts[step][i];
      got[i] = step < ranks - 1 ? got[i] + came : came;
    }
    __syncthreads();
  }
}

// Of an inbox, as memory is made.
size_t InboxBytes() {
  const size_t granule = programs::Granule();
  return (sizeof(Inbox) + granule - 1) / granule * granule;
}

unsigned Number(size_t i, int rank, unsigned round) {
  return static_cast<unsigned>(i) * 2654435761u + static_cast<unsigned>(rank) * 40503u + round;
}

class Rank {
 public:
  // `before` and `after`: the lines to the neighbours.
  Rank(int rank, int ranks, int before, int after)
      : rank_(rank), ranks_(ranks), before_(before), after_(after) {
    CUDA_OK(cudaSetDevice(rank));
    CUDA_OK(cudaMalloc(&numbers_, Count() * sizeof(unsigned)));
    std::vector<int> all;
    for (int i = 0; i < ranks; ++i) all.push_back(i);
    for (int channel = 0; channel < kChannels; ++channel) {
      const CUmemGenericAllocationHandle memory = programs::Create(rank, InboxBytes());
      const int descriptor = programs::Export(memory);
      Inbox* const mine = Map(memory, all);
      channels_.mine[channel] = mine;
      CUDA_OK(cudaMemset(mine, 0, sizeof(Inbox)));
      CUDA_OK(cudaDeviceSynchronize());
      Say(before_, channel, descriptor);
      close(descriptor);
    }
    for (int channel = 0; channel < kChannels; ++channel) {
      int descriptor = -1;
      EXPECT(Heard(after_, &descriptor) == channel && descriptor >= 0, "no memory of the next one");
      // For this GPU alone, although it is the next one's.
      channels_.next[channel] = Map(programs::Import(descriptor), {rank});
      close(descriptor);
    }
  }
  ~Rank() { CUDA_OK(cudaFree(numbers_)); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  void AddUp(unsigned round) {
    std::vector<unsigned> numbers(Count());
    for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = Number(i, rank_, round);
    const size_t bytes = numbers.size() * sizeof(unsigned);
    CUDA_OK(cudaMemcpy(numbers_, numbers.data(), bytes, cudaMemcpyHostToDevice));
    AllReduce<<<kChannels, kThreads>>>(numbers_, channels_, rank_, ranks_, round);
    CUDA_OK(cudaMemcpy(numbers.data(), numbers_, bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < numbers.size(); ++i) {
      unsigned sum = 0;
      for (int rank = 0; rank < ranks_; ++rank) sum += Number(i, rank, round);
      EXPECT(numbers[i] == sum, "rank %d, round %u, number %zu: %u, not %u", rank_, round, i,
             numbers[i], sum);
    }
  }

  // What rank 0 says, once all have come here.
  int Agree(int said) {
    for (int time = 0; time < 2; ++time) {
      if (rank_ == 0) Say(after_, said);
      const int heard = Heard(before_);
      if (rank_ == 0) continue;
      said = heard;
      Say(after_, said);
    }
    return said;
  }

 private:
  size_t Count() const { return static_cast<size_t>(kChannels) * ranks_ * kPart; }

  Inbox* Map(CUmemGenericAllocationHandle memory, const std::vector<int>& devices) {
    mappings_.emplace_back(std::vector{memory}, InboxBytes(), devices);
    return reinterpret_cast<Inbox*>(mappings_.back().address());
  }

  static void Say(int line, int told, int descriptor = -1) {
    EXPECT(programs::Tell(line, told, descriptor), "a neighbour has gone");
  }

  static int Heard(int line, int* descriptor = nullptr) {
    int told = 0, none = -1;
    EXPECT(programs::Hear(line, &told, descriptor != nullptr ? descriptor : &none),
           "a neighbour has gone");
    return told;
  }

  const int rank_, ranks_, before_, after_;
  unsigned* numbers_ = nullptr;
  std::vector<programs::Mapped> mappings_;
  Channels channels_ = {};
};

int WorkAs(int rank, int ranks, int before, int after, bool hold) {
  Rank ring(rank, ranks, before, after);
  unsigned round = 0;
  do {
    ring.AddUp(++round);
  } while (ring.Agree(hold ? !programs::InputEnded() : round < 3) != 0);
  return 0;
}

// How many GPUs there are, at most kRanksMax, that all reach each other's memory; else 1.
int FindRanks() {
  int count = 0;
  CUDA_OK(cudaGetDeviceCount(&count));
  if (count > kRanksMax) count = kRanksMax;
  for (int i = 0; i < count * count; ++i) {
    int can = 0;
    CUDA_OK(cudaDeviceCanAccessPeer(&can, i / count, i % count));
    if (i / count != i % count && can == 0) return 1;
  }
  return count;
}

}  // namespace

int main(int argc, char** argv) {
  const bool hold = argc > 1 && std::strcmp(argv[1], "hold") == 0;
  // CUDA does not survive a fork, so whoever forks does not ask it.
  const pid_t probe = fork();
  if (probe == 0) _exit(FindRanks());
  int status = 0;
  EXPECT(waitpid(probe, &status, 0) == probe && WIFEXITED(status), "no devices: %d", status);
  const int ranks = WEXITSTATUS(status);
  if (ranks < 2) {
    std::printf("skipped: there are no two GPUs that reach each other's memory\n");
    return programs::Pass();
  }
  // Line i is between ranks i and i + 1.
  int lines[kRanksMax][2];
  for (int i = 0; i < ranks; ++i) {
    EXPECT(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, lines[i]) == 0, "no socket");
  }
  std::vector<pid_t> pids;
  for (int rank = 0; rank < ranks; ++rank) {
    pids.push_back(fork());
    EXPECT(pids.back() >= 0, "no process");
    if (pids.back() > 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int before = lines[(rank + ranks - 1) % ranks][1], after = lines[rank][0];
    for (int i = 0; i < 2 * ranks; ++i) {
      const int line = lines[i / 2][i % 2];
      if (line != before && line != after) close(line);
    }
    _exit(WorkAs(rank, ranks, before, after, hold));
  }
  // Where one fails, kernels of the others wait for it for ever.
  for (int left = ranks; left > 0; --left) {
    const pid_t ended = waitpid(-1, &status, 0);
    if (ended > 0 && status == 0) continue;
    for (const pid_t pid : pids) {
      if (pid != ended) kill(pid, SIGKILL);
    }
    programs::Fail(__FILE__, __LINE__, "a rank failed: %d", status);
  }
  std::printf("%d ranks\n", ranks);
  return programs::Pass();
}
