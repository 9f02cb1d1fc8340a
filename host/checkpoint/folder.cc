// SPDX-License-Identifier: Apache-2.0
#include "host/checkpoint/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file_io.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "host/limits.h"
#include "memmgr/packed_frame.h"

namespace consort::host {
namespace {

constexpr char kManifestName[] = "manifest";
constexpr char kNewManifestName[] = "manifest.new";
constexpr char kDataPrefix[] = "data-";
constexpr char kNewSuffix[] = ".new";

std::string DataName(const CheckpointId& id) { return absl::StrCat(kDataPrefix, IdText(id)); }
std::string NewDataName(const CheckpointId& id) { return absl::StrCat(DataName(id), kNewSuffix); }

absl::Status Failure(absl::string_view path, int error) {
  const std::string text = absl::StrCat(path, ": ", strerror(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(text);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(text);
    default:
      return absl::UnavailableError(text);
  }
}

std::string In(absl::string_view folder, absl::string_view name) {
  return absl::StrCat(folder, "/", name);
}

absl::Status WriteAll(int file, std::span<const std::byte> bytes, absl::string_view path) {
  while (!bytes.empty()) {
    const ssize_t written = write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return Failure(path, written < 0 ? errno : ENOSPC);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

// kDataLoss: the file ends before.
absl::Status ReadAll(int file, uint64_t offset, std::span<std::byte> bytes,
                     absl::string_view path) {
  const ssize_t got = ReadAt(file, bytes, offset);
  if (got < 0) return Failure(path, errno);
  if (got != static_cast<ssize_t>(bytes.size())) {
    return absl::DataLossError(absl::StrCat(path, ": it was cut off"));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> SizeOf(int file, absl::string_view path) {
  struct stat state;
  if (fstat(file, &state) != 0) return Failure(path, errno);
  return static_cast<uint64_t>(state.st_size);
}

bool IsOurs(absl::string_view name) {
  return name == kManifestName || name == kNewManifestName || absl::StartsWith(name, kDataPrefix);
}

absl::StatusOr<std::vector<std::string>> FilesIn(int folder, absl::string_view path) {
  // Of its own, as reading moves on in it.
  const int own = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const listing = own < 0 ? nullptr : fdopendir(own);
  if (listing == nullptr) return Failure(path, errno);
  std::vector<std::string> names;
  while (const dirent* const entry = readdir(listing)) {
    const absl::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  closedir(listing);
  return names;
}

}  // namespace

absl::StatusOr<UniqueFd> LockFolder(const std::string& folder) {
  UniqueFd opened(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.valid()) return Failure(folder, errno);
  if (flock(opened.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return Failure(folder, errno);
    return absl::FailedPreconditionError(
        absl::StrCat(folder, ": an application that is held has its checkpoint there"));
  }
  return opened;
}

absl::StatusOr<std::unique_ptr<CheckpointWriter>> CheckpointWriter::Begin(
    const std::string& folder) {
  const bool made = mkdir(folder.c_str(), 0700) == 0;
  if (!made && errno != EEXIST) return Failure(folder, errno);
  ASSIGN_OR_RETURN(UniqueFd opened, LockFolder(folder));
  ASSIGN_OR_RETURN(const std::vector<std::string> files, FilesIn(opened.get(), folder));
  for (const std::string& name : files) {
    if (!IsOurs(name)) {
      return absl::FailedPreconditionError(
          absl::StrCat(folder, ": it has files that are no checkpoint's, such as ", name));
    }
    // What a writer left that was stopped.
    if (absl::EndsWith(name, kNewSuffix)) unlinkat(opened.get(), name.c_str(), 0);
  }
  std::unique_ptr<CheckpointWriter> writer(new CheckpointWriter(folder, std::move(opened), made));
  const std::string data = NewDataName(writer->id_);
  writer->data_.Reset(
      openat(writer->folder_.get(), data.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!writer->data_.valid()) return Failure(In(folder, data), errno);
  return writer;
}

CheckpointWriter::CheckpointWriter(std::string name, UniqueFd folder, bool made)
    : name_(std::move(name)), folder_(std::move(folder)), made_(made) {
  // Up to 256 bytes come whole or not at all. Source: getrandom(2).
  CHECK(getrandom(id_.data(), id_.size(), 0) == static_cast<ssize_t>(id_.size()));
}

CheckpointWriter::~CheckpointWriter() {
  if (finished_ || !folder_.valid()) return;
  // Whichever there are.
  unlinkat(folder_.get(), NewDataName(id_).c_str(), 0);
  unlinkat(folder_.get(), DataName(id_).c_str(), 0);
  unlinkat(folder_.get(), kNewManifestName, 0);
  if (made_) rmdir(name_.c_str());
}

absl::Status CheckpointWriter::Add(CheckpointChunk::Kind kind, uint64_t at,
                                   std::span<const std::byte> data) {
  while (!data.empty()) {
    const auto piece = data.first(std::min<size_t>(data.size(), kCheckpointChunkBytesMax));
    ASSIGN_OR_RETURN(const std::vector<std::byte> packed, memmgr::PackFrame(piece));
    RETURN_IF_ERROR(AddPacked(kind, at, piece.size(), packed));
    at += piece.size();
    data = data.subspan(piece.size());
  }
  return absl::OkStatus();
}

absl::Status CheckpointWriter::AddPacked(CheckpointChunk::Kind kind, uint64_t at, Bytes bytes,
                                         std::span<const std::byte> packed) {
  const std::string path = In(name_, NewDataName(id_));
  RETURN_IF_ERROR(WriteAll(data_.get(), packed, path));
  chunks_.push_back({kind, at, bytes, packed.size(), *memmgr::FrameChecksum(packed)});
  not_synced_ += packed.size();
  if (not_synced_ >= kCheckpointSyncBytes) {
    if (fdatasync(data_.get()) != 0) return Failure(path, errno);
    not_synced_ = 0;
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckpointManifest> CheckpointWriter::Finish(CheckpointManifest manifest) {
  manifest.id = id_;
  manifest.chunks = std::move(chunks_);
  ASSIGN_OR_RETURN(const std::vector<std::byte> encoded, EncodeManifest(manifest));
  const auto rename_here = [&](const std::string& from, const std::string& to) {
    return renameat(folder_.get(), from.c_str(), folder_.get(), to.c_str()) == 0
               ? absl::OkStatus()
               : Failure(In(name_, to), errno);
  };
  if (fsync(data_.get()) != 0) return Failure(In(name_, NewDataName(id_)), errno);
  RETURN_IF_ERROR(rename_here(NewDataName(id_), DataName(id_)));
  const std::string path = In(name_, kNewManifestName);
  const UniqueFd file(
      openat(folder_.get(), kNewManifestName, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file.valid()) return Failure(path, errno);
  RETURN_IF_ERROR(WriteAll(file.get(), encoded, path));
  if (fsync(file.get()) != 0) return Failure(path, errno);
  // The data's name must be on disk before what refers to it.
  if (fsync(folder_.get()) != 0) return Failure(name_, errno);
  RETURN_IF_ERROR(rename_here(kNewManifestName, kManifestName));
  finished_ = true;
  if (fsync(folder_.get()) != 0) return Failure(name_, errno);
  RemoveOthers();
  return manifest;
}

void CheckpointWriter::RemoveOthers() {
  const auto files = FilesIn(folder_.get(), name_);
  if (!files.ok()) return;
  for (const std::string& name : *files) {
    if (absl::StartsWith(name, kDataPrefix) && name != DataName(id_)) {
      unlinkat(folder_.get(), name.c_str(), 0);
    }
  }
}

CheckpointReader::CheckpointReader(std::string data_name, CheckpointManifest manifest,
                                   UniqueFd data)
    : data_name_(std::move(data_name)), manifest_(std::move(manifest)), data_(std::move(data)) {
  uint64_t offset = 0;
  for (const CheckpointChunk& chunk : manifest_.chunks) {
    offsets_.push_back(offset);
    offset += chunk.packed_bytes;
  }
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(
    const std::string& folder) {
  const std::string path = In(folder, kManifestName);
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) {
    if (errno != ENOENT) return Failure(path, errno);
    return absl::NotFoundError(absl::StrCat(folder, ": there is no checkpoint (no file manifest)"));
  }
  ASSIGN_OR_RETURN(const uint64_t bytes, SizeOf(file.get(), path));
  if (bytes > kCheckpointManifestBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": it is no manifest of a checkpoint"));
  }
  std::vector<std::byte> encoded(bytes);
  RETURN_IF_ERROR(ReadAll(file.get(), 0, encoded, path));
  absl::StatusOr<CheckpointManifest> manifest = DecodeManifest(encoded);
  if (!manifest.ok()) {
    return absl::Status(manifest.status().code(),
                        absl::StrCat(path, ": ", manifest.status().message()));
  }
  std::string data_path = In(folder, DataName(manifest->id));
  UniqueFd data(open(data_path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!data.valid()) {
    if (errno != ENOENT) return Failure(data_path, errno);
    return absl::DataLossError(absl::StrCat(data_path, ": it is missing"));
  }
  ASSIGN_OR_RETURN(const uint64_t data_bytes, SizeOf(data.get(), data_path));
  if (data_bytes != manifest->packed_bytes()) {
    return absl::DataLossError(absl::StrCat(data_path, ": it has ", data_bytes,
                                            " bytes; the manifest says ",
                                            manifest->packed_bytes()));
  }
  return std::unique_ptr<CheckpointReader>(
      new CheckpointReader(std::move(data_path), *std::move(manifest), std::move(data)));
}

absl::Status CheckpointReader::Read(size_t chunk, std::span<std::byte> to) {
  const CheckpointChunk& wanted = manifest_.chunks[chunk];
  const auto damaged = [&](absl::string_view how) {
    return absl::DataLossError(absl::StrCat(data_name_, ": chunk ", chunk + 1, " of ",
                                            manifest_.chunks.size(), " is damaged: ", how));
  };
  packed_.resize(wanted.packed_bytes);
  RETURN_IF_ERROR(ReadAll(data_.get(), offsets_[chunk], packed_, data_name_));
  if (memmgr::FrameChecksum(packed_) != wanted.checksum) {
    return damaged("its checksum is not the manifest's");
  }
  const absl::Status unpacked = memmgr::UnpackFrame(packed_, to);
  return unpacked.ok() ? unpacked : damaged(unpacked.message());
}

}  // namespace consort::host
