// SPDX-License-Identifier: Apache-2.0
#include "tests/ptx/images.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace consort::ptx_suite {
namespace {

using std::string;
using std::string_view;

constexpr string_view kNameCharacters = "abcdefghijklmnopqrstuvwxyz0123456789.";

struct Format {
  string_view name;
  CUarray_format format;
  uint32_t bytes;
};

constexpr Format kFormats[] = {
    {"u8", CU_AD_FORMAT_UNSIGNED_INT8, 1},   {"u16", CU_AD_FORMAT_UNSIGNED_INT16, 2},
    {"u32", CU_AD_FORMAT_UNSIGNED_INT32, 4}, {"s8", CU_AD_FORMAT_SIGNED_INT8, 1},
    {"s16", CU_AD_FORMAT_SIGNED_INT16, 2},   {"s32", CU_AD_FORMAT_SIGNED_INT32, 4},
    {"f16", CU_AD_FORMAT_HALF, 2},           {"f32", CU_AD_FORMAT_FLOAT, 4},
};

// The end of the image's name that begins at `at`.
size_t EndOfName(string_view code, size_t at) {
  return std::min(code.find_first_not_of(kNameCharacters, at), code.size());
}

// Whole numbers from -64 to 63, of which sums of quarters of parts of 256 are exact.
uint32_t SmallNumber(bool is_half, uint32_t random) {
  const float number = static_cast<float>(static_cast<int>(random % 128) - 64);
  uint32_t bits = 0;
  std::memcpy(&bits, &number, sizeof(bits));
  if (!is_half) return bits;
  const uint32_t sign = bits >> 16 & 0x8000;
  return number == 0 ? 0 : sign | ((bits >> 23 & 0xFF) - 112) << 10 | (bits >> 13 & 0x3FF);
}

std::vector<std::byte> Contents(const Format& format, size_t channels) {
  std::vector<std::byte> contents(channels * format.bytes);
  uint64_t state = 0x9E3779B97F4A7C15;
  for (size_t i = 0; i < channels; ++i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    auto value = static_cast<uint32_t>(state >> 33);
    if (format.name[0] == 'f') value = SmallNumber(format.bytes == 2, value);
    std::memcpy(&contents[i * format.bytes], &value, format.bytes);
  }
  return contents;
}

[[noreturn]] void Refuse(string_view name) {
  std::fprintf(stderr, "no image is called @%.*s\n", static_cast<int>(name.size()), name.data());
  std::exit(2);
}

// False: no geometry has that name.
bool SetGeometry(string_view word, Image* image) {
  CUDA_ARRAY3D_DESCRIPTOR& shape = image->shape;
  shape.Width = kImageWidth;
  const bool is_cube = word.ends_with("cube");
  if (is_cube) {
    shape.Width = shape.Height = kImageSide;
    shape.Depth = word == "cube" ? 6 : 6 * kImageLayers;
    shape.Flags = CUDA_ARRAY3D_CUBEMAP;
  } else if (word == "2d" || word == "3d" || word == "a2d" || word == "pitch") {
    shape.Height = kImageHeight;
  } else if (word == "own") {
    shape.Width = shape.Height = kOwnSide;
  } else if (word != "1d" && word != "a1d" && word != "line") {
    return false;
  }
  if (word == "3d") shape.Depth = kImageDepth;
  if (word[0] == 'a') {
    shape.Flags |= CUDA_ARRAY3D_LAYERED;
    if (!is_cube) shape.Depth = kImageLayers;
  }
  if (word == "line") image->memory = Image::Memory::kLine;
  if (word == "pitch") image->memory = Image::Memory::kPitch;
  return true;
}

bool SetFormat(string_view word, Image* image, const Format** chosen) {
  for (const Format& format : kFormats) {
    if (!word.starts_with(format.name) || word.size() != format.name.size() + 2 ||
        word[format.name.size()] != 'x') {
      continue;
    }
    image->shape.Format = format.format;
    image->shape.NumChannels = static_cast<unsigned>(word.back() - '0');
    image->texel_bytes = format.bytes * image->shape.NumChannels;
    *chosen = &format;
    return true;
  }
  return false;
}

bool SetSampling(string_view word, CUDA_TEXTURE_DESC* sampling) {
  auto address = [sampling](CUaddress_mode mode) {
    std::fill(std::begin(sampling->addressMode), std::end(sampling->addressMode), mode);
  };
  if (word == "linear") {
    sampling->filterMode = CU_TR_FILTER_MODE_LINEAR;
  } else if (word == "wrap") {
    address(CU_TR_ADDRESS_MODE_WRAP);
  } else if (word == "mirror") {
    address(CU_TR_ADDRESS_MODE_MIRROR);
  } else if (word == "border") {
    address(CU_TR_ADDRESS_MODE_BORDER);
  } else if (word == "norm") {
    sampling->flags |= CU_TRSF_NORMALIZED_COORDINATES;
  } else if (word == "unorm") {
    sampling->flags &= ~static_cast<unsigned>(CU_TRSF_READ_AS_INTEGER);
  } else if (word == "srgb") {
    sampling->flags |= CU_TRSF_SRGB;
  } else {
    return word == "nearest" || word == "clamp";
  }
  return true;
}

}  // namespace

Image Image::Named(string_view name) {
  Image image;
  const Format* format = nullptr;
  bool has_geometry = false;
  std::fill(std::begin(image.sampling.addressMode), std::end(image.sampling.addressMode),
            CU_TR_ADDRESS_MODE_CLAMP);
  image.sampling.filterMode = CU_TR_FILTER_MODE_POINT;
  image.sampling.flags = CU_TRSF_READ_AS_INTEGER;
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const string_view word = name.substr(begin, end - begin);
    begin = end + 1;
    if (word == "surf") {
      image.is_surface = true;
    } else if (!has_geometry) {
      has_geometry = SetGeometry(word, &image);
      if (!has_geometry) Refuse(name);
    } else if (format == nullptr ? !SetFormat(word, &image, &format)
                                 : !SetSampling(word, &image.sampling)) {
      Refuse(name);
    }
  }
  if (format == nullptr) Refuse(name);
  if (image.is_surface) image.shape.Flags |= CUDA_ARRAY3D_SURFACE_LDST;
  const CUDA_ARRAY3D_DESCRIPTOR& shape = image.shape;
  const size_t texels =
      shape.Width * std::max<size_t>(shape.Height, 1) * std::max<size_t>(shape.Depth, 1);
  image.texels = Contents(*format, texels * shape.NumChannels);
  return image;
}

std::vector<string> ImagesOf(std::span<const Instance> instances) {
  std::vector<string> images;
  for (const Instance& instance : instances) {
    const string& code = instance.code;
    for (size_t at = code.find('@'); at != string::npos; at = code.find('@', at + 1)) {
      // @%p guards an instruction.
      const string name = code.substr(at + 1, EndOfName(code, at + 1) - at - 1);
      if (name.empty() || std::find(images.begin(), images.end(), name) != images.end()) continue;
      images.push_back(name);
    }
  }
  return images;
}

string WithRegisters(const string& code, std::span<const string> images) {
  string text;
  for (size_t at = 0; at < code.size();) {
    const size_t end = code[at] == '@' ? EndOfName(code, at + 1) : at + 1;
    const auto image = std::find(images.begin(), images.end(), code.substr(at + 1, end - at - 1));
    if (code[at] == '@' && image != images.end()) {
      text += "%o" + std::to_string(image - images.begin());
    } else {
      text += code.substr(at, end - at);
    }
    at = end;
  }
  return text;
}

}  // namespace consort::ptx_suite
