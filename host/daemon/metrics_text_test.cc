// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/metrics_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>
#include <string>

#include "host/control/control_socket.h"
#include "host/limits.h"
#include "policies/schedule/policy.h"

namespace consort::host {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

DaemonStatus Example() {
  DaemonStatus status;
  status.version = "0.1.0";
  status.started_unix_seconds = 1700000000;
  DeviceStatus& device = status.devices.emplace_back();
  device.state = "ready";
  device.info.emplace();
  SetText(device.info->snapshot.name, "A \"fast\" device");
  device.info->snapshot.uuid[15] = 7;
  device.info->snapshot.total_bytes = 1 << 30;
  device.sessions = 1;
  device.windows_used = 5;
  device.worker_starts = 2;
  UsageTotals& totals = status.usage[{"web-1", "python3", 0}];
  totals.sessions_begun = 3;
  totals.sessions_open = 1;
  totals.used.calls = 4100;
  totals.used.kernel_nanos = 2'500'000'000;
  totals.used.bytes_to_host = 4096;
  totals.used.queued_nanos = 40'000'000;
  totals.used.delays[0] = 7;
  totals.used.delays[kQueueDelayBuckets - 1] = 2;
  totals.used.to_host_nanos = 500'000'000;
  SessionStatus& session = status.sessions.emplace_back();
  session.tenant = "web-1";
  session.usage.phase = static_cast<uint32_t>(schedule::Phase::kToHost);
  status.policy = "las";
  status.weights["web-1"] = 4;
  TenantShare& share = status.shares.emplace_back();
  share.tenant = "web-1";
  share.share = 0.75;
  share.target = 0.8;
  share.competes = true;
  share.waiting = 1;
  VmStatus& vm = status.vms.emplace_back();
  vm.name = "web-1";
  vm.device.kicks = 12;
  vm.device.interrupts = 9;
  vm.device.bytes_from_guest = 700;
  vm.device.bytes_to_guest = 40;
  vm.device.socket_bytes_from_guest = 256;
  vm.device.socket_bytes_to_guest = 24;
  vm.shared_memory = {4096, 1024};
  status.vms.emplace_back().name = "web-2";
  status.refused["limit"] = 5;
  status.unsupported_calls["cuFoo"] = 8;
  return status;
}

// The value of the sample whose line begins with `sample`.
std::string ValueOf(const std::string& text, const std::string& sample) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(sample + " ")) return line.substr(sample.size() + 1);
  }
  return "no " + sample;
}

double NumberOf(const std::string& text, const std::string& sample) {
  return std::stod(ValueOf(text, sample));
}

TEST(MetricsText, HasWhatTheStatusSays) {
  const std::string text = MetricsText(Example());
  const std::string user = "{tenant=\"web-1\",application=\"python3\",device=\"0\"}";
  EXPECT_EQ(NumberOf(text, "consort_calls_total" + user), 4100);
  EXPECT_EQ(NumberOf(text, "consort_sessions" + user), 1);
  EXPECT_EQ(NumberOf(text, "consort_sessions_started_total" + user), 3);
  EXPECT_EQ(NumberOf(text, "consort_kernel_seconds_total" + user), 2.5);
  EXPECT_EQ(NumberOf(text,
                     "consort_transfer_bytes_total{tenant=\"web-1\",application=\"python3\","
                     "device=\"0\",direction=\"to_host\"}"),
            4096);
  EXPECT_EQ(NumberOf(text, "consort_device_memory_total_bytes{device=\"0\"}"), 1 << 30);
  EXPECT_EQ(NumberOf(text, "consort_worker_starts_total{device=\"0\"}"), 2);
  EXPECT_EQ(NumberOf(text, "consort_device_up{device=\"0\"}"), 1);
  EXPECT_EQ(NumberOf(text, "consort_vm_kicks_total{vm=\"web-1\"}"), 12);
  EXPECT_EQ(NumberOf(text, "consort_vm_interrupts_total{vm=\"web-1\"}"), 9);
  const std::string copied = "consort_vm_copied_bytes_total{vm=\"web-1\",direction=\"";
  EXPECT_EQ(NumberOf(text, copied + "from_guest\",by=\"device\"}"), 700);
  EXPECT_EQ(NumberOf(text, copied + "from_guest\",by=\"other_end\"}"), 256);
  EXPECT_EQ(NumberOf(text, copied + "to_guest\",by=\"device\"}"), 40);
  EXPECT_EQ(NumberOf(text, copied + "to_guest\",by=\"other_end\"}"), 24);
  EXPECT_EQ(NumberOf(text, "consort_vm_shared_memory_bytes{vm=\"web-1\"}"), 4096);
  EXPECT_EQ(NumberOf(text, "consort_vm_shared_memory_lent_bytes{vm=\"web-1\"}"), 1024);
  EXPECT_THAT(text, Not(HasSubstr("shared_memory_bytes{vm=\"web-2\"}")));
  EXPECT_EQ(NumberOf(text, "consort_refused_connections_total{reason=\"limit\"}"), 5);
  EXPECT_EQ(NumberOf(text, "consort_refused_connections_total{reason=\"no_device\"}"), 0);
  EXPECT_EQ(NumberOf(text, "consort_unsupported_calls_total{function=\"cuFoo\"}"), 8);
  EXPECT_THAT(text, HasSubstr("model=\"A \\\"fast\\\" device\""));
  EXPECT_THAT(text, HasSubstr("uuid=\"GPU-00000000-0000-0000-0000-000000000007\""));
}

TEST(MetricsText, TellsHowDevicesAreShared) {
  DaemonStatus status = Example();
  const std::string where = "{tenant=\"web-1\",device=\"0\"";
  const std::string text = MetricsText(status);
  EXPECT_EQ(NumberOf(text, "consort_scheduler_info{policy=\"las\"}"), 1);
  EXPECT_EQ(NumberOf(text, "consort_tenant_weight{tenant=\"web-1\"}"), 4);
  EXPECT_EQ(NumberOf(text, "consort_tenant_share_ratio" + where + "}"), 0.75);
  EXPECT_EQ(NumberOf(text, "consort_tenant_share_target_ratio" + where + "}"), 0.8);
  EXPECT_EQ(NumberOf(text, "consort_tenant_waiting_batches" + where + "}"), 1);
  EXPECT_EQ(NumberOf(text, "consort_queueing_delay_seconds_count" + where + "}"), 9);
  EXPECT_EQ(NumberOf(text, "consort_queueing_delay_seconds_sum" + where + "}"), 0.04);
  EXPECT_EQ(NumberOf(text, "consort_queueing_delay_seconds_bucket" + where + ",le=\"1e-05\"}"), 7);
  EXPECT_EQ(NumberOf(text, "consort_queueing_delay_seconds_bucket" + where + ",le=\"1\"}"), 7);
  EXPECT_EQ(NumberOf(text, "consort_queueing_delay_seconds_bucket" + where + ",le=\"+Inf\"}"), 9);
  EXPECT_EQ(NumberOf(text, "consort_device_sessions_in_phase{device=\"0\",phase=\"to_host\"}"), 1);
  EXPECT_EQ(NumberOf(text, "consort_device_sessions_in_phase{device=\"0\",phase=\"kernel\"}"), 0);
  EXPECT_EQ(NumberOf(text,
                     "consort_transfer_seconds_total{tenant=\"web-1\",application=\"python3\","
                     "device=\"0\",direction=\"to_host\"}"),
            0.5);
  status.shares[0].competes = false;
  EXPECT_THAT(MetricsText(status), Not(HasSubstr("consort_tenant_share_target_ratio{")));
}

TEST(MetricsText, EveryFamilyHasHelpAndTypeOnceAndItsNameFits) {
  std::istringstream lines(MetricsText(Example()));
  std::set<std::string> helped;
  std::set<std::string> typed;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash;
    std::string what;
    std::string name;
    std::string type;
    words >> hash >> what >> name >> type;
    if (hash != "#") continue;
    EXPECT_TRUE(name.starts_with("consort_")) << line;
    if (what == "HELP") {
      EXPECT_TRUE(helped.insert(name).second) << line;
    }
    if (what != "TYPE") continue;
    EXPECT_TRUE(typed.insert(name).second) << line;
    EXPECT_EQ(type == "counter", name.ends_with("_total")) << line;
  }
  EXPECT_EQ(helped, typed);
  EXPECT_GT(helped.size(), 10u);
}

TEST(MetricsText, WhatIsNotKnownIsAbsent) {
  DaemonStatus status = Example();
  status.devices[0].info.reset();
  status.devices[0].state = "starting";
  const std::string text = MetricsText(status);
  EXPECT_THAT(text, Not(HasSubstr("consort_device_memory_total_bytes{")));
  EXPECT_THAT(text, Not(HasSubstr("consort_device_info{")));
  EXPECT_EQ(NumberOf(text, "consort_device_up{device=\"0\"}"), 0);
}

}  // namespace
}  // namespace consort::host
