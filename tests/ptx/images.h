// SPDX-License-Identifier: Apache-2.0
// tests/ptx/images.h: textures and surfaces that instances read and write, each made of its name.
//
//   @2d.f32x4.linear.clamp.norm    a texture of a two-dimensional array of four floats a texel
//
// After the geometry and the format come, in any order: `linear` (else the nearest texel), `wrap`,
// `mirror` or `border` (else clamp), `norm` (coordinates from 0 to 1), `unorm` (integers are read
// as parts of 1), `srgb` (those parts are sRGB). Geometries are those of PTX (1d 2d 3d a1d a2d cube
// acube), `line` (of linear memory) and `pitch` (of rows of it), and with `surf` before them
// surfaces: `own` is a surface of two dimensions with a texel for each tuple, others have the
// texels that textures have. Contents are fixed. Code that names an image gets its handle in a
// register.
#ifndef CONSORT_TESTS_PTX_IMAGES_H_
#define CONSORT_TESTS_PTX_IMAGES_H_

#include <cuda.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/ptx/instruction_rows.h"

namespace consort::ptx_suite {

// Texels of every image but `own`, in each direction that its geometry has, and its layers.
inline constexpr uint32_t kImageWidth = 12;
inline constexpr uint32_t kImageHeight = 10;
inline constexpr uint32_t kImageDepth = 5;
inline constexpr uint32_t kImageLayers = 3;
inline constexpr uint32_t kImageSide = 8;  // of the faces of cubes
inline constexpr uint32_t kOwnSide = 64;

struct Image {
  enum class Memory { kArray, kLine, kPitch };
  Memory memory = Memory::kArray;
  bool is_surface = false;
  CUDA_ARRAY3D_DESCRIPTOR shape = {};
  uint32_t texel_bytes = 0;
  std::vector<std::byte> texels;  // rows and slices without gaps
  CUDA_TEXTURE_DESC sampling = {};

  // From the name without its @.
  static Image Named(std::string_view name);
};

// The names of the images that the instances use, without @, each once.
std::vector<std::string> ImagesOf(std::span<const Instance> instances);

// The registers %o0, %o1, ... in place of the names, which `images` has.
std::string WithRegisters(const std::string& code, std::span<const std::string> images);

}  // namespace consort::ptx_suite

#endif  // CONSORT_TESTS_PTX_IMAGES_H_
