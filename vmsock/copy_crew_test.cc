// SPDX-License-Identifier: Apache-2.0
#include "vmsock/copy_crew.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "vmsock/channel_test_support.h"

namespace consort {
namespace {

std::vector<std::byte> RandomBytes(size_t bytes, std::mt19937_64& random) {
  std::vector<std::byte> data(AlignUp(bytes, 8));
  for (size_t at = 0; at < data.size(); at += 8) {
    const uint64_t value = random();
    std::memcpy(data.data() + at, &value, sizeof(value));
  }
  data.resize(bytes);
  return data;
}

// One side in one piece, which may go on at its beginning as a ring does, the other scattered.
class Copies {
 public:
  explicit Copies(uint64_t seed) : random_(seed) {}

  // As many random ones, each compared with what memcpy makes.
  void Run(CopyCrew* crew, int count) {
    for (int i = 0; i < count; ++i) {
      SCOPED_TRACE("copy " + std::to_string(i));
      if (!RunOne(crew)) return;
    }
  }

 private:
  size_t Below(size_t bound) { return random_() % bound; }

  // Lengths of pieces: pages, receive buffers, anything; also none.
  std::vector<size_t> Lengths() {
    const size_t kinds[] = {4096, 3732, 65536, 1 + Below(100), 1 + Below(300000)};
    const size_t kind = kinds[Below(std::size(kinds))];
    std::vector<size_t> lengths(Below(200) + 1);
    for (size_t& length : lengths) {
      length = Below(8) == 0 ? Below(2 * kind) : kind;
    }
    size_t total = 0;
    std::erase_if(lengths, [&](size_t length) { return (total += length) > kBytesMax; });
    return lengths;
  }

  bool RunOne(CopyCrew* crew) {
    const std::vector<size_t> lengths = Lengths();
    size_t total = 0;
    for (const size_t length : lengths) total += length;
    const size_t ring_bytes = total + Below(1000) + 1;
    // Pieces in any order, with gaps.
    std::vector<size_t> order(lengths.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), random_);
    std::vector<size_t> places(lengths.size());
    size_t scattered_bytes = 0;
    for (const size_t i : order) {
      scattered_bytes += Below(64);
      places[i] = scattered_bytes;
      scattered_bytes += lengths[i];
    }
    std::vector<std::byte> ring = RandomBytes(ring_bytes, random_);
    std::vector<std::byte> scattered = RandomBytes(scattered_bytes, random_);
    const bool gather = Below(2) == 0;
    const std::vector<std::byte>& from = gather ? scattered : ring;
    std::vector<std::byte>& to = gather ? ring : scattered;
    std::vector<std::byte> expected = to;
    std::vector<CopyPart> parts;
    size_t at = Below(ring_bytes);
    for (size_t i = 0; i < lengths.size(); ++i) {
      for (size_t done = 0; done < lengths[i];) {
        const size_t count = std::min(lengths[i] - done, ring_bytes - at);
        const size_t there = places[i] + done;
        const size_t from_offset = gather ? there : at;
        const size_t to_offset = gather ? at : there;
        parts.push_back({to.data() + to_offset, from.data() + from_offset, count});
        std::memcpy(expected.data() + to_offset, from.data() + from_offset, count);
        done += count;
        at = (at + count) % ring_bytes;
      }
    }
    if (Below(4) == 0) parts.push_back({});
    crew->Copy(parts);
    EXPECT_TRUE(to == expected) << parts.size() << " parts, " << total << " bytes";
    return to == expected;
  }

  static constexpr size_t kBytesMax = 800000;
  std::mt19937_64 random_;
};

struct CrewCase {
  std::string name;
  CopyCrewOptions options;
};

class CopyCrewTest : public testing::TestWithParam<CrewCase> {};

TEST_P(CopyCrewTest, CopiesAsMemcpyDoes) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("CONSORT_TEST_SEED=" + std::to_string(seed));
  CopyCrew crew(GetParam().options);
  Copies(seed).Run(&crew, 30);
}

TEST_P(CopyCrewTest, ServesManyCallersAtOnce) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("CONSORT_TEST_SEED=" + std::to_string(seed));
  CopyCrew crew(GetParam().options);
  std::vector<std::thread> callers;
  for (uint32_t i = 0; i < 4; ++i) {
    callers.emplace_back([&crew, seed, i] { Copies(seed + 1 + i).Run(&crew, 12); });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST_P(CopyCrewTest, EndsIdleOrJustAfterWork) {
  for (int i = 0; i < 20; ++i) {
    CopyCrew crew(GetParam().options);
    if (i % 2 == 0) continue;
    std::vector<std::byte> from(300000, std::byte{7});
    std::vector<std::byte> to(from.size());
    const CopyPart part{to.data(), from.data(), from.size()};
    crew.Copy({&part, 1});
    EXPECT_TRUE(to == from);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Crews, CopyCrewTest,
    testing::Values(CrewCase{"nobody", {.threads = 0}}, CrewCase{"one", {.threads = 1}},
                    CrewCase{"three", {.threads = 3}},
                    CrewCase{"three_share_all",
                             {.threads = 3, .shared_from = 1, .share_least = 1000}}),
    [](const auto& info) { return info.param.name; });

TEST(CopyCrew, SmallHostsSpareNoThreads) {
  EXPECT_EQ(CopyCrew::ThreadsFor(0), 0u);
  EXPECT_EQ(CopyCrew::ThreadsFor(2), 0u);
  EXPECT_EQ(CopyCrew::ThreadsFor(7), 0u);
  EXPECT_EQ(CopyCrew::ThreadsFor(8), 2u);
  EXPECT_EQ(CopyCrew::ThreadsFor(23), 5u);
  EXPECT_EQ(CopyCrew::ThreadsFor(24), 6u);
  EXPECT_EQ(CopyCrew::ThreadsFor(256), 6u);
}

}  // namespace
}  // namespace consort
