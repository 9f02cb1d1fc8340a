// SPDX-License-Identifier: Apache-2.0
#include "base/pages.h"

#include <sys/mman.h>

#include <algorithm>

namespace consort {
namespace {

// The kernel holds the process's map for each call: others' mappings wait no longer than for that.
constexpr Bytes kStep = 2 * kMiB;

constexpr Bytes kLargePageBytes = 2 * kMiB;

}  // namespace

std::byte* MapAligned(Bytes bytes) {
  const Bytes mapped = bytes + kLargePageBytes;
  void* const map =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(map);
  std::byte* const memory =
      reinterpret_cast<std::byte*>(AlignUp(reinterpret_cast<uint64_t>(map), kLargePageBytes));
  if (memory != begin) munmap(begin, static_cast<size_t>(memory - begin));
  munmap(memory + bytes, static_cast<size_t>(begin + mapped - (memory + bytes)));
  return memory;
}

std::byte* MapLargePages(Bytes bytes) {
  std::byte* const memory = MapAligned(bytes);
  // Only a wish; without it everything works, slower.
  if (memory != nullptr) (void)madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

void Populate(void* memory, Bytes bytes) {
  auto* const begin = static_cast<std::byte*>(memory);
  for (Bytes at = 0; at < bytes; at += kStep) {
    if (madvise(begin + at, std::min(kStep, bytes - at), MADV_POPULATE_WRITE) != 0) return;
  }
}

}  // namespace consort
