// SPDX-License-Identifier: Apache-2.0
// host/control/field_coder.h: writes and reads the fields of plain values that processes of ours
// hand over to each other.
//
// A writer and a reader have the same calls, so that one function describes the fields of both:
//
//   template <class Coder, class State>
//   void Describe(Coder& coder, State& state) {
//     coder.Number(state.size);
//     coder.Each(state.names, [&](auto& name) { coder.Bytes(name); });
//   }
//
// Encoded as the wire encodes fields, so that the one bounded decoder reads it. Thread compatible.
#ifndef CONSORT_HOST_CONTROL_FIELD_CODER_H_
#define CONSORT_HOST_CONTROL_FIELD_CODER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "vmsock/wire/decoder.h"

namespace consort::host {

class FieldWriter {
 public:
  // Appends to `to`, which is borrowed.
  explicit FieldWriter(std::vector<std::byte>* to) : to_(to) {}

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
  // As it lies in memory: only for who reads it with the same definition.
  template <class T>
  void Struct(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    Bytes(std::as_bytes(std::span(&value, 1)));
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

class FieldReader {
 public:
  explicit FieldReader(std::span<const std::byte> from) : decoder_(from) {}

  // One that T cannot hold is an error.
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
  // Another size is an error.
  template <class T>
  void Struct(T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const std::span<const std::byte> bytes = decoder_.Bytes();
    good_ &= bytes.size() == sizeof(T);
    if (bytes.size() == sizeof(T)) std::memcpy(static_cast<void*>(&value), bytes.data(), sizeof(T));
  }
  // Grows as items come, so that a wrong count costs nothing.
  template <class Items, class Fields>
  void Each(Items& items, Fields fields) {
    const uint64_t count = decoder_.U64();
    for (uint64_t i = 0; i < count && decoder_.ok(); ++i) fields(items.emplace_back());
  }
  // Whether all has been read and was what it must be.
  bool Done() const { return good_ && decoder_.Done(); }

 private:
  wire::Decoder decoder_;
  bool good_ = true;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_CONTROL_FIELD_CODER_H_
