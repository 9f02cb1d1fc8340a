// SPDX-License-Identifier: Apache-2.0
// How often a CPU copies what a program in a virtual machine copies to a device and back, between
// the machine's memory and what the driver is given.
#include <cstring>
#include <random>

#include "gtest/gtest.h"
#include "host/session/vm_session_test_support.h"

namespace consort::host {
namespace {

std::vector<std::byte> RandomBytes(Bytes bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> data(bytes);
  for (size_t at = 0; at + 8 <= data.size(); at += 8) {
    const uint64_t value = random();
    std::memcpy(data.data() + at, &value, sizeof(value));
  }
  return data;
}

struct Copied {
  VmSessionCounts counts;
  // By the device and, of what went through the socket, once more by the worker.
  double to_device = 0;
  double to_host = 0;
};

// Copies `bytes` there and back; by how many times as many bytes CPUs have copied.
Copied CopyThereAndBack(const std::string& door, Bytes bytes, CopyCrew* crew = nullptr) {
  VmSessionPeer peer(door, crew);
  const uint64_t address = peer.Allocate(bytes);
  const auto data = RandomBytes(bytes, 7);
  peer.CopyToDevice(address, data);
  EXPECT_TRUE(peer.CopyToHost(address, bytes) == data);
  Copied copied;
  copied.counts = peer.End();
  const auto stats = peer.stats();
  const auto times = [bytes](uint64_t moved) { return static_cast<double>(moved) / bytes; };
  copied.to_device = times(stats.bytes_from_guest + stats.socket_bytes_from_guest);
  copied.to_host = times(stats.bytes_to_guest + stats.socket_bytes_to_guest);
  return copied;
}

class VmSessionCrew : public testing::TestWithParam<uint32_t> {
 protected:
  // Has a part in all but the smallest copies, if it has threads.
  CopyCrew crew_{{.threads = GetParam(), .shared_from = 10000, .share = 4000}};
};

INSTANTIATE_TEST_SUITE_P(Of, VmSessionCrew, testing::Values(0, 3),
                         testing::PrintToStringParamName());

TEST_P(VmSessionCrew, BulkDataIsCopiedOnceEachWayByACpu) {
  for (const Bytes bytes : {Bytes{512 * kKiB}, Bytes{32 * kMiB}, 5 * kMiB + 200 * kKiB + 8}) {
    SCOPED_TRACE(bytes);
    const Copied copied = CopyThereAndBack(kVhostUserDoor, bytes, &crew_);
    EXPECT_EQ(copied.counts.bytes_to_device, bytes);
    EXPECT_EQ(copied.counts.bytes_to_host, bytes);
    EXPECT_EQ(copied.counts.copied_by_worker, 0u);
    // And what is around the data.
    EXPECT_GE(copied.to_device, 1.0);
    EXPECT_LE(copied.to_device, 1.02);
    EXPECT_GE(copied.to_host, 1.0);
    EXPECT_LE(copied.to_host, 1.02);
  }
}

// What the measure above says of the way that all other doors go.
TEST(VmSession, ThroughASocketItIsThreeTimes) {
  const Bytes bytes = 8 * kMiB;
  const Copied copied = CopyThereAndBack("socket", bytes);
  EXPECT_GE(copied.to_device, 2.0);
  EXPECT_GE(copied.to_host, 2.0);
  EXPECT_EQ(copied.counts.copied_by_worker, 2 * bytes);
}

TEST_P(VmSessionCrew, SmallCopiesAreWhole) {
  VmSessionPeer peer(kVhostUserDoor, &crew_);
  const uint64_t address = peer.Allocate(kMiB);
  for (const Bytes bytes :
       {Bytes{1}, Bytes{7}, Bytes{4096}, Bytes{65535}, Bytes{65536}, Bytes{65537}, Bytes{100001}}) {
    const auto data = RandomBytes(AlignUp(bytes, 8), bytes);
    const auto part = std::span(data).first(bytes);
    peer.CopyToDevice(address, part);
    const auto back = peer.CopyToHost(address, bytes);
    ASSERT_EQ(back.size(), bytes);
    EXPECT_EQ(std::memcmp(back.data(), part.data(), bytes), 0) << bytes << " bytes";
  }
}

}  // namespace
}  // namespace consort::host
