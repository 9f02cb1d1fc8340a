// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/texture_rules.h: what one fetch and many fetches at once have in common.
#ifndef CONSORT_DEVICE_CPU_ENGINE_TEXTURE_RULES_H_
#define CONSORT_DEVICE_CPU_ENGINE_TEXTURE_RULES_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "device/cpu/engine/half.h"
#include "device/cpu/texture.h"

namespace consort::cpu {

// A texel as bits: floats, or integers. Channels that the texture lacks are 0 (seen on an H200).
using Texel = std::array<uint32_t, 4>;

inline bool GivesFloats(const TextureObject& object) {
  return object.grid.kind == ChannelKind::kFloat || object.normalised_reads;
}

// The border as a texel of the format would be (seen on an H200).
inline Texel Border(const TextureObject& object) {
  const TexelGrid& grid = object.grid;
  const bool is_byte = grid.channel_bytes == 1;
  const bool is_signed = grid.kind == ChannelKind::kSigned;
  const float one = is_signed ? (is_byte ? 127.0f : 32767.0f) : (is_byte ? 255.0f : 65535.0f);
  Texel texel;
  for (size_t i = 0; i < texel.size(); ++i) {
    const float value = object.border[i];
    if (grid.kind == ChannelKind::kFloat) {
      const bool is_half = grid.channel_bytes == 2;
      texel[i] = std::bit_cast<uint32_t>(is_half ? WidenHalf(NarrowToHalfBits(value)) : value);
    } else if (object.normalised_reads) {
      const float inside = std::clamp(value, is_signed ? -1.0f : 0.0f, 1.0f);
      texel[i] = std::bit_cast<uint32_t>(std::floor(inside * one) / one);
    } else {
      texel[i] = static_cast<uint32_t>(static_cast<int64_t>(value));
    }
  }
  return texel;
}

// Wrapping and mirroring are for normalised coordinates only, clamping takes their place. Integers
// beyond the texture get the border, whatever the object says (seen on an H200).
inline AddressMode ModeOf(const TextureObject& object, size_t dimension, bool integers) {
  if (integers) return AddressMode::kBorder;
  const AddressMode mode = object.address[dimension];
  const bool repeats = mode == AddressMode::kWrap || mode == AddressMode::kMirror;
  return repeats && !object.normalised ? AddressMode::kClamp : mode;
}

// A line is the row at 0 of a plane. Half of what a linear filter mixes is then the row before it,
// which is the line again but where the second address mode is the border (seen on an H200).
inline bool MixesAsPlane(const TextureObject& object, Geometry geometry) {
  return geometry == Geometry::k1D && object.address[1] == AddressMode::kBorder;
}

// Texels are mixed in whole parts of this many: 8 bits of fraction.
inline constexpr int32_t kMixParts = 256;

// What stands for 1 while integers are mixed: all as numbers of 16 bits, but signed bytes as they
// are (seen on an H200). 0: floats. sRGB is mixed otherwise (srgb.h).
inline float OneWhileMixed(const TextureObject& object) {
  const TexelGrid& grid = object.grid;
  if (grid.kind == ChannelKind::kFloat) return 0;
  if (grid.kind == ChannelKind::kUnsigned) return 65535.0f;
  return grid.channel_bytes == 1 ? 127.0f : 32767.0f;
}

// What stands for 1 in the mix.
inline float OneOfMix(const TextureObject& object) {
  return object.grid.kind == ChannelKind::kSigned ? 32767.0f : 65535.0f;
}

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_ENGINE_TEXTURE_RULES_H_
