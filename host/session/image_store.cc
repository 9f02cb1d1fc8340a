// SPDX-License-Identifier: Apache-2.0
#include "host/session/image_store.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utility>

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
  size_t done = 0;
  while (file_.valid() && done < image.size()) {
    const ssize_t written = pwrite(file_.get(), image.data() + done, image.size() - done,
                                   static_cast<off_t>(end_ + done));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    done += static_cast<size_t>(written);
  }
  if (!file_.valid() || done != image.size()) {
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
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = pread(file, bytes.data() + done, bytes.size() - done,
                              static_cast<off_t>(image.offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return std::nullopt;
    done += static_cast<size_t>(got);
  }
  return bytes;
}

}  // namespace consort::host
