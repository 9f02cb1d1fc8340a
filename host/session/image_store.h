// SPDX-License-Identifier: Apache-2.0
// host/session/image_store.h: the module images of one session, kept for as long as their libraries
// are loaded, so that these can be loaded again on another device.
//
//   one memory file   [ image ][ image ][ hole ][ image ] ...     grows at its end; what goes is
//                                                                 given back to the host
//
// Owned by the session loop. Bound: kKeptImageBytesPerSession.
#ifndef CONSORT_HOST_SESSION_IMAGE_STORE_H_
#define CONSORT_HOST_SESSION_IMAGE_STORE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/unique_fd.h"
#include "base/units.h"

namespace consort::host {

// Where an image lies in its store's file.
struct KeptImage {
  uint64_t offset = 0;
  Bytes bytes = 0;
};

class ImageStore {
 public:
  // Nothing: the bound is reached, or the host has no memory.
  std::optional<KeptImage> Keep(std::span<const std::byte> image);
  void Drop(const KeptImage& image);

  // Goes on with the file of a store whose process has died; before any other use. -1: it had none.
  // Of the images in it those are kept that are found again.
  void TakeUp(UniqueFd file);
  // The image that Keep gets next lies in the file already.
  void FindNext(const KeptImage& image) { found_ = image; }

  // The file; -1 while nothing was kept. Whoever gets a copy may read it.
  int fd() const { return file_.get(); }
  Bytes kept_bytes() const { return kept_bytes_; }

 private:
  UniqueFd file_;
  uint64_t end_ = 0;
  Bytes kept_bytes_ = 0;
  std::optional<KeptImage> found_;
};

// An image out of the file of a store, of this process or another. Nothing: it is not there.
std::optional<std::vector<std::byte>> ReadKeptImage(int file, const KeptImage& image);

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_IMAGE_STORE_H_
