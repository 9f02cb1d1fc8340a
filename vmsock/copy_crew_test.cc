// SPDX-License-Identifier: Apache-2.0
#include "vmsock/copy_crew.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "vmsock/channel_test_support.h"
#include "vmsock/copy_crew_test_support.h"

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

// A job: one side in one piece, which may go on at its beginning as a ring does, the other
// scattered.
class Copy {
 public:
  explicit Copy(std::mt19937_64* random) : random_(*random) {
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
    const bool gather = Below(2) == 0;
    from_ = RandomBytes(gather ? scattered_bytes : ring_bytes, random_);
    to_ = RandomBytes(gather ? ring_bytes : scattered_bytes, random_);
    expected_ = to_;
    size_t at = Below(ring_bytes);
    for (size_t i = 0; i < lengths.size(); ++i) {
      for (size_t done = 0; done < lengths[i];) {
        const size_t count = std::min(lengths[i] - done, ring_bytes - at);
        const size_t there = places[i] + done;
        const size_t from_offset = gather ? there : at;
        const size_t to_offset = gather ? at : there;
        job_.parts().push_back({to_.data() + to_offset, from_.data() + from_offset, count});
        std::memcpy(expected_.data() + to_offset, from_.data() + from_offset, count);
        done += count;
        at = (at + count) % ring_bytes;
      }
    }
    if (Below(4) == 0) job_.parts().push_back({});
  }

  PartsJob& job() { return job_; }
  void Check() {
    ASSERT_TRUE(job_.done());
    EXPECT_TRUE(to_ == expected_) << job_.parts().size() << " parts";
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

  static constexpr size_t kBytesMax = 800000;
  std::mt19937_64& random_;
  std::vector<std::byte> from_;
  std::vector<std::byte> to_;
  std::vector<std::byte> expected_;
  PartsJob job_;
};

// Rounds of several jobs that are on their way at once, each compared with what memcpy makes, ended
// from the first, from the last, or by looking alone.
void RunCopies(CopyCrew* crew, uint64_t seed, int rounds) {
  std::mt19937_64 random(seed);
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    std::deque<Copy> copies;
    for (uint64_t i = random() % 5 + 1; i > 0; --i) {
      copies.emplace_back(&random);
      crew->Begin(&copies.back().job());
    }
    const uint64_t way = random() % 3;
    for (size_t i = 0; i < copies.size(); ++i) {
      CopyJob& job = copies[way == 0 ? i : copies.size() - 1 - i].job();
      if (way == 2) {
        while (!job.done()) crew->Help();
      } else {
        crew->Finish(job);
      }
    }
    for (Copy& copy : copies) copy.Check();
  }
}

class CopyCrewTest : public testing::TestWithParam<CrewCase> {};

TEST_P(CopyCrewTest, CopiesAsMemcpyDoes) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("CONSORT_TEST_SEED=" + std::to_string(seed));
  CopyCrew crew(GetParam().options);
  RunCopies(&crew, seed, 12);
}

TEST_P(CopyCrewTest, ServesManyCallersAtOnce) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("CONSORT_TEST_SEED=" + std::to_string(seed));
  CopyCrew crew(GetParam().options);
  std::vector<std::thread> callers;
  for (uint32_t i = 0; i < 4; ++i) {
    callers.emplace_back([&crew, seed, i] { RunCopies(&crew, seed + 1 + i, 5); });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST_P(CopyCrewTest, EndsIdleOrJustAfterWork) {
  for (int i = 0; i < 20; ++i) {
    CopyCrew crew(GetParam().options);
    if (i % 2 == 0) continue;
    std::vector<std::byte> from(300000, std::byte{7});
    std::vector<std::byte> to(from.size());
    PartsJob job;
    job.parts().push_back({to.data(), from.data(), from.size()});
    crew.Begin(&job);
    crew.Finish(job);
    EXPECT_TRUE(to == from);
  }
}

// The crew sleeps, and nobody waits: what was handed over is copied all the same.
TEST(CopyCrew, CopiesWhatNobodyWaitsFor) {
  CopyCrew crew({.threads = 2});
  std::vector<std::byte> from(1000000, std::byte{7});
  for (int i = 0; i < 20; ++i) {
    std::vector<std::byte> to(from.size());
    PartsJob job;
    job.parts().push_back({to.data(), from.data(), from.size()});
    crew.Begin(&job);
    while (!job.done()) std::this_thread::yield();
    EXPECT_TRUE(to == from);
  }
}

// More jobs than can stand in line, of as many shares as there are bytes.
TEST(CopyCrew, CopiesWhatFindsNoPlaceInLine) {
  CopyCrew crew({.threads = 1, .shared_from = 1, .share = 1});
  std::vector<std::byte> from(1000, std::byte{7});
  std::deque<std::vector<std::byte>> to;
  std::deque<PartsJob> jobs;
  for (uint32_t i = 0; i < 3 * kCopyJobsWaitingMax; ++i) {
    to.emplace_back(from.size());
    jobs.emplace_back().parts().push_back({to.back().data(), from.data(), from.size()});
    crew.Begin(&jobs.back());
  }
  for (uint32_t i = 0; i < jobs.size(); ++i) {
    crew.Finish(jobs[i]);
    EXPECT_TRUE(to[i] == from);
  }
}

// Places in line are used again and again, by jobs that are used again, while threads come too late
// for shares of those before.
TEST(CopyCrew, JobsGoRoundTheLineManyTimes) {
  constexpr size_t kBytes = 600;
  CopyCrew crew({.threads = 3, .shared_from = 1, .share = 100, .wakes_from = 1});
  std::mt19937_64 random(TestSeed());
  struct Round {
    PartsJob job;
    std::vector<std::byte> from;
    std::vector<std::byte> to = std::vector<std::byte>(kBytes);
  };
  std::deque<Round> rounds(5);
  for (uint32_t i = 0; i < 40 * kCopyJobsWaitingMax; ++i) {
    Round& round = rounds[i % rounds.size()];
    if (i >= rounds.size()) {
      if (i % 3 == 0) {
        crew.Finish(round.job);
      } else {
        while (!round.job.done()) std::this_thread::yield();
      }
      ASSERT_TRUE(round.to == round.from) << i;
    }
    round.from = RandomBytes(kBytes, random);
    round.job.Clear();
    round.job.parts().push_back({round.to.data(), round.from.data(), kBytes});
    crew.Begin(&round.job);
  }
  for (Round& round : rounds) crew.Finish(round.job);
}

TEST(CopyCrew, CutsIntoNoMoreSharesThanAJobMayHave) {
  CopyCrew crew({.threads = 2, .shared_from = 1, .share = 1});
  std::vector<std::byte> from(3 * kCopySharesMax + 5, std::byte{7});
  std::vector<std::byte> to(from.size());
  PartsJob job;
  job.parts().push_back({to.data(), from.data(), from.size()});
  crew.Begin(&job);
  crew.Finish(job);
  EXPECT_TRUE(to == from);
}

INSTANTIATE_TEST_SUITE_P(
    Crews, CopyCrewTest,
    testing::Values(CrewCase{"nobody", {.threads = 0}}, CrewCase{"one", {.threads = 1}},
                    CrewCase{"three", {.threads = 3}},
                    CrewCase{"three_share_all",
                             {.threads = 3, .shared_from = 1, .share = 1000, .wakes_from = 1}}),
    [](const auto& info) { return info.param.name; });

TEST(CopyCrew, SmallHostsSpareNoThreads) {
  EXPECT_EQ(CopyCrew::ThreadsFor(0), 0u);
  EXPECT_EQ(CopyCrew::ThreadsFor(2), 0u);
  EXPECT_EQ(CopyCrew::ThreadsFor(7), 0u);
  EXPECT_EQ(CopyCrew::ThreadsFor(8), 4u);
  EXPECT_EQ(CopyCrew::ThreadsFor(15), 7u);
  EXPECT_EQ(CopyCrew::ThreadsFor(16), 8u);
  EXPECT_EQ(CopyCrew::ThreadsFor(256), 8u);
}

}  // namespace
}  // namespace consort
