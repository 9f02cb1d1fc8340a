// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/runtime.h: the functions that compiled kernel code calls, by name.
//
// They run on a kernel's fiber: none may own anything across a wait, and none throws.
#ifndef CONSORT_DEVICE_CPU_ENGINE_RUNTIME_H_
#define CONSORT_DEVICE_CPU_ENGINE_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace consort::cpu {

// Numbers that generated code passes to the functions.
enum class Rounding : uint32_t { kZero, kDown, kUp };
enum class ShuffleMode : uint32_t { kUp, kDown, kButterfly, kIndex };
enum class VoteMode : uint32_t { kAll, kAny, kUniform, kBallot };
enum class BarrierReduce : uint32_t { kNone, kPopc, kAnd, kOr };
enum class WarpReduce : uint32_t {
  kAdd,
  kMinSigned,
  kMinUnsigned,
  kMaxSigned,
  kMaxUnsigned,
  kAnd,
  kOr,
  kXor,
};

// The number that describes a texture fetch: a Geometry and these.
inline constexpr uint32_t kTextureGeometryMask = 0xF;
inline constexpr uint32_t kTextureIntegers = 1u << 4;
inline constexpr uint32_t kTextureGather = 1u << 5;
inline constexpr uint32_t kTextureChannelShift = 6;
// And an access to a surface: a Geometry, SurfaceBounds, bytes.
inline constexpr uint32_t kSurfaceBoundsShift = 4;
inline constexpr uint32_t kSurfaceBytesShift = 8;

// What lanes of a group move each with one instruction of the CPU, wherever it lies.
inline constexpr size_t kQuadBytes = 16;

struct RuntimeSymbol {
  const char* name;
  void* address;
};

// All that generated code may link to: nothing else of this process is visible to it.
std::span<const RuntimeSymbol> RuntimeSymbols();

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_ENGINE_RUNTIME_H_
