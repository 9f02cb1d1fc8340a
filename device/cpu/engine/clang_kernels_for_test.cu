// SPDX-License-Identifier: Apache-2.0
// Kernels that clang compiles to PTX, for clang_kernels_test.cc: without the toolkit's headers, by
// clang's builtins alone. What is in them is what clang writes otherwise than nvcc does: stack
// frames by %SP and %SPL, its own names for parameters and prototypes, .b8 arrays for structs,
// switches, C++ atomics.

#define GLOBAL __attribute__((global))
#define DEVICE __attribute__((device))
#define SHARED __attribute__((shared))
#define CONSTANT __attribute__((constant))
#define NOINLINE __attribute__((noinline))

using u32 = unsigned;
using u64 = unsigned long long;

DEVICE static u32 ThreadX() { return static_cast<u32>(__nvvm_read_ptx_sreg_tid_x()); }
DEVICE static u32 Index() {
  return static_cast<u32>(__nvvm_read_ptx_sreg_ctaid_x()) *
             static_cast<u32>(__nvvm_read_ptx_sreg_ntid_x()) +
         ThreadX();
}

extern "C" GLOBAL void Saxpy(float a, const float* x, float* y, u32 count) {
  const u32 i = Index();
  if (i < count) y[i] = __builtin_fmaf(a, x[i], y[i]);
}

// Each block turns its part around, through shared memory.
extern "C" GLOBAL void Reverse(u32* data) {
  SHARED static u32 tile[256];
  const u32 last = static_cast<u32>(__nvvm_read_ptx_sreg_ntid_x()) - 1;
  tile[ThreadX()] = data[Index()];
  __syncthreads();
  data[Index()] = tile[last - ThreadX()];
}

// The sum of a warp, in its first lane.
extern "C" GLOBAL void WarpSums(const int* in, int* sums) {
  int value = in[Index()];
  for (int step = 16; step > 0; step /= 2)
    value += __nvvm_shfl_sync_down_i32(0xFFFFFFFF, value, step, 31);
  if (ThreadX() % 32 == 0) sums[Index() / 32] = value;
}

extern "C" GLOBAL void Histogram(const u32* in, u32* bins, u64* total, u32 count) {
  for (u32 i = Index(); i < count; i += static_cast<u32>(__nvvm_read_ptx_sreg_nctaid_x()) *
                                        static_cast<u32>(__nvvm_read_ptx_sreg_ntid_x())) {
    __atomic_fetch_add(&bins[in[i] % 16], 1u, __ATOMIC_RELAXED);
    __nvvm_atom_add_gen_ll(reinterpret_cast<long long*>(total), static_cast<long long>(in[i]));
  }
}

struct Mixed {
  char letter;
  double weight;
  short pair[2];
  u64 wide;
};

CONSTANT double weights[4] = {0.5, 0.25, 0.125, 0.0625};
DEVICE u32 calls = 0;

DEVICE NOINLINE static double Weigh(Mixed mixed, u32 which) {
  switch (which) {
    case 0:
      return mixed.weight * weights[mixed.letter & 3];
    case 1:
      return mixed.pair[0] - mixed.pair[1];
    case 2:
      return static_cast<double>(mixed.wide % 1000003);
    case 5:
      return static_cast<double>(static_cast<long long>(mixed.wide) / -7);
    case 9:
      return __builtin_sqrt(mixed.weight);
    default:
      return -1;
  }
}

// A stack frame for each turn; the deepest thread goes 20 deep.
DEVICE NOINLINE static u32 Descend(u32 depth, const u32* outer) {
  u32 frame[4] = {depth, outer[0] + 1, outer[1] ^ depth, 7};
  if (depth == 0) return frame[1] + frame[2];
  return Descend(depth - 1, frame) + frame[depth % 4];
}

using Operation = u32 (*)(u32, u32);
DEVICE NOINLINE static u32 Add(u32 a, u32 b) { return a + b; }
DEVICE NOINLINE static u32 Multiply(u32 a, u32 b) { return a * b; }

// By value, on the stack, by pointer to function.
extern "C" GLOBAL void Calls(Mixed mixed, double* out, u32* deep) {
  const u32 i = ThreadX();
  out[i] = Weigh(mixed, i);
  const u32 start[2] = {i, 100};
  const Operation operation = i % 2 != 0 ? Add : Multiply;
  deep[i] = operation(Descend(i, start), i);
  __nvvm_atom_add_gen_i(reinterpret_cast<int*>(&calls), 1);
}

// Sorts eight numbers of its own, in a local array with indices that are not known before.
extern "C" GLOBAL void SortEights(int* data) {
  int mine[8];
  for (int i = 0; i < 8; ++i) mine[i] = data[Index() * 8 + i];
  for (int i = 1; i < 8; ++i) {
    const int value = mine[i];
    int at = i;
    for (; at > 0 && mine[at - 1] > value; --at) mine[at] = mine[at - 1];
    mine[at] = value;
  }
  for (int i = 0; i < 8; ++i) data[Index() * 8 + i] = mine[i];
}
