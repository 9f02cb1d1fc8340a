// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/pool_commands.h"

#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "host/ctl/status_table.h"

namespace consort::host {
namespace {

using Json = nlohmann::ordered_json;

std::string Text(const Json& object, const char* key) {
  return object.value(key, std::string("-"));
}
std::string Count(const Json& object, const char* key) {
  return absl::StrCat(object.value(key, uint64_t{0}));
}

// How many vGPUs of this host's applications each GPU has.
std::map<uint64_t, uint64_t> Bound(const Json& pool) {
  std::map<uint64_t, uint64_t> bound;
  for (const Json& assembly : pool.value("assemblies", Json::array())) {
    for (const Json& vgpu : assembly.value("vgpus", Json::array())) {
      ++bound[vgpu.value("gid", uint64_t{0})];
    }
  }
  return bound;
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
    const std::string name = Text(node, "node");
    rows.push_back({name, Text(node, "address"), Count(node, "gpus"),
                    absl::StrCat(name == Text(pool, "mapper") ? "mapper" : "",
                                 name == Text(pool, "node") ? " this" : "")});
  }
  std::string out = Table({"NODE", "ADDRESS", "GPUS ", "ROLE"}, rows);
  if (!pool.value("joined", false)) {
    absl::StrAppend(&out, "\nThis host is not in the pool: ", Text(pool, "problem"), "\n");
  }
  return out;
}

std::string GpusTable(const Json& pool) {
  const std::map<uint64_t, uint64_t> bound = Bound(pool);
  std::vector<std::vector<std::string>> rows;
  for (const Json& gpu : pool.value("gpus", Json::array())) {
    const auto it = bound.find(gpu.value("gid", uint64_t{0}));
    rows.push_back({Count(gpu, "gid"), Text(gpu, "node"), Count(gpu, "device"), Text(gpu, "model"),
                    HumanBytes(gpu.value("memory_total_bytes", uint64_t{0})),
                    absl::StrCat(it != bound.end() ? it->second : 0)});
  }
  return Table({"GID ", "NODE", "DEVICE ", "MODEL", "MEMORY ", "OURS "}, rows);
}

std::string SlicesTable(const Json& pool) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& assembly : pool.value("assemblies", Json::array())) {
    uint64_t index = 0;
    for (const Json& vgpu : assembly.value("vgpus", Json::array())) {
      rows.push_back({Text(assembly, "tenant"), Text(assembly, "application"),
                      Count(assembly, "pid"), absl::StrCat(index++), Count(vgpu, "gid"),
                      Text(vgpu, "node"), Count(vgpu, "device"),
                      vgpu.value("local", false) ? "here" : "remote", Text(vgpu, "why")});
    }
  }
  return Table(
      {"TENANT", "APPLICATION", "PID ", "VGPU ", "GID ", "NODE", "DEVICE ", "WHERE", "WHY"}, rows);
}

}  // namespace consort::host
