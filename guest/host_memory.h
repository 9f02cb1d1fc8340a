// SPDX-License-Identifier: Apache-2.0
// guest/host_memory.h: memory of the host that cuMemCreate makes: a sealed file in memory, which is
// its own handle for other processes.
//
//   MakeHostMemory ─▶ file ── descriptor ──▶ another process
//                       └─ AdoptSharedMemory ─▶ addresses, at which the device reaches it too
//
// The worker chooses such addresses, in the part of the window that host memory has, when it is
// given a file. So a reservation is for memory of the host if there is some then of the same length
// that has none yet, and is as long as what is mapped there. Source: CUDA Driver API, Virtual
// Memory Management.
#ifndef CONSORT_GUEST_HOST_MEMORY_H_
#define CONSORT_GUEST_HOST_MEMORY_H_

#include <cuda.h>

#include <cstdint>

#include "guest/objects.h"

namespace consort::guest {

// A new file of `bytes`, zeroed, or -1.
int MakeHostMemory(uint64_t bytes);
// Whether `file` is one, of this process or another one; `bytes` is its length.
bool IsHostMemory(int file, uint64_t* bytes);

// --- Memory mutex held.

// Takes addresses for host memory of that length which has none on the device. `address` 0: there
// is no such memory, and the addresses are to be device memory's.
CUresult ReserveForHostMemory(Device* device, uint64_t bytes, uint64_t alignment,
                              uint64_t* address);
// The reservation that `address` lies in, or null.
HostReservation* FindHostReservation(uint64_t address);
// `reservation` may be null. CUDA_ERROR_NOT_SUPPORTED: it is none, or not as long.
CUresult MapHostMemory(HostReservation* reservation, uint64_t address, uint64_t bytes,
                       const PhysicalMemory* memory);
// The device has done with it.
void UnmapHostMemory(HostReservation* reservation);
// CUDA_ERROR_INVALID_VALUE: it is mapped, or the range is another.
CUresult FreeHostReservation(HostReservation* reservation, uint64_t address, uint64_t bytes);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_HOST_MEMORY_H_
