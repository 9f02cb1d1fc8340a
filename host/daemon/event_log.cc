// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/event_log.h"

#include <algorithm>
#include <utility>

#include "host/limits.h"

namespace consort::host {

const char* EventLevelName(EventLevel level) {
  switch (level) {
    case EventLevel::kError:
      return "error";
    case EventLevel::kWarning:
      return "warning";
    case EventLevel::kInfo:
      break;
  }
  return "info";
}

void EventLog::Add(EventLevel level, const std::string& text) {
  Event event;
  event.number = ++last_number_;
  event.unix_seconds = now_();
  event.level = level;
  event.text = text;
  const auto same = std::find_if(events_.begin(), events_.end(), [&](const Event& old) {
    return old.level == level && old.text == text &&
           event.unix_seconds - old.unix_seconds <= static_cast<uint64_t>(kEventRepeat / kSecond);
  });
  if (same != events_.end()) {
    event.times = same->times + 1;
    events_.erase(same);
  }
  events_.push_back(std::move(event));
  if (events_.size() > kEventsMax) events_.pop_front();
}

void EventLog::Restore(std::deque<Event> events, uint64_t last_number) {
  events_ = std::move(events);
  last_number_ = last_number;
}

}  // namespace consort::host
