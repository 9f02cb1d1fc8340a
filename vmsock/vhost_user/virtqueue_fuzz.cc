// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry: the ring walker over memory that the input writes.
//
// Input: byte 0 flags (1 event_idx, 2 indirect, 4 take before giving back, 8 take plain buffers for
// less), byte 1 log2 of the ring's size (0 to 15), bytes 2-3 first index, the rest the first bytes
// of guest memory: descriptors at 0, available ring at 2 KiB, used ring at 3 KiB, buffers anywhere.
// Two regions that meet at 32 KiB. Every piece of every chain lies in guest memory, sums agree, and
// the walk ends.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/log.h"
#include "vmsock/vhost_user/limits.h"
#include "vmsock/vhost_user/virtqueue.h"

using consort::UniqueFd;
using namespace consort::vhost_user;  // a program of one function

namespace {

constexpr uint64_t kMemoryBytes = 64 * 1024;
constexpr uint64_t kHalf = kMemoryBytes / 2;
constexpr uint64_t kUser = 1 << 30;
constexpr uint64_t kAvailable = 2048;
constexpr uint64_t kUsed = 3072;

MemoryMap* MakeMemory() {
  MemoryMap* const memory = new MemoryMap;
  UniqueFd file(memfd_create("memory", MFD_CLOEXEC));
  PCHECK(ftruncate(file.get(), kMemoryBytes) == 0);
  const MemoryRegionSpec specs[2] = {
      {.guest_addr = 0, .bytes = kHalf, .user_addr = kUser, .mmap_offset = 0},
      {.guest_addr = kHalf, .bytes = kHalf, .user_addr = 2 * kUser, .mmap_offset = kHalf}};
  std::vector<UniqueFd> fds;
  fds.emplace_back(dup(file.get()));
  fds.emplace_back(dup(file.get()));
  CHECK(memory->Update(specs, std::move(fds), false).ok());
  return memory;
}

void CheckPieces(const MemoryMap& memory, const std::vector<iovec>& pieces, uint64_t bytes) {
  uint64_t total = 0;
  const std::byte* const low = memory.FromGuest(0, kHalf);
  const std::byte* const high = memory.FromGuest(kHalf, kHalf);
  for (const iovec& piece : pieces) {
    const std::byte* const begin = static_cast<const std::byte*>(piece.iov_base);
    const bool inside = (begin >= low && begin + piece.iov_len <= low + kHalf) ||
                        (begin >= high && begin + piece.iov_len <= high + kHalf);
    CHECK(inside && piece.iov_len > 0);
    total += piece.iov_len;
  }
  CHECK_EQ(total, bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static MemoryMap* const memory = MakeMemory();
  if (size < 4) return 0;
  const uint8_t flags = data[0];
  uint16_t base = 0;
  std::memcpy(&base, data + 2, sizeof(base));
  const uint32_t entries = 1u << (data[1] & 15);
  const size_t image = std::min<size_t>(size - 4, kHalf);
  std::memset(memory->FromGuest(0, kHalf), 0, kHalf);
  std::memcpy(memory->FromGuest(0, kHalf), data + 4, image);

  auto queue = Virtqueue::Attach(memory, {.layout = {.entries = entries,
                                                     .descriptors_user_addr = kUser,
                                                     .available_user_addr = kUser + kAvailable,
                                                     .used_user_addr = kUser + kUsed},
                                          .next_available = base,
                                          .event_idx = (flags & 1) != 0,
                                          .indirect = (flags & 2) != 0});
  if (!queue.ok()) return 0;
  Chain chain;
  // Used entries land in memory that descriptors may share: at most a ring of chains, whatever the
  // guest writes.
  for (uint32_t i = 0; i < 2 * kRingEntriesMax; ++i) {
    std::array<WritableBuffer, 4> buffers;
    const size_t wanted = (flags & 8) == 0 ? 0 : (flags & 16) == 0 ? 1 : buffers.size();
    const size_t taken = queue->PopWritable(1, std::span(buffers).first(wanted));
    CHECK_LE(taken, wanted);
    if (taken > 0) {
      queue->Rewind(static_cast<uint16_t>(taken - 1));
      const WritableBuffer& buffer = buffers[0];
      chain.head = buffer.head;
      chain.readable.clear();
      chain.writable = {buffer.place};
      chain.readable_bytes = 0;
      chain.writable_bytes = buffer.place.iov_len;
    } else {
      const auto popped = queue->Pop(chain);
      if (!popped.ok() || !*popped) break;
    }
    CheckPieces(*memory, chain.readable, chain.readable_bytes);
    CheckPieces(*memory, chain.writable, chain.writable_bytes);
    CHECK_LE(chain.readable.size() + chain.writable.size(), 4 * kDescriptorsPerChainMax);
    if (flags & 4) {
      queue->Rewind(1);
      const auto again = queue->Pop(chain);
      CHECK(again.ok() && *again);
    }
    queue->Push(chain.head, static_cast<uint32_t>(chain.writable_bytes));
    if (i % 3 == 0) queue->Publish();
    queue->EnableKicks();
  }
  queue->DisableKicks();
  queue->Publish();
  return 0;
}
