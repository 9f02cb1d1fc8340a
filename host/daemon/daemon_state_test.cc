// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/daemon_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/control/control_socket.h"
#include "host/limits.h"
#include "vmsock/vhost_user/backend.h"
#include "vmsock/wire/handshake.h"

namespace consort::host {
namespace {

using ::testing::HasSubstr;

// A device in the middle of everything; no two values are the same.
vhost_user::VsockDeviceState Device() {
  vhost_user::ConnectionState connection;
  connection.guest_port = 1001;
  connection.host_port = 7000;
  connection.window_bytes = 65536;
  connection.host = 40;
  connection.conduit = {{90, true, 0x200001, 0x280002, 0x240003, 0x70004, 77, 78, 79}};
  connection.backlog = {std::byte{1}, std::byte{2}, std::byte{3}};
  connection.forwarded = 0xfffffff0;
  connection.forwarded_reported = 0xffffff00;
  connection.writable = false;
  connection.write_ended = true;
  connection.host_refuses = true;
  connection.peer_window = 262144;
  connection.peer_forwarded = 11;
  connection.sent = 17;
  connection.unread_ends = {12, 17};
  connection.readable = true;
  connection.host_ended = true;
  connection.guest_shutdown = 1;
  connection.told_shutdown = 2;
  connection.response_pending = true;
  connection.credit_update_pending = true;
  connection.credit_request_pending = true;
  connection.credit_requested = true;
  connection.stalled = true;
  connection.detached = true;
  connection.read_chains = 4;
  vhost_user::QueueState queue;
  queue.layout = {128, 0x1000, 0x2000, 0x3000};
  queue.has_address = true;
  queue.base = 21;
  queue.enabled = true;
  queue.broken = true;
  queue.started = true;
  queue.next_available = 22;
  queue.stopped = {{{64, 0x4000, 0x5000, 0x6000}, 23, 24}};
  queue.kick = 41;
  queue.call = 42;
  queue.err = 43;
  vhost_user::FrontendState frontend;
  frontend.control = {44, {std::byte{5}}, {45, 46}};
  frontend.backend = {
      vhost_user::kFeatureEventIdx, 3, {{{0x7000, 0x8000, 0x9000, 0xa000}, 47}}, {queue, {}}};
  frontend.muxer = {{connection, {}}, {{2, 1002, 7001, 1}}};
  frontend.muxer.connections[1].window_bytes = 65536;
  return {48, {frontend}};
}

// With something of every kind.
DaemonState Whole() {
  DaemonState state;
  state.build = "1.2.3";
  state.upgrade = {3, "uid 0"};
  state.doors = {{"/run/a.sock", "local", 3, 4}, {"/run/b.sock", "web", 5, 6}};
  state.vsock = 7;
  state.admin = {{"/run/admin.sock", "", 8, 9}};
  state.metrics = {{"127.0.0.1:9825", "", 10, DaemonState::kNone}};
  state.vms = {
      {"web-1", "/run/vms/web-1.sock", "web", {2}, Device(), {}},
      {"idle", "/run/vms/idle.sock", "", {}, {49, {}}, {{"/dev/shm/consort-idle", 64 << 20, 51}}}};
  state.greetings = {{50, "web", "web-1", 2, "vhost-user", "port 1001", true, "CNST", "no"}};
  state.devices.resize(2);
  SetText(state.devices[1].info.snapshot.name, "Two");
  state.devices[1].memory.promised = 17;
  state.devices[1].speed.arithmetic = 18;
  state.devices[1].drained = true;
  state.workers = {{100, 0, "", 1, true, "1:2:3.4", 11}, {101, 1, "web", 2, false, "", 12}};
  state.children = {{100, 0}, {101, 1}, {102, 0}};
  DaemonState::Session session;
  session.open.session = 8;
  session.open.window_base = 0x200000000000;
  session.tenant = "web";
  session.application = std::string("a\0b", 3);
  session.device = 1;
  session.worker = 101;
  session.started = 123;
  session.bound = false;
  session.told.calls = 4;
  session.usage.calls = 9;
  session.parts = {{65536, 100}, {131072, 4096}};
  state.sessions = {session};
  state.next_session = 9;
  state.totals = {{"web", "train", 1, 5, 1, session.usage}};
  state.events = {{1, 1767225600, 2, "a worker died", 3}};
  state.last_event = 4;
  state.trace = {true, "/traces", 4096, "uid 1", 7, {{0, 17, "/traces/a", "stopped"}}};
  state.refused = {{"drained", 2}};
  state.unsupported_calls = {{"cuLinkCreate", 1}};
  state.errors = {{"account", 1}};
  state.settings = "{}";
  state.policy = "las";
  state.terms = {{"web", 3, {100, 200}}};
  return state;
}

TEST(DaemonState, IsReadAsItWasWritten) {
  const DaemonState state = Whole();
  const std::vector<std::byte> bytes = Encode(state);
  const auto read = DecodeDaemonState(bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(Encode(*read), bytes);
  EXPECT_EQ(read->sessions[0].application, state.sessions[0].application);
  EXPECT_EQ(read->sessions[0].usage, state.sessions[0].usage);
  EXPECT_EQ(read->metrics[0].lock, DaemonState::kNone);
  EXPECT_EQ(read->terms[0].rates, state.terms[0].rates);
  EXPECT_THAT(DescriptorsOf(*read),
              ::testing::UnorderedElementsAre(3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 40, 41, 42, 43, 44,
                                              45, 46, 47, 48, 49, 50, 51, 90));
  EXPECT_EQ(read->vms[0].device, state.vms[0].device);
  EXPECT_EQ(read->vms[0].vgpus, state.vms[0].vgpus);
  EXPECT_TRUE(read->vms[1].device.frontends.empty());
  EXPECT_EQ(read->vms[1].memory[0].path, "/dev/shm/consort-idle");
  EXPECT_FALSE(read->sessions[0].bound);
  EXPECT_EQ(read->sessions[0].parts[1].offset, 131072u);
  EXPECT_EQ(read->greetings[0].input, "CNST");
  EXPECT_TRUE(vhost_user::Check(read->vms[0].device).ok());
}

TEST(DaemonState, OfAnotherVersionIsRefusedWithWhatToDo) {
  std::vector<std::byte> bytes = Encode(Whole());
  bytes[8] ^= std::byte{64};
  const auto read = DecodeDaemonState(bytes);
  EXPECT_TRUE(absl::IsFailedPrecondition(read.status())) << read.status();
  EXPECT_THAT(std::string(read.status().message()),
              HasSubstr(absl::StrCat("in version ", kDaemonStateVersion ^ 64, ", this one reads ",
                                     kDaemonStateVersion)));
  EXPECT_THAT(std::string(read.status().message()), HasSubstr("when no application runs"));
}

TEST(DaemonState, OfWorkersThatSpeakOtherwiseIsRefused) {
  std::vector<std::byte> bytes = Encode(Whole());
  bytes[16] ^= std::byte{1};
  EXPECT_TRUE(absl::IsFailedPrecondition(DecodeDaemonState(bytes).status()));
}

TEST(DaemonState, CutAnywhereIsRefused) {
  const std::vector<std::byte> bytes = Encode(Whole());
  for (size_t count = 0; count < bytes.size(); count += 8) {
    EXPECT_FALSE(DecodeDaemonState(std::span(bytes).first(count)).ok()) << count;
  }
  std::vector<std::byte> longer = bytes;
  longer.resize(bytes.size() + 8);
  EXPECT_FALSE(DecodeDaemonState(longer).ok());
}

// Whatever is wrong in it, a state is either refused or one whose parts fit each other.
TEST(DaemonState, WithAnyByteChangedDoesNoHarm) {
  const std::vector<std::byte> good = Encode(Whole());
  std::mt19937 random(17);
  for (size_t at = 0; at < good.size(); ++at) {
    std::vector<std::byte> bytes = good;
    bytes[at] ^= static_cast<std::byte>(1 + random() % 255);
    const auto read = DecodeDaemonState(bytes);
    if (!read.ok()) continue;
    for (const auto& worker : read->workers) EXPECT_LT(worker.device, read->devices.size());
    for (const auto& session : read->sessions) EXPECT_LT(session.device, read->devices.size());
    for (const int descriptor : DescriptorsOf(*read)) EXPECT_GT(descriptor, 2);
  }
}

TEST(DaemonState, ThatContradictsItselfIsRefused) {
  const std::vector<std::function<void(DaemonState*)>> mistakes = {
      [](DaemonState* state) { state->workers[0].device = 2; },
      [](DaemonState* state) { state->workers[0].pid = 101; },
      [](DaemonState* state) { state->workers[0].pid = -1; },
      [](DaemonState* state) { state->workers[0].control = DaemonState::kNone; },
      [](DaemonState* state) { state->workers[0].state = 3; },
      [](DaemonState* state) { state->children[0].device = 2; },
      [](DaemonState* state) { state->sessions[0].worker = 99; },
      [](DaemonState* state) { state->sessions[0].device = 2; },
      [](DaemonState* state) { state->next_session = 8; },
      [](DaemonState* state) { state->sessions.push_back(state->sessions[0]); },
      [](DaemonState* state) { state->vms[1].name = "web-1"; },
      [](DaemonState* state) {
        state->vms[0].vgpus = {1, 2};
      },
      [](DaemonState* state) { state->vms[1].device.listener = DaemonState::kNone; },
      [](DaemonState* state) { state->vms[1].device.listener = 40; },
      [](DaemonState* state) { state->vms[1].memory[0].file = DaemonState::kNone; },
      [](DaemonState* state) { state->vms[1].memory.push_back(state->vms[1].memory[0]); },
      [](DaemonState* state) { state->greetings[0].socket = DaemonState::kNone; },
      [](DaemonState* state) { state->greetings[0].input.resize(sizeof(wire::Hello)); },
      [](DaemonState* state) { state->events.resize(kEventsMax + 1); },
      [](DaemonState* state) { state->events[0].level = 3; },
      [](DaemonState* state) { state->devices.resize(kDevicesMax + 1); },
      [](DaemonState* state) { state->doors[0].socket = 2; },
      [](DaemonState* state) { state->doors[0].socket = 5; },
      [](DaemonState* state) {
        state->metrics.push_back({"x", "", 20, 21});
      },
  };
  for (size_t i = 0; i < mistakes.size(); ++i) {
    DaemonState state = Whole();
    mistakes[i](&state);
    EXPECT_TRUE(absl::IsInvalidArgument(DecodeDaemonState(Encode(state)).status())) << i;
  }
}

}  // namespace
}  // namespace consort::host
