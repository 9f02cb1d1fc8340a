// SPDX-License-Identifier: Apache-2.0
// vmsock/vm_memory.h: the memory that a virtual machine shares with its host, as its programs find
// it: an ivshmem-plain device of PCI, whose second base address register is the memory.
//
//   offset   bytes  what
//   0x00000     24  wire::VmMemoryHead, written by consortd when it makes the memory
//   0x10000      .  parts that consortd lends to sessions: rings (ring_channel.h), pinned memory
//
// Programs of the machine that may open the device's file see all of it, each other's parts
// included, as the host's side does: it is as private as the machine.
// Source: QEMU, docs/specs/ivshmem-spec; Linux, Documentation/PCI/sysfs-pci.rst.
// Plain values and functions; any thread. Compiled into the guest library.
#ifndef CONSORT_VMSOCK_VM_MEMORY_H_
#define CONSORT_VMSOCK_VM_MEMORY_H_

#include <cstddef>

#include "base/unique_fd.h"
#include "base/units.h"
#include "vmsock/wire/handshake.h"

namespace consort {

// Where Linux shows a machine's PCI devices, a folder each.
inline constexpr char kPciDevicesFolder[] = "/sys/bus/pci/devices";

// Parts are multiples of this, which the pages of every common machine divide.
inline constexpr Bytes kVmMemoryUnit = 64 * kKiB;

struct VmMemory {
  UniqueFd file;  // to be mapped, shared, from any multiple of pages on
  Bytes bytes = 0;
  bool write_combining = false;  // such a mapping is
  wire::Token token;
};

// Looks for the device in `folder`, and enables it where it is not. False: `why` says what is
// missing, for a person, in at most `why_bytes` bytes with the NUL.
bool FindVmMemory(const char* folder, VmMemory* found, char* why, size_t why_bytes);

}  // namespace consort

#endif  // CONSORT_VMSOCK_VM_MEMORY_H_
