// SPDX-License-Identifier: Apache-2.0
#include "vmsock/mirror_buffer.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/unique_fd.h"

namespace consort {

MirrorBuffer::~MirrorBuffer() {
  if (data_ != nullptr) munmap(data_, 2 * bytes_);
}

int MirrorBuffer::Map(Bytes bytes) {
  const UniqueFd memory(memfd_create("consort-stream", MFD_CLOEXEC));
  if (!memory.valid() || ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) return errno;
  // Takes the addresses first, so that nothing of another thread comes between the two mappings.
  void* reserved = mmap(nullptr, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (reserved == MAP_FAILED) return errno;
  std::byte* const data = static_cast<std::byte*>(reserved);
  for (std::byte* half : {data, data + bytes}) {
    if (mmap(half, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory.get(), 0) ==
        MAP_FAILED) {
      const int error = errno;
      munmap(reserved, 2 * bytes);
      return error;
    }
  }
  data_ = data;
  bytes_ = bytes;
  return 0;
}

}  // namespace consort
