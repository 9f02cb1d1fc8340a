// SPDX-License-Identifier: Apache-2.0
// vmsock/mirror_buffer.h: a ring buffer whose memory is mapped twice in a row, so that any piece of
// it up to its size is contiguous: position p lies at data()[p % bytes], and what begins there may
// run past the end into the second mapping. No frame is ever moved or split at the end of the
// buffer.
//
// Compiled into the guest library. Thread compatible.
#ifndef CONSORT_VMSOCK_MIRROR_BUFFER_H_
#define CONSORT_VMSOCK_MIRROR_BUFFER_H_

#include <cstddef>
#include <cstdint>

#include "base/units.h"

namespace consort {

class MirrorBuffer {
 public:
  MirrorBuffer() = default;
  MirrorBuffer(const MirrorBuffer&) = delete;
  MirrorBuffer& operator=(const MirrorBuffer&) = delete;
  ~MirrorBuffer();

  // Maps `bytes`, a power of two and multiple of the page size; once. 0 or an errno.
  int Map(Bytes bytes);

  Bytes bytes() const { return bytes_; }
  // Where position `at` of the byte stream lies; up to bytes() are contiguous from there.
  std::byte* At(uint64_t at) const { return data_ + (at & (bytes_ - 1)); }

 private:
  std::byte* data_ = nullptr;
  Bytes bytes_ = 0;
};

}  // namespace consort

#endif  // CONSORT_VMSOCK_MIRROR_BUFFER_H_
