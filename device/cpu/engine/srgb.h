// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/srgb.h: what bytes of sRGB are as numbers, and mixes of them.
//
// Pure; any thread. With the precision that a GPU has, found by comparing with an H200: numbers
// have about eight bits. Source of the formula: IEC 61966-2-1.
#ifndef CONSORT_DEVICE_CPU_ENGINE_SRGB_H_
#define CONSORT_DEVICE_CPU_ENGINE_SRGB_H_

#include <array>
#include <cstdint>

namespace consort::cpu {

// From 0 to 1.
float LinearOfSrgb(uint8_t byte);

// The corners of a cell, four of a slice and four of the next.
inline constexpr uint32_t kCellCorners = 8;

// The mix of LinearOfSrgb of the corners, not rounded; of corner i there are parts[i] of
// kMixParts (texture_rules.h). What has no part does not count.
float MixOfSrgb(const std::array<float, kCellCorners>& numbers,
                const std::array<int32_t, kCellCorners>& parts);

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_ENGINE_SRGB_H_
