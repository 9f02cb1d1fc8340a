// SPDX-License-Identifier: Apache-2.0
// memmgr/packed_frame.h: bytes that leave memory for a file: one zstd frame, which carries a
// checksum of its contents. Functions only; any thread.
#ifndef CONSORT_MEMMGR_PACKED_FRAME_H_
#define CONSORT_MEMMGR_PACKED_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace consort::memmgr {

// A frame of all of `data`.
absl::StatusOr<std::vector<std::byte>> PackFrame(std::span<const std::byte> data);

// Gives `data`, whose size is known, its contents back. kDataLoss: `frame` is not one whole frame
// of so many bytes, or its checksum says that it was changed; what `data` holds then is undefined.
absl::Status UnpackFrame(std::span<const std::byte> frame, std::span<std::byte> data);

// How many bytes a frame says that it unpacks to. Nothing: it is no frame that PackFrame made.
std::optional<uint64_t> UnpackedBytes(std::span<const std::byte> frame);

// The checksum that a frame ends with. Source: RFC 8878, 3.1.1 (Content_Checksum).
std::optional<uint32_t> FrameChecksum(std::span<const std::byte> frame);

}  // namespace consort::memmgr

#endif  // CONSORT_MEMMGR_PACKED_FRAME_H_
