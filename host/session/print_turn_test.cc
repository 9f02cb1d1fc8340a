// SPDX-License-Identifier: Apache-2.0
// Sessions over a driver that prints for all of them at once: the CPU driver, whose way to tell
// them apart is not used.
#include "host/session/print_turn.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "host/session/session_test_support.h"

namespace consort::host {
namespace {

constexpr int kRounds = 20;
constexpr uint32_t kLinesARound = 3;

// printf("who %d line %d\n", who, line)
constexpr char kSay[] = R"(
.extern .func (.param .b32 printed) vprintf (.param .b64 text, .param .b64 values);
.global .align 1 .b8 format[16] = {119, 104, 111, 32, 37, 100, 32, 108, 105, 110, 101, 32, 37, 100,
                                   10, 0};
.visible .entry say(.param .u32 who, .param .u32 line)
{
  .local .align 8 .b8 depot[8];
  .reg .b32 %r<4>;
  .reg .b64 %rd<3>;
  ld.param.u32 %r1, [who];
  ld.param.u32 %r2, [line];
  mov.u64 %rd1, depot;
  st.local.u32 [%rd1], %r1;
  st.local.u32 [%rd1+4], %r2;
  mov.u64 %rd2, format;
  { .param .b64 param0; st.param.b64 [param0], %rd2;
    .param .b64 param1; st.param.b64 [param1], %rd1;
    .param .b32 retval0; call.uni (retval0), vprintf, (param0, param1);
    ld.param.b32 %r3, [retval0]; }
  ret;
}
)";

struct SayParams {
  uint32_t who;
  uint32_t line;
};

std::string Line(uint32_t who, uint32_t line) {
  return "who " + std::to_string(who) + " line " + std::to_string(line) + "\n";
}

// The device of a worker that catches its output.
std::unique_ptr<WorkerDevice> SharingDevice() {
  device::LoadedDriver driver = CpuDriver();
  driver.set_stream_output = nullptr;
  std::unique_ptr<WorkerDevice> device = OpenDevice(driver);
  auto shared = SharedOutput::Capture();
  EXPECT_TRUE(shared.ok()) << shared.status();
  device->set_shared_output(*std::move(shared));
  return device;
}

// A guest that prints some lines a round and looks at what has come; the result is all of it.
std::string Print(const WorkerDevice& device, uint32_t who) {
  PeerOptions options;
  options.device = &device;
  SessionPeer peer(options);
  wire::KernelGetReply unused;
  LoadLibrary(&peer, kSay, {"say"}, &unused);
  std::string expected;
  uint32_t line = 0;
  for (int round = 0; round < kRounds; ++round) {
    for (uint32_t i = 0; i < kLinesARound; ++i) {
      const SayParams params = {who, line};
      wire::LaunchRequest launch;
      launch.kernel = GuestId(kKernelKind, 2);
      launch.stream = 1;
      launch.grid_x = launch.grid_y = launch.grid_z = 1;
      launch.block_x = launch.block_y = launch.block_z = 1;
      launch.params = std::as_bytes(std::span(&params, 1));
      peer.Post(launch);
      expected += Line(who, line++);
    }
    EXPECT_EQ(peer.Synchronize(), CUDA_SUCCESS);
    EXPECT_EQ(peer.printed(), expected) << "round " << round;
  }
  return peer.printed();
}

std::string Expected(uint32_t who) {
  std::string all;
  for (uint32_t line = 0; line < kRounds * kLinesARound; ++line) all += Line(who, line);
  return all;
}

TEST(PrintTurn, OfOneSessionNeedsNobody) {
  const std::unique_ptr<WorkerDevice> device = SharingDevice();
  EXPECT_EQ(Print(*device, 1), Expected(1));
}

TEST(PrintTurn, KeepsTextOfNeighboursApart) {
  const std::unique_ptr<WorkerDevice> device = SharingDevice();
  std::string printed[3];
  std::vector<std::thread> guests;
  for (uint32_t who = 0; who < 3; ++who) {
    guests.emplace_back([&, who] { printed[who] = Print(*device, who); });
  }
  for (std::thread& guest : guests) guest.join();
  for (uint32_t who = 0; who < 3; ++who) EXPECT_EQ(printed[who], Expected(who)) << who;
}

}  // namespace
}  // namespace consort::host
