// SPDX-License-Identifier: Apache-2.0
#include "host/session/session_state.h"

#include <gtest/gtest.h>

#include <string>

namespace consort::host {
namespace {

SessionState Full() {
  SessionState state;
  state.rings = true;
  state.request_ring_bytes = 1 << 23;
  state.reply_ring_bytes = 1 << 22;
  state.received = 0xffff'ffff'ffffull;
  state.sent = 8;
  state.unread.assign(13, std::byte{7});
  state.deferred_error = 700;
  JournalEntry entry;
  entry.object = {ObjectKind::kKernel, 5};
  entry.order = 9;
  entry.opcode = 43;
  entry.context = 2;
  entry.body.assign(24, std::byte{1});
  state.journal = {entry, entry};
  state.images = {{3, {4096, 100}}};
  state.variables = {{3, "table", 0x7000, true, 1 << 21, std::vector<std::byte>(5, std::byte{9})}};
  state.window.extents = {{1 << 21, 1 << 21, true}, {1 << 22, 1 << 22, false}};
  state.window.allocations = {{1 << 21, 512}};
  state.allocations = {{1 << 21, 1}};
  state.shared_host = {{1 << 23, 4096, 8192, 1, 6}};
  state.reserved_bytes = 77;
  return state;
}

TEST(SessionState, ComesBackAsItWas) {
  const std::vector<std::byte> bytes = Encode(Full());
  const auto back = DecodeSessionState(bytes);
  ASSERT_TRUE(back.has_value());
  // What comes back encodes to the same, and some of it looked at.
  EXPECT_EQ(Encode(*back), bytes);
  EXPECT_EQ(back->unread.size(), 13u);
  EXPECT_EQ(back->journal[1].object, (ObjectName{ObjectKind::kKernel, 5}));
  EXPECT_EQ(back->variables[0].name, "table");
  EXPECT_TRUE(back->variables[0].told);
  EXPECT_EQ(back->variables[0].copy, uint64_t{1} << 21);
  EXPECT_FALSE(back->window.extents[1].shared);
  EXPECT_EQ(back->reserved_bytes, 77u);
  EXPECT_TRUE(DecodeSessionState(Encode(SessionState())).has_value());
}

TEST(SessionState, IsRefusedWhereAnythingIsMissingOrLeft) {
  std::vector<std::byte> bytes = Encode(Full());
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(DecodeSessionState(std::span(bytes).first(length)).has_value()) << length;
  }
  bytes.resize(bytes.size() + 8);
  EXPECT_FALSE(DecodeSessionState(bytes).has_value());
}

TEST(SessionState, IsRefusedWithNumbersThatDoNotFit) {
  std::vector<std::byte> bytes = Encode(SessionState());
  bytes[1] = std::byte{1};  // `rings` is 256
  EXPECT_FALSE(DecodeSessionState(bytes).has_value());
}

}  // namespace
}  // namespace consort::host
