// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry: bytes of a control socket into the assembler, and every message into every
// decoder and a backend.
//
// Input: for each piece one length byte, one byte with the number of descriptors (low 4 bits), then
// the piece. Whatever arrives, a message that comes out fits its bounds, and the backend answers or
// refuses.
#include <sys/eventfd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/log.h"
#include "vmsock/vhost_user/backend.h"
#include "vmsock/vhost_user/message.h"

using consort::UniqueFd;
using namespace consort::vhost_user;  // a program of one function

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  FLAGS_minloglevel = google::FATAL;  // refusals are not news here
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto events = EventSet::Create();
  CHECK(events.ok());
  Counters counters;
  Backend backend({.name = "fuzz", .guest_cid = 3, .require_sealed_memory = false, .kick_token = 0},
                  &*events, &counters);
  MessageAssembler assembler;
  while (size >= 2) {
    const size_t wanted = assembler.wanted_bytes();
    const size_t count = std::min<size_t>({data[0] % 64 + size_t{1}, wanted, size - 2});
    std::vector<UniqueFd> fds;
    for (int i = 0; i < (data[1] & 15); ++i)
      fds.emplace_back(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (count == 0) return 0;
    if (!assembler.Consume(std::as_bytes(std::span(data + 2, count)), std::move(fds)).ok())
      return 0;
    data += 2 + count;
    size -= 2 + count;
    std::optional<Message> message = assembler.Take();
    if (!message.has_value()) continue;
    CHECK_LE(message->payload.size(), kMessagePayloadBytesMax);
    CHECK_LE(message->fds.size(), kMemoryRegionsMax);
    (void)DecodeU64(*message);
    (void)DecodeVringState(*message);
    (void)DecodeVringAddress(*message);
    (void)DecodeVringDescriptor(*message);
    if (const auto regions = DecodeMemoryTable(*message); regions.ok()) {
      CHECK_EQ(regions->size(), message->fds.size());
    }
    if (const auto request = DecodeConfigRequest(*message); request.ok()) {
      CHECK_EQ(request->size + kConfigRequestBytes, message->payload.size());
    }
    if (!backend.Handle(*std::move(message)).ok()) return 0;
    CHECK(!backend.running());  // there is no memory to be had from these descriptors
  }
  return 0;
}
