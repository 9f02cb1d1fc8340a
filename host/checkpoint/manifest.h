// SPDX-License-Identifier: Apache-2.0
// host/checkpoint/manifest.h: what is in a checkpoint, and its bytes.
//
//   0   8   "CONSCKPT"
//   8   4   kManifestVersion, little-endian
//   12  4   0
//   16  -   one zstd frame of a Cap'n Proto message: checkpoint.capnp
//
// The frame's checksum tells a manifest that was changed. Plain values.
#ifndef CONSORT_HOST_CHECKPOINT_MANIFEST_H_
#define CONSORT_HOST_CHECKPOINT_MANIFEST_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/units.h"
#include "vmsock/wire/handshake.h"

namespace consort::host {

inline constexpr uint32_t kManifestVersion = 1;

using CheckpointId = std::array<uint8_t, 16>;

// A part of what is saved.
struct CheckpointChunk {
  enum class Kind : uint8_t {
    kState,     // a SessionState, encoded; `at`: where in the encoding
    kImage,     // images of modules; `at`: where in their store's file
    kContents,  // device memory; `at`: its address
  };
  Kind kind = Kind::kState;
  uint64_t at = 0;
  Bytes bytes = 0;
  Bytes packed_bytes = 0;
  uint32_t checksum = 0;

  friend bool operator==(const CheckpointChunk&, const CheckpointChunk&) = default;
};

struct CheckpointManifest {
  CheckpointId id = {};
  uint64_t created_unix_seconds = 0;
  std::string who;

  std::string version;
  uint64_t description = 0;
  uint32_t state_version = 0;

  std::string tenant;
  std::string vm;
  std::string application;
  uint32_t pid = 0;
  uint32_t device = 0;
  std::string device_model;
  uint64_t window_base = 0;
  Bytes window_bytes = 0;

  uint64_t streams = 0;
  uint64_t events = 0;
  uint64_t libraries = 0;
  uint64_t kernels = 0;
  uint64_t allocations = 0;
  Bytes pinned_bytes = 0;

  wire::ResumeToken resume_token;  // of one that has left its connection
  uint32_t vgpu = 0;               // what its program calls the device

  std::vector<CheckpointChunk> chunks;

  // Of the chunks of a kind, unpacked.
  Bytes BytesOf(CheckpointChunk::Kind kind) const;
  Bytes packed_bytes() const;

  friend bool operator==(const CheckpointManifest&, const CheckpointManifest&) = default;
};

// As 32 hexadecimal digits.
std::string IdText(const CheckpointId& id);

absl::StatusOr<std::vector<std::byte>> EncodeManifest(const CheckpointManifest& manifest);
// kInvalidArgument: another version's, or no manifest at all. kDataLoss: it is damaged. What it
// says of chunks is within kCheckpointChunkBytesMax; nothing else of it was compared with anything.
absl::StatusOr<CheckpointManifest> DecodeManifest(std::span<const std::byte> bytes);

// OK if this build can read what the manifest names. kFailedPrecondition: another build's.
absl::Status CheckBuild(const CheckpointManifest& manifest);

// For people, a line a fact.
std::string ManifestText(const CheckpointManifest& manifest);

}  // namespace consort::host

#endif  // CONSORT_HOST_CHECKPOINT_MANIFEST_H_
