// SPDX-License-Identifier: Apache-2.0
// What waits for host functions: by hand, and random programs against a model.
#include "host/session/held_work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "host/limits.h"

namespace consort::host {
namespace {

constexpr HeldWork::StreamName kDefault = {1, 0, true};
constexpr HeldWork::StreamName kA = {1, 10, true};
constexpr HeldWork::StreamName kB = {1, 11, true};
constexpr HeldWork::StreamName kFreeRunning = {1, 12, false};
constexpr HeldWork::StreamName kOther = {2, 20, true};

// A request is known by its opcode here.
HeldWork::Request On(uint16_t name, std::optional<HeldWork::StreamName> stream) {
  HeldWork::Request request;
  request.header.opcode = name;
  request.header.value = stream.has_value() ? stream->context : 1;
  request.stream = stream;
  return request;
}

HeldWork::Request Record(uint16_t name, HeldWork::StreamName stream, uint64_t event) {
  HeldWork::Request request = On(name, stream);
  request.order.records = true;
  request.order.events[request.order.event_count++] = event;
  return request;
}

HeldWork::Request WaitFor(uint16_t name, std::optional<HeldWork::StreamName> stream,
                          uint64_t event) {
  HeldWork::Request request = On(name, stream);
  request.order.events[request.order.event_count++] = event;
  return request;
}

HeldWork::Request Destroy(uint16_t name, uint64_t event) {
  HeldWork::Request request = On(name, std::nullopt);
  request.order.records = true;
  request.order.events[request.order.event_count++] = event;
  return request;
}

HeldWork::Request AfterAll(uint16_t name) {
  HeldWork::Request request = On(name, std::nullopt);
  request.order.all = true;
  return request;
}

// Sends a request: true, it goes on at once; false, it is kept.
bool Goes(HeldWork& held, HeldWork::Request request) {
  if (!held.active() || !held.MustWait(request.order, request.header.value, request.stream)) {
    return true;
  }
  EXPECT_TRUE(held.Keep(std::move(request)));
  return false;
}

std::vector<int> Come(HeldWork& held) {
  std::vector<int> names;
  HeldWork::Request request;
  while (held.Next(&request)) names.push_back(request.header.opcode);
  return names;
}

void Finish(HeldWork& held, uint64_t callback) {
  held.Announce(callback);
  ASSERT_TRUE(held.Done(callback));
}

TEST(HeldWork, KeepsOneStreamInOrderAndNoOther) {
  HeldWork held;
  EXPECT_FALSE(held.active());
  ASSERT_TRUE(held.Hold(1, kA));
  EXPECT_FALSE(Goes(held, On(1, kA)));
  EXPECT_TRUE(Goes(held, On(2, kB)));
  EXPECT_FALSE(Goes(held, On(3, kA)));
  EXPECT_TRUE(Come(held).empty());
  Finish(held, 1);
  EXPECT_EQ(Come(held), (std::vector<int>{1, 3}));
  EXPECT_FALSE(held.active());
  EXPECT_EQ(held.size(), 0u);
}

TEST(HeldWork, DefaultStreamAndBlockingStreamsWaitForEachOther) {
  HeldWork held;
  ASSERT_TRUE(held.Hold(1, kA));
  EXPECT_FALSE(Goes(held, On(1, kDefault)));  // after A
  EXPECT_FALSE(Goes(held, On(2, kB)));        // after the default stream
  EXPECT_TRUE(Goes(held, On(3, kFreeRunning)));
  EXPECT_TRUE(Goes(held, On(4, kOther)));
  EXPECT_TRUE(Goes(held, On(5, HeldWork::StreamName{2, 0, true})));
  Finish(held, 1);
  EXPECT_EQ(Come(held), (std::vector<int>{1, 2}));
}

TEST(HeldWork, AnEventWhoseRecordIsKeptHoldsWhoWaitsForIt) {
  HeldWork held;
  ASSERT_TRUE(held.Hold(1, kA));
  EXPECT_TRUE(Goes(held, WaitFor(1, kFreeRunning, 7)));  // its record went before
  EXPECT_FALSE(Goes(held, Record(2, kA, 7)));
  EXPECT_FALSE(Goes(held, WaitFor(3, kFreeRunning, 7)));
  EXPECT_FALSE(Goes(held, On(4, kFreeRunning)));
  EXPECT_FALSE(Goes(held, WaitFor(5, std::nullopt, 7)));
  EXPECT_TRUE(Goes(held, WaitFor(6, std::nullopt, 8)));
  Finish(held, 1);
  EXPECT_EQ(Come(held), (std::vector<int>{2, 3, 4, 5}));
}

TEST(HeldWork, ARecordElsewhereReplacesOneThatIsKept) {
  HeldWork held;
  ASSERT_TRUE(held.Hold(1, kA));
  EXPECT_FALSE(Goes(held, Record(1, kA, 7)));
  EXPECT_EQ(held.DropRecords(7, kA), 0u);  // comes after it
  EXPECT_EQ(held.DropRecords(7, kFreeRunning), 1u);
  EXPECT_TRUE(Goes(held, Record(2, kFreeRunning, 7)));
  EXPECT_TRUE(Goes(held, WaitFor(3, kFreeRunning, 7)));
  EXPECT_FALSE(Goes(held, On(4, kA)));
  // But not one that is waited for.
  EXPECT_FALSE(Goes(held, Record(5, kA, 8)));
  EXPECT_FALSE(Goes(held, WaitFor(6, kOther, 8)));
  EXPECT_EQ(held.DropRecords(8, kFreeRunning), 0u);
  EXPECT_FALSE(Goes(held, Record(7, kFreeRunning, 8)));
  Finish(held, 1);
  EXPECT_EQ(Come(held), (std::vector<int>{4, 5, 6, 7}));
}

// Who waits for an event waits for the record before it in the program, however late that is.
TEST(HeldWork, AnEventThatSomethingKeptWaitsForIsNeitherRecordedNorDestroyedBefore) {
  HeldWork held;
  ASSERT_TRUE(held.Hold(1, kA));
  EXPECT_TRUE(Goes(held, Record(1, kFreeRunning, 7)));
  EXPECT_TRUE(Goes(held, Record(2, kFreeRunning, 8)));
  EXPECT_FALSE(Goes(held, WaitFor(3, kA, 7)));
  EXPECT_FALSE(Goes(held, WaitFor(4, kA, 8)));
  EXPECT_EQ(held.DropRecords(7, kFreeRunning), 0u);
  EXPECT_FALSE(Goes(held, Record(5, kFreeRunning, 7)));
  EXPECT_FALSE(Goes(held, Destroy(6, 8)));
  EXPECT_TRUE(Goes(held, Destroy(7, 9)));
  Finish(held, 1);
  EXPECT_EQ(Come(held), (std::vector<int>{3, 4, 5, 6}));
}

TEST(HeldWork, WhatComesAfterAllWorkWaitsForTheLastHold) {
  HeldWork held;
  ASSERT_TRUE(held.Hold(1, kA));
  ASSERT_TRUE(held.Hold(2, kOther));
  EXPECT_FALSE(Goes(held, AfterAll(1)));
  HeldWork::Request context = On(2, std::nullopt);
  context.order.context = true;
  EXPECT_FALSE(Goes(held, context));
  Finish(held, 1);
  EXPECT_EQ(Come(held), (std::vector<int>{2}));  // of context 1
  Finish(held, 2);
  EXPECT_EQ(Come(held), (std::vector<int>{1}));
}

TEST(HeldWork, AFunctionThatComesOutHoldsItsStreamAgain) {
  HeldWork held;
  ASSERT_TRUE(held.Hold(1, kA));
  EXPECT_FALSE(Goes(held, On(1, kA)));
  EXPECT_FALSE(Goes(held, On(2, kA)));  // the next function
  EXPECT_FALSE(Goes(held, On(3, kA)));
  Finish(held, 1);
  HeldWork::Request request;
  ASSERT_TRUE(held.Next(&request));
  ASSERT_TRUE(held.Next(&request));
  EXPECT_EQ(request.header.opcode, 2);
  ASSERT_TRUE(held.Hold(2, kA));
  EXPECT_FALSE(held.Next(&request));
  EXPECT_TRUE(held.active());
  EXPECT_FALSE(held.walking());
  Finish(held, 2);
  EXPECT_EQ(Come(held), (std::vector<int>{3}));
}

TEST(HeldWork, KnowsWhichFunctionsRun) {
  HeldWork held;
  EXPECT_FALSE(held.Done(1));
  ASSERT_TRUE(held.Hold(1, kA));
  EXPECT_FALSE(held.Hold(1, kB));
  EXPECT_FALSE(held.Done(1));  // not announced
  held.Announce(1);
  EXPECT_TRUE(held.Done(1));
  EXPECT_FALSE(held.Done(1));
}

TEST(HeldWork, IsBounded) {
  HeldWork held;
  ASSERT_TRUE(held.Hold(1, kA));
  HeldWork::Request large = On(1, kA);
  large.body.resize(kHeldBytesPerSession / 4);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(held.Keep(large));
  HeldWork::Request byte = On(2, kA);
  byte.body.resize(1);
  EXPECT_FALSE(held.Keep(byte));
  HeldWork::Request empty = On(3, kA);
  while (held.size() < kHeldRequestsPerSession) ASSERT_TRUE(held.Keep(empty));
  EXPECT_FALSE(held.Keep(empty));
  held.ReleaseAll();
  EXPECT_EQ(Come(held).size(), kHeldRequestsPerSession);
  EXPECT_TRUE(held.Hold(2, kA));
  EXPECT_TRUE(held.Keep(byte));
}

// Random programs: whatever is carried out comes after all that it must come after. The model
// knows, of each request, those before it that order it directly; a function counts as carried out
// when it was run.
TEST(HeldWork, KeepsEveryOrderOfRandomPrograms) {
  const char* given = std::getenv("CONSORT_TEST_SEED");
  const auto seed =
      given != nullptr ? static_cast<unsigned>(std::atoi(given)) : std::random_device()();
  SCOPED_TRACE(::testing::Message() << "CONSORT_TEST_SEED=" << seed);
  std::mt19937 random(seed);
  const HeldWork::StreamName streams[] = {kDefault, kA, kB, kFreeRunning, kOther};
  for (int program = 0; program < 300; ++program) {
    HeldWork held;
    struct Model {
      std::optional<HeldWork::StreamName> stream;
      std::optional<uint64_t> records;
      bool function = false;
      std::set<int> after;
    };
    std::map<int, Model> model;
    std::map<uint64_t, int> recorded;            // event to its last record
    std::map<uint64_t, std::set<int>> referred;  // event to who waits for it, or recorded it
    std::set<int> finished, running;
    const auto carry_out = [&](const HeldWork::Request& request) {
      const int name = request.header.opcode;
      for (const int before : model[name].after) {
        ASSERT_TRUE(finished.contains(before)) << name << " before " << before;
      }
      if (model[name].function) {
        ASSERT_TRUE(held.Hold(name, *request.stream));
        running.insert(name);
      } else {
        finished.insert(name);
      }
    };
    const auto let_go = [&] {
      if (running.empty()) return;
      auto it = running.begin();
      std::advance(it, random() % running.size());
      const int name = *it;
      running.erase(it);
      held.Announce(name);
      ASSERT_TRUE(held.Done(name));
      finished.insert(name);
      HeldWork::Request request;
      // Now and then the session is interrupted in the middle.
      while (random() % 8 != 0 && held.Next(&request)) carry_out(request);
    };
    const int length = 1 + static_cast<int>(random() % 60);
    for (int name = 1; name <= length; ++name) {
      const HeldWork::StreamName stream = streams[random() % 5];
      const uint64_t event = random() % 3;
      HeldWork::Request request = On(static_cast<uint16_t>(name), stream);
      Model& entry = model[name];
      switch (random() % 8) {
        case 0:
        case 1:
          entry.function = true;
          break;
        case 2:
          request = Record(static_cast<uint16_t>(name), stream, event);
          break;
        case 3:
          request = WaitFor(static_cast<uint16_t>(name), stream, event);
          if (recorded.contains(event)) entry.after.insert(recorded[event]);
          referred[event].insert(name);
          break;
        case 4:
          request = AfterAll(static_cast<uint16_t>(name));
          for (const auto& [before, other] : model) {
            if (before != name && other.stream.has_value()) entry.after.insert(before);
          }
          break;
        default:
          break;
      }
      entry.stream = request.stream;
      if (request.stream.has_value()) {
        for (const auto& [before, other] : model) {
          if (before == name || !other.stream.has_value()) continue;
          const bool same =
              other.stream->context == stream.context &&
              (other.stream->id == stream.id || (stream.id == 0 && other.stream->blocking) ||
               (other.stream->id == 0 && stream.blocking));
          if (same) entry.after.insert(before);
        }
      }
      if (request.order.records) {
        entry.after.insert(referred[event].begin(), referred[event].end());
        referred[event].insert(name);
        recorded[event] = name;
        entry.records = event;
      }
      HeldWork::Request next;
      while (held.Next(&next)) carry_out(next);
      if (request.order.records && held.DropRecords(event, stream) != 0) {
        // Every unfinished record of this event.
        for (const auto& [before, other] : model) {
          if (other.records == event && before != name) finished.insert(before);
        }
      }
      if (Goes(held, request)) carry_out(request);
      if (HasFatalFailure()) return;
      if (random() % 3 == 0) let_go();
      if (HasFatalFailure()) return;
    }
    HeldWork::Request next;
    while (held.Next(&next)) carry_out(next);
    while (!running.empty()) {
      let_go();
      while (held.Next(&next)) carry_out(next);
      if (HasFatalFailure()) return;
    }
    EXPECT_EQ(finished.size(), static_cast<size_t>(length));
    EXPECT_EQ(held.size(), 0u);
  }
}

}  // namespace
}  // namespace consort::host
