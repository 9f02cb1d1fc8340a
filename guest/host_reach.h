// SPDX-License-Identifier: Apache-2.0
// guest/host_reach.h: host memory that one vGPU's session shares with the device (pinned, managed
// or registered memory), for the program's other vGPUs, at the same address.
//
// To CUDA pinned and managed memory is every context's. Here it is that session's which allocated
// it, and another device's worker maps it when it may be needed there: what is managed or portable,
// when it is made and when that device is first used; any other, when a kernel gets its address as
// a parameter, the program asks for its device pointer there, or a large copy of that device is of
// it. To smaller copies it is the program's own memory before that. Allocation::mapped_by says who
// has it. All are quick where the program has one device. Thread safe.
// Source: CUDA Driver API, Unified Addressing; cuMemHostAlloc.
#ifndef CONSORT_GUEST_HOST_REACH_H_
#define CONSORT_GUEST_HOST_REACH_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "guest/allocations.h"
#include "guest/objects.h"

namespace consort::guest {

// Has `device` reach what `address` lies in, if that is memory of this kind. Errors, logged the
// first time: the host's; CUDA_ERROR_TOO_MANY_PEERS: the addresses are another program's there.
CUresult ReachHostMemory(Device* device, uint64_t address);
// Likewise whatever a kernel's parameters point to. Where that fails the kernel faults.
void ReachParameters(Device* device, std::span<const std::byte> parameters);

// Has all devices in use reach an allocation that was just added, if it is managed or portable.
void ShowHostMemory(const Allocation& allocation);
// The device is used: has it reach what there is of that kind. Once.
void ReachPortableMemory(Device* device);

// Waits for the work of those that reach the allocation, which is about to go, and ends that.
void LeaveHostMemory(const Allocation& removed);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_HOST_REACH_H_
