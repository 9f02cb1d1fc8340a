// SPDX-License-Identifier: Apache-2.0
#include "host/session/variable_copies.h"

#include <algorithm>

#include "base/saturating.h"

namespace consort::host {

uint64_t VariableCopies::Find(uint64_t library, const std::string& name) const {
  for (const auto& [address, variable] : copies_) {
    if (variable.library == library && variable.name == name) return address;
  }
  return 0;
}

std::vector<uint64_t> VariableCopies::Remove(const std::function<bool(uint64_t library)>& gone) {
  std::vector<uint64_t> removed;
  for (auto it = copies_.begin(); it != copies_.end();) {
    if (gone(it->second.library)) {
      removed.push_back(it->first);
      it = copies_.erase(it);
    } else {
      ++it;
    }
  }
  return removed;
}

void VariableCopies::NoteWrite(uint64_t address, Bytes bytes) {
  if (copies_.empty()) return;
  const uint64_t end = (Saturating(address) + Saturating(bytes)).value();
  auto it = copies_.upper_bound(address);
  if (it != copies_.begin()) --it;
  for (; it != copies_.end() && it->first < end; ++it) {
    const uint64_t from = std::max(address, it->first);
    const uint64_t to = std::min(end, it->first + it->second.bytes);
    if (from < to) written_.push_back({from, it->second.address + (from - it->first), to - from});
  }
}

}  // namespace consort::host
