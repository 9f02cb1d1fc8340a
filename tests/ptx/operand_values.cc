// SPDX-License-Identifier: Apache-2.0
#include "tests/ptx/operand_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace consort::ptx_suite {
namespace {

using std::string_view;

constexpr uint32_t kTuples = 4096;
// Of instances whose operands are fragments of matrices.
constexpr uint32_t kMatrixTuples = 1024;
// Of all combinations of edge values, at most so many.
constexpr uint32_t kEdgeTuples = 1024;

// Deterministic and the same everywhere, which the standard's distributions are not. Source:
// Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (SplitMix64).
class Random {
 public:
  explicit Random(string_view seed) {
    for (const char each : seed) state_ = (state_ ^ static_cast<uint8_t>(each)) * 0x100000001B3;
  }
  uint64_t Next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
    z = (z ^ z >> 27) * 0x94D049BB133111EB;
    return z ^ z >> 31;
  }
  uint64_t Below(uint64_t end) { return Next() % end; }

 private:
  uint64_t state_ = 0xCBF29CE484222325;
};

// What a floating point type is made of.
struct FloatFormat {
  uint32_t bits;
  uint32_t mantissa_bits;
  uint32_t exponent_bits() const { return bits - 1 - mantissa_bits; }
  uint64_t bias() const { return (uint64_t{1} << (exponent_bits() - 1)) - 1; }
  uint64_t infinity() const { return ((uint64_t{1} << exponent_bits()) - 1) << mantissa_bits; }
  uint64_t sign() const { return uint64_t{1} << (bits - 1); }
  uint64_t one() const { return bias() << mantissa_bits; }
};

constexpr FloatFormat kHalf = {16, 10};
constexpr FloatFormat kBfloat = {16, 7};
constexpr FloatFormat kFloat = {32, 23};
constexpr FloatFormat kDouble = {64, 52};

const FloatFormat* FormatOf(string_view type) {
  if (type.starts_with("f16")) return &kHalf;
  if (type.starts_with("bf16")) return &kBfloat;
  if (type == "f32" || type == "n1" || type == "f32i" || type == "tf32") return &kFloat;
  if (type == "f64" || type == "f64i") return &kDouble;
  return nullptr;
}

bool IsPacked(string_view type) { return type.find("x2") != string_view::npos; }

uint64_t FloatBits(const FloatFormat& format, double value) {
  if (format.bits == 64) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
  }
  const float narrow = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &narrow, sizeof(bits));
  if (format.bits == 32) return bits;
  if (format.mantissa_bits == 7) return bits >> 16;
  // Only for numbers that a half has exactly.
  if (value == 0) return bits >> 16;
  const uint32_t exponent = (bits >> 23 & 0xFF) - 127 + 15;
  return (bits >> 16 & 0x8000) | exponent << 10 | (bits >> 13 & 0x3FF);
}

// The most telling ones first: combinations of several sources use the first few.
std::vector<uint64_t> FloatEdges(const FloatFormat& format) {
  const uint64_t one = format.one();
  const uint64_t infinity = format.infinity();
  const uint64_t sign = format.sign();
  const uint64_t normal = uint64_t{1} << format.mantissa_bits;
  auto power = [&](int64_t exponent) {
    return (format.bias() + static_cast<uint64_t>(exponent)) << format.mantissa_bits;
  };
  std::vector<uint64_t> edges = {
      0, sign, one, sign | (one + 1), infinity, infinity | 1, normal - 1, infinity - 1, sign | 1,
      sign | infinity, one + normal / 2, normal, sign | (one - 1),
      // A quiet NaN with a sign and a payload, halves, and what rounds in conversions to integers.
      sign | infinity | normal / 2 | 5, one - normal, sign | (one - normal), power(1) | normal / 4,
      sign | power(1) | normal / 4, 1, sign | (normal - 1), sign | normal, sign | (infinity - 1),
      power(7), sign | power(7)};
  if (format.bits >= 32) {
    for (const int64_t exponent : {8, 15, 16, 23, 31, 32, 63, 64}) {
      edges.insert(edges.end(), {power(exponent), sign | power(exponent), power(exponent) - 1,
                                 power(exponent) + 1, sign | (power(exponent) + 1)});
    }
    // Around the largest half and bfloat, and where they and floats become subnormal or zero.
    for (const double value : {65504.0, 65519.99, 65520.0, 65536.0, 3.3895313892515355e38,
                               3.3961775e38, 6.1035e-5, 5.96e-8, 2.98e-8, 2.99e-8, 448.0, 464.0,
                               465.0, 57344.0, 61440.0, 0.0009765625, 0.001953125, 1.5e-5}) {
      edges.push_back(FloatBits(format, value));
      edges.push_back(sign | FloatBits(format, value));
    }
  }
  if (format.bits == 64) {
    for (const double value :
         {3.4028234663852886e38, 3.4028235677973366e38, 1.1754943508222875e-38, 1.1754942e-38,
          1.4e-45, 7e-46, 7.1e-46, 1e300, 2147483647.5, 4294967295.5, 1e-310}) {
      edges.push_back(FloatBits(format, value));
      edges.push_back(sign | FloatBits(format, value));
    }
  }
  return edges;
}

std::vector<uint64_t> IntegerEdges(uint32_t bits) {
  const uint64_t ones = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
  const uint64_t top = uint64_t{1} << (bits - 1);
  std::vector<uint64_t> edges = {0, 1, ones, top, top - 1, 2, ones - 1, 3, 0x55, 10};
  for (uint32_t shift = 7; shift < bits; shift += shift % 8 == 7 ? 1 : 7) {
    const uint64_t power = uint64_t{1} << shift;
    edges.insert(edges.end(), {power, power - 1, power + 1, ones ^ power, ones - power});
  }
  edges.insert(edges.end(), {0x0123456789ABCDEF & ones, 0xFEDCBA9876543210 & ones,
                             0xAAAAAAAAAAAAAAAA & ones, 0x80FF7F0180FF7F01 & ones});
  return edges;
}

std::vector<uint64_t> Edges(string_view type) {
  if (type == "pred") return {0, 1};
  if (type == "n8")
    return {0, 1, 5, 31, 32, 255, 8, 33, 63, 64, 2, 7, 15, 16, 17, 30, 65, 128, 254};
  if (type == "shift") {
    return {0,  1,  31, 32, 33, 63, 64, 0xFFFFFFFF, 5,   8,
            15, 16, 17, 30, 48, 62, 65, 255,        256, 0x80000000};
  }
  if (type == "shuffle") return {0x1F, 0, 0x181F, 0x1C03, 0x100F, 0x1E01, 0x1F1F, 0x0007};
  if (const FloatFormat* format = FormatOf(type)) {
    std::vector<uint64_t> edges = FloatEdges(*format);
    if (!IsPacked(type)) return edges;
    // Each with another one beside it.
    std::vector<uint64_t> pairs;
    for (size_t i = 0; i < edges.size(); ++i) {
      pairs.push_back(edges[i] | edges[(i * 7 + 3) % edges.size()] << 16);
    }
    return pairs;
  }
  const uint32_t bits = RegisterBits(type);
  return IntegerEdges(type == "u8" || type == "s8" ? 8 : bits);
}

uint64_t RandomFloat(const FloatFormat& format, Random& random) {
  const uint64_t bits = random.Next() >> (64 - format.bits);
  const uint64_t mantissa = bits & ((uint64_t{1} << format.mantissa_bits) - 1);
  const uint64_t sign = bits & format.sign();
  switch (random.Below(6)) {
    case 0:  // anything
    case 1:
      return bits;
    case 2:  // subnormal
      return sign | mantissa;
    case 3:  // few bits, so that sums and products end in ties
      return sign | (format.bias() - 2 + random.Below(5)) << format.mantissa_bits |
             (mantissa & ~((uint64_t{1} << (format.mantissa_bits - 2)) - 1));
    default:  // of common size
      return sign | (format.bias() - 6 + random.Below(13)) << format.mantissa_bits | mantissa;
  }
}

uint64_t RandomValue(string_view type, uint32_t tuple, uint64_t first, Random& random) {
  if (type == "pred") return random.Next() & 1;
  if (type == "n8") return random.Below(random.Below(2) == 0 ? 40 : 256);
  if (type == "shift") return random.Below(random.Below(4) == 0 ? uint64_t{1} << 32 : 70);
  if (type == "shuffle") return random.Next() & 0x1F1F;
  // Some warps agree.
  if (type.starts_with("few:")) return tuple / 32 % 4 == 0 ? 7 : random.Below(4) + 0x100000001;
  if (type.starts_with("same:")) return random.Below(2) == 0 ? first : random.Next();
  // Coordinates, most of them inside of images.h's, and a layer.
  auto number = [&random](double low, uint64_t steps, double step) {
    return FloatBits(kFloat, low + static_cast<double>(random.Below(steps)) * step);
  };
  if (type == "at:texels") return number(-8, 28 * 256, 1.0 / 256);
  if (type == "at:parts") return number(-1.5, 4 * 64, 1.0 / 64);
  if (type == "at:direction") return number(-2, 1 << 20, 4.0 / (1 << 20));
  if (type == "at:face") return number(-2, 4 * 512 + 1, 1.0 / 512);
  if (type == "at:index") return random.Below(24) - 6;
  if (type == "at:layer") return random.Below(5) - 1;
  if (type == "n1")
    return FloatBits(kFloat, 0.5 + 1.5 * static_cast<double>(random.Below(1 << 20)) / (1 << 20));
  const FloatFormat* format = FormatOf(type);
  if (format != nullptr && type.ends_with("i")) {
    auto small = [&] { return FloatBits(*format, static_cast<double>(random.Below(17)) - 8); };
    const uint64_t value = small();
    return IsPacked(type) ? value | small() << 16 : value;
  }
  if (format != nullptr) {
    const uint64_t value = RandomFloat(*format, random);
    return IsPacked(type) ? value | RandomFloat(*format, random) << 16 : value;
  }
  const uint64_t bits = random.Next();
  switch (random.Below(4)) {
    case 0: {  // of any size, and negative as often
      const uint64_t value = bits >> random.Below(64);
      return random.Below(2) == 0 ? value : ~value;
    }
    case 1: {
      const std::vector<uint64_t> edges = Edges(type);
      return edges[bits % edges.size()] + random.Below(5) - 2;
    }
    default:
      return bits;
  }
}

}  // namespace

uint32_t RegisterBits(string_view type) {
  if (type == "pred") return 1;
  if (IsPacked(type)) return 32;
  if (type.ends_with("64") || type == "f64i") return 64;
  if (type.ends_with("16")) return 16;
  return 32;
}

uint32_t TupleCount(std::span<const Operand> sources) {
  for (const Operand& source : sources) {
    if (source.count > 1) return kMatrixTuples;
  }
  return kTuples;
}

SourceValues MakeValues(const Instance& instance) {
  const std::vector<Operand>& sources = instance.sources;
  const uint32_t tuples = TupleCount(sources);
  Random random(instance.Signature());
  SourceValues values(sources.size());
  for (uint32_t tuple = 0; tuple < tuples; ++tuple) {
    for (size_t i = 0; i < sources.size(); ++i) {
      for (uint32_t k = 0; k < sources[i].count; ++k) {
        const uint64_t first = i == 0 ? 0 : values[0][tuple * sources[0].count];
        values[i].push_back(RandomValue(sources[i].type, tuple, first, random));
      }
    }
  }
  if (tuples == kMatrixTuples) return values;
  // Over the first of them, combinations of edge values: as many of each source as there is room
  // for.
  const bool combines = std::none_of(sources.begin(), sources.end(), [](const Operand& source) {
    return source.type.find(':') != std::string::npos || source.type == "n1";
  });
  if (!combines) return values;
  std::vector<std::vector<uint64_t>> edges;
  for (const Operand& source : sources) edges.push_back(Edges(source.type));
  std::vector<size_t> take(sources.size(), 1);
  for (bool grows = true; grows;) {
    grows = false;
    for (size_t i = 0; i < take.size(); ++i) {
      size_t product = 1;
      for (const size_t count : take) product *= count;
      if (take[i] == edges[i].size() || product / take[i] * (take[i] + 1) > kEdgeTuples) continue;
      ++take[i];
      grows = true;
    }
  }
  size_t product = 1;
  for (const size_t count : take) product *= count;
  for (size_t tuple = 0; tuple < product; ++tuple) {
    size_t rest = tuple;
    for (size_t i = 0; i < sources.size(); ++i) {
      values[i][tuple] = edges[i][rest % take[i]];
      rest /= take[i];
    }
  }
  return values;
}

uint32_t Parts(string_view type) { return IsPacked(type) ? 2 : 1; }

uint64_t Canonical(string_view type, uint64_t bits) {
  const FloatFormat* format = FormatOf(type);
  if (format == nullptr) return bits;
  uint64_t result = 0;
  for (uint32_t part = 0; part < Parts(type); ++part) {
    uint64_t value = bits >> (part * 16);
    if (format->bits < 64) value &= (uint64_t{1} << format->bits) - 1;
    const uint64_t magnitude = value & ~format->sign();
    if (magnitude > format->infinity())
      value = format->infinity() | 1;
    else if (type == "tf32")
      value &= ~uint64_t{0x1FFF};
    result |= value << (part * 16);
  }
  return result;
}

double Number(string_view type, uint64_t bits, uint32_t part) {
  const FloatFormat& format = *FormatOf(type);
  bits >>= part * 16;
  const uint64_t mantissa = bits & ((uint64_t{1} << format.mantissa_bits) - 1);
  const uint64_t exponent = (bits & format.infinity()) >> format.mantissa_bits;
  double value;
  if ((bits & format.infinity()) == format.infinity()) {
    value = mantissa != 0 ? std::nan("") : HUGE_VAL;
  } else {
    const double whole =
        static_cast<double>(mantissa) +
        (exponent != 0 ? std::ldexp(1.0, static_cast<int>(format.mantissa_bits)) : 0);
    value = std::ldexp(whole, static_cast<int>(std::max<uint64_t>(exponent, 1)) -
                                  static_cast<int>(format.bias() + format.mantissa_bits));
  }
  return (bits & format.sign()) != 0 ? -value : value;
}

double Ulp(string_view type, double value) {
  const FloatFormat& format = *FormatOf(type);
  const int lowest = 1 - static_cast<int>(format.bias());
  const int exponent =
      value == 0 || !std::isfinite(value) ? lowest : std::max(std::ilogb(value), lowest);
  return std::ldexp(1.0, exponent - static_cast<int>(format.mantissa_bits));
}

double SmallestNormal(string_view type) {
  return std::ldexp(1.0, 1 - static_cast<int>(FormatOf(type)->bias()));
}

double Largest(string_view type) { return Number(type, FormatOf(type)->infinity() - 1, 0); }

}  // namespace consort::ptx_suite
