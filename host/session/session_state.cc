// SPDX-License-Identifier: Apache-2.0
#include "host/session/session_state.h"

#include <cstring>

#include "vmsock/wire/decoder.h"

namespace consort::host {
namespace {

// The two directions have the same calls, so that one function describes the fields of both.
class Writer {
 public:
  explicit Writer(std::vector<std::byte>* to) : to_(to) {}

  template <typename T>
  void Number(const T& value) {
    const auto word = static_cast<uint64_t>(value);
    Append(&word, sizeof(word));
  }
  template <class Text>
  void Bytes(const Text& value) {
    Number(value.size());
    Append(value.data(), value.size());
    to_->resize((to_->size() + 7) & ~size_t{7});
  }
  template <class Items, class Fields>
  void Each(Items& items, Fields fields) {
    Number(items.size());
    for (auto& item : items) fields(item);
  }

 private:
  void Append(const void* bytes, size_t count) {
    const size_t at = to_->size();
    to_->resize(at + count);
    if (count != 0) std::memcpy(to_->data() + at, bytes, count);
  }

  std::vector<std::byte>* const to_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> from) : decoder_(from) {}

  template <typename T>
  void Number(T& value) {
    const uint64_t word = decoder_.U64();
    value = static_cast<T>(word);
    good_ &= static_cast<uint64_t>(value) == word;
  }
  template <class Text>
  void Bytes(Text& value) {
    const std::span<const std::byte> bytes = decoder_.Bytes();
    value.resize(bytes.size());
    if (!bytes.empty()) std::memcpy(value.data(), bytes.data(), bytes.size());
  }
  // Grows as items come, so that a wrong count costs nothing.
  template <class Items, class Fields>
  void Each(Items& items, Fields fields) {
    const uint64_t count = decoder_.U64();
    for (uint64_t i = 0; i < count && decoder_.ok(); ++i) fields(items.emplace_back());
  }
  bool Done() const { return good_ && decoder_.Done(); }

 private:
  wire::Decoder decoder_;
  bool good_ = true;
};

template <class Coder, class State>
void Describe(Coder& coder, State& state) {
  coder.Number(state.rings);
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
  });
  coder.Number(state.reserved_bytes);
}

}  // namespace

std::vector<std::byte> Encode(const SessionState& state) {
  std::vector<std::byte> bytes;
  Writer writer(&bytes);
  Describe(writer, state);
  return bytes;
}

std::optional<SessionState> DecodeSessionState(std::span<const std::byte> bytes) {
  SessionState state;
  Reader reader(bytes);
  Describe(reader, state);
  if (!reader.Done()) return std::nullopt;
  return state;
}

}  // namespace consort::host
