// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/texture_rules.h: what one fetch and many fetches at once have in common.
#ifndef CONSORT_DEVICE_CPU_ENGINE_TEXTURE_RULES_H_
#define CONSORT_DEVICE_CPU_ENGINE_TEXTURE_RULES_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "device/cpu/texture.h"

namespace consort::cpu {

// A texel as bits: floats, or integers. Channels that the texture lacks are 0 (seen on an H200).
using Texel = std::array<uint32_t, 4>;

inline bool GivesFloats(const TextureObject& object) {
  return object.grid.kind == ChannelKind::kFloat || object.normalised_reads;
}

inline Texel Border(const TextureObject& object) {
  Texel texel;
  for (size_t i = 0; i < texel.size(); ++i) {
    texel[i] = GivesFloats(object) ? std::bit_cast<uint32_t>(object.border[i])
                                   : static_cast<uint32_t>(static_cast<int64_t>(object.border[i]));
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

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_ENGINE_TEXTURE_RULES_H_
