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

MoveRecord* MoveBook::Find(uint64_t session) {
  const auto it = std::find_if(records_.begin(), records_.end(), [&](const MoveRecord& record) {
    return record.session == session && record.state == MoveRecord::State::kMoving;
  });
  return it == records_.end() ? nullptr : &*it;
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
    out["from"] = record.from;
    out["to"] = record.to;
    out["state"] = record.state == MoveRecord::State::kMoving  ? "moving"
                   : record.state == MoveRecord::State::kMoved ? "moved"
                                                               : "stayed";
    out["text"] = record.text;
    out["stopped_seconds"] = static_cast<double>(record.stopped) / 1e9;
    out["bytes"] = record.bytes;
    moves.push_back(std::move(out));
  }
  // Texts are a worker's words and may hold a program's.
  return nlohmann::ordered_json{{"moves", std::move(moves)}}.dump(
      -1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace consort::host
