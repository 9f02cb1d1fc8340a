// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/texture.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "device/cpu/engine/half.h"
#include "device/cpu/engine/srgb.h"
#include "device/cpu/engine/texture_rules.h"

namespace consort::cpu {
namespace {

// --- Handles ---

// A slot is never freed. `handle` is this slot's current one; 0: nobody's.
struct Slot {
  uint64_t handle = 0;
  uint32_t generation = 0;
  TextureObject object;
};

constexpr uint64_t kChunkSlots = 256;
constexpr uint64_t kChunksMax = 4096;  // about a million objects, as many as a GPU's table has

// Handles are generation << 32 | index + 1: small numbers, as a GPU's are.
class Table {
 public:
  uint64_t Add(const TextureObject& object) {
    absl::MutexLock lock(&mutex_);
    uint64_t index = used_;
    if (!free_.empty()) {
      index = free_.back();
      free_.pop_back();
    } else {
      if (used_ == kChunkSlots * kChunksMax) return 0;
      if (used_ % kChunkSlots == 0) {
        // Pairs with Find, which takes no lock: kernels look up at each fetch.
        chunks_[used_ / kChunkSlots].store(new Slot[kChunkSlots], std::memory_order_release);
      }
      ++used_;
    }
    Slot& slot = At(index);
    slot.object = object;
    const uint64_t handle = uint64_t{++slot.generation} << 32 | (index + 1);
    std::atomic_ref(slot.handle).store(handle, std::memory_order_release);
    return handle;
  }

  bool Forget(uint64_t handle) {
    absl::MutexLock lock(&mutex_);
    if (Find(handle) == nullptr) return false;
    const uint64_t index = (handle & 0xFFFF'FFFF) - 1;
    std::atomic_ref(At(index).handle).store(0, std::memory_order_release);
    free_.push_back(index);
    return true;
  }

  const TextureObject* Find(uint64_t handle) {
    const uint64_t index = (handle & 0xFFFF'FFFF) - 1;
    if (index >= kChunkSlots * kChunksMax) return nullptr;
    Slot* const chunk = chunks_[index / kChunkSlots].load(std::memory_order_acquire);
    if (chunk == nullptr) return nullptr;
    Slot& slot = chunk[index % kChunkSlots];
    return std::atomic_ref(slot.handle).load(std::memory_order_acquire) == handle ? &slot.object
                                                                                  : nullptr;
  }

 private:
  Slot& At(uint64_t index) {
    return chunks_[index / kChunkSlots].load(std::memory_order_acquire)[index % kChunkSlots];
  }

  absl::Mutex mutex_;
  uint64_t used_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<uint64_t> free_ ABSL_GUARDED_BY(mutex_);
  std::atomic<Slot*> chunks_[kChunksMax] = {};
};

Table& GlobalTable() {
  static Table* const table = new Table();  // kernels may run until the process ends
  return *table;
}

// --- Texels ---

// The half nearest to `value`, of two the one that is farther from zero.
float NearestHalf(float value) {
  const float half = WidenHalf(NarrowToHalfBits(value));
  const float other = half + 2 * (value - half);
  const bool is_tie = other != half && WidenHalf(NarrowToHalfBits(other)) == other;
  return is_tie && std::fabs(other) > std::fabs(half) ? other : half;
}

uint32_t RawChannel(const TexelGrid& grid, const uint8_t* at) {
  switch (grid.channel_bytes) {
    case 1:
      return grid.kind == ChannelKind::kSigned ? static_cast<uint32_t>(static_cast<int8_t>(*at))
                                               : *at;
    case 2: {
      uint16_t value;
      std::memcpy(&value, at, sizeof(value));
      return grid.kind == ChannelKind::kSigned ? static_cast<uint32_t>(static_cast<int16_t>(value))
                                               : value;
    }
    default: {
      uint32_t value;
      std::memcpy(&value, at, sizeof(value));
      return value;
    }
  }
}

uint32_t Bits(float value) { return std::bit_cast<uint32_t>(value); }
float Float(uint32_t bits) { return std::bit_cast<float>(bits); }

bool IsSrgb(const TextureObject& object, size_t channel) {
  const TexelGrid& grid = object.grid;
  return object.srgb && grid.kind == ChannelKind::kUnsigned && grid.channel_bytes == 1 &&
         channel < 3;
}

// The lowest number of a signed format is less than -1.
Texel ReadTexel(const TextureObject& object, uint64_t x, uint64_t y, uint64_t z) {
  const TexelGrid& grid = object.grid;
  Texel texel = {};
  const uint8_t* at = reinterpret_cast<const uint8_t*>(grid.base + z * grid.slice_bytes +
                                                       y * grid.pitch + x * grid.texel_bytes());
  if (grid.kind == ChannelKind::kFloat && grid.channel_bytes == sizeof(float)) {
    std::memcpy(texel.data(), at, grid.texel_bytes());
    return texel;
  }
  for (uint32_t channel = 0; channel < grid.channels; ++channel, at += grid.channel_bytes) {
    const uint32_t raw = RawChannel(grid, at);
    if (grid.kind == ChannelKind::kFloat) {
      texel[channel] = grid.channel_bytes == 2 ? Bits(WidenHalf(static_cast<uint16_t>(raw))) : raw;
    } else if (object.normalised_reads) {
      const bool is_byte = grid.channel_bytes == 1;
      float value = 0;
      if (IsSrgb(object, channel)) {
        value = LinearOfSrgb(static_cast<uint8_t>(raw));
      } else if (grid.kind == ChannelKind::kSigned) {
        value = static_cast<float>(static_cast<int32_t>(raw)) / (is_byte ? 127 : 32767);
      } else {
        value = static_cast<float>(raw) / (is_byte ? 255 : 65535);
      }
      texel[channel] = Bits(value);
    } else {
      texel[channel] = raw;
    }
  }
  return texel;
}

// A texel that is not mixed: none of its parts of 1 is below -1.
Texel NotMixed(const TextureObject& object, Texel texel) {
  if (object.grid.kind == ChannelKind::kSigned && object.normalised_reads) {
    for (uint32_t& channel : texel) channel = Bits(std::max(Float(channel), -1.0f));
  }
  return texel;
}

// The index that `mode` makes of `index`, one of 0 to size - 1; -1: the border.
int64_t Place(AddressMode mode, int64_t index, int64_t size) {
  switch (mode) {
    case AddressMode::kWrap:
      index %= size;
      return index < 0 ? index + size : index;
    case AddressMode::kMirror: {
      int64_t turn = index % (2 * size);
      if (turn < 0) turn += 2 * size;
      return turn < size ? turn : 2 * size - 1 - turn;
    }
    case AddressMode::kClamp:
      return std::clamp<int64_t>(index, 0, size - 1);
    case AddressMode::kBorder:
      return index >= 0 && index < size ? index : -1;
  }
  return -1;
}

// Where a fetch goes: coordinates in texels, and a slice where the geometry chooses one.
struct Point {
  uint32_t dimensions = 2;  // of `at` that count
  std::array<float, 3> at = {};
  std::array<int64_t, 3> index = {};  // instead of `at`, where coordinates are integers
  int64_t slice = 0;
  bool integers = false;  // `index` counts
  bool outside = false;   // wherever it is
  bool clamps = false;    // whatever the object says: faces of a cube
};

int64_t Floor(float value) {
  // Beyond what an array can hold, and not a number, is far outside.
  constexpr float kFar = 1 << 30;
  if (!(value > -kFar)) return value <= -kFar ? -(1 << 30) : 0;
  return value < kFar ? static_cast<int64_t>(std::floor(value)) : 1 << 30;
}

// The face that a direction meets, and where: on edges z goes before y, and y before x (seen on an
// H200). Source: CUDA C++ Programming Guide, "Cubemap Textures".
uint32_t CubeFace(const std::array<float, 3>& direction, float* s, float* t) {
  const auto [x, y, z] = direction;
  const float ax = std::fabs(x), ay = std::fabs(y), az = std::fabs(z);
  uint32_t face = 0;
  float m = 0, u = 0, v = 0;
  if (az >= ax && az >= ay) {
    face = z >= 0 ? 4 : 5;
    m = az, u = z >= 0 ? x : -x, v = -y;
  } else if (ay >= ax) {
    face = y >= 0 ? 2 : 3;
    m = ay, u = x, v = y >= 0 ? z : -z;
  } else {
    face = x >= 0 ? 0 : 1;
    m = ax, u = x >= 0 ? -z : z, v = -y;
  }
  *s = (u / m + 1) / 2;
  *t = (v / m + 1) / 2;
  return face;
}

std::array<uint64_t, 3> SizeOf(const TexelGrid& grid) {
  return {grid.width, grid.height, grid.slices};
}

Point PointOf(const TextureObject& object, const TextureQuery& query) {
  const TexelGrid& grid = object.grid;
  Point point;
  point.integers = query.integers;
  size_t first = 0;
  const bool is_layered = query.geometry == Geometry::kLayered1D ||
                          query.geometry == Geometry::kLayered2D ||
                          query.geometry == Geometry::kLayeredCube;
  const bool is_cube =
      query.geometry == Geometry::kCube || query.geometry == Geometry::kLayeredCube;
  if (is_layered) {
    const int64_t layers = static_cast<int64_t>(is_cube ? grid.slices / 6 : grid.slices);
    // Layers have no sign: -1 is beyond the last.
    point.slice = std::min<int64_t>(query.bits[0], std::max<int64_t>(layers - 1, 0));
    point.outside = query.integers && query.bits[0] >= layers;
    first = 1;
  }
  // Integers find a line in linear memory alone (seen on an H200).
  if (query.integers && query.geometry == Geometry::k1D) point.outside = !object.is_buffer;
  switch (query.geometry) {
    case Geometry::k1D:
    case Geometry::kLayered1D:
      point.dimensions = 1;
      break;
    case Geometry::k3D:
      point.dimensions = 3;
      break;
    default:
      point.dimensions = 2;
      break;
  }
  if (is_cube) {
    const std::array<float, 3> direction = {Float(query.bits[first]), Float(query.bits[first + 1]),
                                            Float(query.bits[first + 2])};
    const uint32_t face = CubeFace(direction, &point.at[0], &point.at[1]);
    point.slice = std::min<int64_t>(point.slice * 6 + face, static_cast<int64_t>(grid.slices) - 1);
    point.clamps = true;
    point.at[0] *= static_cast<float>(grid.width);
    point.at[1] *= static_cast<float>(grid.height);
    return point;
  }
  const std::array<uint64_t, 3> size = SizeOf(grid);
  for (uint32_t i = 0; i < point.dimensions; ++i) {
    const uint32_t bits = query.bits[first + i];
    if (query.integers) {
      point.index[i] = static_cast<int32_t>(bits);
    } else {
      point.at[i] = object.normalised ? Float(bits) * static_cast<float>(size[i]) : Float(bits);
    }
  }
  return point;
}

AddressMode ModeIn(const TextureObject& object, const Point& point, uint32_t dimension) {
  return point.clamps ? AddressMode::kClamp : ModeOf(object, dimension, point.integers);
}

// The texel at these indices, after addressing.
Texel Fetch(const TextureObject& object, const Point& point, std::array<int64_t, 3> index) {
  if (point.outside) return Border(object);
  const std::array<uint64_t, 3> size = SizeOf(object.grid);
  for (uint32_t i = 0; i < point.dimensions; ++i) {
    if (object.is_buffer) {
      if (index[i] < 0 || static_cast<uint64_t>(index[i]) >= size[i]) return {};
      continue;
    }
    index[i] = Place(ModeIn(object, point, i), index[i], static_cast<int64_t>(size[i]));
    if (index[i] < 0) return Border(object);
  }
  if (point.dimensions < 3) index[2] = point.slice;
  if (point.dimensions < 2) index[1] = 0;
  return ReadTexel(object, static_cast<uint64_t>(index[0]), static_cast<uint64_t>(index[1]),
                   static_cast<uint64_t>(index[2]));
}

// The lower texel of a linear fetch, and the upper one's parts of kMixParts.
int64_t Between(float at, int32_t* parts) {
  const float shifted = at - 0.5f;
  const int64_t lower = Floor(shifted);
  const float fraction = shifted - static_cast<float>(lower);
  // Beyond the integers there are no fractions.
  const bool is_part = fraction >= 0 && fraction <= 1;
  *parts = is_part ? static_cast<int32_t>(fraction * kMixParts + 0.5f) : 0;
  return lower;
}

// parts of kMixParts of `whole`, rounded.
int32_t PartsOf(int32_t whole, int32_t parts) {
  return (whole * parts + kMixParts / 2) / kMixParts;
}

// The parts of a cell's corners, of those that the texels on the upper side of each dimension have:
// corner 1 is on that of the first dimension, 2 of the second, 4 of the third. Slices are divided
// first, then columns (seen on an H200).
std::array<int32_t, kCellCorners> PartsOfCorners(const std::array<int32_t, 3>& upper) {
  const int32_t slices[] = {kMixParts - upper[2], upper[2]};
  std::array<int32_t, kCellCorners> parts = {};
  for (size_t slice = 0; slice < 2; ++slice) {
    const int32_t right = PartsOf(slices[slice], upper[0]);
    const int32_t left = slices[slice] - right;
    int32_t* const corner = &parts[4 * slice];
    corner[0] = PartsOf(left, kMixParts - upper[1]);
    corner[2] = left - corner[0];
    corner[3] = PartsOf(right, upper[1]);
    corner[1] = right - corner[3];
  }
  return parts;
}

// A mix of integers, of kMixParts parts, as a float.
float FloatOfMix(const TextureObject& object, float sum) {
  const auto parts = static_cast<int32_t>(sum);
  int32_t mix = (parts + kMixParts / 2) >> 8;
  if (OneWhileMixed(object) != OneOfMix(object)) {
    // Bytes become numbers of 16 bits with what is cut off (found by comparing with an H200).
    const int32_t high = parts >> 4;
    mix = parts + ((high + (high >> 8) + 4) >> 3);
  }
  return std::max(static_cast<float>(mix) / OneOfMix(object), -1.0f);
}

// The mix of the texels around a point.
Texel Mix(const TextureObject& object, const Point& point) {
  std::array<int64_t, 3> lower = {};
  std::array<int32_t, 3> upper = {};
  for (uint32_t i = 0; i < point.dimensions; ++i) {
    lower[i] = Between(point.at[i], &upper[i]);
    // Beyond an edge that clamps there is the texel at the edge alone.
    const int64_t last = static_cast<int64_t>(SizeOf(object.grid)[i]) - 1;
    const bool is_inside = lower[i] >= 0 && lower[i] < last;
    if (ModeIn(object, point, i) == AddressMode::kClamp && !is_inside) upper[i] = 0;
  }
  const std::array<int32_t, kCellCorners> parts = PartsOfCorners(upper);
  const float one = OneWhileMixed(object);
  std::array<float, 4> sum = {};
  std::array<std::array<float, kCellCorners>, 4> corners;
  for (uint32_t corner = 0; corner < 1u << point.dimensions; ++corner) {
    if (parts[corner] == 0) continue;
    std::array<int64_t, 3> index = lower;
    for (uint32_t i = 0; i < point.dimensions; ++i) index[i] += corner >> i & 1;
    const Texel texel = Fetch(object, point, index);
    const auto weight = static_cast<float>(parts[corner]);
    for (size_t i = 0; i < sum.size(); ++i) {
      const float value = Float(texel[i]);
      sum[i] += one != 0 ? weight * std::floor(value * one + 0.5f) : weight / kMixParts * value;
      corners[i][corner] = value;
    }
  }
  Texel mix;
  for (size_t i = 0; i < sum.size(); ++i) {
    if (IsSrgb(object, i)) {
      sum[i] = NearestHalf(MixOfSrgb(corners[i], parts));
    } else if (one != 0) {
      sum[i] = FloatOfMix(object, sum[i]);
    } else if (object.grid.kind == ChannelKind::kFloat && object.grid.channel_bytes == 2) {
      sum[i] = NearestHalf(sum[i]);
    }
    mix[i] = Bits(sum[i]);
  }
  return mix;
}

// What most fetches are, without the detours of the others: the nearest texel of 32-bit floats,
// inside a plane. False: this one is something else.
bool FetchInside(const TextureObject& object, const TextureQuery& query, Texel* texel) {
  const TexelGrid& grid = object.grid;
  if (query.geometry != Geometry::k2D || query.integers || object.linear_filter ||
      object.is_buffer || grid.kind != ChannelKind::kFloat || grid.channel_bytes != sizeof(float)) {
    return false;
  }
  float x = Float(query.bits[0]), y = Float(query.bits[1]);
  if (object.normalised) {
    x *= static_cast<float>(grid.width);
    y *= static_cast<float>(grid.height);
  }
  constexpr float kWithin32Bits = 1 << 30;
  if (!(x >= 0 && x < kWithin32Bits && y >= 0 && y < kWithin32Bits)) return false;
  const auto column = static_cast<uint32_t>(x), row = static_cast<uint32_t>(y);
  if (column >= grid.width || row >= grid.height) return false;
  *texel = {};
  const Bytes bytes = grid.texel_bytes();
  std::memcpy(
      texel->data(),
      reinterpret_cast<const void*>(grid.base + row * grid.pitch + uint64_t{column} * bytes),
      bytes);
  return true;
}

}  // namespace

uint64_t AddTexture(const TextureObject& object) { return GlobalTable().Add(object); }
bool ForgetTexture(uint64_t handle) { return GlobalTable().Forget(handle); }
const TextureObject* FindTexture(uint64_t handle) { return GlobalTable().Find(handle); }

std::array<uint32_t, 4> SampleTexture(const TextureObject& object, const TextureQuery& query) {
  Texel inside;
  if (FetchInside(object, query, &inside)) return inside;
  Point point = PointOf(object, query);
  if (query.integers) return NotMixed(object, Fetch(object, point, point.index));
  if (!object.linear_filter || !GivesFloats(object)) {
    return NotMixed(
        object, Fetch(object, point, {Floor(point.at[0]), Floor(point.at[1]), Floor(point.at[2])}));
  }
  if (MixesAsPlane(object, query.geometry)) point.dimensions = 2;
  return Mix(object, point);
}

std::array<uint32_t, 4> GatherTexture(const TextureObject& object, const TextureQuery& query,
                                      uint32_t channel) {
  const Point point = PointOf(object, query);
  int32_t unused = 0;
  const int64_t x = Between(point.at[0], &unused);
  const int64_t y = Between(point.at[1], &unused);
  return NotMixed(object, {Fetch(object, point, {x, y + 1, 0})[channel],
                           Fetch(object, point, {x + 1, y + 1, 0})[channel],
                           Fetch(object, point, {x + 1, y, 0})[channel],
                           Fetch(object, point, {x, y, 0})[channel]});
}

uintptr_t SurfaceAddress(const TextureObject& object, int64_t x, int64_t y, int64_t z, Bytes bytes,
                         bool clamp) {
  const TexelGrid& grid = object.grid;
  const int64_t row = static_cast<int64_t>(grid.width * grid.texel_bytes());
  const int64_t height = static_cast<int64_t>(grid.height);
  const int64_t slices = static_cast<int64_t>(grid.slices);
  const int64_t element = static_cast<int64_t>(bytes);
  if (clamp) {
    x = std::clamp<int64_t>(x, 0, row - element);
    y = std::clamp<int64_t>(y, 0, height - 1);
    z = std::clamp<int64_t>(z, 0, slices - 1);
  }
  if (x < 0 || x + element > row || x % element != 0 || y < 0 || y >= height || z < 0 ||
      z >= slices) {
    return 0;
  }
  return grid.base + static_cast<uint64_t>(z) * grid.slice_bytes +
         static_cast<uint64_t>(y) * grid.pitch + static_cast<uint64_t>(x);
}

}  // namespace consort::cpu
