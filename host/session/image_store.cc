// SPDX-License-Identifier: Apache-2.0
#include "host/session/image_store.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "base/file_io.h"
#include "base/log.h"
#include "host/limits.h"

namespace consort::host {
namespace {

// Holes are made of whole pages.
constexpr Bytes kPageBytes = 4 * kKiB;

}  // namespace

std::optional<KeptImage> ImageStore::Keep(std::span<const std::byte> image) {
  if (found_.has_value()) {
    kept_bytes_ += found_->bytes;
    return std::exchange(found_, std::nullopt);
  }
  if (image.size() > kKeptImageBytesPerSession - kept_bytes_) return std::nullopt;
  if (!file_.valid()) file_.Reset(memfd_create("consort-images", MFD_CLOEXEC));
  if (!file_.valid() || !WriteAt(file_.get(), image, end_)) {
    LOG(WARNING) << "a module image of " << image.size()
                 << " bytes is not kept: " << strerror(errno);
    return std::nullopt;
  }
  const KeptImage kept = {end_, image.size()};
  end_ = AlignUp(end_ + image.size(), kPageBytes);
  kept_bytes_ += image.size();
  return kept;
}

void ImageStore::Drop(const KeptImage& image) {
  kept_bytes_ -= image.bytes;
  const int punched = fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                static_cast<off_t>(image.offset),
                                static_cast<off_t>(AlignUp(image.bytes, kPageBytes)));
  PLOG_IF(WARNING, punched != 0) << "giving back the memory of a module image";
}

void ImageStore::TakeUp(UniqueFd file) {
  file_ = std::move(file);
  const off_t end = file_.valid() ? lseek(file_.get(), 0, SEEK_END) : 0;
  end_ = AlignUp(end > 0 ? static_cast<uint64_t>(end) : 0, kPageBytes);
}

std::optional<std::vector<std::byte>> ReadKeptImage(int file, const KeptImage& image) {
  const off_t end = lseek(file, 0, SEEK_END);
  if (end < 0 || image.offset > static_cast<uint64_t>(end) ||
      image.bytes > static_cast<uint64_t>(end) - image.offset) {
    return std::nullopt;
  }
  std::vector<std::byte> bytes(image.bytes);
  if (ReadAt(file, bytes, image.offset) != static_cast<ssize_t>(bytes.size())) return std::nullopt;
  return bytes;
}

}  // namespace consort::host
