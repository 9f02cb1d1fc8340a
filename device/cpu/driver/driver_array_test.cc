// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/driver_array_test.cc: CUDA arrays, and objects over them.
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include "device/cpu/driver/driver_test.h"
#include "device/cpu/driver/limits.h"

namespace consort::cpu {
namespace {

CUDA_ARRAY3D_DESCRIPTOR Shape(size_t width, size_t height, size_t depth, unsigned int flags = 0) {
  CUDA_ARRAY3D_DESCRIPTOR shape = {};
  shape.Width = width, shape.Height = height, shape.Depth = depth;
  shape.Format = CU_AD_FORMAT_UNSIGNED_INT16;
  shape.NumChannels = 2;
  shape.Flags = flags;
  return shape;
}

class DriverArrayTest : public DriverTest {
 protected:
  CUresult Create(const CUDA_ARRAY3D_DESCRIPTOR& shape, CUarray* array) {
    return CU(cuArray3DCreate_v2)(array, &shape);
  }
};

TEST_F(DriverArrayTest, HoldsItsMemoryUntilDestroyed) {
  size_t before = 0, during = 0, after = 0, total = 0;
  ASSERT_CU(CU(cuMemGetInfo_v2)(&before, &total));
  CUarray array = nullptr;
  ASSERT_CU(Create(Shape(1024, 1024, 0), &array));
  ASSERT_CU(CU(cuMemGetInfo_v2)(&during, &total));
  EXPECT_EQ(before - during, 4 * kMiB);
  CUDA_ARRAY3D_DESCRIPTOR shape = {};
  EXPECT_CU(CU(cuArray3DGetDescriptor_v2)(&shape, array));
  EXPECT_EQ(shape.Width, 1024u);
  EXPECT_EQ(shape.NumChannels, 2u);
  EXPECT_CU(CU(cuArrayDestroy)(array));
  ASSERT_CU(CU(cuMemGetInfo_v2)(&after, &total));
  EXPECT_EQ(after, before);
  EXPECT_EQ(CU(cuArrayDestroy)(array), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(CU(cuArray3DGetDescriptor_v2)(&shape, array), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(DriverArrayTest, ShapesHaveBounds) {
  CUarray array = nullptr;
  const auto refused = [&](const CUDA_ARRAY3D_DESCRIPTOR& shape) {
    return Create(shape, &array) == CUDA_ERROR_INVALID_VALUE;
  };
  EXPECT_TRUE(refused(Shape(0, 0, 0)));
  EXPECT_TRUE(refused(Shape(k1DBounds.width + 1, 0, 0)));
  EXPECT_TRUE(refused(Shape(4, k2DBounds.height + 1, 0)));
  EXPECT_TRUE(refused(Shape(4, 0, 4)));
  EXPECT_TRUE(refused(Shape(4, 4, 0, CUDA_ARRAY3D_LAYERED)));
  EXPECT_TRUE(refused(Shape(4, 4, 5, CUDA_ARRAY3D_CUBEMAP)));
  EXPECT_TRUE(refused(Shape(4, 8, 6, CUDA_ARRAY3D_CUBEMAP)));
  CUDA_ARRAY3D_DESCRIPTOR odd = Shape(4, 0, 0);
  odd.NumChannels = 3;
  EXPECT_TRUE(refused(odd));
  odd.NumChannels = 1;
  odd.Format = CU_AD_FORMAT_BC1_UNORM;
  EXPECT_EQ(Create(odd, &array), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(CU(cuArray3DCreate_v2)(nullptr, &odd), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Create(Shape(16384, 16384, 0), &array), CUDA_ERROR_OUT_OF_MEMORY) << "1 GiB of 256 MiB";
  for (const auto& shape : {Shape(4, 0, 0), Shape(4, 4, 4), Shape(4, 0, 3, CUDA_ARRAY3D_LAYERED),
                            Shape(4, 4, 12, CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)}) {
    ASSERT_CU(Create(shape, &array));
    EXPECT_CU(CU(cuArrayDestroy)(array));
  }
}

TEST_F(DriverArrayTest, CopiesOfBoxes) {
  CUarray array = nullptr;
  ASSERT_CU(Create(Shape(4, 3, 2), &array));
  std::vector<uint32_t> texels(4 * 3 * 2), back(texels.size());
  std::iota(texels.begin(), texels.end(), 1);
  CUDA_MEMCPY3D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = texels.data();
  copy.srcPitch = 16;
  copy.srcHeight = 3;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.WidthInBytes = 16;
  copy.Height = 3;
  copy.Depth = 2;
  ASSERT_CU(CU(cuMemcpy3D_v2)(&copy));
  // The middle of the last slice comes back through device memory.
  const CUdeviceptr device = Allocate(64);
  CUDA_MEMCPY3D out = {};
  out.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  out.srcArray = array;
  out.srcXInBytes = 4, out.srcY = 1, out.srcZ = 1;
  out.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  out.dstDevice = device;
  out.dstPitch = 8;
  out.WidthInBytes = 8;
  out.Height = 2;
  out.Depth = 1;
  ASSERT_CU(CU(cuMemcpy3D_v2)(&out));
  ASSERT_CU(CU(cuMemcpyDtoH_v2)(back.data(), device, 16));
  EXPECT_EQ(back[0], 18u);
  EXPECT_EQ(back[1], 19u);
  EXPECT_EQ(back[2], 22u);
  EXPECT_EQ(back[3], 23u);
  const auto refused = [&](auto change) {
    CUDA_MEMCPY3D bad = out;
    change(bad);
    return CU(cuMemcpy3D_v2)(&bad) == CUDA_ERROR_INVALID_VALUE;
  };
  EXPECT_TRUE(refused([](CUDA_MEMCPY3D& bad) { bad.srcXInBytes = 12; })) << "over the row's end";
  EXPECT_TRUE(refused([](CUDA_MEMCPY3D& bad) { bad.srcXInBytes = 2; })) << "half a texel";
  EXPECT_TRUE(refused([](CUDA_MEMCPY3D& bad) { bad.srcY = 2; }));
  EXPECT_TRUE(refused([](CUDA_MEMCPY3D& bad) { bad.srcZ = 2; }));
  out.srcArray = reinterpret_cast<CUarray>(0x1234);
  EXPECT_EQ(CU(cuMemcpy3D_v2)(&out), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_CU(CU(cuArrayDestroy)(array));
}

TEST_F(DriverArrayTest, ObjectsAreCheckedWhenMade) {
  CUarray array = nullptr;
  ASSERT_CU(Create(Shape(4, 4, 0), &array));
  CUDA_RESOURCE_DESC resource = {};
  resource.resType = CU_RESOURCE_TYPE_ARRAY;
  resource.res.array.hArray = array;
  CUDA_TEXTURE_DESC texture = {};
  CUtexObject object = 0;
  EXPECT_CU(CU(cuTexObjectCreate)(&object, &resource, &texture, nullptr));
  EXPECT_NE(object, 0u);
  EXPECT_CU(CU(cuTexObjectDestroy)(object));
  EXPECT_EQ(CU(cuTexObjectDestroy)(object), CUDA_ERROR_INVALID_VALUE);
  texture.filterMode = CU_TR_FILTER_MODE_LINEAR;
  texture.flags = CU_TRSF_READ_AS_INTEGER;
  EXPECT_EQ(CU(cuTexObjectCreate)(&object, &resource, &texture, nullptr), CUDA_ERROR_INVALID_VALUE);
  texture = {};
  texture.addressMode[0] = static_cast<CUaddress_mode>(9);
  EXPECT_EQ(CU(cuTexObjectCreate)(&object, &resource, &texture, nullptr), CUDA_ERROR_INVALID_VALUE);
  CUsurfObject surface = 0;
  EXPECT_EQ(CU(cuSurfObjectCreate)(&surface, &resource), CUDA_ERROR_INVALID_VALUE)
      << "not made for surfaces";
  // Linear memory must be the driver's.
  texture = {};
  resource = {};
  resource.resType = CU_RESOURCE_TYPE_LINEAR;
  resource.res.linear.devPtr = Allocate(64);
  resource.res.linear.format = CU_AD_FORMAT_FLOAT;
  resource.res.linear.numChannels = 1;
  resource.res.linear.sizeInBytes = 64;
  ASSERT_CU(CU(cuTexObjectCreate)(&object, &resource, &texture, nullptr));
  EXPECT_CU(CU(cuTexObjectDestroy)(object));
  resource.res.linear.sizeInBytes = kMiB;
  EXPECT_EQ(CU(cuTexObjectCreate)(&object, &resource, &texture, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CU(CU(cuArrayDestroy)(array));
}

}  // namespace
}  // namespace consort::cpu
