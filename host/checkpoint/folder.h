// SPDX-License-Identifier: Apache-2.0
// host/checkpoint/folder.h: a checkpoint on disk.
//
//   FOLDER/manifest      manifest.h
//   FOLDER/data-ID       chunks, a zstd frame each, in the order of the manifest
//
// Writing goes to data-ID.new and manifest.new; that a folder holds the new checkpoint and not the
// old one is one rename, of the manifest. So whatever stops a writer leaves the old one whole. A
// folder is locked (flock) by whoever writes it, and for as long as that one likes.
//
// Thread compatible. Calls wait for the disk.
#ifndef CONSORT_HOST_CHECKPOINT_FOLDER_H_
#define CONSORT_HOST_CHECKPOINT_FOLDER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "host/checkpoint/manifest.h"

namespace consort::host {

class CheckpointWriter {
 public:
  // Makes the folder if it is not there; its parent must be. kFailedPrecondition: it has files that
  // are no checkpoint's, or somebody has it locked.
  static absl::StatusOr<std::unique_ptr<CheckpointWriter>> Begin(const std::string& folder);
  // Without Finish: removes what was written.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  const CheckpointId& id() const { return id_; }
  // Adds `data` as chunks of at most kCheckpointChunkBytesMax.
  absl::Status Add(CheckpointChunk::Kind kind, uint64_t at, std::span<const std::byte> data);
  // Adds one chunk of `bytes`, of which `packed` is the frame (memmgr/packed_frame.h).
  absl::Status AddPacked(CheckpointChunk::Kind kind, uint64_t at, Bytes bytes,
                         std::span<const std::byte> packed);
  // Puts the checkpoint in the place of the one that was there; id and chunks of `manifest` are
  // filled in here. When this returns it is on disk. Once.
  absl::StatusOr<CheckpointManifest> Finish(CheckpointManifest manifest);
  // The folder's lock, which ends with it. Afterwards this object is of no use.
  UniqueFd TakeLock() { return std::move(folder_); }

 private:
  CheckpointWriter(std::string name, UniqueFd folder, bool made);
  // Of the files of other checkpoints.
  void RemoveOthers();

  const std::string name_;  // of the folder
  UniqueFd folder_;
  const bool made_;  // the folder, here
  CheckpointId id_;
  UniqueFd data_;
  Bytes not_synced_ = 0;
  std::vector<CheckpointChunk> chunks_;
  bool finished_ = false;
};

// The folder, locked for as long as the descriptor lives. kFailedPrecondition: somebody has it
// locked.
absl::StatusOr<UniqueFd> LockFolder(const std::string& folder);

class CheckpointReader {
 public:
  // kNotFound: no checkpoint is there. kInvalidArgument, kDataLoss: see DecodeManifest; or the data
  // file is missing or of another size. Texts name the file.
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(const std::string& folder);

  const CheckpointManifest& manifest() const { return manifest_; }
  // Unpacks a chunk into `to`, which has its size. kDataLoss: it is damaged; `to` is undefined
  // then.
  absl::Status Read(size_t chunk, std::span<std::byte> to);

 private:
  CheckpointReader(std::string data_name, CheckpointManifest manifest, UniqueFd data);

  const std::string data_name_;  // for texts
  const CheckpointManifest manifest_;
  const UniqueFd data_;
  std::vector<uint64_t> offsets_;  // of the chunks in the file
  std::vector<std::byte> packed_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_CHECKPOINT_FOLDER_H_
