// SPDX-License-Identifier: Apache-2.0
#include "gpool/gmap.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/escaping.h"
#include "base/log.h"

namespace consort::gpool {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchema = 1;

template <typename T>
bool Get(const Json& object, const char* key, T* value) {
  const auto it = object.find(key);
  if (it == object.end()) return false;
  if constexpr (std::is_same_v<T, std::string>) {
    if (!it->is_string()) return false;
  } else if constexpr (std::is_same_v<T, double>) {
    if (!it->is_number()) return false;
  } else {
    if (!it->is_number_unsigned()) return false;
  }
  *value = it->get<T>();
  return true;
}

}  // namespace

double WeightOf(const GpuSpeed& speed) {
  return std::sqrt(speed.memory / 100e9 * (speed.arithmetic / 1e12));
}

const GpuRecord* Gmap::Find(Gid gid, const NodeRecord** node) const {
  for (const auto& [name, record] : nodes) {
    for (const GpuRecord& gpu : record.gpus) {
      if (gpu.gid != gid) continue;
      *node = &record;
      return &gpu;
    }
  }
  return nullptr;
}

size_t Gmap::gpu_count() const {
  size_t count = 0;
  for (const auto& [name, record] : nodes) count += record.gpus.size();
  return count;
}

std::string NodeJson(const NodeRecord& record) {
  Json gpus = Json::array();
  for (const GpuRecord& gpu : record.gpus) {
    gpus.push_back({{"gid", gpu.gid},
                    {"device", gpu.device},
                    {"uuid", gpu.uuid},
                    {"model", gpu.model},
                    {"memory_bytes", gpu.memory_bytes},
                    {"speed",
                     {{"to_device", gpu.speed.to_device},
                      {"to_host", gpu.speed.to_host},
                      {"memory", gpu.speed.memory},
                      {"arithmetic", gpu.speed.arithmetic}}},
                    {"description", absl::Base64Escape(gpu.description)}});
  }
  return Json{{"schema", kSchema},
              {"node", record.node},
              {"address", record.address},
              {"boot", record.boot},
              {"gpus", std::move(gpus)}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<NodeRecord> ParseNode(std::string_view json) {
  const Json object = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  uint64_t schema = 0;
  NodeRecord record;
  if (!object.is_object() || !Get(object, "schema", &schema) || schema != kSchema ||
      !Get(object, "node", &record.node) || !Get(object, "address", &record.address) ||
      !Get(object, "boot", &record.boot) || !object.contains("gpus") ||
      !object["gpus"].is_array()) {
    return std::nullopt;
  }
  for (const Json& entry : object["gpus"]) {
    GpuRecord gpu;
    std::string description;
    if (!entry.is_object() || !Get(entry, "gid", &gpu.gid) || !Get(entry, "device", &gpu.device) ||
        !Get(entry, "uuid", &gpu.uuid) || !Get(entry, "model", &gpu.model) ||
        !Get(entry, "memory_bytes", &gpu.memory_bytes) ||
        !Get(entry, "description", &description) ||
        !absl::Base64Unescape(description, &gpu.description)) {
      return std::nullopt;
    }
    GpuSpeed speed;
    const auto measured = entry.find("speed");
    if (measured != entry.end() && Get(*measured, "to_device", &speed.to_device) &&
        Get(*measured, "to_host", &speed.to_host) && Get(*measured, "memory", &speed.memory) &&
        Get(*measured, "arithmetic", &speed.arithmetic)) {
      gpu.speed = speed;
    }
    record.gpus.push_back(std::move(gpu));
  }
  return record;
}

Gmap MakeGmap(const Entries& entries) {
  Gmap map;
  for (const auto& [key, entry] : entries) {
    std::optional<NodeRecord> record = ParseNode(entry.value);
    if (!record.has_value()) {
      LOG(WARNING) << key << " is no node's record of this version";
      continue;
    }
    map.nodes[record->node] = *std::move(record);
  }
  return map;
}

}  // namespace consort::gpool
