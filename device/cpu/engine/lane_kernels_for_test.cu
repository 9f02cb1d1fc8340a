// SPDX-License-Identifier: Apache-2.0
// Kernels whose warps part and meet again, which nvcc turns into PTX for lane_kernels_test.
#include <cooperative_groups.h>

#include "device/cpu/engine/lane_bodies_for_test.h"

namespace {

__device__ unsigned ThreadOfGrid() {
  const unsigned block = blockIdx.x + blockIdx.y * gridDim.x;
  const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
  return block * threads + threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

}  // namespace

extern "C" __global__ void RunNestedLoops(const uint32_t* in, uint32_t* out, unsigned count,
                                          uint32_t limit) {
  const unsigned i = ThreadOfGrid();
  if (i < count) out[i] = NestedLoops(in[i], limit);
}

extern "C" __global__ void RunStateMachine(const uint32_t* in, uint32_t* out, unsigned count) {
  const unsigned i = ThreadOfGrid();
  if (i >= count) return;
  out[i] = StateMachine(in[i]);
}

extern "C" __global__ void RunGuardedDivision(const int64_t* in, int64_t* out, unsigned count) {
  const unsigned i = ThreadOfGrid();
  if (i < count) out[i] = GuardedDivision(in[i], in[count - 1 - i]);
}

extern "C" __global__ void RunLocalArrays(const uint32_t* in, uint32_t* out, unsigned count) {
  const unsigned i = ThreadOfGrid();
  if (i < count) out[i] = LocalArrays(in[i]);
}

extern "C" __global__ void RunMixedWidths(const Mixed* in, Mixed* out, unsigned count) {
  const unsigned i = ThreadOfGrid();
  if (i < count) out[i] = MixedWidths(in, count, i);
}

// Values of 16 bytes, here and there, some under masks; what is stored goes where no other thread's
// does, as `count` has no common factor with 13. Blocks have at most 1024 threads.
extern "C" __global__ void RunQuads(const uint4* in, uint4* out, unsigned count) {
  __shared__ uint4 staged[1024];
  const unsigned i = ThreadOfGrid();
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  if (i >= count) return;
  const uint4* from = &in[(i * 7 + 3) % count];
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, 16; cp.async.wait_all;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(&staged[thread]))),
               "l"(from)
               : "memory");
#else
  staged[thread] = *from;
#endif
  uint4 value = staged[thread];
  if (value.x & 1) {
    const uint4 other = in[(i * 11 + 5) % count];
    value.y += other.x;
    value.w ^= other.z;
  }
  if ((value.x & 6) != 0) out[(i * 13 + 1) % count] = value;
}

// Indices of 32 bits that wrap between two threads.
extern "C" __global__ void WrappingIndices(const uint32_t* in, uint32_t* out, unsigned start,
                                           unsigned count) {
  const unsigned i = start + blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned at = i + 8;
  // `in` is reached from both ends of the range of an index.
  out[blockIdx.x * blockDim.x + threadIdx.x] = at < count ? in[at] : ~in[count - 1 - (i & 7)];
}

// Walks from the difference of two indices of 32 bits that wrap at different threads.
extern "C" __global__ void WrappingWalks(const uint32_t* in, uint32_t* out, unsigned start,
                                         unsigned other, unsigned steps, unsigned count) {
  const unsigned t = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned a = start + 2 * t, b = other + t;
  const uint64_t first = uint64_t{a} - b;
  uint32_t sum = 0;
  if (first < count) {
    const uint32_t* at = in + first;
    for (unsigned k = 0; k < steps; ++k) sum = 3 * sum + at[k * 64];
  }
  out[t] = sum;
}

// Threads that returned early take no part in the barriers that follow.
extern "C" __global__ void ReturnBeforeBarrier(const uint32_t* in, uint32_t* out, unsigned count) {
  extern __shared__ uint32_t values[];
  const unsigned t = threadIdx.x;
  const unsigned i = blockIdx.x * blockDim.x + t;
  values[t] = 0;
  __syncthreads();
  if (i >= count) return;
  values[t] = in[i];
  __syncthreads();
  uint32_t sum = 0;
  for (unsigned k = 0; k < blockDim.x; ++k) sum += values[k] * (k + t);
  out[i] = sum;
}

// Predicates of all threads of a block; the block's last warp may be short.
extern "C" __global__ void BlockVotes(const uint32_t* in, uint32_t* out) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  const int count = __syncthreads_count(in[i] & 1);
  const int all = __syncthreads_and(in[i] & 6);
  const int any = __syncthreads_or((in[i] & 63) == 63);
  out[i] = static_cast<uint32_t>(count) << 2 | static_cast<uint32_t>(all != 0) << 1 |
           static_cast<uint32_t>(any != 0);
}

// Prefix sums by shuffles in a warp and through shared memory in a block.
extern "C" __global__ void Scan(const uint32_t* in, uint32_t* out) {
  __shared__ uint32_t sums[32];
  const unsigned t = threadIdx.x;
  const unsigned lane = t % 32;
  const unsigned warp = t / 32;
  uint32_t value = in[blockIdx.x * blockDim.x + t];
  for (unsigned distance = 1; distance < 32; distance *= 2) {
    const uint32_t other = __shfl_up_sync(0xFFFFFFFF, value, distance);
    if (lane >= distance) value += other;
  }
  if (lane == 31) sums[warp] = value;
  __syncthreads();
  if (warp == 0) {
    uint32_t sum = lane < blockDim.x / 32 ? sums[lane] : 0;
    for (unsigned distance = 1; distance < 32; distance *= 2) {
      const uint32_t other = __shfl_up_sync(0xFFFFFFFF, sum, distance);
      if (lane >= distance) sum += other;
    }
    sums[lane] = sum;
  }
  __syncthreads();
  if (warp > 0) value += sums[warp - 1];
  out[blockIdx.x * blockDim.x + t] = value;
}

// What a warp decides together.
extern "C" __global__ void WarpTogether(const uint32_t* in, uint32_t* out) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  const uint32_t value = in[i];
  const unsigned mask = __activemask();
  uint32_t result = __ballot_sync(mask, value & 1);
  result ^= __any_sync(mask, (value & 15) == 7) ? 0x80000000u : 0;
  result ^= __all_sync(mask, value & 14) ? 0x40000000u : 0;
  result += __match_any_sync(mask, value % 5) * 3;
  int same = 0;
  result ^= __match_all_sync(mask, value / 1000000000u, &same);
  result += same != 0 ? 77 : 0;
  result += __shfl_xor_sync(mask, value, 5) ^ __shfl_down_sync(mask, value, 3, 8);
  result += __shfl_sync(mask, value, static_cast<int>(value % 32));
#if __CUDA_ARCH__ >= 800
  result += __reduce_add_sync(mask, value) ^ __reduce_max_sync(mask, value) ^
            __reduce_xor_sync(mask, value);
#endif
  out[i] = result;
}

// Lanes that go through a loop a different number of times, and vote by themselves.
extern "C" __global__ void WarpAggregated(const uint32_t* in, uint32_t* counters, unsigned count) {
  namespace cg = cooperative_groups;
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  for (unsigned k = 0; k < in[i] % 4; ++k) {
    cg::coalesced_group group = cg::coalesced_threads();
    if (group.thread_rank() == 0) atomicAdd(&counters[k], group.size());
  }
}

// Atomics of shared and global memory to few places.
extern "C" __global__ void SharedAndGlobalAtomics(const uint32_t* in, uint32_t* out,
                                                  unsigned long long* wide, float* sum) {
  __shared__ uint32_t bins[8];
  __shared__ uint32_t largest;
  if (threadIdx.x < 8) bins[threadIdx.x] = 0;
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  const uint32_t value = in[blockIdx.x * blockDim.x + threadIdx.x];
  atomicAdd(&bins[value % 8], 1u);
  atomicMax(&largest, value);
  atomicAdd(wide, static_cast<unsigned long long>(value) << 8);
  if (value % 3 == 0) atomicAdd(sum, 1.0f);
  __syncthreads();
  if (threadIdx.x < 8) atomicAdd(&out[threadIdx.x], bins[threadIdx.x]);
  if (threadIdx.x == 8 % blockDim.x) atomicMax(&out[8], largest);
}

// A region that all threads pass by, with a side for some of them that is too long for a select.
extern "C" __global__ void PassedBy(uint32_t* out, unsigned rounds, unsigned enter) {
  const unsigned t = blockIdx.x * blockDim.x + threadIdx.x;
  uint32_t value = out[t];
  for (unsigned k = 0; k < rounds; ++k) {
    if (k != enter) continue;
    const uint32_t* from = out + t + k;
    if (value % 3 == 1) {
      asm volatile(
          "mul.lo.u32 %0, %0, 7;\n\tadd.u32 %0, %0, 11;\n\txor.b32 %0, %0, 23;\n\t"
          "mul.lo.u32 %0, %0, 13;\n\tadd.u32 %0, %0, 17;\n\txor.b32 %0, %0, 5;"
          : "+r"(value));
    }
    out[t] = value + *from;
    __syncthreads();
  }
}

// Where a thread is, as bits of other types and for nothing else; 3 words a thread, then one.
extern "C" __global__ void PlacesAsFloats(float* out) {
  unsigned warp, lane;
  float x, y, z;
  asm("mov.u32 %0, %%warpid; mov.u32 %1, %%laneid;" : "=r"(warp), "=r"(lane));
  asm("mov.b32 %0, %%tid.x; mov.b32 %1, %%tid.y; mov.b32 %2, %%tid.z;" : "=f"(x), "=f"(y), "=f"(z));
  float* const at = &out[3 * (32 * warp + lane)];
  at[0] = -x;
  at[1] = -y;
  at[2] = -z;
}

extern "C" __global__ void PlacesAsHalves(unsigned* out) {
  unsigned warp, lane, x, y, z;
  asm("mov.u32 %0, %%warpid; mov.u32 %1, %%laneid;" : "=r"(warp), "=r"(lane));
  asm("neg.f16x2 %0, %1;" : "=r"(x) : "r"(threadIdx.x));
  asm("neg.f16x2 %0, %1;" : "=r"(y) : "r"(threadIdx.y));
  asm("neg.f16x2 %0, %1;" : "=r"(z) : "r"(threadIdx.z));
  unsigned* const at = &out[3 * (32 * warp + lane)];
  at[0] = x;
  at[1] = y;
  at[2] = z;
}

extern "C" __global__ void LanesAsFloats(float* out) {
  float lane;
  asm("mov.b32 %0, %%laneid;" : "=f"(lane));
  out[threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)] = -lane;
}
