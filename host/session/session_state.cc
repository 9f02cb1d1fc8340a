// SPDX-License-Identifier: Apache-2.0
#include "host/session/session_state.h"

#include "host/control/field_coder.h"

namespace consort::host {
namespace {

template <class Coder, class State>
void Describe(Coder& coder, State& state) {
  coder.Number(state.rings);
  coder.Number(state.rings_in_vm);
  coder.Number(state.rings_offset);
  coder.Number(state.request_ring_bytes);
  coder.Number(state.reply_ring_bytes);
  coder.Number(state.received);
  coder.Number(state.sent);
  coder.Bytes(state.unread);
  coder.Number(state.deferred_error);
  coder.Each(state.journal, [&](auto& entry) {
    coder.Number(entry.object.kind);
    coder.Number(entry.object.id);
    coder.Number(entry.order);
    coder.Number(entry.opcode);
    coder.Number(entry.context);
    coder.Bytes(entry.body);
  });
  coder.Each(state.images, [&](auto& image) {
    coder.Number(image.library);
    coder.Number(image.kept.offset);
    coder.Number(image.kept.bytes);
  });
  coder.Each(state.variables, [&](auto& variable) {
    coder.Number(variable.library);
    coder.Bytes(variable.name);
    coder.Number(variable.address);
    coder.Number(variable.told);
    coder.Number(variable.copy);
    coder.Bytes(variable.contents);
  });
  coder.Each(state.window.extents, [&](auto& extent) {
    coder.Number(extent.address);
    coder.Number(extent.bytes);
    coder.Number(extent.shared);
  });
  coder.Each(state.window.allocations, [&](auto& allocation) {
    coder.Number(allocation.address);
    coder.Number(allocation.bytes);
  });
  coder.Each(state.allocations, [&](auto& owned) {
    coder.Number(owned.address);
    coder.Number(owned.context);
  });
  coder.Each(state.shared_host, [&](auto& memory) {
    coder.Number(memory.address);
    coder.Number(memory.bytes);
    coder.Number(memory.offset);
    coder.Number(memory.context);
    coder.Number(memory.number);
    coder.Number(memory.lent);
    coder.Number(memory.own);
  });
  coder.Number(state.reserved_bytes);
}

}  // namespace

std::vector<std::byte> Encode(const SessionState& state) {
  std::vector<std::byte> bytes;
  FieldWriter writer(&bytes);
  Describe(writer, state);
  return bytes;
}

std::optional<SessionState> DecodeSessionState(std::span<const std::byte> bytes) {
  SessionState state;
  FieldReader reader(bytes);
  Describe(reader, state);
  if (!reader.Done()) return std::nullopt;
  return state;
}

}  // namespace consort::host
