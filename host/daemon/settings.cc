// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/settings.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "host/control/messages.h"
#include "host/limits.h"
#include "host/scheduler/scheduler.h"

namespace consort::host {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchema = 1;
constexpr char kCopyRateKey[] = "max_copy_bytes_per_second";

bool IsPolicy(std::string_view name) {
  return name == kNoScheduler || !schedule::PolicyPromise(name).empty();
}

bool IsTenantName(const std::string& name) {
  return !name.empty() && name.size() < sizeof(OpenSession{}.tenant);
}

absl::Status CheckTenantName(const std::string& name) {
  if (IsTenantName(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a tenant's name has 1 to ", sizeof(OpenSession{}.tenant) - 1, " bytes"));
}

bool IsWeight(uint64_t weight) { return weight >= 1 && weight <= kTenantWeightMax; }

// What may be set of a tenant, and how the state file has it.
absl::Status Check(const char* key, uint32_t weight) {
  if (IsWeight(weight)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("a ", key, " is a whole number from 1 to ", kTenantWeightMax));
}

absl::Status Check(const char*, const GpuList& gpus) { return CheckGpuList(gpus); }

absl::Status Check(const char*, const std::string& placement) { return CheckPlacement(placement); }

absl::Status Check(const char* key, uint64_t rate) {
  const bool copies = absl::string_view(key) == kCopyRateKey;
  if (copies ? IsCopyRate(rate) : IsLaunchRate(rate)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      key, " is 0 (no limit) or at least ", copies ? kCopyRateLeast : Bytes{kLaunchRateLeast}));
}

Json ValueJson(uint64_t number) { return number; }
Json ValueJson(const GpuList& gpus) { return gpus.names; }
Json ValueJson(const std::string& text) { return text; }

bool FromJson(const Json& json, GpuList* gpus) {
  if (!json.is_array()) return false;
  for (const Json& name : json) {
    if (!name.is_string()) return false;
    gpus->names.push_back(name.get<std::string>());
  }
  return true;
}

bool FromJson(const Json& json, std::string* text) {
  if (!json.is_string()) return false;
  *text = json.get<std::string>();
  return true;
}

template <class T>
bool FromJson(const Json& json, T* number) {
  if (!json.is_number_unsigned()) return false;
  *number = static_cast<T>(std::min<uint64_t>(json.get<uint64_t>(), std::numeric_limits<T>::max()));
  return true;
}

std::string WhoOf(const Json& said) {
  const Json who = said.value("by", Json());
  return who.is_string() ? who.get<std::string>() : std::string("unknown");
}

uint64_t WhenOf(const Json& said) {
  const Json when = said.value("at", Json());
  return when.is_number_unsigned() ? when.get<uint64_t>() : 0;
}

template <class T>
Json SaidJson(const char* key, const T& said) {
  return {{key, ValueJson(said.value)}, {"by", said.by}, {"at", said.at}};
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

template <class T, class F>
absl::Status Settings::ForEachKind(T* terms, const TenantChange& change, F with) {
  RETURN_IF_ERROR(with("weights", "weight", &terms->weights, change.weight));
  RETURN_IF_ERROR(with("gpus", "gpus", &terms->gpus, change.gpus));
  RETURN_IF_ERROR(with("placements", "placement", &terms->placements, change.placement));
  RETURN_IF_ERROR(with("launch_rates", "max_launches_per_second", &terms->launch_rates,
                       change.launches_per_second));
  return with("copy_rates", kCopyRateKey, &terms->copy_rates, change.copy_bytes_per_second);
}

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
  auto state = ParseState(text.str());
  if (!state.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(state_path_, ": ", state.status().message(),
                     "; mend it, or remove it to go by the files alone"));
  }
  state_ = *std::move(state);
  return absl::OkStatus();
}

absl::StatusOr<Settings::State> Settings::ParseState(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto wrong = [](const std::string& what) { return absl::InvalidArgumentError(what); };
  if (!json.is_object() || json.value("schema", Json()) != kSchema) {
    return wrong("this is not consortd's state");
  }
  State state;
  if (const auto it = json.find("policy"); it != json.end()) {
    const Json name = it->is_object() ? it->value("name", Json()) : Json();
    if (!name.is_string() || !IsPolicy(name.get<std::string>())) return wrong("no such policy");
    state.policy = {name.get<std::string>(), WhoOf(*it), WhenOf(*it)};
  }
  RETURN_IF_ERROR(
      ForEachKind(&state.terms, {},
                  [&]<class T>(const char* kind, const char* key, SaidOf<T>* said,
                               const Change<T>&) -> absl::Status {
                    const Json all = json.value(kind, Json::object());
                    if (!all.is_object()) return wrong(absl::StrCat(kind, " is no object"));
                    for (const auto& [tenant, entry] : all.items()) {
                      T value = T();
                      if (!IsTenantName(tenant) || !entry.is_object() ||
                          !FromJson(entry.value(key, Json()), &value) || !Check(key, value).ok()) {
                        return wrong(absl::StrCat("no ", key, " of a tenant: ", tenant));
                      }
                      (*said)[tenant] = {std::move(value), WhoOf(entry), WhenOf(entry)};
                    }
                    return absl::OkStatus();
                  }));
  return state;
}

std::string Settings::StateText() const {
  Json json;
  json["schema"] = kSchema;
  if (state_.policy.has_value()) {
    json["policy"] = {
        {"name", state_.policy->value}, {"by", state_.policy->by}, {"at", state_.policy->at}};
  }
  const absl::Status described = ForEachKind(
      &state_.terms, {}, [&](const char* kind, const char* key, const auto* said, const auto&) {
        json[kind] = Json::object();
        for (const auto& [tenant, one] : *said) json[kind][tenant] = SaidJson(key, one);
        return absl::OkStatus();
      });
  CHECK(described.ok()) << described;
  // Names are the operator's words; what is no UTF-8 is written as a question mark.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::Status Settings::Restore(const std::string& state_text) {
  ASSIGN_OR_RETURN(state_, ParseState(state_text));
  return absl::OkStatus();
}

absl::Status Settings::Take(State state) {
  std::swap(state_, state);
  if (!keeps()) return absl::OkStatus();
  const absl::Status written = WriteWhole(state_path_, StateText());
  if (!written.ok()) std::swap(state_, state);
  return written;
}

std::string Settings::policy() const {
  if (state_.policy.has_value()) return state_.policy->value;
  if (!policy_.empty()) return policy_;
  return tenants_.scheduler.empty() ? kDefaultPolicy : tenants_.scheduler;
}

uint32_t Settings::WeightOf(std::string_view tenant) const { return Find(tenant).weight; }

Tenant Settings::Find(std::string_view name) const {
  Tenant tenant = tenants_.Find(name);
  const auto over = [&]<class T>(const SaidOf<T>& said, T* value) {
    if (const auto it = said.find(tenant.name); it != said.end()) *value = it->second.value;
  };
  for (const Terms* terms : {&pool_, &state_.terms}) {
    over(terms->weights, &tenant.weight);
    over(terms->gpus, &tenant.gpus);
    over(terms->placements, &tenant.placement);
    over(terms->launch_rates, &tenant.rates.launches_per_second);
    over(terms->copy_rates, &tenant.rates.copy_bytes_per_second);
  }
  return tenant;
}

std::map<std::string, Tenant> Settings::Tenants() const {
  std::map<std::string, Tenant> tenants;
  for (const Tenant& tenant : tenants_.tenants) tenants[tenant.name] = Find(tenant.name);
  const auto add = [&](const auto& said) {
    for (const auto& [tenant, one] : said) tenants.try_emplace(tenant, Find(tenant));
  };
  for (const Terms* terms : {&pool_, &state_.terms}) {
    add(terms->weights);
    add(terms->gpus);
    add(terms->placements);
    add(terms->launch_rates);
    add(terms->copy_rates);
  }
  return tenants;
}

absl::Status Settings::ReplacePool(const std::map<std::string, std::string>& values) {
  Terms terms;
  std::vector<std::string> wrong;
  for (const auto& value : values) {
    const std::string& tenant = value.first;
    const Json json = Json::parse(value.second, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !IsTenantName(tenant)) {
      wrong.push_back(tenant);
      continue;
    }
    const auto read = [&]<class T>(const char*, const char* key, SaidOf<T>* said,
                                   const Change<T>&) {
      if (!json.contains(key)) return absl::OkStatus();
      T term = T();
      if (!FromJson(json[key], &term) || !Check(key, term).ok()) {
        wrong.push_back(absl::StrCat("the ", key, " of ", tenant));
      } else {
        (*said)[tenant] = {std::move(term), WhoOf(json), WhenOf(json)};
      }
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(ForEachKind(&terms, {}, read));
  }
  pool_ = std::move(terms);
  if (wrong.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the pool says what cannot be read of tenants: ", absl::StrJoin(wrong, ", "),
                   "; consortctl tenant set --pool says it anew"));
}

std::string Settings::PoolSetter(const std::string& tenant) const {
  std::string setter;
  const auto ask = [&](const char*, const char*, const auto* said, const auto&) {
    if (const auto it = said->find(tenant); it != said->end()) setter = it->second.by;
    return absl::OkStatus();
  };
  (void)ForEachKind(&pool_, {}, ask);
  return setter;
}

absl::StatusOr<std::string> Settings::PoolValue(const std::string& now, const TenantChange& change,
                                                const std::string& who, uint64_t at) {
  RETURN_IF_ERROR(CheckTenantName(change.tenant));
  Json json = now.empty() ? Json::object() : Json::parse(now, nullptr, /*allow_exceptions=*/false);
  // What cannot be read says nothing to anybody.
  if (!json.is_object()) json = Json::object();
  Terms terms;
  bool left = false;
  RETURN_IF_ERROR(ForEachKind(&terms, change,
                              [&]<class T>(const char*, const char* key, SaidOf<T>*,
                                           const Change<T>& wanted) -> absl::Status {
                                if (wanted.has_value()) json.erase(key);
                                if (wanted.has_value() && wanted->has_value()) {
                                  RETURN_IF_ERROR(Check(key, **wanted));
                                  json[key] = ValueJson(**wanted);
                                }
                                left = left || json.contains(key);
                                return absl::OkStatus();
                              }));
  if (!left) return std::string();
  json["by"] = who;
  json["at"] = at;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
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

absl::Status Settings::SetTenant(const TenantChange& change, const std::string& who, uint64_t at) {
  RETURN_IF_ERROR(CheckTenantName(change.tenant));
  State state = state_;
  RETURN_IF_ERROR(ForEachKind(&state.terms, change,
                              [&]<class T>(const char*, const char* key, SaidOf<T>* said,
                                           const Change<T>& wanted) -> absl::Status {
                                if (!wanted.has_value()) return absl::OkStatus();
                                said->erase(change.tenant);
                                if (!wanted->has_value()) return absl::OkStatus();
                                RETURN_IF_ERROR(Check(key, **wanted));
                                if (said->size() >= kSetTenantsMax) {
                                  return absl::InvalidArgumentError(absl::StrCat(
                                      "at most ", kSetTenantsMax, " tenants have a ", key,
                                      " that was set at run time; write the others into the file"));
                                }
                                (*said)[change.tenant] = {**wanted, who, at};
                                return absl::OkStatus();
                              }));
  return Take(std::move(state));
}

}  // namespace consort::host
