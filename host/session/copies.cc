// SPDX-License-Identifier: Apache-2.0
// Copies of one session.
//
//   to the device   small: from a pageable buffer, which the driver takes in at once
//                   large: straight from the ring, whose frame is kept until the copy is done,
//                          or through staging where the channel's memory is not pinned
//   to the host     through staging, piece by piece, and from there into the channel
//   on the host     between the device's and shared host memory, by address
//
// Source for pageable memory: CUDA driver API, "API synchronization behavior": up to 64 KiB are
// staged before the call returns and nothing is waited for.
#include <algorithm>
#include <cstring>
#include <utility>

#include "host/limits.h"
#include "host/session/session.h"

namespace consort::host {
namespace {

constexpr Bytes kPageableBytesMax = 64 * kKiB;

// Bytes from the first row's beginning to the last row's end; false if that exceeds 64 bits.
bool Extent(uint64_t pitch, uint64_t width, uint64_t rows, uint64_t* extent) {
  *extent = 0;
  if (rows == 0 || width == 0) return true;
  uint64_t before_last;
  return !__builtin_mul_overflow(pitch, rows - 1, &before_last) &&
         !__builtin_add_overflow(before_last, width, extent);
}

bool IsContiguous(uint64_t pitch, uint64_t width, uint64_t rows) {
  return rows == 1 || pitch == width;
}

}  // namespace

bool Session::Reachable(uint64_t address, Bytes bytes) const {
  return window_->Contains(address, bytes) || InSharedHost(address, bytes) ||
         modules_.ContainsGlobal(address, bytes) || virtual_memory_->AtPeers(address, bytes) ||
         ReachesPeer(address, bytes);
}

Bytes Session::RowBytes(uint64_t pitch, uint64_t width, uint64_t rows) {
  uint64_t bytes;
  return Extent(pitch, width, rows, &bytes) ? bytes : 0;
}

bool Session::RowsReachable(uint64_t address, uint64_t pitch, uint64_t width, uint64_t rows) const {
  uint64_t extent;
  return (rows == 1 || pitch >= width) && Extent(pitch, width, rows, &extent) &&
         Reachable(address, extent);
}

CUresult Session::CopyToDevice(const wire::FrameHeader& header,
                               const wire::CopyToDeviceRequest& request) {
  uint64_t bytes;
  if (__builtin_mul_overflow(request.width, request.rows, &bytes) || bytes != request.data.size() ||
      bytes > wire::kBulkBytesMax) {
    Fail("CopyToDevice of another size than its data");
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (bytes == 0) return CUDA_SUCCESS;
  if (!RowsReachable(request.dst, request.dst_pitch, request.width, request.rows)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Stream* stream = nullptr;
  CUresult result = request.precedes != 0
                        ? streams_.UseToPrecede(header.value, request.stream, &stream)
                        : streams_.Use(header.value, request.stream, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (stream->recording) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  account_.bytes_to_device += bytes;
  work_bytes_ += bytes;
  NoteWrite(request.dst, request.dst_pitch * (request.rows - 1) + request.width);

  const bool contiguous = IsContiguous(request.dst_pitch, request.width, request.rows);
  const std::byte* source = request.data.data();
  if (contiguous && bytes <= kPageableBytesMax) {
    // A frame in pinned memory would have to be kept, and would hold up the ring behind a long
    // kernel.
    std::byte pageable[kPageableBytesMax];
    if (!registered_rings_.empty() && !replaying_) {
      std::memcpy(pageable, source, bytes);
      copied_bytes_ += bytes;
      source = pageable;
    }
    return driver_.cuMemcpyHtoDAsync_v2(request.dst, source, bytes, stream->driver);
  }

  PendingItem item;
  const bool pinned = !replaying_ && RegisterRings();
  if (pinned) {
    item.kind = PendingItem::Kind::kReleaseFrame;
    item.frame = *frame_;
  } else {
    item.kind = PendingItem::Kind::kReturnPiece;
    result = staging_.Take(bytes, &item.piece);
    if (result != CUDA_SUCCESS) return result;
    std::memcpy(item.piece.memory, source, bytes);
    copied_bytes_ += bytes;
    source = item.piece.memory;
  }
  if (contiguous) {
    result = driver_.cuMemcpyHtoDAsync_v2(request.dst, source, bytes, stream->driver);
  } else {
    CUDA_MEMCPY2D copy = {};
    copy.srcMemoryType = CU_MEMORYTYPE_HOST;
    copy.srcHost = source;
    copy.srcPitch = request.width;
    copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
    copy.dstDevice = request.dst;
    copy.dstPitch = request.dst_pitch;
    copy.WidthInBytes = request.width;
    copy.Height = request.rows;
    result = driver_.cuMemcpy2DAsync_v2(&copy, stream->driver);
  }
  if (result == CUDA_SUCCESS) result = streams_.FenceOn(stream, &item.fence);
  if (result != CUDA_SUCCESS) {
    // Nothing reads the piece: the copy was refused, or the device is broken.
    if (!pinned) staging_.Return(item.piece);
    return result;
  }
  keep_frame_ = pinned;
  pending_.Add(std::move(item));
  return CUDA_SUCCESS;
}

CUresult Session::CopyToHost(const wire::FrameHeader& header,
                             const wire::CopyToHostRequest& request) {
  if (request.width == 0 || request.rows == 0) return CUDA_SUCCESS;
  if (!RowsReachable(request.src, request.src_pitch, request.width, request.rows)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Stream* stream = nullptr;
  const CUresult result = streams_.Use(header.value, request.stream, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (stream->recording) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  CopyToHostState& copy = copy_to_host_;
  copy.active = true;
  copy.header = header;
  copy.stream = stream;
  copy.source = request.src;
  copy.width = request.width;
  copy.rows = request.rows;
  copy.pitch = request.src_pitch;
  if (IsContiguous(copy.pitch, copy.width, copy.rows)) {
    copy.width *= copy.rows;
    copy.pitch = copy.width;
    copy.rows = 1;
  }
  copy.transfer = request.transfer;
  copy.offset = 0;
  ContinueCopyToHost();
  return CUDA_SUCCESS;
}

bool Session::ContinueCopyToHost() {
  if (!copy_to_host_.active) return false;
  bool any = false;
  while (copy_to_host_.active) {
    const uint64_t left = copy_to_host_.width * copy_to_host_.rows - copy_to_host_.offset;
    if (!staging_.Has(std::min<uint64_t>(left, kStagingPieceBytes))) break;
    const CUresult result = SubmitPiece();
    if (result != CUDA_SUCCESS) {
      copy_to_host_.active = false;
      Failed(copy_to_host_.header, result);
    }
    any = true;
  }
  return any;
}

// Submits the next piece: whole rows, or part of one where a row is longer than a piece.
CUresult Session::SubmitPiece() {
  CopyToHostState& copy = copy_to_host_;
  const uint64_t row = copy.offset / copy.width;
  const uint64_t column = copy.offset % copy.width;
  const uint64_t rows =
      column == 0 ? std::min(copy.rows - row, kStagingPieceBytes / copy.width) : 0;
  const uint64_t bytes =
      rows != 0 ? rows * copy.width : std::min<uint64_t>(copy.width - column, kStagingPieceBytes);

  PendingItem item;
  item.kind = PendingItem::Kind::kCopyOut;
  item.value = copy.transfer;
  item.offset = copy.offset;
  item.bytes = static_cast<uint32_t>(bytes);
  CUresult result = staging_.Take(bytes, &item.piece);
  if (result != CUDA_SUCCESS) return result;
  const uint64_t source = copy.source + row * copy.pitch + column;
  if (residency_->deferred()) {
    for (uint64_t i = 0; i < std::max<uint64_t>(rows, 1); ++i) {
      const uint64_t length = rows != 0 ? copy.width : bytes;
      window_->ReadAway(source + i * copy.pitch, {item.piece.memory + i * length, length});
    }
  } else if (rows > 1) {
    CUDA_MEMCPY2D rows_copy = {};
    rows_copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
    rows_copy.srcDevice = source;
    rows_copy.srcPitch = copy.pitch;
    rows_copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    rows_copy.dstHost = item.piece.memory;
    rows_copy.dstPitch = copy.width;
    rows_copy.WidthInBytes = copy.width;
    rows_copy.Height = rows;
    result = driver_.cuMemcpy2DAsync_v2(&rows_copy, copy.stream->driver);
  } else {
    result = driver_.cuMemcpyDtoHAsync_v2(item.piece.memory, source, bytes, copy.stream->driver);
  }
  if (result == CUDA_SUCCESS) {
    streams_.NoteMoreWork(copy.stream);
    result = streams_.FenceOn(copy.stream, &item.fence);
  }
  if (result != CUDA_SUCCESS) {
    staging_.Return(item.piece);
    return result;
  }
  pending_.Add(std::move(item));
  work_bytes_ += bytes;
  copy.offset += bytes;
  copy.active = copy.offset < copy.width * copy.rows;
  return CUDA_SUCCESS;
}

CUresult Session::CopyRows(const wire::FrameHeader& header, const wire::CopyRowsRequest& request) {
  if (request.width == 0 || request.rows == 0) return CUDA_SUCCESS;
  uint64_t dst = request.dst, src = request.src;
  if ((!RowsReachable(dst, request.dst_pitch, request.width, request.rows) &&
       !FindPeerRows(request.dst_pitch, request.width, request.rows, &dst)) ||
      (!RowsReachable(src, request.src_pitch, request.width, request.rows) &&
       !FindPeerRows(request.src_pitch, request.width, request.rows, &src))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUstream stream = nullptr;
  const CUresult result = UseStream(header.value, request.stream, &stream);
  if (result != CUDA_SUCCESS) return result;
  const uint64_t bytes = request.width * request.rows;
  NoteWrite(request.dst, request.dst_pitch * (request.rows - 1) + request.width);
  const bool from_host = InSharedHost(request.src, 1);
  const bool to_host = InSharedHost(request.dst, 1);
  if (from_host && !to_host) account_.bytes_to_device += bytes;
  if (to_host && !from_host) account_.bytes_to_host += bytes;
  if (from_host != to_host) work_bytes_ += bytes;
  if (IsContiguous(request.dst_pitch, request.width, request.rows) &&
      IsContiguous(request.src_pitch, request.width, request.rows)) {
    return driver_.cuMemcpyAsync(dst, src, bytes, stream);
  }
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.srcDevice = src;
  copy.srcPitch = request.src_pitch;
  copy.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  copy.dstDevice = dst;
  copy.dstPitch = request.dst_pitch;
  copy.WidthInBytes = request.width;
  copy.Height = request.rows;
  return driver_.cuMemcpy2DAsync_v2(&copy, stream);
}

}  // namespace consort::host
