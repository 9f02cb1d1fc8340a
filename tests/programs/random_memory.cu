// SPDX-License-Identifier: Apache-2.0
// Random work on random pieces of device memory, against a model of it on the CPU.
//
//   random_memory [SEED [STEPS [MIB]]]
//   random_memory SEED steps [MIB]
//
// A step allocates or frees, copies one way or the other or within the device, fills, or launches a
// kernel: on a range that it is given, on ranges that it finds through pointers in device memory,
// or on module variables. What is read back on the way is compared with the model, and what is
// freed; after STEPS steps everything is. With `steps` each line of input is a number of steps to
// do next, and is answered by "at", how many there were in all, and how many bytes were compared.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "check.h"

constexpr int kThreads = 128;
constexpr size_t kBlocksMax = 64;
constexpr size_t kRangeMax = 64 << 10;
constexpr int kStreams = 3;
constexpr unsigned kEntries = 61;

// Never asked for by the program: only kernels know where they are.
__device__ unsigned entries[kEntries];
__constant__ unsigned factor = 1664525u;

struct Link {
  unsigned char* to;
  const unsigned char* from;
  size_t bytes;
};

__host__ __device__ unsigned char Changed(unsigned char byte, unsigned by, size_t at) {
  return static_cast<unsigned char>(byte * 5u + by + static_cast<unsigned>(at));
}

__global__ void Change(unsigned char* bytes, size_t count, unsigned by) {
  for (size_t i = blockIdx.x * size_t{kThreads} + threadIdx.x; i < count;
       i += size_t{kThreads} * gridDim.x)
    bytes[i] = Changed(bytes[i], by, i);
}

__global__ void Follow(const Link* link) {
  for (size_t i = blockIdx.x * size_t{kThreads} + threadIdx.x; i < link->bytes;
       i += size_t{kThreads} * gridDim.x)
    link->to[i] ^= link->from[i];
}

__global__ void Count(unsigned which, unsigned by, unsigned char* out) {
  const unsigned value = entries[which] = entries[which] * factor + by;
  for (int i = 0; i < 4; ++i) out[i] = static_cast<unsigned char>(value >> 8 * i);
}

class Model {
 public:
  Model(uint32_t seed, size_t bytes_max) : random_(seed), bytes_max_(bytes_max) {
    for (cudaStream_t& stream : streams_) {
      CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    }
    CUDA_OK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
    CUDA_OK(cudaMalloc(&link_, sizeof(Link)));
    CUDA_OK(cudaMallocHost(&pinned_, kRangeMax));
  }

  void Step() {
    const unsigned what = Below(100);
    if (blocks_.size() < 2 || (what < 6 && blocks_.size() < kBlocksMax)) {
      Allocate();
    } else if (what < 10) {
      Free(Below(blocks_.size()));
    } else if (what < 14) {
      SwitchStream();
    } else if (what < 30) {
      CopyIn();
    } else if (what < 50) {
      Compare(AnyRange());
    } else if (what < 60) {
      const Range range = AnyRange();
      const unsigned char value = Below(256);
      CUDA_OK(cudaMemsetAsync(range.device(), value, range.bytes, stream()));
      std::memset(range.model(), value, range.bytes);
    } else if (what < 70) {
      CopyWithin();
    } else if (what < 84) {
      const Range range = AnyRange();
      const unsigned by = random_.Next();
      Change<<<Grid(range), kThreads, 0, stream()>>>(range.device(), range.bytes, by);
      CUDA_OK(cudaGetLastError());
      for (size_t i = 0; i < range.bytes; ++i) range.model()[i] = Changed(range.model()[i], by, i);
    } else if (what < 95) {
      FollowPointers();
    } else {
      CountEntry();
    }
    ++steps_;
  }

  void CompareAll() {
    for (const auto& block : blocks_) CompareBlock(block.get());
  }
  unsigned long long steps() const { return steps_; }
  unsigned long long compared() const { return compared_; }

 private:
  struct Block {
    unsigned char* device = nullptr;
    std::vector<unsigned char> model;
  };
  struct Range {
    Block* block;
    size_t offset;
    size_t bytes;
    unsigned char* device() const { return block->device + offset; }
    unsigned char* model() const { return block->model.data() + offset; }
  };

  size_t Below(size_t end) { return random_.Next() % end; }
  cudaStream_t stream() const { return streams_[stream_]; }
  static unsigned Grid(const Range& range) {
    return static_cast<unsigned>(std::min<size_t>(4, (range.bytes + kThreads - 1) / kThreads));
  }
  Range RangeOf(size_t index) {
    Block* const block = blocks_[index].get();
    const size_t bytes = 1 + Below(std::min(kRangeMax, block->model.size()));
    return {block, Below(block->model.size() - bytes + 1), bytes};
  }
  Range AnyRange() { return RangeOf(Below(blocks_.size())); }

  void Allocate() {
    // From bytes, many of which share a page, to several pages.
    constexpr size_t kSizes[] = {200, 20'000, 300'000, 5'000'000};
    const size_t bytes = 1 + Below(kSizes[Below(std::size(kSizes))]);
    if (bytes_ + bytes > bytes_max_) return Free(Below(blocks_.size()));
    auto block = std::make_unique<Block>();
    CUDA_OK(cudaMalloc(&block->device, bytes));
    const unsigned char value = Below(256);
    CUDA_OK(cudaMemsetAsync(block->device, value, bytes, stream()));
    block->model.assign(bytes, value);
    bytes_ += bytes;
    blocks_.push_back(std::move(block));
  }

  void Free(size_t index) {
    CompareBlock(blocks_[index].get());
    CUDA_OK(cudaFree(blocks_[index]->device));
    bytes_ -= blocks_[index]->model.size();
    blocks_[index] = std::move(blocks_.back());
    blocks_.pop_back();
  }

  // What follows comes after everything before.
  void SwitchStream() {
    CUDA_OK(cudaEventRecord(event_, stream()));
    stream_ = (stream_ + 1) % kStreams;
    CUDA_OK(cudaStreamWaitEvent(stream(), event_, 0));
  }

  void CopyIn() {
    const Range range = AnyRange();
    for (size_t i = 0; i < range.bytes; i += 4) {
      const unsigned word = random_.Next();
      std::memcpy(range.model() + i, &word, std::min<size_t>(4, range.bytes - i));
    }
    const bool pinned = Below(2) == 0;
    if (pinned) std::memcpy(pinned_, range.model(), range.bytes);
    CUDA_OK(cudaMemcpyAsync(range.device(), pinned ? pinned_ : range.model(), range.bytes,
                            cudaMemcpyHostToDevice, stream()));
    if (pinned) CUDA_OK(cudaStreamSynchronize(stream()));
  }

  void CopyWithin() {
    const Range to = AnyRange(), from = AnyRange();
    if (to.block == from.block) return;
    const size_t bytes = std::min(to.bytes, from.bytes);
    CUDA_OK(cudaMemcpyAsync(to.device(), from.device(), bytes, cudaMemcpyDeviceToDevice, stream()));
    std::memcpy(to.model(), from.model(), bytes);
  }

  void FollowPointers() {
    const Range to = AnyRange(), from = AnyRange();
    if (to.block == from.block) return;
    const size_t bytes = std::min(to.bytes, from.bytes);
    const Link link = {to.device(), from.device(), bytes};
    CUDA_OK(cudaMemcpyAsync(link_, &link, sizeof(link), cudaMemcpyHostToDevice, stream()));
    Follow<<<Grid(to), kThreads, 0, stream()>>>(link_);
    CUDA_OK(cudaGetLastError());
    for (size_t i = 0; i < bytes; ++i) to.model()[i] ^= from.model()[i];
  }

  void CountEntry() {
    const Range out = AnyRange();
    if (out.bytes < 4) return;
    const unsigned which = Below(kEntries), by = random_.Next();
    Count<<<1, 1, 0, stream()>>>(which, by, out.device());
    CUDA_OK(cudaGetLastError());
    entries_[which] = entries_[which] * 1664525u + by;
    for (int i = 0; i < 4; ++i) {
      out.model()[i] = static_cast<unsigned char>(entries_[which] >> 8 * i);
    }
  }

  void CompareBlock(Block* block) {
    for (size_t offset = 0; offset < block->model.size(); offset += kRangeMax) {
      Compare({block, offset, std::min(kRangeMax, block->model.size() - offset)});
    }
  }

  void Compare(const Range& range) {
    CUDA_OK(
        cudaMemcpyAsync(pinned_, range.device(), range.bytes, cudaMemcpyDeviceToHost, stream()));
    CUDA_OK(cudaStreamSynchronize(stream()));
    compared_ += range.bytes;
    if (std::memcmp(pinned_, range.model(), range.bytes) == 0) return;
    for (size_t i = 0; i < range.bytes; ++i) {
      EXPECT(pinned_[i] == range.model()[i], "step %llu: byte %zu of %zu is %u, expected %u",
             steps_, range.offset + i, range.block->model.size(), pinned_[i], range.model()[i]);
    }
  }

  programs::Random random_;
  const size_t bytes_max_;
  cudaStream_t streams_[kStreams] = {};
  int stream_ = 0;
  cudaEvent_t event_ = nullptr;
  Link* link_ = nullptr;
  unsigned char* pinned_ = nullptr;
  std::vector<std::unique_ptr<Block>> blocks_;
  size_t bytes_ = 0;
  unsigned entries_[kEntries] = {};
  unsigned long long steps_ = 0;
  unsigned long long compared_ = 0;
};

int main(int argc, char** argv) {
  const bool asks = argc > 2 && std::strcmp(argv[2], "steps") == 0;
  Model model(argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1,
              size_t(argc > 3 ? std::atoi(argv[3]) : 16) << 20);
  char line[64];
  while (true) {
    if (asks && std::fgets(line, sizeof(line), stdin) == nullptr) break;
    const unsigned long long steps = asks       ? std::strtoull(line, nullptr, 10)
                                     : argc > 2 ? std::strtoull(argv[2], nullptr, 10)
                                                : 2000;
    for (unsigned long long i = 0; i < steps; ++i) model.Step();
    model.CompareAll();
    if (!asks) break;
    std::printf("at %llu %llu\n", model.steps(), model.compared());
    std::fflush(stdout);
  }
  return programs::Pass();
}
