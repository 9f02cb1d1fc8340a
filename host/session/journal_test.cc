// SPDX-License-Identifier: Apache-2.0
#include "host/session/journal.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "gen/wire/requests.h"

namespace consort::host {
namespace {

constexpr ObjectName kStream = {ObjectKind::kStream, 7};
constexpr ObjectName kEvent = {ObjectKind::kEvent, 7};
constexpr ObjectName kLibrary = {ObjectKind::kLibrary, 3};
constexpr ObjectName kKernel = {ObjectKind::kKernel, 9};

wire::FunctionSetAttributeRequest Attribute(uint64_t kernel, uint32_t attribute, int32_t value) {
  wire::FunctionSetAttributeRequest request;
  request.kernel = kernel;
  request.attribute = attribute;
  request.value = value;
  return request;
}

std::vector<wire::Opcode> Opcodes(const Journal& journal) {
  std::vector<wire::Opcode> opcodes;
  for (const JournalEntry* entry : journal.Entries()) {
    opcodes.push_back(static_cast<wire::Opcode>(entry->opcode));
  }
  return opcodes;
}

using Expected = std::vector<wire::Opcode>;

TEST(Journal, KeepsTheRequestAsItsFrameHadIt) {
  Journal journal;
  wire::StreamCreateRequest request;
  request.stream = 7;
  request.flags = 1;
  request.priority = -2;
  journal.Make(kStream, 5, request);
  const std::vector<const JournalEntry*> entries = journal.Entries();
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0]->object, kStream);
  EXPECT_EQ(entries[0]->context, 5u);
  EXPECT_EQ(entries[0]->opcode, static_cast<uint16_t>(wire::Opcode::kStreamCreate));
  wire::Decoder decoder(entries[0]->body);
  wire::StreamCreateRequest again;
  ASSERT_TRUE(again.Decode(decoder));
  EXPECT_EQ(again.stream, 7u);
  EXPECT_EQ(again.flags, 1u);
  EXPECT_EQ(again.priority, -2);
}

TEST(Journal, ForgetsWhatIsGoneAndKeepsOtherKindsOfTheSameName) {
  Journal journal;
  journal.Make(kStream, 1, wire::StreamCreateRequest());
  journal.Make(kEvent, 1, wire::EventCreateRequest());
  journal.Drop(kStream);
  EXPECT_EQ(Opcodes(journal), Expected{wire::Opcode::kEventCreate});
  journal.Drop(kStream);
  EXPECT_EQ(journal.size(), 1u);
  // The name may be used again.
  journal.Make(kStream, 1, wire::StreamCreateRequest());
  EXPECT_EQ(Opcodes(journal), (Expected{wire::Opcode::kEventCreate, wire::Opcode::kStreamCreate}));
}

TEST(Journal, KeepsTheLatestOfEachAspectInTheOrderOfTheRequests) {
  Journal journal;
  journal.Make(kLibrary, 1, wire::LibraryLoadRequest());
  journal.Make(kKernel, 1, wire::KernelGetRequest(), kLibrary);
  for (int32_t value = 0; value < 1000; ++value) {
    journal.Change(kKernel, 8, 1, Attribute(9, 8, value));
    if (value == 500) journal.Change(kKernel, 9, 1, Attribute(9, 9, value));
  }
  const std::vector<const JournalEntry*> entries = journal.Entries();
  ASSERT_EQ(entries.size(), 4u);
  EXPECT_EQ(entries[0]->object, kLibrary);
  EXPECT_EQ(entries[1]->object, kKernel);
  std::vector<std::pair<uint32_t, int32_t>> kept;
  for (size_t i = 2; i < 4; ++i) {
    wire::Decoder decoder(entries[i]->body);
    wire::FunctionSetAttributeRequest request;
    ASSERT_TRUE(request.Decode(decoder));
    kept.emplace_back(request.attribute, request.value);
  }
  EXPECT_EQ(kept, (std::vector<std::pair<uint32_t, int32_t>>{{9, 500}, {8, 999}}));
}

TEST(Journal, WhatAnObjectOwnsGoesWithIt) {
  Journal journal;
  journal.Make(kLibrary, 1, wire::LibraryLoadRequest());
  journal.Make(kKernel, 1, wire::KernelGetRequest(), kLibrary);
  journal.Change(kKernel, 8, 1, Attribute(9, 8, 1));
  journal.Make(kStream, 1, wire::StreamCreateRequest());
  journal.Drop(kLibrary);
  EXPECT_EQ(Opcodes(journal), Expected{wire::Opcode::kStreamCreate});
}

TEST(Journal, AContextTakesWhatIsItsOwn) {
  Journal journal;
  journal.Make(kStream, 1, wire::StreamCreateRequest());
  journal.Make(kEvent, 2, wire::EventCreateRequest());
  journal.Make(kLibrary, 2, wire::LibraryLoadRequest());
  // Looked up while context 1 was current; it is the library's all the same.
  journal.Make(kKernel, 1, wire::KernelGetRequest(), kLibrary);
  journal.Change({ObjectKind::kLimit, 0}, 0, 1, wire::ContextSetLimitRequest());
  journal.DropContext(1);
  EXPECT_EQ(Opcodes(journal), (Expected{wire::Opcode::kEventCreate, wire::Opcode::kLibraryLoad,
                                        wire::Opcode::kKernelGet, wire::Opcode::kContextSetLimit}));
  journal.DropContext(2);
  EXPECT_EQ(Opcodes(journal), Expected{wire::Opcode::kContextSetLimit});
}

TEST(Journal, ALimitIsKeptOnce) {
  Journal journal;
  for (uint64_t value = 0; value < 10; ++value) {
    wire::ContextSetLimitRequest request;
    request.limit = 2;
    request.value = value;
    journal.Change({ObjectKind::kLimit, 2}, 0, 1, request);
  }
  ASSERT_EQ(journal.size(), 1u);
  const std::vector<const JournalEntry*> entries = journal.Entries();
  ASSERT_EQ(entries.size(), 1u);
  wire::Decoder decoder(entries[0]->body);
  wire::ContextSetLimitRequest request;
  ASSERT_TRUE(request.Decode(decoder));
  EXPECT_EQ(request.value, 9u);
}

}  // namespace
}  // namespace consort::host
