// SPDX-License-Identifier: Apache-2.0
#include "host/session/slot_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace consort::host {

absl::StatusOr<std::unique_ptr<SlotMemory>> SlotMemory::Create(UniqueFd memory) {
  const auto failure = [] {
    return absl::ResourceExhaustedError(absl::StrCat("memory to move by: ", strerror(errno)));
  };
  if (!memory.valid()) {
    memory.Reset(memfd_create("consort-move", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!memory.valid() || ftruncate(memory.get(), static_cast<off_t>(kBytes)) != 0 ||
        fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
      return failure();
    }
  } else {
    struct stat state;
    const int seals = fcntl(memory.get(), F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(memory.get(), &state) != 0 ||
        state.st_size != static_cast<off_t>(kBytes)) {
      return absl::InvalidArgumentError("the memory to move by is of another kind");
    }
  }
  void* const mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (mapped == MAP_FAILED) return failure();
  return std::unique_ptr<SlotMemory>(
      new SlotMemory(std::move(memory), static_cast<std::byte*>(mapped)));
}

SlotMemory::~SlotMemory() { munmap(mapped_, kBytes); }

}  // namespace consort::host
