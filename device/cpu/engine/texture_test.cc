// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/texture_test.cc: what a texture fetch gives, by the formulas of the CUDA C++
// Programming Guide, "Texture Fetching", computed here by hand; and the instructions.
#include "device/cpu/texture.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "device/cpu/program.h"
#include "gtest/gtest.h"

namespace consort::cpu {
namespace {

TexelGrid FloatGrid(const std::vector<float>& texels, uint64_t width, uint64_t height = 1,
                    uint64_t slices = 1) {
  TexelGrid grid;
  grid.base = reinterpret_cast<uintptr_t>(texels.data());
  grid.width = width, grid.height = height, grid.slices = slices;
  grid.pitch = width * sizeof(float);
  grid.slice_bytes = grid.pitch * height;
  grid.kind = ChannelKind::kFloat;
  grid.channel_bytes = sizeof(float);
  return grid;
}

TextureQuery At(Geometry geometry, std::vector<float> coordinates) {
  TextureQuery query;
  query.geometry = geometry;
  for (size_t i = 0; i < coordinates.size(); ++i) {
    query.bits[i] = std::bit_cast<uint32_t>(coordinates[i]);
  }
  return query;
}

float First(const TextureObject& object, const TextureQuery& query) {
  return std::bit_cast<float>(SampleTexture(object, query)[0]);
}

class TextureTest : public ::testing::Test {
 protected:
  const std::vector<float> four_ = {10, 20, 30, 40};
};

TEST_F(TextureTest, NearestTakesTheTexelThatHoldsThePoint) {
  TextureObject object{.grid = FloatGrid(four_, 4)};
  EXPECT_EQ(First(object, At(Geometry::k1D, {0.99f})), 10);
  EXPECT_EQ(First(object, At(Geometry::k1D, {1.0f})), 20);
  object.normalised = true;
  EXPECT_EQ(First(object, At(Geometry::k1D, {0.74f})), 30);
}

TEST_F(TextureTest, AddressModes) {
  TextureObject object{.grid = FloatGrid(four_, 4)};
  object.border[0] = 7;
  const auto at = [&](AddressMode mode, bool normalised, float x) {
    object.address[0] = mode;
    object.normalised = normalised;
    return First(object, At(Geometry::k1D, {x}));
  };
  EXPECT_EQ(at(AddressMode::kClamp, false, -3), 10);
  EXPECT_EQ(at(AddressMode::kClamp, false, 99), 40);
  EXPECT_EQ(at(AddressMode::kBorder, false, -0.5f), 7);
  EXPECT_EQ(at(AddressMode::kBorder, false, 4), 7);
  EXPECT_EQ(at(AddressMode::kWrap, true, 1.3f), 20);
  EXPECT_EQ(at(AddressMode::kWrap, true, -0.1f), 40);
  EXPECT_EQ(at(AddressMode::kMirror, true, 1.1f), 40);
  EXPECT_EQ(at(AddressMode::kMirror, true, -0.3f), 20);
  EXPECT_EQ(at(AddressMode::kWrap, false, 4.5f), 40) << "wrapping needs normalised coordinates";
  EXPECT_EQ(at(AddressMode::kClamp, false, std::bit_cast<float>(0x7FC0'0000)), 10) << "NaN";
  EXPECT_EQ(at(AddressMode::kClamp, false, 3e38f), 40);
}

TEST_F(TextureTest, LinearMixesInSteps) {
  TextureObject object{.grid = FloatGrid(four_, 2, 2)};
  object.linear_filter = true;
  EXPECT_EQ(First(object, At(Geometry::k2D, {1, 0.5f})), 15);
  EXPECT_EQ(First(object, At(Geometry::k2D, {1, 1})), 25);
  EXPECT_EQ(First(object, At(Geometry::k2D, {0, 0})), 10) << "half outside, clamped";
  // 1/3 of the way has 8 bits of fraction: 85/256.
  EXPECT_EQ(First(object, At(Geometry::k2D, {0.5f + 1.0f / 3, 0.5f})), 10 + 10 * 85.0f / 256);
  object.address[0] = AddressMode::kBorder;
  EXPECT_EQ(First(object, At(Geometry::k2D, {0, 0.5f})), 5) << "half of it the border";
}

TEST_F(TextureTest, ThreeDimensionsAndLayers) {
  const std::vector<float> eight = {0, 1, 2, 3, 4, 5, 6, 7};
  TextureObject object{.grid = FloatGrid(eight, 2, 2, 2)};
  EXPECT_EQ(First(object, At(Geometry::k3D, {1.5f, 0.5f, 1.5f})), 5);
  object.linear_filter = true;
  EXPECT_EQ(First(object, At(Geometry::k3D, {1, 1, 1})), 3.5f);
  TextureQuery layered = At(Geometry::kLayered2D, {0, 1, 1});
  layered.bits[0] = 1;
  EXPECT_EQ(First(object, layered), 5.5f) << "layers are not mixed";
  layered.bits[0] = 9;
  EXPECT_EQ(First(object, layered), 5.5f) << "a layer outside is the last one";
  layered.bits[0] = static_cast<uint32_t>(-1);
  EXPECT_EQ(First(object, layered), 5.5f) << "layers have no sign";
}

TEST_F(TextureTest, CubesChooseAFace) {
  const std::vector<float> faces = {0, 1, 2, 3, 4, 5};
  const TextureObject object{.grid = FloatGrid(faces, 1, 1, 6)};
  const float directions[6][3] = {{1, 0, 0},  {-1, 0, 0}, {0, 1, 0},
                                  {0, -1, 0}, {0, 0, 1},  {0, 0, -1}};
  for (uint32_t face = 0; face < 6; ++face) {
    const auto& [x, y, z] = directions[face];
    EXPECT_EQ(First(object, At(Geometry::kCube, {x, y, z})), static_cast<float>(face));
  }
  EXPECT_EQ(First(object, At(Geometry::kCube, {1, -1, 0})), 3) << "of x and y, y";
  EXPECT_EQ(First(object, At(Geometry::kCube, {1, 1, -1})), 5) << "of all three, z";
}

TEST_F(TextureTest, IntegersAsTheyAreOrAsFractions) {
  const int8_t signed_texels[] = {-128, 127, -1, 64};
  TextureObject object;
  object.grid.base = reinterpret_cast<uintptr_t>(signed_texels);
  object.grid.width = 2;
  object.grid.pitch = 4;
  object.grid.kind = ChannelKind::kSigned;
  object.grid.channels = 2;
  const auto raw = SampleTexture(object, At(Geometry::k1D, {0}));
  EXPECT_EQ(static_cast<int32_t>(raw[0]), -128);
  EXPECT_EQ(raw[1], 127u);
  EXPECT_EQ(raw[2], 0u);
  EXPECT_EQ(raw[3], 0u) << "a missing fourth channel";
  object.normalised_reads = true;
  const auto fractions = SampleTexture(object, At(Geometry::k1D, {0}));
  EXPECT_EQ(std::bit_cast<float>(fractions[0]), -1);
  EXPECT_EQ(std::bit_cast<float>(fractions[1]), 1);
  EXPECT_EQ(std::bit_cast<float>(fractions[3]), 0);
}

TEST_F(TextureTest, HalvesAndSrgb) {
  const uint16_t halves[] = {0x3C00, 0xC000, 0x0001, 0x7C00};
  TextureObject object;
  object.grid.base = reinterpret_cast<uintptr_t>(halves);
  object.grid.pitch = 8;
  object.grid.kind = ChannelKind::kFloat;
  object.grid.channel_bytes = 2;
  object.grid.channels = 4;
  const auto texel = SampleTexture(object, At(Geometry::k1D, {0}));
  EXPECT_EQ(std::bit_cast<float>(texel[0]), 1);
  EXPECT_EQ(std::bit_cast<float>(texel[1]), -2);
  EXPECT_EQ(std::bit_cast<float>(texel[2]), 0x1p-24f);
  EXPECT_EQ(texel[3], 0x7F80'0000u);
  const uint8_t grey[] = {255, 0, 188, 188};
  object.grid.base = reinterpret_cast<uintptr_t>(grey);
  object.grid.kind = ChannelKind::kUnsigned;
  object.grid.channel_bytes = 1;
  object.normalised_reads = object.srgb = true;
  const auto linear = SampleTexture(object, At(Geometry::k1D, {0}));
  EXPECT_EQ(std::bit_cast<float>(linear[0]), 1);
  EXPECT_EQ(std::bit_cast<float>(linear[2]), 129.0f / 256) << "0.5029 in eight bits";
  EXPECT_NEAR(std::bit_cast<float>(linear[3]), 188 / 255.0f, 1e-6f) << "alpha is not sRGB";
}

// What an H200 gave (tests/ptx/golden).
TEST_F(TextureTest, SrgbIsMixedInNumbersOfFewBits) {
  const uint8_t bytes[] = {4, 238, 238, 200};
  TextureObject object;
  object.grid.base = reinterpret_cast<uintptr_t>(bytes);
  object.grid.width = 4;
  object.grid.pitch = 4;
  object.grid.kind = ChannelKind::kUnsigned;
  object.normalised_reads = object.srgb = object.linear_filter = true;
  EXPECT_EQ(First(object, At(Geometry::k1D, {0.5f})), 5.0f / 4096);
  EXPECT_EQ(First(object, At(Geometry::k1D, {1.0f})), 3504.0f / 2 / 4096)
      << "beside 238 there is nothing of 4";
  EXPECT_EQ(First(object, At(Geometry::k1D, {2.0f})), 3504.0f / 4096);
  EXPECT_EQ(First(object, At(Geometry::k1D, {3.0f})), (3504.0f + 2368) / 2 / 4096);
}

TEST_F(TextureTest, TheLowestByteIsMixedAsItIs) {
  const int8_t bytes[] = {-128, 127, -128, -128};
  TextureObject object{.grid = {.base = reinterpret_cast<uintptr_t>(bytes),
                                .width = 4,
                                .pitch = 4,
                                .kind = ChannelKind::kSigned}};
  object.normalised_reads = object.linear_filter = true;
  EXPECT_EQ(First(object, At(Geometry::k1D, {1.0f})), -129 / 32767.0f) << "not 0";
  EXPECT_EQ(First(object, At(Geometry::k1D, {3.0f})), -1) << "and no mix is less than -1";
}

TEST_F(TextureTest, BuffersGiveZeroOutside) {
  TextureObject object{.grid = FloatGrid(four_, 4)};
  object.is_buffer = true;
  TextureQuery query;
  query.geometry = Geometry::k1D;
  query.integers = true;
  query.bits[0] = 3;
  EXPECT_EQ(First(object, query), 40);
  query.bits[0] = 4;
  EXPECT_EQ(First(object, query), 0);
  query.bits[0] = static_cast<uint32_t>(-1);
  EXPECT_EQ(First(object, query), 0);
}

TEST_F(TextureTest, IntegersOutsideGetTheBorder) {
  TextureObject object{.grid = FloatGrid(four_, 2, 2)};
  object.border = {7, 0, 0, 0};
  TextureQuery query;
  query.geometry = Geometry::k2D;
  query.integers = true;
  query.bits[0] = 1;
  query.bits[1] = 1;
  EXPECT_EQ(First(object, query), 40);
  query.bits[1] = 2;
  EXPECT_EQ(First(object, query), 7);
  query.bits[1] = static_cast<uint32_t>(-1);
  EXPECT_EQ(First(object, query), 7);
}

TEST_F(TextureTest, GatherGoesRoundTheFootprint) {
  const TextureObject object{.grid = FloatGrid(four_, 2, 2)};
  const auto four = GatherTexture(object, At(Geometry::k2D, {1, 1}), 0);
  EXPECT_EQ(std::bit_cast<float>(four[0]), 30);
  EXPECT_EQ(std::bit_cast<float>(four[1]), 40);
  EXPECT_EQ(std::bit_cast<float>(four[2]), 20);
  EXPECT_EQ(std::bit_cast<float>(four[3]), 10);
}

TEST_F(TextureTest, SurfacesHaveEdges) {
  const TextureObject object{.grid = FloatGrid(four_, 2, 2)};
  const uintptr_t base = object.grid.base;
  EXPECT_EQ(SurfaceAddress(object, 4, 1, 0, 4, false), base + 12);
  EXPECT_EQ(SurfaceAddress(object, 8, 0, 0, 4, false), 0u);
  EXPECT_EQ(SurfaceAddress(object, 4, 0, 0, 8, false), 0u) << "the end of it is outside";
  EXPECT_EQ(SurfaceAddress(object, 2, 0, 0, 4, false), 0u) << "not at an element";
  EXPECT_EQ(SurfaceAddress(object, -4, 0, 0, 4, false), 0u);
  EXPECT_EQ(SurfaceAddress(object, 0, 2, 0, 4, false), 0u);
  EXPECT_EQ(SurfaceAddress(object, 0, 0, 1, 4, false), 0u);
  EXPECT_EQ(SurfaceAddress(object, 99, 99, 99, 4, true), base + 12);
  EXPECT_EQ(SurfaceAddress(object, -99, -1, -1, 4, true), base);
}

TEST(TextureHandleTest, ForgottenOnesAreRefused) {
  const uint64_t handle = AddTexture({});
  ASSERT_NE(handle, 0u);
  EXPECT_NE(FindTexture(handle), nullptr);
  EXPECT_TRUE(ForgetTexture(handle));
  EXPECT_EQ(FindTexture(handle), nullptr);
  EXPECT_FALSE(ForgetTexture(handle));
  const uint64_t next = AddTexture({});
  EXPECT_NE(next, handle);
  EXPECT_EQ(FindTexture(handle), nullptr) << "its slot has another object now";
  EXPECT_TRUE(ForgetTexture(next));
  for (const uint64_t wild : {uint64_t{0}, ~uint64_t{0}, uint64_t{0x1234'5678'9abc'def0}}) {
    EXPECT_EQ(FindTexture(wild), nullptr);
  }
}

// All formats, addresses and filters, each with coordinates inside, at the edges, far away and not
// numbers.
TEST(TexturesOfAGroupTest, ComputeWhatEachFetchDoes) {
  constexpr uint32_t kFetches = 32;
  constexpr uint32_t kNone = 0xEEEE'EEEE;
  std::mt19937 random(20261122);
  std::vector<uint32_t> texels(16 * 1024);
  const std::array<float, 16> edges = {0,   -0.0f, 0.5f, 1,    -1,     12,  12.5f,    13,
                                       -13, 4e6f,  5e6f, 3e9f, -7e30f, NAN, INFINITY, -0.4999f};
  size_t cases = 0;
  for (const ChannelKind kind :
       {ChannelKind::kUnsigned, ChannelKind::kSigned, ChannelKind::kFloat}) {
    for (uint32_t bits = 0; bits < 9 * 4 * 4 * 2 * 2 * 4 * 2; ++bits) {
      uint32_t rest = bits;
      auto one_of = [&](uint32_t count) { return std::exchange(rest, rest / count) % count; };
      TextureObject object;
      object.grid = {.base = reinterpret_cast<uintptr_t>(texels.data()),
                     .width = 13,
                     .height = 11,
                     .slices = 2,
                     .pitch = 256,
                     .slice_bytes = 256 * 11,
                     .kind = kind};
      object.grid.channel_bytes = static_cast<uint8_t>(1u << one_of(3));
      object.grid.channels = static_cast<uint8_t>(1u << one_of(3));
      object.address[0] = static_cast<AddressMode>(one_of(4));
      object.address[1] = static_cast<AddressMode>(one_of(4));
      object.normalised = one_of(2) != 0;
      object.linear_filter = one_of(2) != 0;
      const uint32_t geometry = one_of(4);
      const bool integers = one_of(2) != 0;
      if (kind == ChannelKind::kFloat && object.grid.channel_bytes == 1) continue;
      object.normalised_reads = object.grid.channel_bytes < 4 && random() % 2 == 0;
      object.srgb = random() % 8 == 0;
      object.is_buffer = integers && geometry == 0 && random() % 2 == 0;
      object.border = {0.25f, 3, -1, 0.5f};
      object.grid.base += random() % 3 * object.grid.texel_bytes();
      for (uint32_t& texel : texels) texel = random();
      if (kind == ChannelKind::kFloat && object.grid.channel_bytes == 4) {
        for (uint32_t& texel : texels) {
          texel = std::bit_cast<uint32_t>(static_cast<float>(random()) / 65536 - 1000);
        }
        texels[64 * 5 + 3] = std::bit_cast<uint32_t>(INFINITY);
      }
      constexpr Geometry kGeometries[] = {Geometry::k1D, Geometry::k2D, Geometry::k3D,
                                          Geometry::kLayered2D};
      std::array<std::array<uint32_t, kFetches>, 4> coordinates;
      const bool far = random() % 4 == 0;
      for (auto& values : coordinates) {
        for (uint32_t& value : values) {
          const auto place = static_cast<int32_t>(random() % 60) - 20;
          if (integers) {
            value = static_cast<uint32_t>(place) * (far && random() % 9 == 0 ? 70000000u : 1u);
          } else {
            const float part = static_cast<float>(random() % 4096) / 4096;
            const float inside = static_cast<float>(place) + (random() % 4 == 0 ? 0.5f : part);
            value = std::bit_cast<uint32_t>(far && random() % 9 == 0 ? edges[random() % 16]
                                            : object.normalised      ? inside / 13
                                                                     : inside);
          }
        }
      }
      TextureQueries queries{kGeometries[geometry], integers, {}};
      for (size_t i = 0; i < 4; ++i) queries.bits[i] = coordinates[i].data();
      if (geometry == 0) queries.bits[1] = queries.bits[2] = queries.bits[3] = nullptr;
      const uint32_t here = random() % 2 == 0 ? ~0u : random() & random();
      std::array<uint32_t, 4 * kFetches> results;
      results.fill(kNone);
      SampleTextures(object, queries, here, results.data(), kFetches);
      ++cases;
      for (uint32_t fetch = 0; fetch < kFetches; ++fetch) {
        std::array<uint32_t, 4> expected = {kNone, kNone, kNone, kNone};
        if ((here >> fetch & 1) != 0) expected = SampleTexture(object, queries.Of(fetch));
        for (uint32_t channel = 0; channel < 4; ++channel) {
          ASSERT_EQ(results[channel * kFetches + fetch], expected[channel])
              << "kind " << static_cast<int>(kind) << " case " << bits << " fetch " << fetch
              << " channel " << channel;
        }
      }
    }
  }
  EXPECT_GT(cases, 10000u);
}

// A kernel of `count` threads in a row with a 64-bit object and a pointer; `body` may use %r1 (the
// thread's number), %f1 (the same as a float), %rd1 (the object) and %rd3 (its 16 bytes of output).
std::string KernelOf(const std::string& body) {
  return R"(.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 object, .param .u64 out) {
  .reg .b16 %h<9>;
  .reg .b32 %r<20>;
  .reg .f32 %f<20>;
  .reg .b64 %rd<9>;
  ld.param.u64 %rd1, [object];
  ld.param.u64 %rd2, [out];
  mov.u32 %r1, %tid.x;
  cvt.rn.f32.u32 %f1, %r1;
  mad.wide.u32 %rd3, %r1, 16, %rd2;
)" + body +
         "\n  ret;\n}\n";
}

LaunchFault RunKernel(const std::string& body, uint64_t object, void* out, uint32_t threads) {
  auto program = Program::Load(KernelOf(body));
  EXPECT_TRUE(program.ok()) << program.status();
  if (!program.ok()) return LaunchFault::kTrap;
  const uint64_t params[] = {object, reinterpret_cast<uint64_t>(out)};
  LaunchShape shape;
  shape.block[0] = threads;
  return (*program)->Run(0, shape, params, 2);
}

TEST(TextureInstructionTest, FetchesOfManyThreads) {
  std::vector<float> texels(64);
  for (size_t i = 0; i < texels.size(); ++i) texels[i] = static_cast<float>(i * i);
  const uint64_t handle = AddTexture({.grid = FloatGrid(texels, 64)});
  for (const uint32_t threads : {1u, 40u, 64u}) {
    std::vector<float> out(threads * 4);
    EXPECT_EQ(RunKernel("tex.1d.v4.f32.f32 {%f2, %f3, %f4, %f5}, [%rd1, {%f1}];"
                        "st.global.v4.f32 [%rd3], {%f2, %f3, %f4, %f5};",
                        handle, out.data(), threads),
              LaunchFault::kNone);
    for (uint32_t i = 0; i < threads; ++i) {
      EXPECT_EQ(out[4 * i], texels[i]) << i;
      EXPECT_EQ(out[4 * i + 3], 0);
    }
  }
  // Integer coordinates, which reach lines in linear memory only, a level that is ignored, and a
  // query; half of the threads only.
  const uint64_t buffer = AddTexture({.grid = FloatGrid(texels, 64), .is_buffer = true});
  std::vector<uint32_t> out(64 * 4);
  const std::string buffer_text = std::to_string(buffer);
  EXPECT_EQ(RunKernel(".reg .pred %p<2>;"
                      "and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 1; @%p1 bra OUT;"
                      "tex.1d.v4.u32.s32 {%r10, %r4, %r5, %r6}, [%rd1, {%r1}]; mov.u64 %rd4, " +
                          buffer_text +
                          "; tex.1d.v4.u32.s32 {%r3, %r4, %r5, %r6}, [%rd4, {%r1}];"
                          "or.b32 %r3, %r3, %r10;"
                          "tex.level.1d.v4.f32.f32 {%f2, %f3, %f4, %f5}, [%rd1, {%f1}], %f1;"
                          "txq.width.b32 %r7, [%rd1];"
                          "st.global.u32 [%rd3], %r3; st.global.f32 [%rd3+4], %f2;"
                          "st.global.u32 [%rd3+8], %r7; OUT:",
                      handle, out.data(), 64),
            LaunchFault::kNone);
  for (uint32_t i = 0; i < 64; ++i) {
    const uint32_t expected = i % 2 == 0 ? std::bit_cast<uint32_t>(texels[i]) : 0;
    EXPECT_EQ(out[4 * i], expected) << i;
    EXPECT_EQ(out[4 * i + 1], expected) << i;
    EXPECT_EQ(out[4 * i + 2], i % 2 == 0 ? 64u : 0u) << i;
  }
  EXPECT_TRUE(ForgetTexture(handle));
  EXPECT_EQ(
      RunKernel("tex.1d.v4.f32.f32 {%f2, %f3, %f4, %f5}, [%rd1, {%f1}];", handle, out.data(), 1),
      LaunchFault::kIllegalAddress);
}

TEST(TextureInstructionTest, LanesMayDifferInObjectAndNumber) {
  std::vector<float> low(8 * 8), high(8 * 8);
  for (size_t i = 0; i < low.size(); ++i) {
    low[i] = static_cast<float>(i * 3);
    high[i] = low[i] + 1000;
  }
  TextureObject object{.grid = FloatGrid(low, 8, 8)};
  object.linear_filter = true;
  const uint64_t first = AddTexture(object);
  object.grid.base = reinterpret_cast<uintptr_t>(high.data());
  const uint64_t second = AddTexture(object);
  const uint64_t handles[] = {first, second};
  // Thread t fetches at (t / 3, t / 16): in a loop of as many turns as the lowest bits of t say,
  // and of both objects in turn.
  std::vector<float> out(64 * 4);
  ASSERT_EQ(RunKernel(R"(.reg .pred %p<4>;
      ld.global.u64 %rd4, [%rd1]; ld.global.u64 %rd5, [%rd1+8];
      div.rn.f32 %f2, %f1, 0f40400000; div.rn.f32 %f3, %f1, 0f41800000; mov.f32 %f10, 0f00000000;
      and.b32 %r2, %r1, 3; and.b32 %r3, %r1, 1; setp.ne.u32 %p1, %r3, 0; mov.u32 %r4, 0;
      selp.b64 %rd6, %rd5, %rd4, %p1;
      AGAIN: setp.ge.u32 %p2, %r4, %r2; @%p2 bra OUT;
      tex.2d.v4.f32.f32 {%f4, %f5, %f6, %f7}, [%rd4, {%f2, %f3}]; add.f32 %f10, %f10, %f4;
      add.u32 %r4, %r4, 1; bra AGAIN;
      OUT: tex.2d.v4.f32.f32 {%f4, %f5, %f6, %f7}, [%rd6, {%f2, %f3}];
      st.global.v4.f32 [%rd3], {%f10, %f4, %f5, %f7};)",
                      reinterpret_cast<uint64_t>(handles), out.data(), 64),
            LaunchFault::kNone);
  for (uint32_t t = 0; t < 64; ++t) {
    const float x = static_cast<float>(t) / 3, y = static_cast<float>(t) / 16;
    object.grid.base = reinterpret_cast<uintptr_t>(low.data());
    const float once = First(object, At(Geometry::k2D, {x, y}));
    float sum = 0;
    for (uint32_t turn = 0; turn < t % 4; ++turn) sum += once;
    EXPECT_EQ(out[4 * t], sum) << t;
    if (t % 2 == 1) object.grid.base = reinterpret_cast<uintptr_t>(high.data());
    EXPECT_EQ(out[4 * t + 1], First(object, At(Geometry::k2D, {x, y}))) << t;
    EXPECT_EQ(out[4 * t + 2], 0) << t;
    EXPECT_EQ(out[4 * t + 3], 0) << t;
  }
  for (const uint64_t handle : handles) EXPECT_TRUE(ForgetTexture(handle));
}

TEST(SurfaceInstructionTest, LoadsAndStores) {
  std::vector<uint8_t> texels(64 * 8);
  TextureObject object;
  object.is_surface = true;
  object.grid = {.base = reinterpret_cast<uintptr_t>(texels.data()),
                 .width = 64,
                 .height = 2,
                 .pitch = 256,
                 .slice_bytes = 512,
                 .channels = 4};
  const uint64_t handle = AddTexture(object);
  std::vector<uint32_t> out(64 * 4);
  const std::string store =
      "shl.b32 %r2, %r1, 2; cvt.u16.u32 %h1, %r1;"
      "sust.b.2d.v4.b8.trap [%rd1, {%r2, 1}], {%h1, %h1, %h1, %h1};";
  EXPECT_EQ(
      RunKernel(store + "suld.b.2d.b32.trap %r3, [%rd1, {%r2, 1}]; st.global.u32 [%rd3], %r3;"
                        "suld.b.2d.b32.zero %r4, [%rd1, {%r2, 2}]; st.global.u32 [%rd3+4], %r4;"
                        "suld.b.2d.b32.clamp %r5, [%rd1, {%r2, 2}]; st.global.u32 [%rd3+8], %r5;",
                handle, out.data(), 64),
      LaunchFault::kNone);
  for (uint32_t i = 0; i < 64; ++i) {
    EXPECT_EQ(texels[256 + 4 * i + 3], i);
    EXPECT_EQ(out[4 * i], 0x0101'0101u * i);
    EXPECT_EQ(out[4 * i + 1], 0u);
    EXPECT_EQ(out[4 * i + 2], 0x0101'0101u * i);
  }
  EXPECT_EQ(RunKernel("sust.b.2d.b32.trap [%rd1, {256, 0}], {%r1};", handle, out.data(), 1),
            LaunchFault::kIllegalAddress);
  EXPECT_EQ(RunKernel("sust.b.2d.b32.zero [%rd1, {256, 0}], {%r1};", handle, out.data(), 1),
            LaunchFault::kNone);
  EXPECT_TRUE(ForgetTexture(handle));
  // A texture is no surface.
  const uint64_t texture = AddTexture({.grid = object.grid});
  EXPECT_EQ(RunKernel("suld.b.2d.b32.zero %r4, [%rd1, {0, 0}];", texture, out.data(), 1),
            LaunchFault::kIllegalAddress);
  EXPECT_TRUE(ForgetTexture(texture));
}

TEST(TextureInstructionTest, OtherFormsAreRefusedByName) {
  for (const char* body :
       {"tex.2dms.v4.f32.s32 {%f2, %f3, %f4, %f5}, [%rd1, {%r1, %r1, %r1, %r1}];",
        "txq.num_mipmap_levels.b32 %r7, [%rd1];",
        "tex.1d.v4.f32.u32 {%f2, %f3, %f4, %f5}, [%rd1, {%r1}];"}) {
    const auto program = Program::Load(KernelOf(body));
    ASSERT_FALSE(program.ok()) << body;
    EXPECT_EQ(program.status().code(), absl::StatusCode::kUnimplemented) << program.status();
  }
}

}  // namespace
}  // namespace consort::cpu
