// SPDX-License-Identifier: Apache-2.0
// memmgr/chunk_maker.h: where a window's physical memory comes from, where that is not simply the
// driver: memory that outlives its worker is known to somebody else, too.
//
// Called by the owner of an address window, whose context is current.
#ifndef CONSORT_MEMMGR_CHUNK_MAKER_H_
#define CONSORT_MEMMGR_CHUNK_MAKER_H_

#include <cstdint>

#include "base/units.h"
#include "gen/device/driver_table.h"

namespace consort::memmgr {

class ChunkMaker {
 public:
  virtual ~ChunkMaker() = default;
  // Memory to be mapped at `address`, with the properties; the caller releases it. Results are the
  // driver's.
  virtual CUresult Make(uint64_t address, Bytes bytes, const CUmemAllocationProp& properties,
                        CUmemGenericAllocationHandle* memory) = 0;
  // What was made for `address` has been released.
  virtual void Gone(uint64_t address) = 0;
};

}  // namespace consort::memmgr

#endif  // CONSORT_MEMMGR_CHUNK_MAKER_H_
