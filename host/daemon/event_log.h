// SPDX-License-Identifier: Apache-2.0
// host/daemon/event_log.h: the last things that happened on this host, for the page and consortctl.
//
// A short memory of what the log says at length: at most kEventsMax, the oldest goes first. What
// repeats within kEventRepeat is one event with a count. Owned by consortd's loop.
#ifndef CONSORT_HOST_DAEMON_EVENT_LOG_H_
#define CONSORT_HOST_DAEMON_EVENT_LOG_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <string>

namespace consort::host {

enum class EventLevel { kInfo, kWarning, kError };

// "info", "warning", "error".
const char* EventLevelName(EventLevel level);

struct Event {
  uint64_t number = 0;  // of its latest change: rises with every Add
  uint64_t unix_seconds = 0;
  EventLevel level = EventLevel::kInfo;
  std::string text;
  uint64_t times = 1;
};

class EventLog {
 public:
  // `now` gives seconds since 1970.
  explicit EventLog(std::function<uint64_t()> now) : now_(std::move(now)) {}

  // Text that guests chose must have been made printable.
  void Add(EventLevel level, const std::string& text);

  // Those of an earlier process image of this daemon.
  void Restore(std::deque<Event> events, uint64_t last_number);

  // The oldest first.
  const std::deque<Event>& events() const { return events_; }
  uint64_t last_number() const { return last_number_; }

 private:
  const std::function<uint64_t()> now_;
  uint64_t last_number_ = 0;
  std::deque<Event> events_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_EVENT_LOG_H_
