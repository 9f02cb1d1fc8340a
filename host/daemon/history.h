// SPDX-License-Identifier: Apache-2.0
// host/daemon/history.h: device time and memory over the last minutes and the last day, for plots.
//
// Fed with the totals every kHistoryStep; keeps kHistoryFine samples of one step and kHistoryCoarse
// that are means of kHistoryCoarseSteps. A sample is what was used in its step, in device seconds a
// second: 1 is one device kept busy.
//
// A tenant's target is what its weight promises of the time that was used: on each device, its
// weight over the weights of all tenants that used that device or waited for it in the step.
// Owned by consortd's loop.
#ifndef CONSORT_HOST_DAEMON_HISTORY_H_
#define CONSORT_HOST_DAEMON_HISTORY_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "host/daemon/usage_book.h"

namespace consort::host {

struct ShareSample {
  double used = 0;
  double target = 0;

  friend bool operator==(const ShareSample&, const ShareSample&) = default;
};

struct HistorySample {
  uint64_t number = 0;                         // rises by one a sample of its kind
  uint64_t unix_millis = 0;                    // of its end
  std::map<std::string, ShareSample> tenants;  // who neither used nor waited is not here
  std::vector<double> devices;                 // time used, by index
  std::vector<uint64_t> memory_bytes;          // held at the end, by index
};

class History {
 public:
  // The totals at `now` (monotonic) and `unix_millis`, of `devices` devices. The first call only
  // sets what the second is compared with.
  void Add(const std::map<UsageKey, UsageTotals>& totals,
           const std::function<uint32_t(const std::string&)>& weight_of, size_t devices, Nanos now,
           uint64_t unix_millis);

  const std::deque<HistorySample>& fine() const { return fine_; }
  const std::deque<HistorySample>& coarse() const { return coarse_; }

 private:
  // Of a tenant on a device, since consortd started.
  struct Totals {
    uint64_t device_nanos = 0;
    uint64_t queued_nanos = 0;
  };
  using ByDeviceAndTenant = std::map<std::pair<uint32_t, std::string>, Totals>;

  void AddToCoarse(const HistorySample& sample);

  bool begun_ = false;
  Nanos before_at_ = 0;
  ByDeviceAndTenant before_;
  uint64_t last_fine_ = 0;
  uint64_t last_coarse_ = 0;
  uint32_t steps_ = 0;  // in sum_
  HistorySample sum_;   // of the fine samples since the last coarse one
  std::deque<HistorySample> fine_;
  std::deque<HistorySample> coarse_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_HISTORY_H_
