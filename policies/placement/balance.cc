// SPDX-License-Identifier: Apache-2.0
#include "policies/placement/balance.h"

#include <tuple>
#include <vector>

namespace consort::placement {

std::optional<BalanceMove> ChooseMove(std::span<const BalanceDevice> devices,
                                      std::span<const BalanceApplication> applications) {
  struct Load {
    double use = 0;
    uint32_t working = 0;
  };
  std::vector<Load> loads(devices.size());
  for (const BalanceApplication& application : applications) {
    Load& load = loads[application.device];
    load.use += application.use;
    if (application.use >= kBalanceWorks) ++load.working;
  }
  std::optional<BalanceMove> best;
  std::tuple<double, double> best_by;
  for (const BalanceApplication& application : applications) {
    if (application.use < kBalanceUse && loads[application.device].use < kBalanceFull) continue;
    if (application.use < kBalanceWorks || application.settled < kBalanceSettled) continue;
    const Load& load = loads[application.device];
    // What it has of its device beside the others.
    const double part = load.use < kBalanceFull ? 1 : 1.0 / load.working;
    for (uint32_t to = 0; to < devices.size(); ++to) {
      const BalanceDevice& device = devices[to];
      if (to == application.device || !device.takes || device.idle < kBalanceIdle ||
          (application.allowed >> to & 1) == 0) {
        continue;
      }
      const double gain = device.speed / (devices[application.device].speed * part);
      if (gain < kBalanceGain) continue;
      const std::tuple by(gain, application.use);
      if (best.has_value() && by <= best_by) continue;
      best = {application.session, to};
      best_by = by;
    }
  }
  return best;
}

}  // namespace consort::placement
