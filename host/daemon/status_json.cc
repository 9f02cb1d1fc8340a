// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/status_json.h"

#include <unistd.h>

#include <map>
#include <nlohmann/json.hpp>

#include "host/control/control_socket.h"
#include "host/limits.h"

namespace consort::host {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kStatusSchema = 1;

double Seconds(uint64_t nanos) { return static_cast<double>(nanos) / 1e9; }

void AddUsage(const SessionUsage& usage, Json* to) {
  (*to)["calls"] = usage.calls;
  (*to)["round_trips"] = usage.round_trips;
  (*to)["bytes_to_device"] = usage.bytes_to_device;
  (*to)["bytes_to_host"] = usage.bytes_to_host;
  (*to)["kernel_launches"] = usage.kernel_launches;
  (*to)["kernel_seconds"] = Seconds(usage.kernel_nanos);
  (*to)["device_seconds"] = Seconds(usage.device_nanos);
  (*to)["to_device_seconds"] = Seconds(usage.to_device_nanos);
  (*to)["to_host_seconds"] = Seconds(usage.to_host_nanos);
  // Achieved, where there were copies to measure.
  if (usage.to_device_nanos != 0) {
    (*to)["to_device_bytes_per_second"] =
        static_cast<double>(usage.timed_bytes_to_device) / Seconds(usage.to_device_nanos);
  }
  if (usage.to_host_nanos != 0) {
    (*to)["to_host_bytes_per_second"] =
        static_cast<double>(usage.timed_bytes_to_host) / Seconds(usage.to_host_nanos);
  }
  (*to)["queued_seconds"] = Seconds(usage.queued_nanos);
  (*to)["rate_waited_seconds"] = Seconds(usage.rate_waited_nanos);
  (*to)["batches"] = usage.batches;
  (*to)["memory_bytes"] = usage.memory_bytes;
  (*to)["memory_byte_seconds"] = usage.memory_byte_seconds;
}

Json DeviceJson(const DeviceStatus& device) {
  Json out;
  out["index"] = device.index;
  out["state"] = device.state;
  if (device.info.has_value()) {
    out["model"] = PrintableName(GetText(device.info->snapshot.name));
    out["uuid"] = UuidText(device.info->snapshot.uuid);
    out["memory_total_bytes"] = device.info->snapshot.total_bytes;
    out["driver"] = PrintableName(GetText(device.info->driver));
    out["cuda_version"] = device.info->driver_version;
  }
  if (device.worker_pid != 0) out["worker_pid"] = device.worker_pid;
  if (device.standby_pid != 0) out["standby_pid"] = device.standby_pid;
  out["sessions"] = device.sessions;
  out["worker_starts"] = device.worker_starts;
  out["workers_retired"] = device.workers_retired;
  return out;
}

Json SessionJson(const SessionStatus& session) {
  Json out;
  out["id"] = session.id;
  out["tenant"] = PrintableName(session.tenant);
  out["vm"] = PrintableName(session.vm);
  out["application"] = PrintableName(session.application);
  out["pid"] = session.pid;
  out["door"] = session.front_door;
  out["device"] = session.device;
  out["vgpu"] = session.vgpu;
  if (session.assembly != 0) out["assembly"] = session.assembly;
  out["why"] = session.why;
  out["bound"] = session.bound;
  out["state"] = session.held_in.empty() ? "open" : "held";
  if (session.held_in.empty()) {
    out["worker_pid"] = session.worker_pid;
    out["outlives_worker"] = session.outlives_worker;
  } else {
    out["folder"] = PrintableName(session.held_in);
  }
  out["started"] = session.started_unix_seconds;
  out["share"] = session.share;
  out["phase"] = PhaseName(session.usage.phase);
  out["waiting"] = session.usage.waiting;
  out["in_flight"] = session.usage.in_flight;
  AddUsage(session.usage, &out);
  return out;
}

// The totals of a tenant, over its applications and devices.
Json TenantsJson(const DaemonStatus& status) {
  std::map<std::string, UsageTotals> tenants;
  for (const auto& [who, totals] : status.usage) {
    UsageTotals& sum = tenants[who.tenant];
    sum.sessions_begun += totals.sessions_begun;
    sum.sessions_open += totals.sessions_open;
    sum.used.calls += totals.used.calls;
    sum.used.round_trips += totals.used.round_trips;
    sum.used.bytes_to_device += totals.used.bytes_to_device;
    sum.used.bytes_to_host += totals.used.bytes_to_host;
    sum.used.kernel_launches += totals.used.kernel_launches;
    sum.used.kernel_nanos += totals.used.kernel_nanos;
    sum.used.device_nanos += totals.used.device_nanos;
    sum.used.to_device_nanos += totals.used.to_device_nanos;
    sum.used.to_host_nanos += totals.used.to_host_nanos;
    sum.used.timed_bytes_to_device += totals.used.timed_bytes_to_device;
    sum.used.timed_bytes_to_host += totals.used.timed_bytes_to_host;
    sum.used.queued_nanos += totals.used.queued_nanos;
    sum.used.rate_waited_nanos += totals.used.rate_waited_nanos;
    sum.used.batches += totals.used.batches;
    sum.used.memory_bytes += totals.used.memory_bytes;
    sum.used.memory_byte_seconds += totals.used.memory_byte_seconds;
  }
  // Those that have a weight and were not here yet.
  for (const auto& [name, weight] : status.weights) tenants[PrintableName(name)];
  Json out = Json::array();
  for (const auto& [name, totals] : tenants) {
    Json tenant;
    tenant["tenant"] = name;
    const auto weight = status.weights.find(name);
    tenant["weight"] = weight == status.weights.end() ? 1 : weight->second;
    if (const auto limits = status.limits.find(name); limits != status.limits.end()) {
      const auto& [gpus, placement, rates] = limits->second;
      if (!gpus.all()) tenant["gpus"] = gpus.names;
      if (!placement.empty()) tenant["placement"] = placement;
      if (rates.launches_per_second != 0) {
        tenant["max_launches_per_second"] = rates.launches_per_second;
      }
      if (rates.copy_bytes_per_second != 0) {
        tenant["max_copy_bytes_per_second"] = rates.copy_bytes_per_second;
      }
    }
    tenant["sessions"] = totals.sessions_open;
    tenant["sessions_started"] = totals.sessions_begun;
    AddUsage(totals.used, &tenant);
    out.push_back(std::move(tenant));
  }
  return out;
}

Json PoolJson(const PoolStatus& pool) {
  Json out;
  out["pool"] = pool.pool;
  out["node"] = pool.node;
  out["joined"] = pool.joined;
  if (!pool.problem.empty()) out["problem"] = pool.problem;
  if (!pool.mapper.empty()) out["mapper"] = pool.mapper;
  if (!pool.policy.empty()) out["policy"] = pool.policy;
  out["remote_sessions"] = pool.remote_sessions;
  out["nodes"] = Json::array();
  out["gpus"] = Json::array();
  for (const auto& [name, node] : pool.map.nodes) {
    out["nodes"].push_back({{"node", name}, {"address", node.address}, {"gpus", node.gpus.size()}});
    for (const gpool::GpuRecord& gpu : node.gpus) {
      out["gpus"].push_back({{"gid", gpu.gid},
                             {"node", name},
                             {"device", gpu.device},
                             {"model", gpu.model},
                             {"uuid", gpu.uuid},
                             {"memory_total_bytes", gpu.memory_bytes}});
      if (gpu.weight() > 0) {
        out["gpus"].back()["weight"] = gpu.weight();
        out["gpus"].back()["copy_to_device_bytes_per_second"] = gpu.speed.to_device;
        out["gpus"].back()["copy_to_host_bytes_per_second"] = gpu.speed.to_host;
        out["gpus"].back()["memory_bytes_per_second"] = gpu.speed.memory;
        out["gpus"].back()["operations_per_second"] = gpu.speed.arithmetic;
      }
      if (const auto bound = pool.bound.find(gpu.gid); bound != pool.bound.end()) {
        out["gpus"].back()["bound"] = bound->second;
      }
    }
  }
  out["assemblies"] = Json::array();
  for (const AssemblyStatus& assembly : pool.assemblies) {
    Json& entry = out["assemblies"].emplace_back();
    entry["tenant"] = PrintableName(assembly.tenant);
    entry["vm"] = PrintableName(assembly.vm);
    entry["application"] = assembly.application;
    entry["pid"] = assembly.pid;
    entry["sessions"] = assembly.sessions;
    entry["vgpus"] = Json::array();
    for (const VgpuStatus& vgpu : assembly.vgpus) {
      entry["vgpus"].push_back({{"gid", vgpu.gid},
                                {"node", vgpu.node},
                                {"device", vgpu.device},
                                {"local", vgpu.local},
                                {"why", vgpu.why}});
    }
  }
  return out;
}

}  // namespace

std::string StatusJson(const DaemonStatus& status) {
  Json out;
  out["schema"] = kStatusSchema;
  out["version"] = status.version;
  out["node"] = PrintableName(status.node);
  out["started"] = status.started_unix_seconds;
  out["pid"] = getpid();
  out["reload_failed"] = status.reload_failed;
  out["policy"] = status.policy;
  uint64_t windows_used = 0;
  for (const DeviceStatus& device : status.devices) windows_used += device.windows_used;
  out["windows_used"] = windows_used;
  out["windows_max"] = kWindowSlots * status.devices.size();
  std::map<uint32_t, uint64_t> memory_bytes;
  for (const auto& [who, totals] : status.usage) {
    memory_bytes[who.device] += totals.used.memory_bytes;
  }
  out["devices"] = Json::array();
  for (const DeviceStatus& device : status.devices) {
    out["devices"].push_back(DeviceJson(device));
    out["devices"].back()["memory_used_bytes"] = memory_bytes[device.index];
  }
  out["tenants"] = TenantsJson(status);
  out["shares"] = Json::array();
  for (const TenantShare& share : status.shares) {
    Json& entry = out["shares"].emplace_back();
    entry["tenant"] = PrintableName(share.tenant);
    entry["device"] = share.device;
    entry["weight"] = share.weight;
    entry["share"] = share.share;
    entry["busy"] = share.busy;
    if (share.competes) entry["target"] = share.target;
    entry["waiting"] = share.waiting;
  }
  out["sessions"] = Json::array();
  for (const SessionStatus& session : status.sessions) {
    out["sessions"].push_back(SessionJson(session));
  }
  out["unsupported_calls"] = Json::object();
  for (const auto& [name, calls] : status.unsupported_calls) out["unsupported_calls"][name] = calls;
  out["vms"] = Json::array();
  for (const VmStatus& vm : status.vms) {
    Json& entry = out["vms"].emplace_back();
    entry["name"] = vm.name;
    entry["tenant"] = vm.tenant;
    if (vm.vgpus.has_value()) entry["vgpus"] = *vm.vgpus;
    entry["socket"] = vm.socket_path;
    if (vm.shared_memory.has_value()) {
      entry["shared_memory_bytes"] = vm.shared_memory->bytes;
      entry["shared_memory_lent_bytes"] = vm.shared_memory->lent;
    }
  }
  if (status.pool.has_value()) out["pool"] = PoolJson(*status.pool);
  return out.dump() + "\n";
}

}  // namespace consort::host
