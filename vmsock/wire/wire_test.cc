// SPDX-License-Identifier: Apache-2.0
// Frames, the encoder and the decoder: each field at its bound and one past it.
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "vmsock/wire/decoder.h"
#include "vmsock/wire/encoder.h"
#include "vmsock/wire/frame.h"
#include "vmsock/wire/handshake.h"

namespace consort::wire {
namespace {

// A body of 8-byte words.
std::vector<std::byte> Words(std::initializer_list<uint64_t> words) {
  std::vector<std::byte> body(words.size() * 8);
  size_t at = 0;
  for (uint64_t word : words) {
    std::memcpy(body.data() + at, &word, 8);
    at += 8;
  }
  return body;
}

TEST(FrameHeader, BoundsOfItsSize) {
  const auto valid = [](uint32_t bytes) {
    FrameHeader header;
    header.bytes = bytes;
    return FrameHeaderValid(header);
  };
  EXPECT_TRUE(valid(16));
  EXPECT_TRUE(valid(kFrameBytesMax));
  EXPECT_FALSE(valid(0));
  EXPECT_FALSE(valid(8));
  EXPECT_FALSE(valid(20));
  EXPECT_FALSE(valid(kFrameBytesMax + 8));
  EXPECT_FALSE(valid(0xFFFFFFF8));
}

TEST(FrameHeader, BytesRoundUp) {
  EXPECT_EQ(FrameBytes(0), 16u);
  EXPECT_EQ(FrameBytes(1), 24u);
  EXPECT_EQ(FrameBytes(8), 24u);
  EXPECT_EQ(FrameBytes(9), 32u);
}

TEST(FrameHeader, LiesInMemoryAsDocumented) {
  const FrameHeader header = {
      .bytes = 0x01020304, .opcode = 0x0506, .flags = 0x0708, .call = 9, .value = 10};
  const std::array<uint8_t, 16> expected = {4, 3, 2, 1, 6, 5, 8, 7, 9, 0, 0, 0, 10, 0, 0, 0};
  EXPECT_EQ(std::memcmp(&header, expected.data(), expected.size()), 0);
}

TEST(Wire, WhatIsEncodedIsDecoded) {
  for (size_t text_bytes = 0; text_bytes <= 17; ++text_bytes) {
    const std::string text(text_bytes, 'x');
    std::vector<std::byte> body(5 * 8 + EncodedBytes(text_bytes) + EncodedBytes(3));
    Encoder encoder(body.data(), body.size());
    encoder.PutU64(std::numeric_limits<uint64_t>::max());
    encoder.PutBytes(text.data(), text.size());
    encoder.PutI64(std::numeric_limits<int32_t>::min());
    encoder.PutU64(std::numeric_limits<uint32_t>::max());
    encoder.PutF32(-0.5f);
    std::memcpy(encoder.PutBytesInPlace(3), "abc", 3);
    encoder.PutI64(-1);
    EXPECT_EQ(encoder.at(), body.data() + body.size());

    Decoder decoder(body);
    EXPECT_EQ(decoder.U64(), std::numeric_limits<uint64_t>::max());
    const std::span<const std::byte> bytes = decoder.Bytes();
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()), text);
    EXPECT_EQ(decoder.I32(), std::numeric_limits<int32_t>::min());
    EXPECT_EQ(decoder.U32(), std::numeric_limits<uint32_t>::max());
    EXPECT_EQ(decoder.F32(), -0.5f);
    EXPECT_EQ(decoder.Bytes().size(), 3u);
    EXPECT_EQ(decoder.I32(), -1);
    EXPECT_TRUE(decoder.Done());
  }
}

TEST(EncoderDeathTest, TrapsPastTheEnd) {
  std::byte body[16];
  Encoder encoder(body, sizeof(body));
  encoder.PutU64(1);
  encoder.PutU64(2);
  EXPECT_DEATH(encoder.PutU64(3), "");
  Encoder bytes(body, sizeof(body));
  EXPECT_DEATH(bytes.PutBytes(body, 9), "");
}

TEST(Decoder, ScalarsNeedEightBytes) {
  for (size_t bytes = 0; bytes <= 8; ++bytes) {
    const std::vector<std::byte> body(bytes, std::byte{0xFF});
    Decoder decoder(body);
    EXPECT_EQ(decoder.U64(), bytes == 8 ? UINT64_MAX : 0);
    EXPECT_EQ(decoder.ok(), bytes == 8);
  }
}

TEST(Decoder, ThirtyTwoBitFieldsRefuseMore) {
  const auto u32_ok = [](uint64_t word) {
    const std::vector<std::byte> body = Words({word});
    Decoder decoder(body);
    const uint32_t value = decoder.U32();
    EXPECT_EQ(value, decoder.ok() ? word : 0);
    return decoder.ok();
  };
  EXPECT_TRUE(u32_ok(0));
  EXPECT_TRUE(u32_ok(0xFFFFFFFF));
  EXPECT_FALSE(u32_ok(0x100000000));
  EXPECT_FALSE(u32_ok(UINT64_MAX));
  const auto i32_ok = [](int64_t word) {
    const std::vector<std::byte> body = Words({static_cast<uint64_t>(word)});
    Decoder decoder(body);
    const int32_t value = decoder.I32();
    EXPECT_EQ(value, decoder.ok() ? word : 0);
    return decoder.ok();
  };
  EXPECT_TRUE(i32_ok(INT32_MAX));
  EXPECT_TRUE(i32_ok(INT32_MIN));
  EXPECT_FALSE(i32_ok(int64_t{INT32_MAX} + 1));
  EXPECT_FALSE(i32_ok(int64_t{INT32_MIN} - 1));
  const std::vector<std::byte> body = Words({0x1'3F800000});
  Decoder decoder(body);
  EXPECT_EQ(decoder.F32(), 0.0f);
  EXPECT_FALSE(decoder.ok());
}

TEST(Decoder, ByteStringsEndWithinTheBody) {
  const auto bytes_ok = [](uint64_t count, size_t available) {
    std::vector<std::byte> body = Words({count});
    body.resize(8 + available);
    Decoder decoder(body);
    const std::span<const std::byte> bytes = decoder.Bytes();
    EXPECT_EQ(bytes.size(), decoder.ok() ? count : 0);
    return decoder.ok();
  };
  EXPECT_TRUE(bytes_ok(0, 0));
  EXPECT_FALSE(bytes_ok(1, 0));
  EXPECT_TRUE(bytes_ok(1, 8));
  EXPECT_TRUE(bytes_ok(8, 8));
  EXPECT_FALSE(bytes_ok(9, 8));
  // The bytes fit, their padding does not.
  EXPECT_FALSE(bytes_ok(9, 12));
  EXPECT_TRUE(bytes_ok(9, 16));
  // Rounding up would wrap to 0.
  EXPECT_FALSE(bytes_ok(UINT64_MAX, 8));
  EXPECT_FALSE(bytes_ok(UINT64_MAX - 6, 8));
  EXPECT_FALSE(bytes_ok(uint64_t{1} << 63, 8));
}

TEST(Decoder, ScalarsAtOnceAreThoseOneByOne) {
  const std::vector<std::byte> body =
      Words({~uint64_t{0}, 0xffffffff, ~uint64_t{0}, 0x3f800000, 9});
  Decoder decoder(body);
  const std::byte* const scalars = decoder.Scalars(32);
  ASSERT_NE(scalars, nullptr);
  EXPECT_EQ(Decoder::U64At(scalars), ~uint64_t{0});
  EXPECT_EQ(decoder.U32At(scalars + 8), 0xffffffffu);
  EXPECT_EQ(decoder.I32At(scalars + 16), -1);
  EXPECT_EQ(decoder.F32At(scalars + 24), 1.0f);
  EXPECT_FALSE(decoder.Done());
  EXPECT_EQ(decoder.U64(), 9u);
  EXPECT_TRUE(decoder.Done());
}

TEST(Decoder, ScalarsAtOnceMustFitTheBodyAndTheirTypes) {
  const std::vector<std::byte> body = Words({0x100000000, 0x80000000});
  Decoder shorter({body.data(), 15});
  EXPECT_EQ(shorter.Scalars(16), nullptr);
  EXPECT_FALSE(shorter.ok());
  EXPECT_EQ(shorter.Scalars(8), nullptr);
  Decoder wide(body);
  const std::byte* const scalars = wide.Scalars(16);
  ASSERT_NE(scalars, nullptr);
  wide.U32At(scalars);
  EXPECT_FALSE(wide.ok());
  Decoder sign(body);
  sign.I32At(sign.Scalars(16) + 8);
  EXPECT_FALSE(sign.ok());
}

TEST(Decoder, AnErrorIsForGood) {
  const std::vector<std::byte> body = Words({0x100000000, 7, 0, 1});
  Decoder decoder(body);
  EXPECT_EQ(decoder.U32(), 0u);
  EXPECT_FALSE(decoder.ok());
  EXPECT_EQ(decoder.U64(), 0u);
  EXPECT_EQ(decoder.U32(), 0u);
  EXPECT_EQ(decoder.I32(), 0);
  EXPECT_EQ(decoder.F32(), 0.0f);
  EXPECT_TRUE(decoder.Bytes().empty());
  EXPECT_FALSE(decoder.Done());
}

TEST(Decoder, DoneAllowsPaddingOnly) {
  std::vector<std::byte> body = Words({1});
  body.resize(15);
  Decoder padded(body);
  EXPECT_FALSE(padded.Done());
  padded.U64();
  EXPECT_TRUE(padded.Done());
  body.resize(16);
  Decoder more(body);
  more.U64();
  EXPECT_FALSE(more.Done());
}

TEST(Handshake, FieldsLieWhereTheyAlwaysLay) {
  // A daemon must be able to refuse a library of any version, so these never move.
  EXPECT_EQ(offsetof(Hello, magic), 0u);
  EXPECT_EQ(offsetof(Hello, version), 4u);
  EXPECT_EQ(offsetof(Hello, application), 32u);
  EXPECT_EQ(offsetof(Welcome, magic), 0u);
  EXPECT_EQ(offsetof(Welcome, version), 4u);
  EXPECT_EQ(offsetof(Welcome, status), 8u);
  EXPECT_EQ(offsetof(Welcome, text), 72u);
}

}  // namespace
}  // namespace consort::wire
