// SPDX-License-Identifier: Apache-2.0
// device/cpu/texture.h: texture and surface objects, as the driver half makes them and kernels use
// them.
//
// A kernel holds an object as a 64-bit handle. Handles are places in a table whose memory is never
// freed, so that one that was destroyed, or never existed, is refused and not followed. Making and
// forgetting: any thread. Sampling: any thread; reads only.
// Source: CUDA C++ Programming Guide, "Texture Fetching" and "Texture and Surface Memory"; CUDA
// Driver API, Texture Object Management; PTX ISA 9.0, 9.7.11 "Texture Instructions", 9.7.12
// "Surface Instructions".
#ifndef CONSORT_DEVICE_CPU_TEXTURE_H_
#define CONSORT_DEVICE_CPU_TEXTURE_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/units.h"

namespace consort::cpu {

enum class ChannelKind : uint8_t { kUnsigned, kSigned, kFloat };
enum class AddressMode : uint8_t { kWrap, kClamp, kMirror, kBorder };

// Texels in memory: rows of `width` texels, `height` rows a slice, `slices` slices (layers, faces).
struct TexelGrid {
  uintptr_t base = 0;
  uint64_t width = 1, height = 1, slices = 1;
  Bytes pitch = 0;        // from row to row
  Bytes slice_bytes = 0;  // from slice to slice
  ChannelKind kind = ChannelKind::kUnsigned;
  uint8_t channel_bytes = 1;  // 1, 2, 4; 2 or 4 for floats
  uint8_t channels = 1;       // 1, 2, 4

  Bytes texel_bytes() const { return Bytes{channel_bytes} * channels; }
};

struct TextureObject {
  TexelGrid grid;
  bool is_surface = false;
  bool is_buffer = false;  // linear memory: indices outside give zeros
  bool normalised = false;
  bool linear_filter = false;
  bool normalised_reads = false;  // 8 and 16 bit integers become floats in [0, 1] or [-1, 1]
  bool srgb = false;              // unsigned bytes are sRGB, but for a fourth channel
  std::array<AddressMode, 3> address = {AddressMode::kClamp, AddressMode::kClamp,
                                        AddressMode::kClamp};
  std::array<float, 4> border = {};
};

// The handle of a new object. Never 0.
uint64_t AddTexture(const TextureObject& object);
// Ends the handle. False: there is no such object.
bool ForgetTexture(uint64_t handle);
// The object, or null. Valid until it is forgotten.
const TextureObject* FindTexture(uint64_t handle);

enum class Geometry : uint8_t { k1D, k2D, k3D, kLayered1D, kLayered2D, kCube, kLayeredCube };

// Coordinates of one fetch: `bits` hold a layer first where the geometry has layers, then floats,
// or integers if `integers`.
struct TextureQuery {
  Geometry geometry = Geometry::k2D;
  bool integers = false;
  std::array<uint32_t, 4> bits = {};
};

// Four channels: floats, or integers where the texture gives integers, as bits. Channels that the
// texture lacks are 0, the fourth 1.
std::array<uint32_t, 4> SampleTexture(const TextureObject& object, const TextureQuery& query);
// tld4: one channel of the four texels that a bilinear fetch would mix.
std::array<uint32_t, 4> GatherTexture(const TextureObject& object, const TextureQuery& query,
                                      uint32_t channel);

// As many fetches of one object as a warp has threads: each of `bits` is an array of theirs.
struct TextureQueries {
  Geometry geometry = Geometry::k2D;
  bool integers = false;
  std::array<const uint32_t*, 4> bits = {};  // null: zeros

  TextureQuery Of(uint32_t fetch) const {
    TextureQuery query{geometry, integers, {}};
    for (size_t i = 0; i < bits.size(); ++i)
      query.bits[i] = bits[i] != nullptr ? bits[i][fetch] : 0;
    return query;
  }
};

// SampleTexture for each fetch that `here` has a bit of; a channel of fetch f goes to
// results[channel * stride + f]. No other elements of the arrays are touched.
void SampleTextures(const TextureObject& object, const TextureQueries& queries, uint32_t here,
                    uint32_t* results, uint32_t stride);

enum class SurfaceBounds : uint8_t { kTrap, kClamp, kZero };

// The address of `bytes` bytes at byte `x` of row `y` of slice or layer `z`; 0: outside. With
// `clamp` an element outside becomes the nearest one inside. `bytes` is 1, 2, 4, 8 or 16.
uintptr_t SurfaceAddress(const TextureObject& object, int64_t x, int64_t y, int64_t z, Bytes bytes,
                         bool clamp);

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_TEXTURE_H_
