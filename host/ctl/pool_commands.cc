// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/pool_commands.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "host/ctl/json_fields.h"
#include "host/ctl/status_table.h"

namespace consort::host {
namespace {

using Json = nlohmann::ordered_json;

std::string Count(const Json& object, const char* key) {
  return absl::StrCat(object.value(key, uint64_t{0}));
}

// In units of so much; "-": not measured.
std::string Measured(const Json& object, const char* key, double unit) {
  if (!object.contains(key)) return "-";
  const double value = object.value(key, 0.0) / unit;
  return value < 1 ? absl::StrFormat("%.3f", value) : absl::StrFormat("%.1f", value);
}

std::string Role(const Json& pool, const std::string& node) {
  const bool mapper = node == TextOf(pool, "mapper");
  if (node != TextOf(pool, "node")) return mapper ? "mapper" : "";
  return mapper ? "mapper, this host" : "this host";
}

}  // namespace

absl::StatusOr<Json> PoolOf(const Json& status) {
  if (!status.contains("pool")) {
    return absl::FailedPreconditionError(
        "this host is in no pool: consortd was started without --pool");
  }
  return status["pool"];
}

std::string NodesTable(const Json& pool) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& node : pool.value("nodes", Json::array())) {
    const std::string name = TextOf(node, "node");
    rows.push_back({name, TextOf(node, "address"), Count(node, "gpus"), Role(pool, name)});
  }
  std::string out = Table({"NODE", "ADDRESS", "GPUS ", "ROLE"}, rows);
  if (!pool.value("joined", false)) {
    absl::StrAppend(&out, "\nThis host is not in the pool: ", TextOf(pool, "problem"), "\n");
  }
  return out;
}

std::string GpusTable(const Json& pool) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& gpu : pool.value("gpus", Json::array())) {
    rows.push_back({Count(gpu, "gid"), TextOf(gpu, "node"), Count(gpu, "device"),
                    TextOf(gpu, "model"), HumanBytes(gpu.value("memory_total_bytes", uint64_t{0})),
                    gpu.contains("bound") ? Count(gpu, "bound") : "-", Measured(gpu, "weight", 1),
                    Measured(gpu, "copy_to_device_bytes_per_second", 1e9),
                    Measured(gpu, "copy_to_host_bytes_per_second", 1e9),
                    Measured(gpu, "memory_bytes_per_second", 1e9),
                    Measured(gpu, "operations_per_second", 1e12)});
  }
  return Table({"GID ", "NODE", "DEVICE ", "MODEL", "MEMORY ", "IN USE ", "WEIGHT ", "IN GB/S ",
                "OUT GB/S ", "MEMORY GB/S ", "TFLOP/S "},
               rows);
}

std::string DevicesTable(const Json& devices) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& device : devices) {
    rows.push_back({Count(device, "index"), TextOf(device, "model"), TextOf(device, "uuid"),
                    HumanBytes(device.value("memory_total_bytes", uint64_t{0})),
                    HumanBytes(device.value("memory_used_bytes", uint64_t{0})),
                    Count(device, "sessions"), TextOf(device, "state")});
  }
  return Table({"DEVICE ", "MODEL", "UUID", "MEMORY ", "USED ", "SESSIONS ", "STATE"}, rows);
}

std::string SlicesTable(const Json& pool) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& assembly : pool.value("assemblies", Json::array())) {
    uint64_t index = 0;
    for (const Json& vgpu : assembly.value("vgpus", Json::array())) {
      rows.push_back({TextOf(assembly, "tenant"), TextOf(assembly, "application"),
                      Count(assembly, "pid"), absl::StrCat(index++), Count(vgpu, "gid"),
                      TextOf(vgpu, "node"), Count(vgpu, "device"),
                      vgpu.value("local", false) ? "here" : "remote", TextOf(vgpu, "why")});
    }
  }
  return Table(
      {"TENANT", "APPLICATION", "PID ", "VGPU ", "GID ", "NODE", "DEVICE ", "WHERE", "WHY"}, rows);
}

}  // namespace consort::host
