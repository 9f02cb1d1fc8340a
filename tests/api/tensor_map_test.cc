// SPDX-License-Identifier: Apache-2.0
// Tensor maps. What a descriptor holds is the driver's secret: that equal arguments make equal ones
// and other arguments others is what can be told. Source: CUDA Driver API reference 13.0, "Tensor
// Map Object Management".
#include <cstring>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

class TensorMapTest : public ContextTest {
 protected:
  // A matrix of 64 x 64 floats in boxes of 16 x 16.
  CUresult Encode(CUtensorMap* map, CUdeviceptr address, cuuint32_t rank = 2) {
    const cuuint64_t dims[] = {64, 64};
    const cuuint64_t strides[] = {256};
    const cuuint32_t box[] = {16, 16};
    const cuuint32_t element_strides[] = {1, 1};
    return Drv().cuTensorMapEncodeTiled(
        map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, rank, reinterpret_cast<void*>(address), dims, strides,
        box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
        CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  }
};

API_TEST(TensorMapTest, EqualArgumentsMakeEqualMaps) {
  DeviceBuffer matrix(64 * 64 * 4);
  alignas(64) CUtensorMap first = {};
  alignas(64) CUtensorMap second = {};
  alignas(64) CUtensorMap other = {};
  const CUresult result = Encode(&first, matrix);
  if (result == CUDA_ERROR_NOT_SUPPORTED) GTEST_SKIP() << "the device has no tensor maps";
  ASSERT_OK(result);
  ASSERT_OK(Encode(&second, matrix));
  ASSERT_OK(Encode(&other, matrix + 64));
  EXPECT_EQ(std::memcmp(&first, &second, sizeof first), 0);
  EXPECT_NE(std::memcmp(&first, &other, sizeof first), 0);
}

API_TEST(TensorMapTest, RefusesBadArguments) {
  DeviceBuffer matrix(64 * 64 * 4);
  alignas(64) CUtensorMap map = {};
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Encode(nullptr, matrix));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Encode(&map, matrix, 6));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Encode(&map, matrix, 0));
}

}  // namespace
}  // namespace consort::tests::api
