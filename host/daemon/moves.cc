// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/moves.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "host/limits.h"

namespace consort::host {

void MoveBook::Add(MoveRecord record) {
  records_.push_back(std::move(record));
  // Those that go on stay: there are as many as sessions at most.
  for (auto it = records_.begin(); records_.size() > kMovesRemembered && it != records_.end();) {
    it = it->state == MoveRecord::State::kMoving ? std::next(it) : records_.erase(it);
  }
}

template <class Matches>
MoveRecord* MoveBook::FindIf(const Matches& matches) {
  const auto it = std::find_if(records_.begin(), records_.end(), [&](const MoveRecord& record) {
    return record.state == MoveRecord::State::kMoving && matches(record);
  });
  return it == records_.end() ? nullptr : &*it;
}

MoveRecord* MoveBook::Find(uint64_t session) {
  return FindIf([&](const MoveRecord& record) { return record.session == session; });
}

MoveRecord* MoveBook::FindBecoming(uint64_t session) {
  return FindIf([&](const MoveRecord& record) { return record.becomes == session; });
}

bool MoveBook::AnyFrom(uint32_t device) const {
  return std::any_of(records_.begin(), records_.end(), [&](const MoveRecord& record) {
    return record.from == device && record.state == MoveRecord::State::kMoving;
  });
}

std::string MoveBook::Json() const {
  nlohmann::ordered_json moves = nlohmann::ordered_json::array();
  for (const MoveRecord& record : records_) {
    nlohmann::ordered_json out;
    out["session"] = record.session;
    out["becomes"] = record.becomes;
    out["application"] = record.application;
    if (record.from.has_value()) out["from"] = *record.from;
    if (record.to.has_value()) out["to"] = *record.to;
    if (!record.folder.empty()) out["folder"] = record.folder;
    out["state"] = record.state == MoveRecord::State::kMoving  ? "moving"
                   : record.state == MoveRecord::State::kMoved ? "moved"
                                                               : "stayed";
    out["text"] = record.text;
    out["stopped_seconds"] = static_cast<double>(record.stopped) / 1e9;
    out["bytes"] = record.bytes;
    out["direct_bytes"] = record.direct_bytes;
    moves.push_back(std::move(out));
  }
  // Texts are a worker's words and may hold a program's.
  return nlohmann::ordered_json{{"moves", std::move(moves)}}.dump(
      -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace consort::host
