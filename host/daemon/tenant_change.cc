// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/tenant_change.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "host/memory/size_text.h"

namespace consort::host {
namespace {

using Json = nlohmann::json;

// False: neither null nor such a number. What does not fit T becomes its greatest, which no term
// allows.
template <class T>
bool Read(const Json& json, Change<T>* change) {
  if (json.is_null()) {
    change->emplace(std::nullopt);
    return true;
  }
  if (!json.is_number_unsigned()) return false;
  change->emplace(
      static_cast<T>(std::min<uint64_t>(json.get<uint64_t>(), std::numeric_limits<T>::max())));
  return true;
}

// Likewise; a size as text too.
bool ReadSize(const Json& json, Change<uint64_t>* change) {
  if (!json.is_string()) return Read(json, change);
  const std::optional<Bytes> size = ParseSize(json.get<std::string>());
  if (size.has_value()) change->emplace(*size);
  return size.has_value();
}

bool Read(const Json& json, Change<GpuList>* change) {
  if (json.is_null()) {
    change->emplace(std::nullopt);
    return true;
  }
  if (!json.is_array()) return false;
  GpuList list;
  for (const Json& name : json) {
    if (name.is_number_unsigned()) {
      list.names.push_back(std::to_string(name.get<uint64_t>()));
    } else if (name.is_string()) {
      list.names.push_back(name.get<std::string>());
    } else {
      return false;
    }
  }
  change->emplace(std::move(list));
  return true;
}

}  // namespace

absl::StatusOr<TenantChange> ParseTenantChange(std::string_view text) {
  const absl::Status bad = absl::InvalidArgumentError(
      R"(wanted is JSON such as {"tenant": "web-1", "weight": 4}; more keys: gpus, placement, )"
      "max_launches_per_second, max_copy_bytes_per_second, pool");
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || json.size() < 2) return bad;
  TenantChange change;
  for (const auto& [key, value] : json.items()) {
    bool good = false;
    if (key == "tenant") {
      good = value.is_string();
      if (good) change.tenant = value.get<std::string>();
    } else if (key == "pool") {
      good = value.is_boolean();
      if (good) change.pool = value.get<bool>();
    } else if (key == "weight") {
      good = Read(value, &change.weight);
    } else if (key == "gpus") {
      good = Read(value, &change.gpus);
    } else if (key == "placement") {
      good = value.is_null() || value.is_string();
      if (value.is_null()) change.placement.emplace(std::nullopt);
      if (value.is_string()) change.placement.emplace(value.get<std::string>());
    } else if (key == "max_launches_per_second") {
      good = Read(value, &change.launches_per_second);
    } else if (key == "max_copy_bytes_per_second") {
      good = ReadSize(value, &change.copy_bytes_per_second);
    }
    if (!good) return bad;
  }
  return json.contains("tenant") ? absl::StatusOr<TenantChange>(std::move(change)) : bad;
}

}  // namespace consort::host
