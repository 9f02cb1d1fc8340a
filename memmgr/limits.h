// SPDX-License-Identifier: Apache-2.0
// memmgr/limits.h: the bounds of memory management, with their reasons. Constants only.
#ifndef CONSORT_MEMMGR_LIMITS_H_
#define CONSORT_MEMMGR_LIMITS_H_

#include "base/units.h"

namespace consort::memmgr {

// Physical memory is made and mapped in multiples of this: the granularity of every device so far,
// and no less where a driver names a smaller one, so that addresses look the same on all devices.
inline constexpr Bytes kGranuleBytes = 2 * kMiB;

// Alignment of every allocation. cuMemAlloc's is at least 256; programs have come to rely on 512.
inline constexpr Bytes kAllocationAlignment = 512;

// Allocations up to this share granules; larger ones have granules of their own, and may thus be
// mapped elsewhere without touching others. At half a granule at most half of one is wasted.
inline constexpr Bytes kSharedAllocationBytesMax = kGranuleBytes / 2;

// Freed memory that one window keeps mapped: making and mapping 2 MiB takes 330 us, a gigabyte 340
// us (measured, H200), so what a loop allocates and frees should stay. Memory kept here is missed
// by other tenants.
inline constexpr Bytes kCachedBytesMax = 256 * kMiB;

// A cached extent serves a request that leaves at most 1/8 of it unused.
inline constexpr uint64_t kCacheWasteDivisor = 8;

// Allocations of one window. CUDA has no limit; the tables for so many take some 200 MiB.
inline constexpr uint64_t kAllocationsMax = 1 << 20;

// Where memory may be swapped, large extents are made in chunks of this many granules (64 MiB): one
// is copied while the next is made or released, which takes a tenth of the copy's time (measured,
// H200).
inline constexpr uint64_t kSwapChunkGranules = 32;

}  // namespace consort::memmgr

#endif  // CONSORT_MEMMGR_LIMITS_H_
