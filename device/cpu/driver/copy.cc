// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/driver/copy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "device/cpu/driver/limits.h"

namespace consort::cpu {
namespace {

// Bytes from the first to the last byte of a pitched box; false if that does not fit in 64 bits.
bool BoxBytes(Bytes width, uint64_t height, uint64_t depth, Bytes pitch, Bytes slice,
              Bytes* bytes) {
  Bytes rows = 0, slices = 0, sum = 0;
  if (__builtin_mul_overflow(pitch, height - 1, &rows) ||
      __builtin_mul_overflow(slice, depth - 1, &slices) ||
      __builtin_add_overflow(rows, slices, &sum) || __builtin_add_overflow(sum, width, &sum)) {
    return false;
  }
  *bytes = sum;
  return true;
}

bool Empty(const CopyShape& shape) {
  return shape.width == 0 || shape.height == 0 || shape.depth == 0;
}

// The two sides of a copy that is not empty; false if they do not fit the address space.
bool ExtentsOf(const CopyShape& shape, std::array<Extent, 2>* extents) {
  Bytes to = 0, from = 0;
  if (!BoxBytes(shape.width, shape.height, shape.depth, shape.destination_pitch,
                shape.destination_slice, &to) ||
      !BoxBytes(shape.width, shape.height, shape.depth, shape.source_pitch, shape.source_slice,
                &from)) {
    return false;
  }
  (*extents)[0] = {shape.destination, to, /*write=*/true, shape.destination_device};
  (*extents)[1] = {shape.source, from, /*write=*/false, shape.source_device};
  return true;
}

// Copies `bytes` in pieces, each with its addresses checked. False if they are not there any more.
bool CopyRow(const State& state, const CopyShape& shape, uintptr_t destination, uintptr_t source,
             Bytes bytes) {
  while (bytes > 0) {
    const Bytes piece = std::min(bytes, kCopyChunkBytes);
    const Extent extents[] = {{destination, piece, true, shape.destination_device},
                              {source, piece, false, shape.source_device}};
    const bool there = state.address_space.RunChecked(extents, [&] {
      // memmove: CUDA leaves overlapping copies undefined, and undefined must not mean a crash.
      std::memmove(reinterpret_cast<void*>(destination), reinterpret_cast<const void*>(source),
                   piece);
    });
    if (!there) return false;
    destination += piece;
    source += piece;
    bytes -= piece;
  }
  return true;
}

bool Copy(const State& state, CopyShape shape) {
  // Rows, and then slices, that follow each other are one.
  if (shape.height > 1 && shape.width == shape.destination_pitch &&
      shape.width == shape.source_pitch) {
    shape.width *= shape.height;
    shape.height = 1;
  }
  for (uint64_t z = 0; z < shape.depth; ++z) {
    for (uint64_t y = 0; y < shape.height; ++y) {
      if (!CopyRow(state, shape,
                   shape.destination + z * shape.destination_slice + y * shape.destination_pitch,
                   shape.source + z * shape.source_slice + y * shape.source_pitch, shape.width)) {
        return false;
      }
    }
  }
  return true;
}

bool CheckCopy(State& state, const CopyShape& shape) {
  std::array<Extent, 2> extents;
  // Host addresses are the caller's own and not looked up, but none is 0.
  if (shape.source == 0 || shape.destination == 0) return false;
  return ExtentsOf(shape, &extents) && state.address_space.Check(extents);
}

template <typename Word>
void FillRow(uintptr_t destination, Word value, uint64_t count) {
  std::fill_n(reinterpret_cast<Word*>(destination), count, value);
}

bool Fill(const State& state, const FillShape& shape) {
  const uint64_t piece_count = kCopyChunkBytes / shape.element_bytes;
  for (uint64_t y = 0; y < shape.height; ++y) {
    uintptr_t destination = shape.destination + y * shape.pitch;
    for (uint64_t left = shape.width; left > 0;) {
      const uint64_t count = std::min(left, piece_count);
      const Extent extent = {destination, count * shape.element_bytes, true, true};
      const bool there = state.address_space.RunChecked({&extent, 1}, [&] {
        switch (shape.element_bytes) {
          case 1:
            std::memset(reinterpret_cast<void*>(destination), static_cast<int>(shape.value), count);
            break;
          case 2:
            FillRow(destination, static_cast<uint16_t>(shape.value), count);
            break;
          default:
            FillRow(destination, shape.value, count);
            break;
        }
      });
      if (!there) return false;
      destination += extent.bytes;
      left -= count;
    }
  }
  return true;
}

bool CheckFill(State& state, const FillShape& shape) {
  Bytes row = 0, box = 0;
  if (__builtin_mul_overflow(shape.width, shape.element_bytes, &row) ||
      shape.destination % shape.element_bytes != 0) {
    return false;
  }
  if (shape.height > 1 && (shape.pitch < row || shape.pitch % shape.element_bytes != 0)) {
    return false;
  }
  if (!BoxBytes(row, shape.height, 1, shape.pitch, 0, &box)) return false;
  const Extent extent = {shape.destination, box, /*write=*/true, /*known=*/true};
  return state.address_space.Check({&extent, 1});
}

bool OnDevice(const State& state, uintptr_t address) {
  const auto range = state.address_space.Find(address);
  return range.has_value() && range->on_device();
}

// Copies between the host and a device take the time that the device's copy engine needs.
bool CopyAtPace(const State& state, DevicePace& pace, const CopyShape& shape) {
  if (!pace.paces_copies()) return Copy(state, shape);
  const bool to_device = OnDevice(state, shape.destination);
  if (to_device == OnDevice(state, shape.source)) return Copy(state, shape);
  bool copied = false;
  pace.RunCopy(shape.width * shape.height * shape.depth, to_device,
               [&] { copied = Copy(state, shape); });
  return copied;
}

Operation CopyOperation(State& state, Context* context, const CopyShape& shape) {
  return [&state, context, shape](CUresult status) {
    if (status == CUDA_SUCCESS && !CopyAtPace(state, context->device().pace(), shape)) {
      context->Fail(CUDA_ERROR_ILLEGAL_ADDRESS);
    }
  };
}

Operation FillOperation(State& state, Context* context, const FillShape& shape) {
  return [&state, context, shape](CUresult status) {
    if (status == CUDA_SUCCESS && !Fill(state, shape)) context->Fail(CUDA_ERROR_ILLEGAL_ADDRESS);
  };
}

}  // namespace

CUresult CopyNow(State& state, const std::shared_ptr<Stream>& stream, const CopyShape& shape) {
  if (Empty(shape)) return CUDA_SUCCESS;
  if (!CheckCopy(state, shape)) return CUDA_ERROR_INVALID_VALUE;
  Context* context = stream->context().get();
  return context->RunNow(stream, CopyOperation(state, context, shape));
}

CUresult CopyInStream(State& state, const std::shared_ptr<Stream>& stream, const CopyShape& shape) {
  if (Empty(shape)) return CUDA_SUCCESS;
  std::array<Extent, 2> extents;
  if (!ExtentsOf(shape, &extents) || !state.address_space.Check(extents)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Context* context = stream->context().get();
  const auto& [to, from] = extents;
  if (!state.address_space.Covered(to.base, to.bytes, /*write=*/true)) {
    // Into pageable memory: the caller may read it when we return.
    return context->RunNow(stream, CopyOperation(state, context, shape));
  }
  if (!state.address_space.Covered(from.base, from.bytes, /*write=*/false)) {
    // From pageable memory: the caller may change it when we return.
    if (from.bytes > kStagedCopyBytesMax) {
      return context->RunNow(stream, CopyOperation(state, context, shape));
    }
    auto staged = std::make_shared<std::vector<std::byte>>(from.bytes);
    std::memcpy(staged->data(), reinterpret_cast<const void*>(from.base), from.bytes);
    CopyShape from_stage = shape;
    from_stage.source = reinterpret_cast<uintptr_t>(staged->data());
    from_stage.source_device = false;
    context->Submit(stream, [staged, run = CopyOperation(state, context, from_stage)](
                                CUresult status) { run(status); });
    return CUDA_SUCCESS;
  }
  context->Submit(stream, CopyOperation(state, context, shape));
  return CUDA_SUCCESS;
}

CUresult FillInStream(State& state, const std::shared_ptr<Stream>& stream, const FillShape& shape) {
  if (shape.width == 0 || shape.height == 0) return CUDA_SUCCESS;
  if (!CheckFill(state, shape)) return CUDA_ERROR_INVALID_VALUE;
  Context* context = stream->context().get();
  context->Submit(stream, FillOperation(state, context, shape));
  return CUDA_SUCCESS;
}

CUresult FillNow(State& state, const std::shared_ptr<Stream>& stream, const FillShape& shape) {
  if (shape.width == 0 || shape.height == 0) return CUDA_SUCCESS;
  if (!CheckFill(state, shape)) return CUDA_ERROR_INVALID_VALUE;
  Context* context = stream->context().get();
  return context->RunNow(stream, FillOperation(state, context, shape));
}

}  // namespace consort::cpu
