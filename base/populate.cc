// SPDX-License-Identifier: Apache-2.0
#include "base/populate.h"

#include <sys/mman.h>

#include <algorithm>

namespace consort {
namespace {

// The kernel holds the process's map for each call: others' mappings wait no longer than for that.
constexpr Bytes kStep = 2 * kMiB;

}  // namespace

void Populate(void* memory, Bytes bytes) {
  auto* const begin = static_cast<std::byte*>(memory);
  for (Bytes at = 0; at < bytes; at += kStep) {
    if (madvise(begin + at, std::min(kStep, bytes - at), MADV_POPULATE_WRITE) != 0) return;
  }
}

}  // namespace consort
