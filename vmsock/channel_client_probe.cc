// SPDX-License-Identifier: Apache-2.0
// vmsock/channel_client_probe.cc: the client side as the guest library carries it: a shared object
// without libstdc++, exceptions or RTTI. channel_client_freestanding_test loads it and talks
// through it.
//
// Provides what the compiler asks of a runtime: operator delete for the destructor of the interface
// Channel, and the function in its empty slots.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <memory>

#include "vmsock/channel.h"
#include "vmsock/dial.h"
#include "vmsock/wire/frame.h"

void* operator new(size_t bytes) { return malloc(bytes); }
void operator delete(void* memory) noexcept { free(memory); }
void operator delete(void* memory, size_t) noexcept { free(memory); }
extern "C" void __cxa_pure_virtual() { abort(); }

// Opens a session at `endpoint`, sends one empty frame with `value` and waits for the answer, whose
// value it returns; -1 on failure. `text` (256 bytes) receives dial's text, `name` (32 bytes) the
// channel's.
extern "C" __attribute__((visibility("default"))) int64_t ProbeRoundTrip(const char* endpoint,
                                                                         uint32_t value, char* text,
                                                                         char* name) {
  using consort::Channel;
  using consort::ChannelStatus;
  consort::DialOptions options;
  options.endpoint = endpoint;
  consort::DialResult result;
  std::unique_ptr<Channel> channel;
  consort::OpenSession(options, &result, &channel);
  memcpy(text, result.text, 256);
  if (channel == nullptr) return -1;
  strncpy(name, channel->name(), 31);
  consort::wire::FrameHeader header;
  header.bytes = sizeof(header);
  header.value = value;
  std::byte* room = channel->TryReserve(sizeof(header));
  if (room == nullptr) return -1;
  memcpy(room, &header, sizeof(header));
  channel->Commit();
  if (channel->Flush() != ChannelStatus::kOk) return -1;
  consort::Frame frame;
  ChannelStatus status;
  while ((status = channel->TryReceive(&frame)) == ChannelStatus::kAgain) {
    status = channel->Wait(Channel::kReadable, 0, 10 * consort::kSecond);
    if (status != ChannelStatus::kOk) break;
  }
  if (status != ChannelStatus::kOk) return -1;
  const int64_t answer = frame.header.value;
  channel->Release(frame);
  return answer;
}
