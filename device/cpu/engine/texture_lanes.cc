// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/texture_lanes.cc: the fetches of a group of threads, sixteen at a time where
// they are of the common kinds.
//
// Computes what SampleTexture does, in the same order, so that the bits are the same: this file is
// compiled without contraction into fused operations.
#include <immintrin.h>

#include <bit>

#include "device/cpu/engine/texture_rules.h"
#include "device/cpu/texture.h"

namespace consort::cpu {
namespace {

constexpr uint32_t kTogether = 16;
// Coordinates below this have a fraction, in floats, and quotients of them are known to within one.
constexpr int32_t kCoordinateMax = 1 << 22;

// One dimension of a texture.
struct Axis {
  AddressMode mode = AddressMode::kClamp;
  int32_t size = 1;
};

// What the fetches of a call have in common.
struct Source {
  const TextureObject& object;
  bool mixes = false;
  uint32_t dimensions = 1;
  Axis axes[2];
};

// Indices of a dimension after addressing, of sixteen fetches.
struct Places {
  __m512i index;
  __mmask16 outside;
};

// Whether fetches of the object can be made together: of lines and planes whose texels need no more
// than to be cut out of words, and that lie within 32 bits of each other.
bool IsCommon(const TextureObject& object, const TextureQueries& queries) {
  const TexelGrid& grid = object.grid;
  if (queries.geometry != Geometry::k1D && queries.geometry != Geometry::k2D) return false;
  if (object.srgb || (grid.kind == ChannelKind::kFloat && grid.channel_bytes != sizeof(float))) {
    return false;
  }
  if (object.is_buffer && !queries.integers) return false;
  if (queries.integers && queries.geometry == Geometry::k1D && !object.is_buffer) return false;
  constexpr uint64_t kReach = uint64_t{1} << 31;
  const uint64_t size_max = object.is_buffer ? kReach : uint64_t{kCoordinateMax};
  if (grid.width >= size_max || grid.height >= size_max || grid.pitch >= kReach) return false;
  const Bytes bytes = grid.texel_bytes();
  const bool is_aligned = ((grid.base | grid.pitch) & (bytes - 1)) == 0;
  return is_aligned && (grid.height - 1) * grid.pitch + grid.width * bytes < kReach;
}

// index modulo size, both below 2 * kCoordinateMax.
[[gnu::target("avx512f")]] __m512i Modulo(__m512i index, int32_t size) {
  const __m512i sizes = _mm512_set1_epi32(size);
  const __m512 quotient =
      _mm512_mul_ps(_mm512_cvtepi32_ps(index), _mm512_set1_ps(1 / static_cast<float>(size)));
  const __m512i times =
      _mm512_cvt_roundps_epi32(quotient, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  const __m512i rest = _mm512_sub_epi32(index, _mm512_mullo_epi32(times, sizes));
  const __mmask16 below = _mm512_cmplt_epi32_mask(rest, _mm512_setzero_si512());
  const __mmask16 above = _mm512_cmpge_epi32_mask(rest, sizes);
  return _mm512_mask_sub_epi32(_mm512_mask_add_epi32(rest, below, rest, sizes), above, rest, sizes);
}

[[gnu::target("avx512f")]] Places Place(const Axis& axis, __m512i index) {
  const __m512i last = _mm512_set1_epi32(axis.size - 1);
  switch (axis.mode) {
    case AddressMode::kWrap:
      return {Modulo(index, axis.size), 0};
    case AddressMode::kMirror: {
      const __m512i turn = Modulo(index, 2 * axis.size);
      const __m512i back = _mm512_sub_epi32(_mm512_set1_epi32(2 * axis.size - 1), turn);
      return {_mm512_min_epi32(turn, back), 0};
    }
    case AddressMode::kClamp:
      return {_mm512_min_epi32(_mm512_max_epi32(index, _mm512_setzero_si512()), last), 0};
    case AddressMode::kBorder:
      // Below zero counts as far above.
      return {index, _mm512_cmpgt_epu32_mask(index, last)};
  }
  return {index, 0};
}

// A channel that is less than a word, at the low end of `words`: as an integer, or as a float.
[[gnu::target("avx512f")]] __m512i Convert(const Source& from, __m512i words) {
  const TexelGrid& grid = from.object.grid;
  const auto unused = static_cast<unsigned>(32 - 8 * grid.channel_bytes);
  const bool is_signed = grid.kind == ChannelKind::kSigned;
  const __m512i high = _mm512_slli_epi32(words, unused);
  const __m512i value =
      is_signed ? _mm512_srai_epi32(high, unused) : _mm512_srli_epi32(high, unused);
  if (!from.object.normalised_reads) return value;
  const bool is_byte = grid.channel_bytes == 1;
  const float most = is_signed ? (is_byte ? 127.0f : 32767.0f) : (is_byte ? 255.0f : 65535.0f);
  const __m512 part = _mm512_div_ps(_mm512_cvtepi32_ps(value), _mm512_set1_ps(most));
  return _mm512_castps_si512(from.mixes ? part : _mm512_max_ps(part, _mm512_set1_ps(-1)));
}

// The texels at these places of those of `here`, a channel each.
[[gnu::target("avx512f")]] void Read(const Source& from, const Places& x, const Places& y,
                                     __mmask16 here, __m512i (&texels)[4]) {
  const TexelGrid& grid = from.object.grid;
  const auto bytes = static_cast<int32_t>(grid.texel_bytes());
  const auto outside = static_cast<__mmask16>(x.outside | y.outside);
  const auto inside = static_cast<__mmask16>(here & ~outside);
  const __m512i zero = _mm512_setzero_si512();
  const __m512i row =
      _mm512_mullo_epi32(y.index, _mm512_set1_epi32(static_cast<int32_t>(grid.pitch)));
  const __m512i column = _mm512_mullo_epi32(x.index, _mm512_set1_epi32(bytes));
  // Texels of less than a word are cut out of the aligned word that they lie in, which cannot fault
  // where they do not.
  const uintptr_t base = grid.base / sizeof(uint32_t) * sizeof(uint32_t);
  const __m512i at = _mm512_add_epi32(_mm512_add_epi32(row, column),
                                      _mm512_set1_epi32(static_cast<int32_t>(grid.base - base)));
  const __m512i low = _mm512_and_si512(at, _mm512_set1_epi32(3));
  const __m512i word_at = bytes < 4 ? _mm512_sub_epi32(at, low) : at;
  const __m512i bits_in = bytes < 4 ? _mm512_slli_epi32(low, 3) : zero;
  __m512i words = zero;
  for (uint32_t channel = grid.channels; channel < 4; ++channel) texels[channel] = zero;
  for (uint32_t channel = 0; channel < grid.channels; ++channel) {
    const uint32_t first = channel * grid.channel_bytes;
    if (first % sizeof(uint32_t) == 0) {
      words = _mm512_mask_i32gather_epi32(zero, inside, word_at,
                                          reinterpret_cast<const void*>(base + first), 1);
    }
    if (grid.channel_bytes == sizeof(uint32_t)) {
      texels[channel] = words;
      continue;
    }
    const __m512i shift =
        _mm512_add_epi32(bits_in, _mm512_set1_epi32(static_cast<int32_t>(first % 4 * 8)));
    texels[channel] = Convert(from, _mm512_srlv_epi32(words, shift));
  }
  if (outside == 0) return;
  const Texel border = from.object.is_buffer ? Texel{} : Border(from.object);
  for (uint32_t channel = 0; channel < 4; ++channel) {
    texels[channel] = _mm512_mask_mov_epi32(
        texels[channel], outside, _mm512_set1_epi32(static_cast<int32_t>(border[channel])));
  }
}

// Parts of kMixParts and numbers of 16 bits are rounded so.
[[gnu::target("avx512f")]] __m512 Rounded(__m512 value) {
  return _mm512_roundscale_ps(_mm512_add_ps(value, _mm512_set1_ps(0.5f)),
                              _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
}

// A mix of integers, of kMixParts parts, as a float; see texture.cc.
[[gnu::target("avx512f")]] __m512 FloatOfMix(const TextureObject& object, __m512 sum) {
  const __m512i parts = _mm512_cvttps_epi32(sum);
  __m512i mix = _mm512_srai_epi32(_mm512_add_epi32(parts, _mm512_set1_epi32(kMixParts / 2)), 8);
  if (OneWhileMixed(object) != OneOfMix(object)) {
    const __m512i high = _mm512_srai_epi32(parts, 4);
    const __m512i more =
        _mm512_add_epi32(_mm512_add_epi32(high, _mm512_srai_epi32(high, 8)), _mm512_set1_epi32(4));
    mix = _mm512_add_epi32(parts, _mm512_srai_epi32(more, 3));
  }
  return _mm512_max_ps(_mm512_div_ps(_mm512_cvtepi32_ps(mix), _mm512_set1_ps(OneOfMix(object))),
                       _mm512_set1_ps(-1));
}

// The mix of the 2 or 4 texels around `at`, which are coordinates in texels.
[[gnu::target("avx512f")]] void Mix(const Source& from, const __m512 (&at)[2], __mmask16 here,
                                    __m512i (&texels)[4]) {
  const __m512 half = _mm512_set1_ps(0.5f);
  const __m512 all = _mm512_set1_ps(kMixParts);
  constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
  Places places[2][2];  // of a dimension, the lower and the upper texel
  __m512 upper[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
  places[1][0] = {_mm512_setzero_si512(), 0};
  for (uint32_t i = 0; i < from.dimensions; ++i) {
    const __m512 shifted = _mm512_sub_ps(at[i], half);
    const __m512 lower = _mm512_roundscale_ps(shifted, kDown);
    upper[i] = Rounded(_mm512_mul_ps(_mm512_sub_ps(shifted, lower), all));
    const __m512i index = _mm512_cvttps_epi32(lower);
    if (from.axes[i].mode == AddressMode::kClamp) {
      // Below zero counts as far above; beyond an edge there is the texel at the edge alone.
      const __mmask16 inside =
          _mm512_cmplt_epu32_mask(index, _mm512_set1_epi32(from.axes[i].size - 1));
      upper[i] = _mm512_maskz_mov_ps(inside, upper[i]);
    }
    places[i][0] = Place(from.axes[i], index);
    places[i][1] = Place(from.axes[i], _mm512_add_epi32(index, _mm512_set1_epi32(1)));
  }
  const __m512 far = Rounded(_mm512_div_ps(_mm512_mul_ps(upper[0], upper[1]), all));
  const __m512 right = _mm512_sub_ps(upper[0], far), below = _mm512_sub_ps(upper[1], far);
  const __m512 near = _mm512_sub_ps(_mm512_sub_ps(all, upper[0]), below);
  const __m512 parts[4] = {near, right, below, far};
  const float one = OneWhileMixed(from.object);
  const __m512 ones = _mm512_set1_ps(one);
  __m512 sums[4];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (uint32_t corner = 0; corner < 1u << from.dimensions; ++corner) {
    // What has no weight does not count, be it infinite.
    const __mmask16 counts =
        _mm512_mask_cmp_ps_mask(here, parts[corner], _mm512_setzero_ps(), _CMP_NEQ_UQ);
    if (counts == 0) continue;
    const __m512 weight = one != 0 ? parts[corner] : _mm512_div_ps(parts[corner], all);
    __m512i texel[4];
    Read(from, places[0][corner & 1], places[1][corner >> 1], counts, texel);
    for (uint32_t channel = 0; channel < 4; ++channel) {
      __m512 value = _mm512_castsi512_ps(texel[channel]);
      if (one != 0) value = Rounded(_mm512_mul_ps(value, ones));
      sums[channel] =
          _mm512_mask_add_ps(sums[channel], counts, sums[channel], _mm512_mul_ps(weight, value));
    }
  }
  for (uint32_t channel = 0; channel < 4; ++channel) {
    if (one != 0) sums[channel] = FloatOfMix(from.object, sums[channel]);
    texels[channel] = _mm512_castps_si512(sums[channel]);
  }
}

// False: some are not what this is for; the results are then of no worth.
[[gnu::target("avx512f")]] bool SampleTogether(const TextureObject& object,
                                               const TextureQueries& queries, uint32_t here,
                                               uint32_t* results, uint32_t stride) {
  if (!IsCommon(object, queries)) return false;
  const TexelGrid& grid = object.grid;
  const bool mixes = object.linear_filter && GivesFloats(object) && !queries.integers;
  Source from = {object,
                 mixes,
                 queries.geometry == Geometry::k1D ? 1u : 2u,
                 {{ModeOf(object, 0, queries.integers), static_cast<int32_t>(grid.width)},
                  {ModeOf(object, 1, queries.integers), static_cast<int32_t>(grid.height)}}};
  if (object.is_buffer) from.axes[0].mode = AddressMode::kBorder;
  const uint32_t coordinates = from.dimensions;
  if (mixes && MixesAsPlane(object, queries.geometry)) from.dimensions = 2;
  for (uint32_t first = 0; first < 32; first += kTogether) {
    const auto mask = static_cast<__mmask16>(here >> first);
    if (mask == 0) continue;
    __m512 at[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    Places places[2];
    places[1] = {_mm512_setzero_si512(), 0};
    for (uint32_t i = 0; i < coordinates; ++i) {
      const __m512i bits = _mm512_maskz_loadu_epi32(mask, queries.bits[i] + first);
      __mmask16 near = mask;
      __m512i index = bits;
      if (!queries.integers) {
        at[i] = _mm512_castsi512_ps(bits);
        if (object.normalised) {
          at[i] = _mm512_mul_ps(at[i], _mm512_set1_ps(static_cast<float>(from.axes[i].size)));
        }
        near = _mm512_cmp_ps_mask(_mm512_abs_ps(at[i]), _mm512_set1_ps(kCoordinateMax), _CMP_LT_OQ);
        index = _mm512_cvt_roundps_epi32(at[i], _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
      } else if (!object.is_buffer) {
        near = _mm512_cmplt_epu32_mask(_mm512_abs_epi32(bits), _mm512_set1_epi32(kCoordinateMax));
      }
      if ((mask & ~near) != 0) return false;
      if (!mixes) places[i] = Place(from.axes[i], index);
    }
    __m512i texels[4];
    if (mixes) {
      Mix(from, at, mask, texels);
    } else {
      Read(from, places[0], places[1], mask, texels);
    }
    for (uint32_t channel = 0; channel < 4; ++channel) {
      _mm512_mask_storeu_epi32(results + channel * stride + first, mask, texels[channel]);
    }
  }
  return true;
}

}  // namespace

void SampleTextures(const TextureObject& object, const TextureQueries& queries, uint32_t here,
                    uint32_t* results, uint32_t stride) {
  if (__builtin_cpu_supports("avx512f") && SampleTogether(object, queries, here, results, stride)) {
    return;
  }
  for (uint32_t rest = here; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<uint32_t>(std::countr_zero(rest));
    const Texel texel = SampleTexture(object, queries.Of(lane));
    for (uint32_t channel = 0; channel < 4; ++channel) {
      results[channel * stride + lane] = texel[channel];
    }
  }
}

}  // namespace consort::cpu
