// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/tenant_commands.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "host/ctl/status_table.h"

namespace consort::host {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kNone[] = "none";
constexpr char kAll[] = "all";
constexpr char kDefault[] = "default";

std::string Rate(const Json& tenant, const char* key, bool bytes) {
  if (!tenant.contains(key)) return "-";
  const auto rate = tenant.value(key, uint64_t{0});
  return bytes ? HumanBytes(rate) : absl::StrCat(rate);
}

}  // namespace

absl::StatusOr<Json> TenantSetBody(const TenantOptions& options) {
  Json body = {{"tenant", options.tenant}};
  if (options.weight.has_value()) body["weight"] = *options.weight;
  if (!options.gpus.empty()) {
    const bool all = options.gpus.size() == 1 && options.gpus[0] == kAll;
    body["gpus"] = all ? std::vector<std::string>() : options.gpus;
  }
  if (options.placement.has_value()) {
    body["placement"] = *options.placement == kDefault ? "" : *options.placement;
  }
  if (options.launches.has_value()) {
    uint64_t rate = 0;
    if (*options.launches != kNone && (!absl::SimpleAtoi(*options.launches, &rate) || rate == 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--max-launches-per-second wants a whole number from 1 on, or ", kNone));
    }
    body["max_launches_per_second"] = rate;
  }
  if (options.copies.has_value()) {
    // Sizes are for consortd to read, as it reads those of its file.
    body["max_copy_bytes_per_second"] = *options.copies == kNone ? Json(0u) : Json(*options.copies);
  }
  if (body.size() == 1) {
    return absl::InvalidArgumentError(
        "nothing to set; --weight, --gpus, --placement, --max-launches-per-second and "
        "--max-copy-bytes-per-second say what");
  }
  if (options.pool) body["pool"] = true;
  return body;
}

Json TenantResetBody(const std::string& tenant, bool pool) {
  return {{"tenant", tenant},
          {"pool", pool},
          {"weight", nullptr},
          {"gpus", nullptr},
          {"placement", nullptr},
          {"max_launches_per_second", nullptr},
          {"max_copy_bytes_per_second", nullptr}};
}

std::string TenantTable(const Json& status) {
  std::vector<std::vector<std::string>> rows;
  for (const Json& tenant : status.value("tenants", Json::array())) {
    const auto gpus = tenant.value("gpus", std::vector<std::string>());
    rows.push_back({tenant.value("tenant", std::string("-")),
                    absl::StrCat(tenant.value("weight", uint64_t{0})),
                    gpus.empty() ? kAll : absl::StrJoin(gpus, ", "),
                    tenant.value("placement", std::string(kDefault)),
                    Rate(tenant, "max_launches_per_second", /*bytes=*/false),
                    Rate(tenant, "max_copy_bytes_per_second", /*bytes=*/true),
                    absl::StrCat(tenant.value("sessions", uint64_t{0}))});
  }
  return Table({"TENANT", "WEIGHT ", "GPUS", "PLACEMENT", "LAUNCHES/S ", "COPIED/S ", "SESSIONS "},
               rows);
}

}  // namespace consort::host
