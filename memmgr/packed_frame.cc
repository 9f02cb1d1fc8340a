// SPDX-License-Identifier: Apache-2.0
#include "memmgr/packed_frame.h"

#include <zstd.h>

#include <cstring>

#include "absl/strings/str_cat.h"

namespace consort::memmgr {
namespace {

// The fastest: the disk is slower still.
constexpr int kCompressionLevel = 1;

}  // namespace

absl::StatusOr<std::vector<std::byte>> PackFrame(std::span<const std::byte> data) {
  std::vector<std::byte> packed(ZSTD_compressBound(data.size()));
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  if (context == nullptr) return absl::ResourceExhaustedError("no memory to compress with");
  ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, kCompressionLevel);
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);
  const size_t bytes =
      ZSTD_compress2(context, packed.data(), packed.size(), data.data(), data.size());
  ZSTD_freeCCtx(context);
  if (ZSTD_isError(bytes)) return absl::InternalError(ZSTD_getErrorName(bytes));
  packed.resize(bytes);
  return packed;
}

absl::Status UnpackFrame(std::span<const std::byte> frame, std::span<std::byte> data) {
  const size_t bytes = ZSTD_decompress(data.data(), data.size(), frame.data(), frame.size());
  if (ZSTD_isError(bytes)) return absl::DataLossError(ZSTD_getErrorName(bytes));
  if (bytes != data.size()) {
    return absl::DataLossError(absl::StrCat("it has ", bytes, " bytes and not ", data.size()));
  }
  return absl::OkStatus();
}

std::optional<uint64_t> UnpackedBytes(std::span<const std::byte> frame) {
  const unsigned long long bytes = ZSTD_getFrameContentSize(frame.data(), frame.size());
  if (bytes == ZSTD_CONTENTSIZE_UNKNOWN || bytes == ZSTD_CONTENTSIZE_ERROR) return std::nullopt;
  return bytes;
}

std::optional<uint32_t> FrameChecksum(std::span<const std::byte> frame) {
  uint32_t checksum;
  if (frame.size() < sizeof(checksum)) return std::nullopt;
  std::memcpy(&checksum, frame.last(sizeof(checksum)).data(), sizeof(checksum));
  return checksum;
}

}  // namespace consort::memmgr
