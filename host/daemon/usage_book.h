// SPDX-License-Identifier: Apache-2.0
// host/daemon/usage_book.h: what tenants and their applications have used, open sessions included.
//
//   Begin ──▶ Update, any number of times ──▶ End
//
// Totals are kept a tenant, application and device, and never go back (but for the memory that is
// held now): what a session has used stays counted when it is gone. Application names are the
// guest's word, so their number is bounded: see kUsageTenantsMax and kUsageApplicationsPerTenant;
// what comes beyond is counted under "other". Owned by consortd's loop.
#ifndef CONSORT_HOST_DAEMON_USAGE_BOOK_H_
#define CONSORT_HOST_DAEMON_USAGE_BOOK_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>

#include "host/control/messages.h"

namespace consort::host {

struct UsageKey {
  std::string tenant;
  std::string application;
  uint32_t device = 0;

  friend bool operator<(const UsageKey& a, const UsageKey& b) {
    return std::tie(a.tenant, a.application, a.device) <
           std::tie(b.tenant, b.application, b.device);
  }
};

struct UsageTotals {
  uint64_t sessions_begun = 0;
  uint64_t sessions_open = 0;
  SessionUsage used;  // its `session` means nothing
};

class UsageBook {
 public:
  // A session that is new. The names are made printable and bounded here.
  void Begin(uint64_t session, const UsageKey& who);
  // What an open session has used so far. Numbers that would go back, and sessions that are not
  // open (a report can cross the session's end), are passed over.
  void Update(const SessionUsage& usage);
  // The session's last word. Numbers below those of an Update count as the Update's: a worker that
  // died cannot give any. `ended` gets what was counted.
  void End(SessionEnded* ended);

  // What an earlier process image of this daemon counted: first the totals, open sessions included,
  // then each of those. The names are as its book had them.
  void Restore(std::map<UsageKey, UsageTotals> totals);
  void RestoreOpen(const UsageKey& who, const SessionUsage& latest);

  // Of an open session; zeros for others.
  SessionUsage Latest(uint64_t session) const;
  const std::map<UsageKey, UsageTotals>& totals() const { return totals_; }

 private:
  struct Open {
    UsageKey who;
    SessionUsage latest;
  };
  UsageKey Bounded(const UsageKey& who);

  std::map<UsageKey, UsageTotals> totals_;
  std::map<uint64_t, Open> open_;
  std::map<std::string, std::set<std::string>> names_;  // tenant to its applications
};

// `text` with every byte that is not printable ASCII replaced by '?'; "unknown" for an empty one.
std::string PrintableName(std::string_view text);

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_USAGE_BOOK_H_
