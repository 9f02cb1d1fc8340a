// SPDX-License-Identifier: Apache-2.0
// host/session/slot_memory.h: kMoveSlots slots of kMoveSlotBytes, memory that two processes have
// mapped while a session goes from one to the other; see move_link.h.
//
// A file in memory that can never become shorter: who maps it need not trust who made it. Immutable
// but for its contents.
#ifndef CONSORT_HOST_SESSION_SLOT_MEMORY_H_
#define CONSORT_HOST_SESSION_SLOT_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "host/limits.h"

namespace consort::host {

class SlotMemory {
 public:
  static constexpr Bytes kBytes = kMoveSlots * kMoveSlotBytes;

  // Makes the memory, or maps `memory` of the other side. kInvalidArgument: that is no such memory.
  static absl::StatusOr<std::unique_ptr<SlotMemory>> Create(UniqueFd memory = UniqueFd());
  ~SlotMemory();
  SlotMemory(const SlotMemory&) = delete;
  SlotMemory& operator=(const SlotMemory&) = delete;

  int fd() const { return memory_.get(); }
  std::byte* begin() const { return mapped_; }
  std::byte* At(uint64_t slot) const { return mapped_ + slot * kMoveSlotBytes; }

 private:
  SlotMemory(UniqueFd memory, std::byte* mapped) : memory_(std::move(memory)), mapped_(mapped) {}

  const UniqueFd memory_;
  std::byte* const mapped_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_SLOT_MEMORY_H_
