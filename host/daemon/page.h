// SPDX-License-Identifier: Apache-2.0
// host/daemon/page.h: the web page of this host, and the data that it asks for once a second.
//
//   GET /                          the page; /page.css and /page.js beside it, from host/page
//   GET /api/v1/page               everything that the page shows
//   GET /api/v1/page/FINE/COARSE/EVENT   the same, but of history and events only what is newer
//                                  than these numbers, which the last answer gave
//   GET /api/v1/page/FINE/COARSE/EVENT/DEVICE/TEXT   the same, but only applications of that device
//                                  (all: of every one) in whose names, or as whose pid, the text is
// The files are part of the program. Pure functions.
#ifndef CONSORT_HOST_DAEMON_PAGE_H_
#define CONSORT_HOST_DAEMON_PAGE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "host/daemon/event_log.h"
#include "host/daemon/history.h"
#include "host/daemon/http_server.h"
#include "host/daemon/status.h"

namespace consort::host {

struct PageRequest {
  // What the asker has: numbers of its latest samples and event; 0: nothing.
  uint64_t fine = 0;
  uint64_t coarse = 0;
  uint64_t event = 0;
  // Which applications it wants to see.
  std::optional<uint32_t> device;
  std::string find;  // in any case of letters; empty: all
};

// None if the path is not one of /api/v1/page. `path`: with percent-encoding undone.
std::optional<PageRequest> ParsePagePath(const std::string& path);

// One of the page's files; none if the path names none.
std::optional<HttpResponse> PageFile(const std::string& path);

// `unix_millis` is now. Of open sessions that are asked for the busiest kPageSessionsMax;
// "sessions_found" counts those, and "sessions_open" all.
std::string PageJson(DaemonStatus status, const History& history, const EventLog& events,
                     const PageRequest& request, uint64_t unix_millis);

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_PAGE_H_
