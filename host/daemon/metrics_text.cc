// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/metrics_text.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "host/control/control_socket.h"
#include "host/limits.h"
#include "policies/schedule/policy.h"

namespace consort::host {
namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;

// The families in the order in which they are made.
class Families {
 public:
  void Gauge(const char* name, const char* help) { Add(name, help, prometheus::MetricType::Gauge); }
  void Counter(const char* name, const char* help) {
    Add(name, help, prometheus::MetricType::Counter);
  }
  // A sample of the family made last.
  void Sample(const Labels& labels, double value) {
    prometheus::MetricFamily& family = families_.back();
    prometheus::ClientMetric& metric = family.metric.emplace_back();
    for (const auto& [name, text] : labels) metric.label.push_back({name, text});
    if (family.type == prometheus::MetricType::Counter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
  }
  void Histogram(const char* name, const char* help) {
    Add(name, help, prometheus::MetricType::Histogram);
  }
  // A sample of the histogram made last; `counts`: by kQueueDelayBounds.
  void Delays(const Labels& labels, const uint64_t (&counts)[kQueueDelayBuckets], Nanos sum) {
    prometheus::ClientMetric& metric = families_.back().metric.emplace_back();
    for (const auto& [name, text] : labels) metric.label.push_back({name, text});
    uint64_t count = 0;
    for (size_t i = 0; i < kQueueDelayBuckets; ++i) {
      count += counts[i];
      const double bound = i < kQueueDelayBounds.size()
                               ? static_cast<double>(kQueueDelayBounds[i]) / 1e9
                               : std::numeric_limits<double>::infinity();
      metric.histogram.bucket.push_back({count, bound});
    }
    metric.histogram.sample_count = count;
    metric.histogram.sample_sum = static_cast<double>(sum) / 1e9;
  }
  std::string Text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  void Add(const char* name, const char* help, prometheus::MetricType type) {
    families_.push_back({name, help, type, {}});
  }
  std::vector<prometheus::MetricFamily> families_;
};

Labels DeviceLabel(uint32_t index) { return {{"device", std::to_string(index)}}; }

Labels UserLabels(const UsageKey& who) {
  return {{"tenant", who.tenant},
          {"application", who.application},
          {"device", std::to_string(who.device)}};
}

void AddDaemon(const DaemonStatus& status, Families* families) {
  families->Gauge("consort_build_info", "The version that runs; always 1.");
  families->Sample({{"version", status.version}}, 1);
  families->Gauge("consort_start_time_seconds", "When consortd started, in seconds since 1970.");
  families->Sample({}, static_cast<double>(status.started_unix_seconds));
  families->Gauge("consort_vms", "Virtual machines that have a socket here.");
  families->Sample({}, static_cast<double>(status.vms.size()));
  families->Gauge("consort_config_last_reload_successful",
                  "0 if the last reading of the VMs' files found a mistake.");
  families->Sample({}, status.reload_failed ? 0 : 1);
  families->Counter("consort_refused_connections_total",
                    "Connections that were told no, by reason.");
  for (const char* reason : {"limit", "no_device", "version_mismatch"}) {
    const auto it = status.refused.find(reason);
    families->Sample({{"reason", reason}},
                     it == status.refused.end() ? 0 : static_cast<double>(it->second));
  }
}

void AddVms(const DaemonStatus& status, Families* families) {
  const struct {
    const char* name;
    const char* help;
    uint64_t vhost_user::VsockDeviceStats::*value;
  } counters[] = {
      {"consort_vm_kicks_total", "Notifications by a VM's guest: what makes a virtual CPU exit.",
       &vhost_user::VsockDeviceStats::kicks},
      {"consort_vm_interrupts_total", "Interrupts of a VM by its vsock device.",
       &vhost_user::VsockDeviceStats::interrupts},
  };
  for (const auto& counter : counters) {
    families->Counter(counter.name, counter.help);
    for (const VmStatus& vm : status.vms) {
      families->Sample({{"vm", vm.name}}, static_cast<double>(vm.device.*counter.value));
    }
  }
  families->Counter("consort_vm_copied_bytes_total",
                    "Of a VM's streams, copied by a CPU: by its vsock device, and once more at the "
                    "other end of those that go through a socket.");
  for (const VmStatus& vm : status.vms) {
    const struct {
      const char* direction;
      const char* by;
      uint64_t bytes;
    } copies[] = {{"from_guest", "device", vm.device.bytes_from_guest},
                  {"from_guest", "other_end", vm.device.socket_bytes_from_guest},
                  {"to_guest", "device", vm.device.bytes_to_guest},
                  {"to_guest", "other_end", vm.device.socket_bytes_to_guest}};
    for (const auto& copied : copies) {
      families->Sample({{"vm", vm.name}, {"direction", copied.direction}, {"by", copied.by}},
                       static_cast<double>(copied.bytes));
    }
  }
  const struct {
    const char* name;
    const char* help;
    Bytes VmStatus::SharedMemory::*value;
  } sizes[] = {
      {"consort_vm_shared_memory_bytes", "Memory that a VM shares with this host.",
       &VmStatus::SharedMemory::bytes},
      {"consort_vm_shared_memory_lent_bytes", "The part of it that the VM's programs have now.",
       &VmStatus::SharedMemory::lent},
  };
  for (const auto& size : sizes) {
    families->Gauge(size.name, size.help);
    for (const VmStatus& vm : status.vms) {
      if (!vm.shared_memory.has_value()) continue;
      families->Sample({{"vm", vm.name}}, static_cast<double>((*vm.shared_memory).*size.value));
    }
  }
}

void AddErrors(const DaemonStatus& status, Families* families) {
  families->Counter("consort_automatic_checkpoints_total",
                    "Checkpoints that applications got by themselves, by what became of them.");
  for (const auto& [what, count] : status.saves) {
    families->Sample({{"result", what}}, static_cast<double>(count));
  }
  families->Counter("consort_errors_total", "What went wrong on this host, by kind.");
  for (const char* kind : {kErrorAccount, kErrorWorkerDied, kErrorWorkerStart}) {
    const auto it = status.errors.find(kind);
    families->Sample({{"kind", kind}},
                     it == status.errors.end() ? 0 : static_cast<double>(it->second));
  }
}

void AddUnsupported(const DaemonStatus& status, Families* families) {
  families->Counter("consort_unsupported_calls_total",
                    "Calls of driver functions that guests' library lacks; the last ones of many "
                    "are not told.");
  for (const auto& [name, calls] : status.unsupported_calls) {
    families->Sample({{"function", name}}, static_cast<double>(calls));
  }
}

void AddDevices(const DaemonStatus& status, Families* families) {
  families->Gauge("consort_device_info", "A device and its driver; always 1.");
  for (const DeviceStatus& device : status.devices) {
    if (!device.info.has_value()) continue;
    families->Sample({{"device", std::to_string(device.index)},
                      {"uuid", UuidText(device.info->snapshot.uuid)},
                      {"model", PrintableName(GetText(device.info->snapshot.name))},
                      {"driver", PrintableName(GetText(device.info->driver))}},
                     1);
  }
  families->Gauge("consort_device_up", "1 while the device has a worker that takes sessions.");
  for (const DeviceStatus& device : status.devices) {
    families->Sample(DeviceLabel(device.index), device.state == "ready" ? 1 : 0);
  }
  families->Gauge("consort_device_memory_total_bytes", "Memory of the device.");
  for (const DeviceStatus& device : status.devices) {
    if (!device.info.has_value()) continue;
    families->Sample(DeviceLabel(device.index),
                     static_cast<double>(device.info->snapshot.total_bytes));
  }
  families->Gauge("consort_device_memory_used_bytes",
                  "Memory of the device that open sessions hold.");
  std::map<uint32_t, uint64_t> held;
  for (const auto& [who, totals] : status.usage) held[who.device] += totals.used.memory_bytes;
  for (const DeviceStatus& device : status.devices) {
    families->Sample(DeviceLabel(device.index), static_cast<double>(held[device.index]));
  }
  families->Gauge("consort_device_sessions", "Open sessions of the device.");
  for (const DeviceStatus& device : status.devices) {
    families->Sample(DeviceLabel(device.index), device.sessions);
  }
  families->Gauge("consort_windows_used",
                  "Address space that the device's sessions have, in the smallest windows.");
  for (const DeviceStatus& device : status.devices) {
    families->Sample(DeviceLabel(device.index), device.windows_used);
  }
  families->Gauge("consort_windows_limit", "Address space of the device, likewise.");
  for (const DeviceStatus& device : status.devices) {
    families->Sample(DeviceLabel(device.index), kWindowSlots);
  }
  families->Counter("consort_worker_starts_total",
                    "Worker processes started for the device, the first included.");
  for (const DeviceStatus& device : status.devices) {
    families->Sample(DeviceLabel(device.index), static_cast<double>(device.worker_starts));
  }
  families->Counter("consort_workers_retired_total",
                    "Workers that take no new sessions: a fault, or work that never ends.");
  for (const DeviceStatus& device : status.devices) {
    families->Sample(DeviceLabel(device.index), static_cast<double>(device.workers_retired));
  }
}

void AddMemory(const DaemonStatus& status, Families* families) {
  struct Column {
    const char* name;
    const char* help;
    uint64_t MemoryReport::*number;
    double scale;
    bool counter;
  };
  for (const Column& column : std::initializer_list<Column>{
           {"consort_memory_promised_bytes", "Memory that programs have allocated or reserved.",
            &MemoryReport::promised, 1, false},
           {"consort_memory_on_device_bytes", "Of it, what is on the device, caches included.",
            &MemoryReport::on_device, 1, false},
           {"consort_memory_waiting",
            "Requests that wait for room, and applications whose memory is to come back.",
            &MemoryReport::waiting, 1, false},
           {"consort_swap_limit_bytes", "What fits the swap store at least.",
            &MemoryReport::swap_capacity, 1, false},
           {"consort_swap_out_bytes_total", "Copied from the device to the swap store.",
            &MemoryReport::out_bytes, 1, true},
           {"consort_swap_in_bytes_total", "Copied from the swap store to the device.",
            &MemoryReport::in_bytes, 1, true},
           {"consort_swap_clean_bytes_total",
            "Left the device and did not have to be copied: unchanged, or never written.",
            &MemoryReport::clean_bytes, 1, true},
           {"consort_swap_out_seconds_total", "Time spent moving memory off the device.",
            &MemoryReport::out_nanos, 1e-9, true},
           {"consort_swap_in_seconds_total", "Time spent moving memory to the device.",
            &MemoryReport::in_nanos, 1e-9, true},
           {"consort_memory_refused_total", "Requests for memory that waited in vain.",
            &MemoryReport::refused, 1, true}}) {
    if (column.counter) {
      families->Counter(column.name, column.help);
    } else {
      families->Gauge(column.name, column.help);
    }
    for (const DeviceStatus& device : status.devices) {
      families->Sample(DeviceLabel(device.index),
                       static_cast<double>(device.memory.*column.number) * column.scale);
    }
  }
  families->Gauge("consort_swap_used_bytes",
                  "Contents of device memory in the swap store, by tier.");
  for (const DeviceStatus& device : status.devices) {
    Labels labels = DeviceLabel(device.index);
    labels.emplace_back("tier", "pinned");
    families->Sample(labels, static_cast<double>(device.memory.swapped_pinned));
    labels.back().second = "pageable";
    families->Sample(labels, static_cast<double>(device.memory.swapped_pageable));
    labels.back().second = "file";
    families->Sample(labels, static_cast<double>(device.memory.swapped_file));
  }
}

void AddUsage(const DaemonStatus& status, Families* families) {
  families->Gauge("consort_sessions", "Open sessions.");
  for (const auto& [who, totals] : status.usage) {
    families->Sample(UserLabels(who), static_cast<double>(totals.sessions_open));
  }
  families->Gauge("consort_held_sessions", "Sessions that are held in a checkpoint, on no device.");
  families->Sample({}, static_cast<double>(std::count_if(
                           status.sessions.begin(), status.sessions.end(),
                           [](const SessionStatus& session) { return !session.held_in.empty(); })));
  families->Counter("consort_sessions_started_total", "Sessions that began.");
  for (const auto& [who, totals] : status.usage) {
    families->Sample(UserLabels(who), static_cast<double>(totals.sessions_begun));
  }
  struct Column {
    const char* name;
    const char* help;
    uint64_t SessionUsage::*number;
  };
  for (const Column& column : std::initializer_list<Column>{
           {"consort_calls_total", "Calls that reached the host.", &SessionUsage::calls},
           {"consort_round_trips_total", "Calls for whose answer the program waited.",
            &SessionUsage::round_trips},
           {"consort_kernel_launches_total", "Kernels launched.",
            &SessionUsage::kernel_launches}}) {
    families->Counter(column.name, column.help);
    for (const auto& [who, totals] : status.usage) {
      families->Sample(UserLabels(who), static_cast<double>(totals.used.*column.number));
    }
  }
  families->Counter("consort_kernel_seconds_total",
                    "Time for which kernels occupied the device, by samples; time shared with "
                    "others counts in full.");
  for (const auto& [who, totals] : status.usage) {
    families->Sample(UserLabels(who), static_cast<double>(totals.used.kernel_nanos) / 1e9);
  }
  families->Gauge("consort_memory_bytes", "Device memory that open sessions hold.");
  for (const auto& [who, totals] : status.usage) {
    families->Sample(UserLabels(who), static_cast<double>(totals.used.memory_bytes));
  }
  families->Counter("consort_memory_byte_seconds_total",
                    "Device memory that was held, times how long.");
  for (const auto& [who, totals] : status.usage) {
    families->Sample(UserLabels(who), static_cast<double>(totals.used.memory_byte_seconds));
  }
  families->Counter("consort_transfer_bytes_total",
                    "Bytes of copies that crossed between program and device.");
  for (const auto& [who, totals] : status.usage) {
    Labels labels = UserLabels(who);
    labels.emplace_back("direction", "to_device");
    families->Sample(labels, static_cast<double>(totals.used.bytes_to_device));
    labels.back().second = "to_host";
    families->Sample(labels, static_cast<double>(totals.used.bytes_to_host));
  }
}

// How devices are shared.
void AddScheduling(const DaemonStatus& status, Families* families) {
  families->Gauge("consort_scheduler_info", "The scheduler's policy; always 1.");
  families->Sample({{"policy", status.policy}}, 1);
  families->Gauge("consort_tenant_weight", "Weight of a tenant.");
  for (const auto& [tenant, weight] : status.weights) {
    families->Sample({{"tenant", PrintableName(tenant)}}, weight);
  }
  const auto labels = [](const TenantShare& share) {
    return Labels{{"tenant", PrintableName(share.tenant)},
                  {"device", std::to_string(share.device)}};
  };
  families->Gauge("consort_tenant_share_ratio",
                  "Part of a device's time that a tenant had within the last second.");
  for (const TenantShare& share : status.shares) families->Sample(labels(share), share.share);
  families->Gauge("consort_tenant_share_target_ratio",
                  "What its weight gives a tenant among those that compete for the device.");
  for (const TenantShare& share : status.shares) {
    if (share.competes) families->Sample(labels(share), share.target);
  }
  families->Gauge("consort_tenant_waiting_batches", "Batches that wait for their turn.");
  for (const TenantShare& share : status.shares) families->Sample(labels(share), share.waiting);

  families->Gauge("consort_device_sessions_in_phase", "Open sessions by what they do.");
  for (const DeviceStatus& device : status.devices) {
    std::array<uint64_t, schedule::kPhases> count = {};
    for (const SessionStatus& session : status.sessions) {
      if (session.device != device.index || !session.held_in.empty()) continue;
      ++count[session.usage.phase % schedule::kPhases];
    }
    for (uint32_t phase = 0; phase < schedule::kPhases; ++phase) {
      Labels of = DeviceLabel(device.index);
      of.emplace_back("phase", PhaseName(phase));
      families->Sample(of, static_cast<double>(count[phase]));
    }
  }

  families->Counter("consort_device_seconds_total",
                    "Device time as the scheduler measured it, time shared with others split; of "
                    "kernels only, by samples, while nobody else was active.");
  for (const auto& [who, totals] : status.usage) {
    families->Sample(UserLabels(who), static_cast<double>(totals.used.device_nanos) / 1e9);
  }
  families->Counter("consort_transfer_seconds_total",
                    "The part of the device time that was copies, while others were active.");
  for (const auto& [who, totals] : status.usage) {
    Labels of = UserLabels(who);
    of.emplace_back("direction", "to_device");
    families->Sample(of, static_cast<double>(totals.used.to_device_nanos) / 1e9);
    of.back().second = "to_host";
    families->Sample(of, static_cast<double>(totals.used.to_host_nanos) / 1e9);
  }
  families->Counter("consort_rate_wait_seconds_total",
                    "Time for which work waited for its tenant's rate limits.");
  for (const auto& [who, totals] : status.usage) {
    families->Sample(UserLabels(who), static_cast<double>(totals.used.rate_waited_nanos) / 1e9);
  }
  families->Histogram("consort_queueing_delay_seconds",
                      "How long batches of device work waited for their turns.");
  std::map<std::pair<std::string, uint32_t>, SessionUsage> delays;
  for (const auto& [who, totals] : status.usage) {
    SessionUsage& sum = delays[{who.tenant, who.device}];
    for (size_t i = 0; i < kQueueDelayBuckets; ++i) sum.delays[i] += totals.used.delays[i];
    sum.queued_nanos += totals.used.queued_nanos;
  }
  for (const auto& [where, sum] : delays) {
    families->Delays({{"tenant", where.first}, {"device", std::to_string(where.second)}},
                     sum.delays, static_cast<Nanos>(sum.queued_nanos));
  }
}

}  // namespace

std::string MetricsText(const DaemonStatus& status) {
  Families families;
  AddDaemon(status, &families);
  AddVms(status, &families);
  AddErrors(status, &families);
  AddDevices(status, &families);
  AddMemory(status, &families);
  AddUsage(status, &families);
  AddScheduling(status, &families);
  AddUnsupported(status, &families);
  return families.Text();
}

}  // namespace consort::host
