// SPDX-License-Identifier: Apache-2.0
#include "host/session/held_work.h"

#include <algorithm>
#include <iterator>

#include "host/limits.h"

namespace consort::host {

void HeldWork::Held::Add(const StreamName& stream) {
  if (!streams.try_emplace({stream.context, stream.id}, stream.blocking).second) return;
  ++in_context[stream.context];
  if (stream.id != 0 && stream.blocking) ++blocking_of[stream.context];
}

bool HeldWork::Held::Holds(const StreamName& stream) const {
  if (streams.contains({stream.context, stream.id})) return true;
  if (stream.id == 0) return blocking_of.contains(stream.context);
  return stream.blocking && streams.contains({stream.context, 0});
}

bool HeldWork::Held::Holds(const RequestOrder& order, uint32_t context,
                           const std::optional<StreamName>& stream) const {
  if (order.all && !streams.empty()) return true;
  if (order.context && in_context.contains(context)) return true;
  for (size_t i = 0; i < order.event_count; ++i) {
    if (events.contains(order.events[i])) return true;
    if (order.records && awaited.contains(order.events[i])) return true;
  }
  return stream.has_value() && Holds(*stream);
}

void HeldWork::Held::AddOf(const Request& request) {
  if (request.stream.has_value()) Add(*request.stream);
  auto& referred = request.order.records ? events : awaited;
  referred.insert(request.order.events, request.order.events + request.order.event_count);
}

bool HeldWork::Hold(uint64_t callback, const StreamName& stream) {
  if (!functions_.try_emplace(callback, Function{stream, false}).second) return false;
  all_.Add(stream);
  if (walking_) walked_.Add(stream);
  return true;
}

void HeldWork::Announce(uint64_t callback) {
  const auto it = functions_.find(callback);
  if (it != functions_.end()) it->second.announced = true;
}

bool HeldWork::Done(uint64_t callback) {
  const auto it = functions_.find(callback);
  if (it == functions_.end() || !it->second.announced) return false;
  functions_.erase(it);
  walking_ = restart_ = true;
  return true;
}

void HeldWork::ReleaseAll() {
  functions_.clear();
  walking_ = restart_ = true;
}

size_t HeldWork::DropRecords(uint64_t event, const std::optional<StreamName>& stream) {
  if (!all_.events.contains(event) || (stream.has_value() && all_.Holds(*stream))) return 0;
  const auto concerns = [event](const Request& request) {
    const uint64_t* const end = request.order.events + request.order.event_count;
    return std::find(request.order.events, end, event) != end;
  };
  for (const Request& request : requests_) {
    if (concerns(request) && !request.order.records) return 0;
  }
  size_t dropped = 0;
  for (auto it = requests_.begin(); it != requests_.end();) {
    if (!concerns(*it)) {
      ++it;
      continue;
    }
    if (walking_ && !restart_ && next_ == it) ++next_;
    bytes_ -= it->body.size();
    it = requests_.erase(it);
    ++dropped;
  }
  all_.events.erase(event);
  walked_.events.erase(event);
  return dropped;
}

bool HeldWork::Keep(Request request) {
  if (requests_.size() >= kHeldRequestsPerSession ||
      request.body.size() > kHeldBytesPerSession - bytes_) {
    return false;
  }
  bytes_ += request.body.size();
  all_.AddOf(request);
  requests_.push_back(std::move(request));
  // A walk that stands at the end goes on with it.
  if (walking_ && !restart_ && next_ == requests_.end()) next_ = std::prev(requests_.end());
  return true;
}

bool HeldWork::Next(Request* request) {
  if (!walking_) return false;
  if (restart_) {
    restart_ = false;
    next_ = requests_.begin();
    walked_ = Held();
    for (const auto& [callback, function] : functions_) walked_.Add(function.stream);
  }
  while (next_ != requests_.end()) {
    // All that was held before is held again: so is the rest of the list.
    if (walked_.streams.size() == all_.streams.size() &&
        walked_.events.size() == all_.events.size() &&
        walked_.awaited.size() == all_.awaited.size()) {
      walking_ = false;
      return false;
    }
    if (!walked_.Holds(next_->order, next_->header.value, next_->stream)) {
      *request = std::move(*next_);
      bytes_ -= request->body.size();
      next_ = requests_.erase(next_);
      return true;
    }
    walked_.AddOf(*next_);
    ++next_;
  }
  all_ = std::move(walked_);
  walked_ = Held();
  walking_ = false;
  return false;
}

}  // namespace consort::host
