// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/usage_book.h"

#include <algorithm>

#include "host/limits.h"

namespace consort::host {
namespace {

constexpr char kOther[] = "other";

// The numbers of a usage that never go back, for what is done to each of them alike.
constexpr uint64_t SessionUsage::*kNumbers[] = {&SessionUsage::calls,
                                                &SessionUsage::round_trips,
                                                &SessionUsage::bytes_to_device,
                                                &SessionUsage::bytes_to_host,
                                                &SessionUsage::kernel_launches,
                                                &SessionUsage::kernel_nanos,
                                                &SessionUsage::device_nanos,
                                                &SessionUsage::to_device_nanos,
                                                &SessionUsage::to_host_nanos,
                                                &SessionUsage::queued_nanos,
                                                &SessionUsage::rate_waited_nanos,
                                                &SessionUsage::memory_byte_seconds,
                                                &SessionUsage::batches,
                                                &SessionUsage::timed_bytes_to_device,
                                                &SessionUsage::timed_bytes_to_host};

}  // namespace

std::string PrintableName(std::string_view text) {
  if (text.empty()) return "unknown";
  std::string name(text);
  for (char& c : name) {
    if (c < 0x20 || c > 0x7e) c = '?';
  }
  return name;
}

UsageKey UsageBook::Bounded(const UsageKey& who) {
  UsageKey key = {PrintableName(who.tenant), PrintableName(who.application), who.device};
  if (!names_.contains(key.tenant) && names_.size() >= kUsageTenantsMax) key.tenant = kOther;
  std::set<std::string>& applications = names_[key.tenant];
  if (!applications.contains(key.application)) {
    if (applications.size() >= kUsageApplicationsPerTenant) key.application = kOther;
    applications.insert(key.application);
  }
  return key;
}

void UsageBook::Begin(uint64_t session, const UsageKey& who) {
  const UsageKey key = Bounded(who);
  UsageTotals& totals = totals_[key];
  ++totals.sessions_begun;
  ++totals.sessions_open;
  open_[session] = {key, {}};
}

void UsageBook::Update(const SessionUsage& usage) {
  const auto it = open_.find(usage.session);
  if (it == open_.end()) return;
  UsageTotals& totals = totals_[it->second.who];
  SessionUsage& latest = it->second.latest;
  const auto count = [](uint64_t now, uint64_t* before, uint64_t* total) {
    if (now <= *before) return;
    *total += now - *before;
    *before = now;
  };
  for (uint64_t SessionUsage::*const number : kNumbers) {
    count(usage.*number, &(latest.*number), &(totals.used.*number));
  }
  // What is held now replaces what was: unsigned, so the difference may be negative on its way.
  totals.used.memory_bytes += usage.memory_bytes - it->second.latest.memory_bytes;
  it->second.latest.memory_bytes = usage.memory_bytes;
  for (size_t i = 0; i < kQueueDelayBuckets; ++i) {
    count(usage.delays[i], &latest.delays[i], &totals.used.delays[i]);
  }
  latest.phase = usage.phase;
  latest.waiting = usage.waiting;
  latest.in_flight = usage.in_flight;
}

void UsageBook::End(SessionEnded* ended) {
  const auto it = open_.find(ended->session);
  if (it == open_.end()) return;
  SessionUsage usage;
  usage.session = ended->session;
  usage.calls = ended->calls;
  usage.round_trips = ended->round_trips;
  usage.bytes_to_device = ended->bytes_to_device;
  usage.bytes_to_host = ended->bytes_to_host;
  usage.kernel_launches = ended->kernel_launches;
  usage.kernel_nanos = ended->kernel_nanos;
  usage.device_nanos = ended->device_nanos;
  usage.queued_nanos = ended->queued_nanos;
  usage.memory_byte_seconds = ended->memory_byte_seconds;
  Update(usage);
  const SessionUsage& latest = it->second.latest;
  ended->calls = latest.calls;
  ended->round_trips = latest.round_trips;
  ended->bytes_to_device = latest.bytes_to_device;
  ended->bytes_to_host = latest.bytes_to_host;
  ended->kernel_launches = latest.kernel_launches;
  ended->kernel_nanos = latest.kernel_nanos;
  ended->device_nanos = latest.device_nanos;
  ended->queued_nanos = latest.queued_nanos;
  ended->memory_byte_seconds = latest.memory_byte_seconds;
  --totals_[it->second.who].sessions_open;
  open_.erase(it);
}

void UsageBook::Restore(std::map<UsageKey, UsageTotals> totals) {
  totals_ = std::move(totals);
  for (const auto& [key, counted] : totals_) names_[key.tenant].insert(key.application);
}

void UsageBook::RestoreOpen(const UsageKey& who, const SessionUsage& latest) {
  open_[latest.session] = {Bounded(who), latest};
}

SessionUsage UsageBook::Latest(uint64_t session) const {
  const auto it = open_.find(session);
  return it == open_.end() ? SessionUsage{} : it->second.latest;
}

}  // namespace consort::host
