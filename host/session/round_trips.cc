// SPDX-License-Identifier: Apache-2.0
#include "host/session/round_trips.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gen/wire/opcodes.h"

namespace consort::host {

void RoundTrips::Count(uint16_t opcode) {
  ++count_;
  const size_t slot = std::min(opcode, wire::kOpcodesMax);
  if (slot >= by_opcode_.size()) by_opcode_.resize(slot + 1);
  ++by_opcode_[slot];
}

std::string RoundTrips::Text() const {
  std::vector<std::pair<uint64_t, uint16_t>> most;
  for (size_t opcode = 0; opcode < by_opcode_.size(); ++opcode) {
    if (by_opcode_[opcode] != 0) {
      most.emplace_back(by_opcode_[opcode], static_cast<uint16_t>(opcode));
    }
  }
  std::sort(most.begin(), most.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  std::string text;
  uint64_t others = count_;
  for (size_t i = 0; i < std::min(most.size(), kNamed); ++i) {
    const auto [count, opcode] = most[i];
    const char* name = wire::OpcodeName(opcode);
    absl::StrAppend(&text, text.empty() ? "" : ", ", name == nullptr ? "unknown" : name, " ",
                    count);
    others -= count;
  }
  if (others != 0) absl::StrAppend(&text, " and ", others, " others");
  return text;
}

}  // namespace consort::host
