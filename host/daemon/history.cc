// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/history.h"

#include <algorithm>

#include "host/limits.h"

namespace consort::host {

void History::Add(const std::map<UsageKey, UsageTotals>& totals,
                  const std::function<uint32_t(const std::string&)>& weight_of, size_t devices,
                  Nanos now, uint64_t unix_millis) {
  ByDeviceAndTenant after;
  HistorySample sample;
  sample.unix_millis = unix_millis;
  sample.devices.resize(devices);
  sample.memory_bytes.resize(devices);
  for (const auto& [who, total] : totals) {
    if (who.device >= devices) continue;
    Totals& sum = after[{who.device, who.tenant}];
    sum.device_nanos += total.used.device_nanos;
    sum.queued_nanos += total.used.queued_nanos;
    sample.memory_bytes[who.device] += total.used.memory_bytes;
  }
  after.swap(before_);
  const ByDeviceAndTenant& before = after;
  const auto step = static_cast<double>(std::max<Nanos>(now - before_at_, 1));
  before_at_ = now;
  if (!begun_) {
    begun_ = true;
    return;
  }

  std::vector<double> weights_there(devices);
  std::vector<std::pair<uint32_t, const std::string*>> there;
  for (const auto& [key, total] : before_) {
    const auto& [device, tenant] = key;
    const auto it = before.find(key);
    const Totals old = it == before.end() ? Totals() : it->second;
    if (total.device_nanos == old.device_nanos && total.queued_nanos == old.queued_nanos) continue;
    const double used = static_cast<double>(total.device_nanos - old.device_nanos) / step;
    sample.tenants[tenant].used += used;
    sample.devices[device] += used;
    weights_there[device] += weight_of(tenant);
    there.emplace_back(device, &tenant);
  }
  for (const auto& [device, tenant] : there) {
    sample.tenants[*tenant].target +=
        sample.devices[device] * weight_of(*tenant) / weights_there[device];
  }

  sample.number = ++last_fine_;
  AddToCoarse(sample);
  fine_.push_back(std::move(sample));
  if (fine_.size() > kHistoryFine) fine_.pop_front();
}

void History::AddToCoarse(const HistorySample& sample) {
  for (const auto& [tenant, share] : sample.tenants) {
    ShareSample& sum = sum_.tenants[tenant];
    sum.used += share.used;
    sum.target += share.target;
  }
  sum_.devices.resize(std::max(sum_.devices.size(), sample.devices.size()));
  for (size_t i = 0; i < sample.devices.size(); ++i) sum_.devices[i] += sample.devices[i];
  if (++steps_ < kHistoryCoarseSteps) return;

  for (auto& [tenant, share] : sum_.tenants) {
    share.used /= steps_;
    share.target /= steps_;
  }
  for (double& busy : sum_.devices) busy /= steps_;
  sum_.number = ++last_coarse_;
  sum_.unix_millis = sample.unix_millis;
  sum_.memory_bytes = sample.memory_bytes;
  coarse_.push_back(std::move(sum_));
  if (coarse_.size() > kHistoryCoarse) coarse_.pop_front();
  sum_ = {};
  steps_ = 0;
}

}  // namespace consort::host
