// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/matrix_layout.h: where the registers of a warp have the elements of a matrix.
//
// Pure; any thread. Positions count elements in an operand of WarpMatrices (matrix.h). Source: PTX
// ISA 9.0, 9.7.14.5 "Matrix multiply-accumulate operation using mma instruction", whose figures are
// given here as strides.
#ifndef CONSORT_DEVICE_CPU_ENGINE_MATRIX_LAYOUT_H_
#define CONSORT_DEVICE_CPU_ENGINE_MATRIX_LAYOUT_H_

#include <bit>
#include <cstdint>

#include "device/cpu/engine/matrix.h"

namespace consort::cpu {

// A matrix is made of tiles of `tile_rows` x `tile_columns` (powers of two).
struct MatrixLayout {
  uint32_t tile_rows;
  uint32_t tile_columns;
  uint32_t tile_row_stride;     // from a tile to the one below
  uint32_t tile_column_stride;  // to the one on its right
  uint32_t row_stride;          // inside of a tile
  uint32_t column_stride;

  constexpr uint32_t At(uint32_t row, uint32_t column) const {
    return (row >> std::countr_zero(tile_rows)) * tile_row_stride +
           (row & (tile_rows - 1)) * row_stride +
           (column >> std::countr_zero(tile_columns)) * tile_column_stride +
           (column & (tile_columns - 1)) * column_stride;
  }
};

// Elements that a register has.
constexpr uint32_t MatrixElementsOf(MatrixType type) {
  return type == MatrixType::kF64 ? 1 : 32 / MatrixTypeBits(type);
}

inline constexpr uint32_t kMatrixTile = 8;

// All of a matrix of wmma is one tile.
constexpr MatrixLayout LineLayout(uint32_t rows, uint32_t columns, bool by_columns) {
  return {rows, columns, 0, 0, by_columns ? 1 : columns, by_columns ? rows : 1};
}

// The first factor, m x k. Of mma a register of all lanes has a tile of eight rows; the next one is
// of the tile below, if there is one.
constexpr MatrixLayout LayoutOfA(const MatrixOperation& operation) {
  if (operation.kind == MatrixKind::kWmma) {
    return LineLayout(operation.m, operation.k, operation.a_by_columns);
  }
  const uint32_t elements = MatrixElementsOf(operation.a);
  const uint32_t tile = kWarpLanes * elements;
  return {kMatrixTile, 4 * elements, tile, operation.m / kMatrixTile * tile, 4 * elements, 1};
}

// The second factor, k x n. Of mma a register has a tile of eight columns, one after the other.
constexpr MatrixLayout LayoutOfB(const MatrixOperation& operation) {
  if (operation.kind == MatrixKind::kWmma) {
    return LineLayout(operation.k, operation.n, operation.b_by_columns);
  }
  const uint32_t elements = MatrixElementsOf(operation.b);
  return {4 * elements, kMatrixTile, kWarpLanes * elements, 0, 1, 4 * elements};
}

// The accumulator or the result, m x n, of elements of `type`. Of mma a lane has two neighbours of
// a row: in one register if they are halves, else in two.
constexpr MatrixLayout LayoutOfSums(const MatrixOperation& operation, MatrixType type) {
  if (operation.kind == MatrixKind::kWmma) return LineLayout(operation.m, operation.n, false);
  if (MatrixElementsOf(type) == 2) {
    return {kMatrixTile, kMatrixTile, 2 * kWarpLanes, 0, kMatrixTile, 1};
  }
  return {kMatrixTile, 2, 2 * kWarpLanes, 1, 4, kWarpLanes};
}

// --- Of kQuarters: 8 x 8 and 8 x 4 elements, of one of four products ---

inline constexpr uint32_t kQuartersOfWarp = 4;

// A quarter is four lanes that follow each other and the four that are 16 further. Each bit of a
// row or a column, from the lowest, moves the element by a power of two.
struct QuarterLayout {
  uint32_t quarter_stride;
  uint32_t row_strides[3];
  uint32_t column_strides[3];

  constexpr uint32_t At(uint32_t quarter, uint32_t row, uint32_t column) const {
    uint32_t at = quarter * quarter_stride;
    for (uint32_t i = 0; i < 3; ++i) {
      at += (row >> i & 1) * row_strides[i] + (column >> i & 1) * column_strides[i];
    }
    return at;
  }
};

// Of an operand of halves, in which a lane has two in each register.
inline constexpr uint32_t kHalvesOfLane = 2;
inline constexpr uint32_t kHalvesOfRegister = kHalvesOfLane * kWarpLanes;
inline constexpr uint32_t kFarHalves = 16 * kHalvesOfLane;

constexpr QuarterLayout Transposed(const QuarterLayout& layout) {
  QuarterLayout transposed = layout;
  for (uint32_t i = 0; i < 3; ++i) {
    transposed.row_strides[i] = layout.column_strides[i];
    transposed.column_strides[i] = layout.row_strides[i];
  }
  return transposed;
}

// The first factor. By rows, a lane has a row; by columns, half of a column.
constexpr QuarterLayout QuarterLayoutOfA(bool by_columns) {
  constexpr uint32_t kLane = kHalvesOfLane;
  if (by_columns) return {4 * kLane, {1, kHalvesOfRegister, kFarHalves}, {kLane, 2 * kLane, 0}};
  return {4 * kLane, {kLane, 2 * kLane, kFarHalves}, {1, kHalvesOfRegister, 0}};
}

// The second factor: the first one's figures with rows for columns.
constexpr QuarterLayout QuarterLayoutOfB(bool by_columns) {
  return Transposed(QuarterLayoutOfA(!by_columns));
}

// The accumulator or the result. Of halves, a lane has a row; of floats, half of each of two rows.
constexpr QuarterLayout QuarterLayoutOfSums(MatrixType type) {
  constexpr uint32_t kLane = kHalvesOfLane;
  constexpr uint32_t kRegister = kHalvesOfRegister;
  if (type == MatrixType::kF16) {
    return {4 * kLane, {kLane, 2 * kLane, kFarHalves}, {1, kRegister, 2 * kRegister}};
  }
  return {4, {1, 2 * kWarpLanes, 16}, {kWarpLanes, 2, 4 * kWarpLanes}};
}

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_ENGINE_MATRIX_LAYOUT_H_
