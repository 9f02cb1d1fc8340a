// SPDX-License-Identifier: Apache-2.0
// host/daemon/metrics_text.h: a DaemonStatus as Prometheus reads it. docs/howto/metrics.md lists
// the names.
//
// Names follow Prometheus' conventions: base units, `_total` for what only grows, `_info` for text.
// Labels are bounded (usage_book.h); no process id, session or free text is one.
#ifndef CONSORT_HOST_DAEMON_METRICS_TEXT_H_
#define CONSORT_HOST_DAEMON_METRICS_TEXT_H_

#include <string>

#include "host/daemon/status.h"

namespace consort::host {

inline constexpr char kMetricsContentType[] = "text/plain; version=0.0.4; charset=utf-8";

std::string MetricsText(const DaemonStatus& status);

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_METRICS_TEXT_H_
