// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/settings.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "host/control/messages.h"
#include "host/limits.h"
#include "host/scheduler/scheduler.h"

namespace consort::host {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchema = 1;

bool IsPolicy(std::string_view name) {
  return name == kNoScheduler || !schedule::PolicyPromise(name).empty();
}

bool IsTenantName(const std::string& name) {
  return !name.empty() && name.size() < sizeof(OpenSession{}.tenant);
}

bool IsWeight(uint64_t weight) { return weight >= 1 && weight <= kTenantWeightMax; }

template <class T>
Json SaidJson(const char* key, const T& said) {
  return {{key, said.value}, {"by", said.by}, {"at", said.at}};
}

// The whole file or nothing of it is there after a crash.
absl::Status WriteWhole(const std::string& path, const std::string& text) {
  const auto failed = [&] {
    return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", strerror(errno)));
  };
  const std::string next = path + ".next";
  UniqueFd fd(open(next.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0640));
  if (!fd.valid() ||
      write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      fsync(fd.get()) != 0 || rename(next.c_str(), path.c_str()) != 0) {
    return failed();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Settings> Settings::Load(TenantsFile tenants, std::string policy,
                                        std::string state_path) {
  Settings settings(std::move(tenants), std::move(policy), std::move(state_path));
  if (settings.keeps()) RETURN_IF_ERROR(settings.Read());
  return settings;
}

absl::Status Settings::Read() {
  std::ifstream file(state_path_);
  if (!file) {
    if (errno == ENOENT) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("cannot read ", state_path_, ": ", strerror(errno)));
  }
  std::ostringstream text;
  text << file.rdbuf();
  const Json json = Json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  const auto wrong = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat(state_path_, ": ", what, "; mend it, or remove it to go by the files alone"));
  };
  if (!json.is_object() || json.value("schema", Json()) != kSchema) {
    return wrong("this is not consortd's state");
  }
  const auto by = [](const Json& said) {
    const Json who = said.value("by", Json());
    return who.is_string() ? who.get<std::string>() : std::string("unknown");
  };
  const auto at = [](const Json& said) {
    const Json when = said.value("at", Json());
    return when.is_number_unsigned() ? when.get<uint64_t>() : 0;
  };
  State state;
  if (const auto it = json.find("policy"); it != json.end()) {
    const Json name = it->is_object() ? it->value("name", Json()) : Json();
    if (!name.is_string() || !IsPolicy(name.get<std::string>())) return wrong("no such policy");
    state.policy = {name.get<std::string>(), by(*it), at(*it)};
  }
  const Json weights = json.value("weights", Json::object());
  if (!weights.is_object()) return wrong("weights is no object");
  for (const auto& [tenant, said] : weights.items()) {
    const Json weight = said.is_object() ? said.value("weight", Json()) : Json();
    if (!IsTenantName(tenant) || !weight.is_number_unsigned() ||
        !IsWeight(weight.get<uint64_t>())) {
      return wrong(absl::StrCat("no weight of a tenant: ", tenant));
    }
    state.weights[tenant] = {weight.get<uint32_t>(), by(said), at(said)};
  }
  state_ = std::move(state);
  return absl::OkStatus();
}

absl::Status Settings::Take(State state) {
  if (keeps()) {
    Json json;
    json["schema"] = kSchema;
    if (state.policy.has_value()) json["policy"] = SaidJson("name", *state.policy);
    json["weights"] = Json::object();
    for (const auto& [tenant, said] : state.weights) {
      json["weights"][tenant] = SaidJson("weight", said);
    }
    // Names are the operator's words; what is no UTF-8 is written as a question mark.
    RETURN_IF_ERROR(
        WriteWhole(state_path_, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"));
  }
  state_ = std::move(state);
  return absl::OkStatus();
}

std::string Settings::policy() const {
  if (state_.policy.has_value()) return state_.policy->value;
  if (!policy_.empty()) return policy_;
  return tenants_.scheduler.empty() ? kDefaultPolicy : tenants_.scheduler;
}

uint32_t Settings::WeightOf(std::string_view tenant) const {
  const auto it = state_.weights.find(std::string(tenant));
  return it != state_.weights.end() ? it->second.value : tenants_.Find(tenant).weight;
}

std::optional<uint32_t> Settings::SetWeightOf(std::string_view tenant) const {
  const auto it = state_.weights.find(std::string(tenant));
  if (it == state_.weights.end()) return std::nullopt;
  return it->second.value;
}

std::map<std::string, uint32_t> Settings::Weights() const {
  std::map<std::string, uint32_t> weights;
  for (const Tenant& tenant : tenants_.tenants) weights[tenant.name] = tenant.weight;
  for (const auto& [tenant, said] : state_.weights) weights[tenant] = said.value;
  return weights;
}

absl::Status Settings::SetPolicy(const std::optional<std::string>& policy, const std::string& who,
                                 uint64_t at) {
  State state = state_;
  state.policy.reset();
  if (policy.has_value()) {
    if (!IsPolicy(*policy)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "there is no policy ", *policy, "; known: none, ",
          absl::StrJoin(schedule::PolicyNames(), ", ",
                        [](std::string* out, std::string_view name) { out->append(name); })));
    }
    state.policy = {*policy, who, at};
  }
  return Take(std::move(state));
}

absl::Status Settings::SetWeight(const std::string& tenant, std::optional<uint32_t> weight,
                                 const std::string& who, uint64_t at) {
  if (!IsTenantName(tenant)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a tenant's name has 1 to ", sizeof(OpenSession{}.tenant) - 1, " bytes"));
  }
  State state = state_;
  state.weights.erase(tenant);
  if (weight.has_value()) {
    if (!IsWeight(*weight)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a weight is a whole number from 1 to ", kTenantWeightMax));
    }
    if (state.weights.size() >= kSetWeightsMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("at most ", kSetWeightsMax,
                       " weights are set at run time; write the others into the file"));
    }
    state.weights[tenant] = {*weight, who, at};
  }
  return Take(std::move(state));
}

}  // namespace consort::host
