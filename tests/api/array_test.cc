// SPDX-License-Identifier: Apache-2.0
// CUDA arrays, texture and surface objects. Source: CUDA Driver API reference 13.0, "Memory
// Management" (cuArray*, cuMemcpy* with arrays), "Texture Object Management", "Surface Object
// Management"; CUDA C++ Programming Guide, "Texture Fetching".
#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "tests/api/images.h"
#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

CUDA_ARRAY3D_DESCRIPTOR Shape(size_t width, size_t height, size_t depth, CUarray_format format,
                              unsigned flags = 0) {
  CUDA_ARRAY3D_DESCRIPTOR shape = {};
  shape.Width = width, shape.Height = height, shape.Depth = depth;
  shape.Format = format;
  shape.NumChannels = 1;
  shape.Flags = flags;
  return shape;
}

class OwnedArray {
 public:
  explicit OwnedArray(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
    EXPECT_OK(Drv().cuArray3DCreate_v2(&array_, &shape));
  }
  ~OwnedArray() { EXPECT_OK(Drv().cuArrayDestroy(array_)); }
  OwnedArray(const OwnedArray&) = delete;
  OwnedArray& operator=(const OwnedArray&) = delete;
  CUarray get() const { return array_; }

 private:
  CUarray array_ = nullptr;
};

// A whole array of packed words from or to host memory.
CUDA_MEMCPY3D ToArray(CUarray array, const void* words, size_t width, size_t height, size_t depth) {
  CUDA_MEMCPY3D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = words;
  copy.srcPitch = width * 4;
  copy.srcHeight = height;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.WidthInBytes = width * 4, copy.Height = height, copy.Depth = depth;
  return copy;
}

CUDA_MEMCPY3D FromArray(void* words, CUarray array, size_t width, size_t height, size_t depth) {
  CUDA_MEMCPY3D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = array;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = words;
  copy.dstPitch = width * 4;
  copy.dstHeight = height;
  copy.WidthInBytes = width * 4, copy.Height = height, copy.Depth = depth;
  return copy;
}

using ArrayTest = ContextTest;

API_TEST(ArrayTest, TellsItsShape) {
  OwnedArray array(Shape(12, 5, 0, CU_AD_FORMAT_FLOAT));
  CUDA_ARRAY3D_DESCRIPTOR shape = {};
  EXPECT_OK(Drv().cuArray3DGetDescriptor_v2(&shape, array.get()));
  EXPECT_EQ(shape.Width, 12u);
  EXPECT_EQ(shape.Height, 5u);
  EXPECT_EQ(shape.Depth, 0u);
  EXPECT_EQ(shape.Format, CU_AD_FORMAT_FLOAT);
  EXPECT_EQ(shape.NumChannels, 1u);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuArray3DCreate_v2(nullptr, &shape));
  CUarray none = nullptr;
  shape.Width = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuArray3DCreate_v2(&none, &shape));
}

API_TEST(ArrayTest, KeepsBoxesOfEveryShape) {
  for (const auto& [width, height, depth] :
       {std::array<size_t, 3>{1000, 0, 0}, {33, 17, 0}, {9, 8, 7}}) {
    OwnedArray array(Shape(width, height, depth, CU_AD_FORMAT_UNSIGNED_INT32));
    const size_t rows = std::max<size_t>(height, 1), slices = std::max<size_t>(depth, 1);
    std::vector<unsigned> words(width * rows * slices), back(words.size());
    std::iota(words.begin(), words.end(), 7u);
    CUDA_MEMCPY3D copy = ToArray(array.get(), words.data(), width, rows, slices);
    ASSERT_OK(Drv().cuMemcpy3D_v2(&copy));
    copy = FromArray(back.data(), array.get(), width, rows, slices);
    ASSERT_OK(Drv().cuMemcpy3D_v2(&copy));
    EXPECT_EQ(back, words) << width << " " << height << " " << depth;
  }
}

// More than fits whatever such a copy goes through on its way.
API_TEST(ArrayTest, LargeOnesArriveWhole) {
  constexpr size_t kWidth = 3000, kHeight = 2000;
  OwnedArray array(Shape(kWidth, kHeight, 0, CU_AD_FORMAT_UNSIGNED_INT32));
  std::vector<unsigned> words(kWidth * kHeight), back(words.size());
  std::iota(words.begin(), words.end(), 1u);
  CUDA_MEMCPY3D copy = ToArray(array.get(), words.data(), kWidth, kHeight, 1);
  ASSERT_OK(Drv().cuMemcpy3D_v2(&copy));
  copy = FromArray(back.data(), array.get(), kWidth, kHeight, 1);
  ASSERT_OK(Drv().cuMemcpy3D_v2(&copy));
  EXPECT_TRUE(back == words);
}

API_TEST(ArrayTest, CopiesWithDeviceMemoryAndOtherArrays) {
  OwnedArray first(Shape(8, 4, 0, CU_AD_FORMAT_UNSIGNED_INT32));
  OwnedArray second(Shape(8, 4, 0, CU_AD_FORMAT_UNSIGNED_INT32));
  std::vector<unsigned> words(32);
  std::iota(words.begin(), words.end(), 0u);
  DeviceBuffer buffer(512);
  buffer.Write(words);
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = buffer;
  copy.srcPitch = 32;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = first.get();
  copy.WidthInBytes = 32, copy.Height = 4;
  ASSERT_OK(Drv().cuMemcpy2D_v2(&copy));
  copy = {};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = first.get(), copy.srcXInBytes = 8, copy.srcY = 1;
  copy.dstArray = second.get(), copy.dstXInBytes = 4, copy.dstY = 2;
  copy.WidthInBytes = 16, copy.Height = 2;
  ASSERT_OK(Drv().cuMemcpy2D_v2(&copy));
  std::vector<unsigned> back(4);
  copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.srcArray = second.get(), copy.srcXInBytes = 4, copy.srcY = 3;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = back.data();
  copy.WidthInBytes = 16, copy.Height = 1;
  ASSERT_OK(Drv().cuMemcpy2D_v2(&copy));
  EXPECT_EQ(back, (std::vector<unsigned>{18, 19, 20, 21}));
  copy.srcXInBytes = 24;  // over the row's end
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemcpy2D_v2(&copy));
}

class TextureTest : public ContextTest {
 protected:
  static CUtexObject Make(CUarray array, CUaddress_mode mode, CUfilter_mode filter,
                          unsigned flags) {
    CUDA_RESOURCE_DESC resource = {};
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = array;
    CUDA_TEXTURE_DESC texture = {};
    for (CUaddress_mode& each : texture.addressMode) each = mode;
    texture.filterMode = filter;
    texture.flags = flags;
    CUtexObject object = 0;
    EXPECT_OK(Drv().cuTexObjectCreate(&object, &resource, &texture, nullptr));
    return object;
  }
};

API_TEST(TextureTest, KernelsReadThroughObjects) {
  OwnedArray array(Shape(4, 2, 0, CU_AD_FORMAT_FLOAT));
  const std::vector<float> texels = {0, 1, 2, 3, 10, 11, 12, 13};
  CUDA_MEMCPY3D copy = ToArray(array.get(), texels.data(), 4, 2, 1);
  ASSERT_OK(Drv().cuMemcpy3D_v2(&copy));
  Module module(kTexturePtx);
  const std::vector<float> x = {0.5f, 3.9f, 1.0f, -5, 2}, y = {0.5f, 1.5f, 1.0f, 0, 1.5f};
  DeviceBuffer xs(64), ys(64), out(64);
  xs.Write(x);
  ys.Write(y);
  const auto fetch = [&](CUtexObject object) {
    EXPECT_OK(Launch(module.Function("Fetch2D"), 1, 32, nullptr, object, xs.get(), ys.get(),
                     out.get(), 5));
    return out.Read<float>(5);
  };
  const CUtexObject nearest =
      Make(array.get(), CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_POINT, 0);
  EXPECT_EQ(fetch(nearest), (std::vector<float>{0, 13, 11, 0, 12}));
  const CUtexObject linear =
      Make(array.get(), CU_TR_ADDRESS_MODE_CLAMP, CU_TR_FILTER_MODE_LINEAR, 0);
  EXPECT_EQ(fetch(linear), (std::vector<float>{0, 13, 5.5f, 0, 11.5f}));
  CUDA_TEXTURE_DESC texture = {};
  EXPECT_OK(Drv().cuTexObjectGetTextureDesc(&texture, linear));
  EXPECT_EQ(texture.filterMode, CU_TR_FILTER_MODE_LINEAR);
  CUDA_RESOURCE_DESC resource = {};
  EXPECT_OK(Drv().cuTexObjectGetResourceDesc(&resource, linear));
  EXPECT_EQ(resource.res.array.hArray, array.get());
  EXPECT_OK(Drv().cuTexObjectDestroy(nearest));
  EXPECT_OK(Drv().cuTexObjectDestroy(linear));
}

API_TEST(TextureTest, LayersAndNormalisedCoordinates) {
  OwnedArray array(Shape(2, 2, 3, CU_AD_FORMAT_FLOAT, CUDA_ARRAY3D_LAYERED));
  std::vector<float> texels(12);
  std::iota(texels.begin(), texels.end(), 0.0f);
  CUDA_MEMCPY3D copy = ToArray(array.get(), texels.data(), 2, 2, 3);
  ASSERT_OK(Drv().cuMemcpy3D_v2(&copy));
  Module module(kTexturePtx);
  DeviceBuffer out(4);
  const CUtexObject object = Make(array.get(), CU_TR_ADDRESS_MODE_WRAP, CU_TR_FILTER_MODE_POINT,
                                  CU_TRSF_NORMALIZED_COORDINATES);
  EXPECT_OK(
      Launch(module.Function("FetchLayer"), 1, 1, nullptr, object, 2, 1.75f, 0.25f, out.get()));
  EXPECT_EQ(out.Read<float>(1)[0], 9);
  EXPECT_OK(Drv().cuTexObjectDestroy(object));
}

API_TEST(TextureTest, LinearMemory) {
  DeviceBuffer buffer(256), out(64);
  std::vector<int> words(64);
  std::iota(words.begin(), words.end(), -30);
  buffer.Write(words);
  CUDA_RESOURCE_DESC resource = {};
  resource.resType = CU_RESOURCE_TYPE_LINEAR;
  resource.res.linear.devPtr = buffer;
  resource.res.linear.format = CU_AD_FORMAT_SIGNED_INT32;
  resource.res.linear.numChannels = 1;
  resource.res.linear.sizeInBytes = 256;
  CUDA_TEXTURE_DESC texture = {};
  CUtexObject object = 0;
  ASSERT_OK(Drv().cuTexObjectCreate(&object, &resource, &texture, nullptr));
  Module module(kTexturePtx);
  EXPECT_OK(Launch(module.Function("FetchLinear"), 1, 4, nullptr, object, 60, out.get()));
  EXPECT_EQ(out.Read<int>(4), (std::vector<int>{30, 31, 32, 33}));
  EXPECT_OK(Drv().cuTexObjectDestroy(object));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuTexObjectCreate(nullptr, &resource, &texture, nullptr));
}

API_TEST(TextureTest, SurfacesAreWrittenInPlace) {
  OwnedArray array(Shape(8, 4, 0, CU_AD_FORMAT_SIGNED_INT32, CUDA_ARRAY3D_SURFACE_LDST));
  std::vector<int> words(32), back(32);
  std::iota(words.begin(), words.end(), 100);
  CUDA_MEMCPY3D copy = ToArray(array.get(), words.data(), 8, 4, 1);
  ASSERT_OK(Drv().cuMemcpy3D_v2(&copy));
  CUDA_RESOURCE_DESC resource = {};
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  resource.res.array.hArray = array.get();
  CUsurfObject surface = 0;
  ASSERT_OK(Drv().cuSurfObjectCreate(&surface, &resource));
  Module module(kTexturePtx);
  int width = 8, height = 4, value = 1000;
  void* parameters[] = {&surface, &width, &height, &value};
  EXPECT_OK(Drv().cuLaunchKernel(module.Function("AddTo"), 1, 1, 1, 8, 4, 1, 0, nullptr, parameters,
                                 nullptr));
  copy = FromArray(back.data(), array.get(), 8, 4, 1);
  ASSERT_OK(Drv().cuMemcpy3D_v2(&copy));
  for (int& word : words) word += 1000;
  EXPECT_EQ(back, words);
  EXPECT_OK(Drv().cuSurfObjectDestroy(surface));
}

}  // namespace
}  // namespace consort::tests::api
