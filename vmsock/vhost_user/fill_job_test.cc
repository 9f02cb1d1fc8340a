// SPDX-License-Identifier: Apache-2.0
// Packets in buffers of any shape, written alone or by a crew, compared byte for byte with what a
// packet is.
#include "vmsock/vhost_user/fill_job.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "vmsock/channel_test_support.h"
#include "vmsock/copy_crew_test_support.h"

namespace consort::vhost_user {
namespace {

constexpr PacketHeader kHeader = {.src_cid = 2,
                                  .dst_cid = 42,
                                  .src_port = 5000,
                                  .dst_port = 1000,
                                  .len = 0,
                                  .type = kTypeStream,
                                  .op = kOpReadWrite,
                                  .flags = 7,
                                  .buf_alloc = 65536,
                                  .fwd_cnt = 1234567};

// Memory of a guest, and what it should be when the job is done.
class Fill {
 public:
  explicit Fill(std::mt19937_64* random) : random_(*random) {}

  void Run(CopyCrew* crew) {
    const size_t packets = 1 + Below(kPacketsPerCopy);
    std::vector<uint32_t> payloads;
    for (size_t i = 0; i < packets; ++i) {
      payloads.push_back(static_cast<uint32_t>(Below(3) > 0 ? 3732 : 1 + Below(20000)));
    }
    MakeSources(payloads);
    MakePlaces(payloads);
    job_.Clear();
    const bool sources_first = Below(2) == 0;
    if (sources_first) AddSources();
    for (size_t i = 0; i < packets; ++i) job_.AddPacket(pieces_[i], payloads[i]);
    if (!sources_first) AddSources();
    job_.SetHeader(kHeader);
    job_.SetPastCaches(Below(2) == 0);
    crew->Begin(&job_);
  }

  FillJob& job() { return job_; }
  void Check() {
    ASSERT_TRUE(job_.done());
    EXPECT_TRUE(memory_ == expected_);
  }

 private:
  size_t Below(size_t bound) { return random_() % bound; }

  // All in one, or in several; the last one may have more than is wanted.
  void MakeSources(const std::vector<uint32_t>& payloads) {
    size_t left = Below(2) == 0 ? 0 : Below(100000);
    for (const uint32_t payload : payloads) left += payload;
    stream_.clear();
    sources_.clear();
    const size_t length_max = Below(2) == 0 ? left : 1 + Below(9000);
    while (left > 0) {
      const size_t length = std::min(left, 1 + Below(length_max));
      std::vector<std::byte>& source = sources_.emplace_back(length);
      for (std::byte& byte : source) byte = static_cast<std::byte>(random_());
      stream_.insert(stream_.end(), source.begin(), source.end());
      left -= length;
    }
  }

  // Mostly one piece a packet, else up to one a byte of its header; room behind it or none.
  void MakePlaces(const std::vector<uint32_t>& payloads) {
    memory_.assign(payloads.size() * 40000, std::byte{0xee});
    expected_ = memory_;
    pieces_.assign(payloads.size(), {});
    size_t taken = 0;
    for (size_t i = 0; i < payloads.size(); ++i) {
      PacketHeader header = kHeader;
      header.len = payloads[i];
      std::vector<std::byte> packet(sizeof(header));
      std::memcpy(packet.data(), &header, sizeof(header));
      packet.insert(packet.end(), stream_.begin() + static_cast<ptrdiff_t>(taken),
                    stream_.begin() + static_cast<ptrdiff_t>(taken + payloads[i]));
      taken += payloads[i];
      const size_t room = packet.size() + (Below(2) == 0 ? 0 : Below(3000));
      const size_t length_max = Below(2) == 0 ? room : 1 + Below(100);
      size_t at = i * 40000;
      for (size_t placed = 0; placed < room;) {
        const size_t length =
            length_max == room ? room : std::min(room - placed, 1 + Below(length_max));
        pieces_[i].push_back({memory_.data() + at, length});
        if (placed < packet.size()) {
          std::memcpy(expected_.data() + at, packet.data() + placed,
                      std::min(length, packet.size() - placed));
        }
        at += length + (room < 10000 && length_max < room ? Below(2) : 0);
        placed += length;
      }
    }
  }

  void AddSources() {
    for (const auto& source : sources_) job_.AddSource(source);
  }

  std::mt19937_64& random_;
  std::deque<std::vector<std::byte>> sources_;
  std::vector<std::byte> stream_;
  std::vector<std::vector<iovec>> pieces_;
  std::vector<std::byte> memory_;
  std::vector<std::byte> expected_;
  FillJob job_;
};

class FillJobTest : public testing::TestWithParam<CrewCase> {};

// Several on their way at once, each filled anew in every round.
TEST_P(FillJobTest, WritesPacketsIntoBuffersOfAnyShape) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("CONSORT_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  CopyCrew crew(GetParam().options);
  std::deque<Fill> fills;
  for (int i = 0; i < 4; ++i) fills.emplace_back(&random);
  for (int round = 0; round < 40 && !HasFailure(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    for (Fill& fill : fills) fill.Run(&crew);
    for (Fill& fill : fills) {
      crew.Finish(fill.job());
      ASSERT_NO_FATAL_FAILURE(fill.Check());
      fill.job().PrefetchForNext();
    }
  }
}

// Places as Linux posts them, with some larger or smaller ones now and then, taken as they come.
TEST_P(FillJobTest, WritesPacketsIntoBuffersThatAreAlikeOrNot) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("CONSORT_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto below = [&](size_t bound) { return random() % bound; };
  CopyCrew crew(GetParam().options);
  FillJob job;
  for (int round = 0; round < 400 && !HasFailure(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    constexpr size_t kStride = 8192;
    const size_t packets = 1 + below(kPacketsPerCopy);
    std::vector<std::byte> memory(packets * kStride, std::byte{0xee});
    std::vector<std::byte> expected = memory;
    std::vector<WritableBuffer> places;
    std::vector<uint32_t> room;
    const bool odd = below(2) == 0;
    for (size_t i = 0; i < packets; ++i) {
      const size_t length = odd && below(8) == 0 ? kPacketHeaderBytes + 1 + below(6000) : 3776;
      places.push_back({0, {memory.data() + i * kStride, length}});
      room.push_back(static_cast<uint32_t>(length - kPacketHeaderBytes));
    }
    job.Clear();
    job.SetHeader(kHeader);
    job.SetPastCaches(below(2) == 0);
    // Each time as much as there is room for, but for the last, which may be less.
    std::deque<std::vector<std::byte>> sources;
    const auto source = [&](size_t bytes) -> std::span<const std::byte> {
      std::vector<std::byte>& made = sources.emplace_back(bytes);
      for (std::byte& byte : made) byte = static_cast<std::byte>(random());
      return made;
    };
    for (size_t taken = 0; taken < packets;) {
      const size_t count = 1 + below(packets - taken);
      uint64_t bytes = 0;
      for (size_t i = 0; i < count; ++i) bytes += room[taken + i];
      const bool last = taken + count == packets;
      if (last) bytes -= below(bytes);
      const std::span<const std::byte> stream = source(bytes);
      const size_t cut = below(bytes);
      if (cut > 0) job.AddSource(stream.first(cut));
      job.AddSource(stream.subspan(cut));
      std::array<uint32_t, kPacketsPerCopy> told = {};
      const size_t made = job.AddPackets(std::span(places).subspan(taken, count), bytes, told);
      size_t at = 0;
      for (size_t i = 0; i < made; ++i) {
        ASSERT_EQ(told[i], std::min<uint64_t>(room[taken + i], bytes - at));
        PacketHeader header = kHeader;
        header.len = told[i];
        std::byte* const to = expected.data() + (taken + i) * kStride;
        std::memcpy(to, &header, sizeof(header));
        std::memcpy(to + sizeof(header), stream.data() + at, told[i]);
        at += told[i];
      }
      ASSERT_EQ(at, bytes);
      taken += count;
    }
    crew.Begin(&job);
    crew.Finish(job);
    EXPECT_TRUE(memory == expected);
    job.PrefetchForNext();
  }
}

TEST(FillJob, AddsPacketsUntilTheirBytesAreOver) {
  // The second is larger than a packet may be; the last is not needed.
  const size_t lengths[] = {kPacketHeaderBytes + 1, kPacketPayloadBytesMax + 1000, 3776, 3776, 500};
  const std::vector<uint32_t> payloads = {1, kPacketPayloadBytesMax, 3732, 100};
  std::vector<std::vector<std::byte>> memory;
  std::vector<WritableBuffer> places;
  for (const size_t length : lengths) {
    std::vector<std::byte>& place = memory.emplace_back(length, std::byte{0xee});
    places.push_back({0, {place.data(), place.size()}});
  }
  std::vector<std::byte> stream;
  for (const uint32_t payload : payloads) stream.resize(stream.size() + payload);
  for (size_t i = 0; i < stream.size(); ++i) stream[i] = static_cast<std::byte>(i * 7 + i / 1000);

  FillJob job;
  job.SetHeader(kHeader);
  job.AddSource(stream);
  std::array<uint32_t, std::size(lengths)> told = {};
  // Behind another packet, as if it had come before.
  ASSERT_EQ(job.AddPackets(std::span(places).first(1), 1, told), 1u);
  EXPECT_EQ(told[0], 1u);
  ASSERT_EQ(job.AddPackets(std::span(places).subspan(1), stream.size() - 1, told), 3u);
  EXPECT_EQ(std::vector(told.begin(), told.begin() + 3),
            std::vector(payloads.begin() + 1, payloads.end()));
  job.CopyAlone();
  size_t taken = 0;
  for (size_t i = 0; i < memory.size(); ++i) {
    SCOPED_TRACE(i);
    std::vector<std::byte> expected(lengths[i], std::byte{0xee});
    if (i < payloads.size()) {
      PacketHeader header = kHeader;
      header.len = payloads[i];
      std::memcpy(expected.data(), &header, sizeof(header));
      std::memcpy(expected.data() + sizeof(header), stream.data() + taken, payloads[i]);
      taken += payloads[i];
    }
    EXPECT_TRUE(memory[i] == expected);
  }
}

TEST(FillJob, IsFullOfOddBuffersOrSourcesUntilItIsCleared) {
  std::vector<std::byte> memory(2048);
  FillJob job;
  const auto packet = [&](size_t pieces) {
    std::vector<iovec> place;
    for (size_t i = 0; i < pieces; ++i) place.push_back({&memory[i], 1});
    job.AddPacket(place, static_cast<uint32_t>(pieces - kPacketHeaderBytes));
  };
  packet(kPiecesPerCopy - 100);
  EXPECT_FALSE(job.full());
  packet(99);
  EXPECT_FALSE(job.full());
  packet(100);
  EXPECT_TRUE(job.full());
  job.Clear();
  EXPECT_FALSE(job.full());
  for (size_t i = 0; i < kPiecesPerCopy; ++i) {
    EXPECT_FALSE(job.full()) << i;
    job.AddSource({memory.data(), 1});
  }
  EXPECT_TRUE(job.full());
}

INSTANTIATE_TEST_SUITE_P(
    Crews, FillJobTest,
    testing::Values(CrewCase{"nobody", {.threads = 0}},
                    CrewCase{"three", {.threads = 3, .shared_from = 1}},
                    CrewCase{"three_a_packet_each", {.threads = 3, .shared_from = 1, .share = 1}},
                    CrewCase{"one_asleep",
                             {.threads = 1, .shared_from = 1, .wakes_from = UINT64_MAX}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace consort::vhost_user
