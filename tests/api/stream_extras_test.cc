// SPDX-License-Identifier: Apache-2.0
// Attributes of streams, and batches of memory operations.
#include <cstring>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

using StreamAttributeTest = ContextTest;
using StreamBatchTest = ContextTest;

API_TEST(StreamAttributeTest, IsWhatWasSet) {
  const Stream stream;
  const Stream other;
  CUstreamAttrValue value = {};
  value.syncPolicy = CU_SYNC_POLICY_YIELD;
  EXPECT_OK(Drv().cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  CUstreamAttrValue found = {};
  EXPECT_OK(Drv().cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &found));
  EXPECT_EQ(found.syncPolicy, CU_SYNC_POLICY_YIELD);
  EXPECT_OK(Drv().cuStreamGetAttribute(other, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &found));
  // Driver 580 says -1 of one that was never set.
  if (!IsOracle()) {
    EXPECT_EQ(found.syncPolicy, CU_SYNC_POLICY_AUTO);
  }
  EXPECT_OK(Drv().cuStreamCopyAttributes(other, stream));
  EXPECT_OK(Drv().cuStreamGetAttribute(other, CU_STREAM_ATTRIBUTE_SYNCHRONIZATION_POLICY, &found));
  EXPECT_EQ(found.syncPolicy, CU_SYNC_POLICY_YIELD);
}

API_TEST(StreamAttributeTest, HasThePriorityOfTheStream) {
  int least = 0;
  int greatest = 0;
  ASSERT_OK(Drv().cuCtxGetStreamPriorityRange(&least, &greatest));
  CUstream stream = nullptr;
  ASSERT_OK(Drv().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, greatest));
  CUstreamAttrValue value = {};
  EXPECT_OK(Drv().cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_PRIORITY, &value));
  EXPECT_EQ(value.priority, greatest);
  EXPECT_OK(Drv().cuStreamSetAttribute(stream, CU_STREAM_ATTRIBUTE_PRIORITY, &value));
  EXPECT_OK(Drv().cuStreamDestroy_v2(stream));
}

API_TEST(StreamAttributeTest, RefusesOthers) {
  if (IsOracle()) GTEST_SKIP() << "driver 580 follows a null pointer";
  const Stream stream;
  CUstreamAttrValue value = {};
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuStreamGetAttribute(stream, CU_STREAM_ATTRIBUTE_PRIORITY, nullptr));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuStreamGetAttribute(stream, static_cast<CUstreamAttrID>(1000), &value));
}

CUstreamBatchMemOpParams Write32(CUdeviceptr address, cuuint32_t value) {
  CUstreamBatchMemOpParams operation = {};
  operation.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operation.writeValue.address = address;
  operation.writeValue.value = value;
  return operation;
}

API_TEST(StreamBatchTest, CarriesOutOperationsInTheirOrder) {
  const DeviceBuffer words(64);
  words.Fill(0);
  const Stream stream;
  const Stream other;
  CUstreamBatchMemOpParams operations[4] = {};
  operations[0] = Write32(words, 5);
  operations[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
  operations[1].waitValue.address = words.get() + 4;
  operations[1].waitValue.value = 7;
  operations[1].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
  operations[2].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
  operations[2].writeValue.address = words.get() + 8;
  operations[2].writeValue.value64 = uint64_t{9} << 32 | 8;
  operations[3] = Write32(words, 6);
  ASSERT_OK(Drv().cuStreamBatchMemOp_v2(stream, 4, operations, 0));
  EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuStreamQuery(stream));
  EXPECT_OK(Drv().cuMemsetD32Async(words.get() + 4, 7, 1, other));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(words.Read<unsigned>(4), (std::vector<unsigned>{6, 7, 8, 9}));
}

API_TEST(StreamBatchTest, RefusesBadArguments) {
  if (IsOracle()) GTEST_SKIP() << "driver 580 follows a null pointer";
  const DeviceBuffer words(64);
  words.Fill(0);
  const Stream stream;
  std::vector<CUstreamBatchMemOpParams> operations(257, Write32(words, 5));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuStreamBatchMemOp_v2(stream, 257, operations.data(), 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuStreamBatchMemOp_v2(stream, 1, operations.data(), 1));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuStreamBatchMemOp_v2(stream, 1, nullptr, 0));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(words.ReadWord(), 0u);
}

}  // namespace
}  // namespace consort::tests::api
