// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/driver/occupancy.h"

#include <algorithm>

#include "base/units.h"
#include "device/cpu/driver/limits.h"

namespace consort::cpu {

int BlocksPerMultiprocessor(const KernelInfo& info, uint32_t threads, size_t dynamic_shared_bytes) {
  if (threads == 0 || threads > info.threads_max || threads > kBlockThreadsMax) return 0;
  const uint64_t shared_bytes = info.static_shared_bytes + uint64_t{dynamic_shared_bytes};
  if (shared_bytes > kSharedBytesOptIn) return 0;
  const uint32_t warps = (threads + kWarpThreads - 1) / kWarpThreads;
  const uint64_t registers = AlignUp(uint64_t{info.register_count} * kWarpThreads, kRegisterUnit);
  uint64_t blocks = kMultiprocessorBlocks;
  blocks = std::min<uint64_t>(blocks, kMultiprocessorThreads / (warps * kWarpThreads));
  blocks = std::min<uint64_t>(blocks, kRegistersMultiprocessor / registers / warps);
  blocks = std::min<uint64_t>(blocks,
                              kSharedBytesMultiprocessor / (shared_bytes + kSharedBytesReserved));
  return static_cast<int>(blocks);
}

}  // namespace consort::cpu
