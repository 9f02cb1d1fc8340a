// SPDX-License-Identifier: Apache-2.0
// memmgr/chunk_watcher.h: who is told of a window's physical memory as it comes and goes, because
// another process has it mapped too.
//
// Called by the owner of an address window, whose context is current.
#ifndef CONSORT_MEMMGR_CHUNK_WATCHER_H_
#define CONSORT_MEMMGR_CHUNK_WATCHER_H_

#include <cstdint>

#include "base/units.h"
#include "gen/device/driver_table.h"

namespace consort::memmgr {

class ChunkWatcher {
 public:
  virtual ~ChunkWatcher() = default;
  // `memory` is mapped at `address`, and stays the window's.
  virtual void Made(uint64_t address, Bytes bytes, CUmemGenericAllocationHandle memory) = 0;
  // What is at `address` is about to be unmapped.
  virtual void Going(uint64_t address) = 0;
};

}  // namespace consort::memmgr

#endif  // CONSORT_MEMMGR_CHUNK_WATCHER_H_
