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

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_ENGINE_MATRIX_LAYOUT_H_
