// SPDX-License-Identifier: Apache-2.0
// Kernels with parameters of every shape that a launch must pack: mixed alignment, structs by
// value, many, more than 4 KB.

struct Mixed {
  char tag;
  double weight;
  short pair[3];
  unsigned long long address;
};

struct Big {
  unsigned words[2000];
};

extern "C" {

// Offsets 0, 2, 4, 8, 16 by C alignment (CUDA C++ Programming Guide, kernel parameters).
__global__ void scalars(char a, short b, int c, long long d, double* out) {
  out[0] = a;
  out[1] = b;
  out[2] = c;
  out[3] = static_cast<double>(d);
}

__global__ void by_value(Mixed m, double* out) {
  out[0] = m.tag;
  out[1] = m.weight;
  out[2] = m.pair[0];
  out[3] = m.pair[1];
  out[4] = m.pair[2];
  out[5] = static_cast<double>(m.address);
}

__global__ void big(Big b, unsigned* out) {
  unsigned sum = 0;
  for (unsigned i = 0; i < 2000; ++i) sum += b.words[i] * (i + 1);
  *out = sum;
}

__global__ void many(unsigned* out, int a0, int a1, int a2, int a3, int a4, int a5, int a6, int a7,
                     int a8, int a9, int a10, int a11, int a12, int a13, int a14, int a15) {
  *out = a0 + 2 * a1 + 3 * a2 + 4 * a3 + 5 * a4 + 6 * a5 + 7 * a6 + 8 * a7 + 9 * a8 + 10 * a9 +
         11 * a10 + 12 * a11 + 13 * a12 + 14 * a13 + 15 * a14 + 16 * a15;
}

struct Sparse {
  unsigned* out;
  unsigned value;
  unsigned unused[1000];
};

__global__ void sparse(Sparse s) { *s.out = s.value; }

// A pointer inside a struct: nothing on the way may translate it.
__global__ void nested(const unsigned* const* table, unsigned count, unsigned* out) {
  unsigned sum = 0;
  for (unsigned i = 0; i < count; ++i) sum += *table[i];
  *out = sum;
}

}  // extern "C"
