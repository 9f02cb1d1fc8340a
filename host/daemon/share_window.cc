// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/share_window.h"

#include "host/limits.h"

namespace consort::host {

void ShareWindow::Add(Nanos now, DeviceTimes times) {
  reports_.emplace_back(now, std::move(times));
  // The oldest that stays is the one from which the window reaches to now.
  while (reports_.size() > 1 && reports_[1].first <= now - kShareWindow) reports_.pop_front();
}

Nanos ShareWindow::span() const {
  return reports_.empty() ? 0 : reports_.back().first - reports_.front().first;
}

ShareWindow::DeviceTimes ShareWindow::Used() const {
  DeviceTimes used;
  if (reports_.empty()) return used;
  const DeviceTimes& before = reports_.front().second;
  for (const auto& [session, nanos] : reports_.back().second) {
    const auto it = before.find(session);
    // One that has begun since has had nothing before.
    const uint64_t had = it == before.end() || reports_.size() == 1 ? 0 : it->second;
    if (nanos > had) used[session] = nanos - had;
  }
  return used;
}

}  // namespace consort::host
