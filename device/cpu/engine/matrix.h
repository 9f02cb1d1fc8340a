// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/matrix.h: what the lanes of a warp do together with matrices.
//
// Pure but for the memory that ldmatrix, stmatrix and fragments name; any thread. Products and sums
// of 16-bit floats, bfloats and tf32 are made in double and rounded once, which no order of a GPU's
// sums betters. Source: PTX ISA 9.0, 9.7.14 "Warp Level Matrix Multiply-Accumulate Instructions",
// where the figures say which lane has which element; wmma fragments are opaque there.
//
// Our fragment of wmma: of the factors it is the matrix as the instruction's layout has it in
// memory, of the sums the matrix by rows; written, again and again if there is room, into register
// 0 of lanes 0 to 31, then register 1 of lanes 0 to 31, ...
#ifndef CONSORT_DEVICE_CPU_ENGINE_MATRIX_H_
#define CONSORT_DEVICE_CPU_ENGINE_MATRIX_H_

#include <cstdint>

#include "device/cpu/engine/thread_context.h"

namespace consort::cpu {

enum class MatrixKind : uint32_t {
  kMma,            // a * b + c, fragments as mma has them
  kWmma,           // the same with fragments of wmma
  kLoad,           // ldmatrix: a is the address of this lane's row
  kStore,          // stmatrix: the same, and b has the registers
  kTranspose,      // movmatrix: a to d
  kLoadFragment,   // wmma.load to d
  kStoreFragment,  // wmma.store of d
  kQuarters,       // mma.m8n8k4 of halves: four products, each of eight of the lanes
};

enum class MatrixType : uint32_t { kF16, kBf16, kTf32, kF32, kF64, kS8, kU8, kS4, kU4, kB1, kS32 };

constexpr uint32_t MatrixTypeBits(MatrixType type) {
  switch (type) {
    case MatrixType::kF16:
    case MatrixType::kBf16:
      return 16;
    case MatrixType::kF64:
      return 64;
    case MatrixType::kS8:
    case MatrixType::kU8:
      return 8;
    case MatrixType::kS4:
    case MatrixType::kU4:
      return 4;
    case MatrixType::kB1:
      return 1;
    default:
      return 32;
  }
}

// All that an instruction says. Packed into 32 bits for generated code.
struct MatrixOperation {
  MatrixKind kind = MatrixKind::kMma;
  // Powers of two. Of kLoad and kStore m is the number of matrices; of fragments there are m lines
  // of n elements of type a, and k registers.
  uint32_t m = 8;
  uint32_t n = 8;
  uint32_t k = 4;
  MatrixType a = MatrixType::kF16;
  MatrixType b = MatrixType::kF16;
  MatrixType c = MatrixType::kF32;  // of the accumulator
  MatrixType d = MatrixType::kF32;  // of the result
  bool saturates = false;           // sums of integers; of kB1: and instead of xor
  bool transposes = false;          // kLoad, kStore; of fragments: memory has the lines as columns
  bool a_by_columns = false;        // kWmma, kQuarters: the layouts of the factors
  bool b_by_columns = false;

  uint32_t Pack() const;
  static MatrixOperation Unpack(uint32_t packed);
};

inline constexpr uint32_t kMatrixRegisters = 8;

inline constexpr uint32_t kMatrixOperandBytes = kMatrixRegisters * sizeof(uint64_t);

// The registers of a lane, of each operand one after the other: 8 bytes each of kF64 and of
// addresses, else 4.
struct MatrixSlots {
  alignas(uint64_t) uint8_t a[kMatrixOperandBytes];
  uint8_t b[kMatrixOperandBytes];
  uint8_t c[kMatrixOperandBytes];
  uint8_t d[kMatrixOperandBytes];
};

// The same of a warp: first the registers number 0 of all lanes, then those number 1, ... What is
// at `offset` in MatrixSlots is here at offset * kWarpLanes, next to that of the other lanes.
struct WarpMatrices {
  alignas(uint64_t) uint8_t a[kMatrixOperandBytes * kWarpLanes];
  uint8_t b[kMatrixOperandBytes * kWarpLanes];
  uint8_t c[kMatrixOperandBytes * kWarpLanes];
  uint8_t d[kMatrixOperandBytes * kWarpLanes];
};

// Not for fragments. Lanes that are not `here` (a bit each) count as zeros, and their registers
// change.
void RunMatrix(const MatrixOperation& operation, WarpMatrices& warp, uint32_t here);
// The same of lanes that are apart: `lanes` has the slots of 32, null for one that is not here.
void RunMatrix(const MatrixOperation& operation, MatrixSlots* const lanes[kWarpLanes]);
// A product on any CPU: what RunMatrix does where matrix_lanes.h cannot do it.
void MultiplyPlainly(const MatrixOperation& operation, WarpMatrices& warp);

// Fragments to and from memory, whose lines begin `pitch` elements apart: of all lanes, or of one.
void MoveFragment(const MatrixOperation& operation, uint8_t* memory, uint64_t pitch,
                  WarpMatrices& warp);
void MoveFragment(const MatrixOperation& operation, uint8_t* memory, uint64_t pitch, uint32_t lane,
                  MatrixSlots& slots);

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_ENGINE_MATRIX_H_
