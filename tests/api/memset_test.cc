// SPDX-License-Identifier: Apache-2.0
// Fills. Source: CUDA Driver API reference 13.0, "Memory Management" (cuMemsetD*): addresses and
// pitches of D16 and D32 must be multiples of the element.
#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

using MemsetTest = ContextTest;

// A buffer of `rows` rows of `pitch` bytes, zeroed, and a picture of what it should hold.
std::vector<unsigned char> Picture(size_t rows, size_t pitch, size_t width,
                                   const std::vector<unsigned char>& element) {
  std::vector<unsigned char> picture(rows * pitch, 0);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t at = 0; at < width * element.size(); ++at)
      picture[row * pitch + at] = element[at % element.size()];
  }
  return picture;
}

API_TEST(MemsetTest, BytesFillExactlyTheirRange) {
  DeviceBuffer buffer(300);
  buffer.Fill(0);
  EXPECT_OK(Drv().cuMemsetD8_v2(buffer.get() + 1, 0xab, 258));
  const auto bytes = buffer.Read<unsigned char>(300);
  for (size_t at = 0; at < 300; ++at) ASSERT_EQ(bytes[at], at >= 1 && at < 259 ? 0xab : 0) << at;
}

API_TEST(MemsetTest, HalfWordsFillExactlyTheirRange) {
  DeviceBuffer buffer(300);
  buffer.Fill(0);
  EXPECT_OK(Drv().cuMemsetD16_v2(buffer.get() + 2, 0xbeef, 100));
  const auto words = buffer.Read<unsigned short>(150);
  for (size_t at = 0; at < 150; ++at) ASSERT_EQ(words[at], at >= 1 && at < 101 ? 0xbeef : 0) << at;
}

API_TEST(MemsetTest, WordsFillExactlyTheirRange) {
  DeviceBuffer buffer(4096);
  buffer.Fill(0);
  EXPECT_OK(Drv().cuMemsetD32_v2(buffer.get() + 4, 0xdeadbeef, 1000));
  const auto words = buffer.Read<unsigned>(1024);
  for (size_t at = 0; at < 1024; ++at)
    ASSERT_EQ(words[at], at >= 1 && at < 1001 ? 0xdeadbeef : 0u) << at;
}

API_TEST(MemsetTest, RowsOfBytesKeepThePadding) {
  DeviceBuffer buffer(8 * 64);
  buffer.Fill(0);
  EXPECT_OK(Drv().cuMemsetD2D8_v2(buffer, 64, 0x11, 37, 8));
  EXPECT_EQ(buffer.Read<unsigned char>(512), Picture(8, 64, 37, {0x11}));
}

API_TEST(MemsetTest, RowsOfHalfWordsKeepThePadding) {
  DeviceBuffer buffer(8 * 64);
  buffer.Fill(0);
  EXPECT_OK(Drv().cuMemsetD2D16_v2(buffer, 64, 0x2211, 21, 8));
  EXPECT_EQ(buffer.Read<unsigned char>(512), Picture(8, 64, 21, {0x11, 0x22}));
}

API_TEST(MemsetTest, RowsOfWordsKeepThePadding) {
  DeviceBuffer buffer(8 * 64);
  buffer.Fill(0);
  EXPECT_OK(Drv().cuMemsetD2D32_v2(buffer, 64, 0x44332211, 11, 8));
  EXPECT_EQ(buffer.Read<unsigned char>(512), Picture(8, 64, 11, {0x11, 0x22, 0x33, 0x44}));
}

API_TEST(MemsetTest, AsyncFillsRunInStreamOrder) {
  Stream stream;
  DeviceBuffer buffer(512);
  buffer.Fill(0);
  EXPECT_OK(Drv().cuMemsetD8Async(buffer, 1, 512, stream));
  EXPECT_OK(Drv().cuMemsetD16Async(buffer, 0x0202, 64, stream));
  EXPECT_OK(Drv().cuMemsetD32Async(buffer, 0x03030303, 16, stream));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  const auto bytes = buffer.Read<unsigned char>(512);
  EXPECT_EQ(bytes[0], 3);
  EXPECT_EQ(bytes[63], 3);
  EXPECT_EQ(bytes[64], 2);
  EXPECT_EQ(bytes[127], 2);
  EXPECT_EQ(bytes[128], 1);
  EXPECT_EQ(bytes[511], 1);
}

API_TEST(MemsetTest, AsyncRowsKeepThePadding) {
  Stream stream;
  DeviceBuffer buffer(8 * 64);
  buffer.Fill(0);
  EXPECT_OK(Drv().cuMemsetD2D8Async(buffer, 64, 0x11, 37, 8, stream));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(buffer.Read<unsigned char>(512), Picture(8, 64, 37, {0x11}));
  buffer.Fill(0);
  EXPECT_OK(Drv().cuMemsetD2D16Async(buffer, 64, 0x2211, 21, 8, stream));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(buffer.Read<unsigned char>(512), Picture(8, 64, 21, {0x11, 0x22}));
  buffer.Fill(0);
  EXPECT_OK(Drv().cuMemsetD2D32Async(buffer, 64, 0x44332211, 11, 8, stream));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(buffer.Read<unsigned char>(512), Picture(8, 64, 11, {0x11, 0x22, 0x33, 0x44}));
}

API_TEST(MemsetTest, MisalignedAddressIsRefused) {
  DeviceBuffer buffer(64);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemsetD16_v2(buffer.get() + 1, 0, 4));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemsetD32_v2(buffer.get() + 2, 0, 4));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemsetD32_v2(buffer.get() + 1, 0, 4));
}

API_TEST(MemsetTest, NothingIsFilledForZeroElements) {
  DeviceBuffer buffer(64);
  buffer.Fill(5);
  EXPECT_OK(Drv().cuMemsetD8_v2(buffer, 0, 0));
  EXPECT_OK(Drv().cuMemsetD32_v2(buffer, 0, 0));
  EXPECT_EQ(buffer.ReadWord(), 0x05050505u);
}

API_TEST_ALONE(MemsetTest, RangePastTheAllocationIsRefused) {
  DeviceBuffer buffer(4 << 20);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemsetD8_v2(buffer, 0, size_t{1} << 40));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemsetD8_v2(0x1234567800ull, 0, 64));
}

API_TEST(MemsetTest, LargeFillIsComplete) {
  constexpr size_t kWords = size_t{16} << 20;
  DeviceBuffer buffer(kWords * 4);
  EXPECT_OK(Drv().cuMemsetD32_v2(buffer, 0x01020304, kWords));
  const auto words = buffer.Read<unsigned>(kWords);
  size_t wrong = 0;
  for (unsigned word : words) wrong += word != 0x01020304;
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace consort::tests::api
