// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/limits.h: what the CPU device claims to be, and the bounds of its driver.
//
// The shape of the device is that of compute capability 9.0.
// Source: CUDA C++ Programming Guide, technical specifications per compute capability.
#ifndef CONSORT_DEVICE_CPU_DRIVER_LIMITS_H_
#define CONSORT_DEVICE_CPU_DRIVER_LIMITS_H_

#include <cstddef>
#include <cstdint>

#include "base/units.h"

namespace consort::cpu {

inline constexpr int kDriverVersion = 13000;  // cuDriverGetVersion: CUDA 13.0
inline constexpr int kCapabilityMajor = 9;
inline constexpr int kCapabilityMinor = 0;

inline constexpr int kDeviceCountMax = 64;
inline constexpr Bytes kDeviceMemoryDefault = 4 * kGiB;
// Of a configured device. Names fit what programs give to cuDeviceGetName (256 bytes in cudart's
// properties); a device slower than the bound, or later, is a mistake in the configuration.
inline constexpr size_t kDeviceNameBytesMax = 127;
inline constexpr uint32_t kDeviceCoresMax = 1024;
inline constexpr uint32_t kDeviceLinksMax = 18;  // an H100's board has so many
inline constexpr double kDeviceSpeedMin = 0.001;
inline constexpr Nanos kLaunchLatencyMax = 10 * kSecond;
// Of CONSORT_CPU_KERNEL_LIMIT: what is more is no limit.
inline constexpr Nanos kKernelLimitMax = 24 * 3600 * kSecond;
// Freed allocations whose addresses are not given out again while kernels' accesses are checked.
// Those that a program of many small ones freed last, and far fewer addresses than there are.
inline constexpr size_t kFreedRangesMax = 8192;
inline constexpr Bytes kFreedBytesMax = Bytes{1} << 42;

inline constexpr uint32_t kWarpThreads = 32;
inline constexpr uint32_t kBlockThreadsMax = 1024;
inline constexpr uint32_t kBlockDimMax[3] = {1024, 1024, 64};
inline constexpr uint32_t kGridDimMax[3] = {2147483647, 65535, 65535};
inline constexpr uint32_t kSharedBytesDefault = 48 * kKiB;  // a block, without opting in
inline constexpr uint32_t kSharedBytesOptIn = 227 * kKiB;   // a block, having opted in
inline constexpr uint32_t kSharedBytesMultiprocessor = 228 * kKiB;
inline constexpr uint32_t kSharedBytesReserved = 1 * kKiB;  // a block, taken by the system
inline constexpr uint32_t kMultiprocessorThreads = 2048;
inline constexpr uint32_t kMultiprocessorBlocks = 32;
inline constexpr uint32_t kRegistersBlock = 65536;
inline constexpr uint32_t kRegistersMultiprocessor = 65536;
inline constexpr uint32_t kRegisterUnit = 256;  // registers are given to warps in these
inline constexpr Bytes kConstantBytes = 64 * kKiB;
inline constexpr Bytes kPitchMax = 2147483647;
inline constexpr Bytes kPitchAlignment = 512;

// cuMemAlloc's alignment and the unit of its accounting: one page of the host.
inline constexpr Bytes kAllocationUnit = 4 * kKiB;
// Granularity of physical memory and of its mappings, as on every NVIDIA device so far.
inline constexpr Bytes kGranularity = 2 * kMiB;

// Largest arrays that textures and surfaces may have, in elements; a depth of layers where there
// are layers. Source: CUDA C++ Programming Guide, technical specifications.
struct TextureBounds {
  uint64_t width, height, depth;
};
inline constexpr TextureBounds k1DBounds = {131072, 0, 0};
inline constexpr TextureBounds kLayered1DBounds = {32768, 0, 2048};
inline constexpr TextureBounds k2DBounds = {131072, 65536, 0};
inline constexpr TextureBounds kLayered2DBounds = {32768, 32768, 2048};
inline constexpr TextureBounds k3DBounds = {16384, 16384, 16384};
inline constexpr TextureBounds kCubeBounds = {32768, 32768, 2046};
inline constexpr uint64_t kLinearTexelsMax = 1 << 28;

inline constexpr int kStreamPriorityLeast = 0;
inline constexpr int kStreamPriorityGreatest = -5;

// Operations waiting in one stream. A caller that gets this far ahead waits, as it does with a GPU
// (whose queues hold about a thousand launches).
inline constexpr size_t kStreamOperationsMax = 4096;
// Host-to-device copies from pageable memory up to this size are staged and do not wait for the
// stream. Source: CUDA driver API, "API synchronization behavior".
inline constexpr Bytes kStagedCopyBytesMax = 64 * kKiB;
// A copy holds the address space's lock for this much at a time, so that unmapping is not held up.
inline constexpr Bytes kCopyChunkBytes = 4 * kMiB;
// Largest packed parameter buffer of a kernel. Source: CUDA 12.1 release notes (32,764 bytes).
inline constexpr size_t kParameterBytesMax = 32764;

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_DRIVER_LIMITS_H_
