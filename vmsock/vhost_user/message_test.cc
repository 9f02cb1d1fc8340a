// SPDX-License-Identifier: Apache-2.0
#include "vmsock/vhost_user/message.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "gtest/gtest.h"

namespace consort::vhost_user {
namespace {

std::vector<std::byte> Bytes(Request request, uint32_t flags, std::span<const std::byte> payload) {
  const MessageHeader header{.request = static_cast<uint32_t>(request),
                             .flags = flags,
                             .size = static_cast<uint32_t>(payload.size())};
  std::vector<std::byte> bytes(sizeof(header) + payload.size());
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::copy(payload.begin(), payload.end(), bytes.begin() + sizeof(header));
  return bytes;
}

std::vector<UniqueFd> Descriptors(size_t count) {
  std::vector<UniqueFd> fds;
  for (size_t i = 0; i < count; ++i) fds.emplace_back(open("/dev/null", O_RDONLY | O_CLOEXEC));
  return fds;
}

Message WithPayload(std::span<const std::byte> payload, size_t fd_count = 0) {
  Message message;
  message.payload.assign(payload.begin(), payload.end());
  message.fds = Descriptors(fd_count);
  return message;
}

TEST(MessageAssembler, PutsTogetherWhatComesByteByByte) {
  const uint64_t value = 0x1122334455667788;
  const auto bytes = Bytes(Request::kSetFeatures, kMessageVersion | kMessageNeedReply,
                           std::as_bytes(std::span(&value, 1)));
  MessageAssembler assembler;
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      EXPECT_FALSE(assembler.Take().has_value());
      ASSERT_GT(assembler.wanted_bytes(), 0u);
      ASSERT_TRUE(assembler.Consume(std::span(bytes).subspan(i, 1), Descriptors(i == 0)).ok());
    }
    std::optional<Message> message = assembler.Take();
    ASSERT_TRUE(message.has_value());
    EXPECT_EQ(message->request, Request::kSetFeatures);
    EXPECT_TRUE(message->need_reply);
    EXPECT_EQ(message->fds.size(), 1u);
    EXPECT_EQ(*DecodeU64(*message), value);
  }
}

TEST(MessageAssembler, AcceptsTheLargestPayloadAndNoLargerOne) {
  const std::vector<std::byte> payload(kMessagePayloadBytesMax + 1);
  MessageAssembler assembler;
  auto bytes =
      Bytes(Request::kSetOwner, kMessageVersion, std::span(payload).first(kMessagePayloadBytesMax));
  ASSERT_TRUE(assembler.Consume(std::span(bytes).first(kMessageHeaderBytes), {}).ok());
  EXPECT_EQ(assembler.wanted_bytes(), kMessagePayloadBytesMax);
  ASSERT_TRUE(assembler.Consume(std::span(bytes).subspan(kMessageHeaderBytes), {}).ok());
  EXPECT_TRUE(assembler.Take().has_value());
  bytes = Bytes(Request::kSetOwner, kMessageVersion, payload);
  EXPECT_FALSE(assembler.Consume(std::span(bytes).first(kMessageHeaderBytes), {}).ok());
}

TEST(MessageAssembler, AcceptsAsManyDescriptorsAsRegionsAndNoMore) {
  const auto bytes = Bytes(Request::kSetMemTable, kMessageVersion, {});
  MessageAssembler good;
  EXPECT_TRUE(good.Consume(std::span(bytes).first(1), Descriptors(kMemoryRegionsMax)).ok());
  EXPECT_FALSE(good.Consume(std::span(bytes).subspan(1, 1), Descriptors(1)).ok());
}

TEST(MessageAssembler, RefusesOtherVersionsAndReplies) {
  for (const uint32_t flags : {0u, 2u, 3u, kMessageVersion | kMessageReply}) {
    const auto bytes = Bytes(Request::kSetOwner, flags, {});
    MessageAssembler assembler;
    EXPECT_FALSE(assembler.Consume(bytes, {}).ok()) << flags;
  }
}

TEST(MessagePayload, HasExactlyItsSize) {
  const std::vector<std::byte> bytes(64);
  const auto of_size = [&](size_t size) { return WithPayload(std::span(bytes).first(size)); };
  for (const size_t size : {size_t{0}, size_t{7}, size_t{9}}) {
    EXPECT_FALSE(DecodeU64(of_size(size)).ok());
    EXPECT_FALSE(DecodeVringState(of_size(size)).ok());
  }
  EXPECT_TRUE(DecodeVringState(of_size(8)).ok());
  EXPECT_TRUE(DecodeVringAddress(of_size(40)).ok());
  EXPECT_FALSE(DecodeVringAddress(of_size(39)).ok());
  EXPECT_FALSE(DecodeVringAddress(of_size(41)).ok());
}

TEST(MessagePayload, VringDescriptorAgreesWithWhatCameAlong) {
  const auto decode = [](uint64_t value, size_t fds) {
    return DecodeVringDescriptor(WithPayload(std::as_bytes(std::span(&value, 1)), fds));
  };
  EXPECT_EQ(decode(1, 1)->index, 1u);
  EXPECT_TRUE(decode(1, 1)->has_fd);
  EXPECT_FALSE(decode(0x101, 0)->has_fd);
  EXPECT_FALSE(decode(1, 0).ok());
  EXPECT_FALSE(decode(1, 2).ok());
  EXPECT_FALSE(decode(0x101, 1).ok());
  EXPECT_FALSE(decode(0x201, 1).ok());
}

TEST(MessagePayload, MemoryTableAgreesWithItsCount) {
  const auto decode = [](uint64_t count, size_t regions, size_t fds) {
    std::vector<std::byte> payload(8 + regions * sizeof(MemoryRegionSpec));
    std::memcpy(payload.data(), &count, sizeof(count));
    return DecodeMemoryTable(WithPayload(payload, fds));
  };
  EXPECT_EQ(decode(1, 1, 1)->size(), 1u);
  EXPECT_EQ(decode(kMemoryRegionsMax, kMemoryRegionsMax, kMemoryRegionsMax)->size(),
            kMemoryRegionsMax);
  EXPECT_FALSE(decode(0, 0, 0).ok());
  EXPECT_FALSE(decode(kMemoryRegionsMax + 1, kMemoryRegionsMax + 1, kMemoryRegionsMax + 1).ok());
  EXPECT_FALSE(decode(2, 1, 2).ok());
  EXPECT_FALSE(decode(1, 2, 1).ok());
  EXPECT_FALSE(decode(2, 2, 1).ok());
  EXPECT_FALSE(decode(0xffffffff, 1, 1).ok());
}

TEST(MessagePayload, ConfigRequestHasRoomForItsAnswer) {
  const auto decode = [](uint32_t size, size_t room) {
    std::vector<std::byte> payload(kConfigRequestBytes + room);
    const ConfigRequest request{.offset = 0, .size = size, .flags = 0};
    std::memcpy(payload.data(), &request, sizeof(request));
    return DecodeConfigRequest(WithPayload(payload));
  };
  EXPECT_EQ(decode(8, 8)->size, 8u);
  EXPECT_FALSE(decode(8, 7).ok());
  EXPECT_FALSE(decode(0xfffffff8, 8).ok());
  EXPECT_FALSE(DecodeConfigRequest(WithPayload({})).ok());
}

}  // namespace
}  // namespace consort::vhost_user
