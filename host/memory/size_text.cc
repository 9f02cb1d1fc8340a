// SPDX-License-Identifier: Apache-2.0
#include "host/memory/size_text.h"

#include <charconv>
#include <utility>

namespace consort::host {

std::optional<Bytes> ParseSize(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  if (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  constexpr std::pair<std::string_view, Bytes> kUnits[] = {
      {"", 1}, {"KiB", kKiB}, {"MiB", kMiB}, {"GiB", kGiB}, {"TiB", kTiB}};
  for (const auto& [name, bytes] : kUnits) {
    if (unit != name) continue;
    if (number > (uint64_t{1} << 62) / bytes) return std::nullopt;
    return number * bytes;
  }
  return std::nullopt;
}

}  // namespace consort::host
