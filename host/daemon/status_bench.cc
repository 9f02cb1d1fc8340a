// SPDX-License-Identifier: Apache-2.0
// host/daemon/status_bench.cc: what a full host costs those who look: 1,000 applications of 50
// tenants on 64 devices. The loop answers nobody else meanwhile.
#include <benchmark/benchmark.h>

#include <string>

#include "host/control/control_socket.h"
#include "host/daemon/event_log.h"
#include "host/daemon/history.h"
#include "host/daemon/metrics_text.h"
#include "host/daemon/page.h"
#include "host/daemon/status_json.h"
#include "host/limits.h"

namespace consort::host {
namespace {

constexpr uint32_t kApplications = 1000;
constexpr uint32_t kTenants = 50;
constexpr uint32_t kDevices = 64;

DaemonStatus FullHost() {
  DaemonStatus status;
  status.version = "bench";
  status.policy = "tfs";
  for (uint32_t i = 0; i < kDevices; ++i) {
    DeviceStatus& device = status.devices.emplace_back();
    device.index = i;
    device.state = "ready";
    device.info.emplace();
    SetText(device.info->snapshot.name, "NVIDIA H200");
    device.info->snapshot.total_bytes = 141 * kGiB;
  }
  for (uint32_t i = 0; i < kApplications; ++i) {
    SessionStatus& session = status.sessions.emplace_back();
    session.id = i + 1;
    session.tenant = "tenant-" + std::to_string(i % kTenants);
    session.vm = "machine-" + std::to_string(i % 300);
    session.application = "python3-" + std::to_string(i % 20);
    session.device = i % kDevices;
    session.usage.calls = 1000 * i;
    session.usage.device_nanos = 1'000'000 * i;
    session.usage.memory_bytes = kGiB;
    UsageTotals& totals = status.usage[{session.tenant, session.application, session.device}];
    ++totals.sessions_open;
    totals.used = session.usage;
    status.weights[session.tenant] = 1 + i % 4;
  }
  for (const auto& [who, totals] : status.usage) {
    TenantShare& share = status.shares.emplace_back();
    share.tenant = who.tenant;
    share.device = who.device;
    share.share = 0.01;
    share.competes = true;
  }
  return status;
}

void BM_MetricsOf1000Applications(benchmark::State& state) {
  const DaemonStatus status = FullHost();
  size_t bytes = 0;
  for (auto _ : state) bytes = MetricsText(status).size();
  state.counters["bytes"] = static_cast<double>(bytes);
}
BENCHMARK(BM_MetricsOf1000Applications)->Unit(benchmark::kMillisecond);

void BM_StatusOf1000Applications(benchmark::State& state) {
  const DaemonStatus status = FullHost();
  size_t bytes = 0;
  for (auto _ : state) bytes = StatusJson(status).size();
  state.counters["bytes"] = static_cast<double>(bytes);
}
BENCHMARK(BM_StatusOf1000Applications)->Unit(benchmark::kMillisecond);

// A page that has just been opened; `range` 1: one that asks for what is new.
void BM_PageOf1000Applications(benchmark::State& state) {
  const DaemonStatus status = FullHost();
  std::map<UsageKey, UsageTotals> totals = status.usage;
  History history;
  for (uint32_t second = 0; second <= kHistoryFine; ++second) {
    for (auto& [who, total] : totals) total.used.device_nanos += kMillisecond;
    history.Add(
        totals, [](const std::string&) { return 1u; }, kDevices, second * kSecond, second * 1000);
  }
  const EventLog events([] { return 0; });
  PageRequest request;
  if (state.range(0) == 1) request.fine = history.fine().back().number - 1;
  size_t bytes = 0;
  for (auto _ : state) bytes = PageJson(status, history, events, request, 0).size();
  state.counters["bytes"] = static_cast<double>(bytes);
}
BENCHMARK(BM_PageOf1000Applications)->Arg(0)->Arg(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace consort::host

BENCHMARK_MAIN();
