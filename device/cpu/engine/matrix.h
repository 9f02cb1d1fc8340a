// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/matrix.h: what the lanes of a warp do together with matrices.
//
// Each lane brings a MatrixSlots with its registers and finds its results there. Pure but for the
// memory that ldmatrix and stmatrix name; any thread. Products and sums of 16-bit floats, bfloats
// and tf32 are made in double and rounded once, which no order of a GPU's sums betters. Source: PTX
// ISA 9.0, 9.7.14 "Warp Level Matrix Multiply-Accumulate Instructions", where the figures say which
// lane has which element; wmma fragments are opaque there, and ours are below.
#ifndef CONSORT_DEVICE_CPU_ENGINE_MATRIX_H_
#define CONSORT_DEVICE_CPU_ENGINE_MATRIX_H_

#include <cstdint>

namespace consort::cpu {

enum class MatrixKind : uint32_t {
  kMma,        // a * b + c, fragments as mma has them
  kWmma,       // the same with fragments of wmma
  kLoad,       // ldmatrix: a[0] is the address of this lane's row
  kStore,      // stmatrix: the same, and b[] the registers
  kTranspose,  // movmatrix: a[0] to d[0]
};

enum class MatrixType : uint32_t { kF16, kBf16, kTf32, kF32, kF64, kS8, kU8, kS4, kU4, kB1, kS32 };

uint32_t MatrixTypeBits(MatrixType type);

// All that an instruction says. Packed into 32 bits for generated code.
struct MatrixOperation {
  MatrixKind kind = MatrixKind::kMma;
  uint32_t m = 8;  // powers of two; of kLoad and kStore m is the number of matrices
  uint32_t n = 8;
  uint32_t k = 4;
  MatrixType a = MatrixType::kF16;
  MatrixType b = MatrixType::kF16;
  MatrixType c = MatrixType::kF32;  // of the accumulator
  MatrixType d = MatrixType::kF32;  // of the result
  bool saturates = false;           // sums of integers; of kB1: and instead of xor
  bool transposes = false;          // kLoad, kStore

  uint32_t Pack() const;
  static MatrixOperation Unpack(uint32_t packed);
};

inline constexpr uint32_t kMatrixRegisters = 8;

// A lane's registers, one a slot, in the low bits.
struct MatrixSlots {
  uint64_t a[kMatrixRegisters];
  uint64_t b[kMatrixRegisters];
  uint64_t c[kMatrixRegisters];
  uint64_t d[kMatrixRegisters];
};

// The element of a rows x columns matrix, counted by rows, that lane `lane` has at place `index` of
// its `count` elements of a wmma fragment. Where there are more places than elements, several lanes
// have the same ones.
inline uint32_t WmmaElement(uint32_t lane, uint32_t index, uint32_t count, uint32_t elements) {
  return (lane * count + index) % elements;
}

// `lanes` has the 32 lanes' slots; null for a lane that is not here.
void RunMatrix(const MatrixOperation& operation, MatrixSlots* const lanes[32]);

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_ENGINE_MATRIX_H_
