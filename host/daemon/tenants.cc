// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/tenants.h"

#include <errno.h>
#include <string.h>
#include <sys/un.h>

#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

// The library's errors as values; its shared form has them as exceptions only.
#undef TOML_HEADER_ONLY
#undef TOML_SHARED_LIB
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/absl_text.h"
#include "base/status_macros.h"
#include "host/control/messages.h"
#include "host/limits.h"
#include "host/memory/size_text.h"
#include "host/scheduler/scheduler.h"
#include "policies/admission/admission.h"
#include "policies/placement/policy.h"
#include "policies/schedule/policy.h"

namespace consort::host {
namespace {

class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {}

  absl::StatusOr<TenantsFile> Read(const toml::table& root) {
    TenantsFile file;
    for (const auto& [key, node] : root) {
      if (key == "scheduler") {
        ASSIGN_OR_RETURN(file.scheduler, Text(key, node));
        if (file.scheduler != kNoScheduler && schedule::PolicyPromise(file.scheduler).empty()) {
          return Error(node.source(), absl::StrCat("there is no scheduler ", file.scheduler,
                                                   "; known: none, ", PolicyList()));
        }
      } else if (key == "admission") {
        ASSIGN_OR_RETURN(file.admission, Text(key, node));
        if (!admission::OrderByName(file.admission).has_value()) {
          return Error(node.source(), absl::StrCat("there is no admission ", file.admission,
                                                   "; known: fifo, mmu, "
                                                   "priority-fifo, priority-mmu"));
        }
      } else if (key == "tenant") {
        const toml::array* array = node.as_array();
        if (array == nullptr || !array->is_homogeneous(toml::node_type::table)) {
          return Error(node.source(), "a tenant begins with a line [[tenant]]");
        }
        for (const toml::node& entry : *array) {
          ASSIGN_OR_RETURN(Tenant tenant, ReadTenant(*entry.as_table()));
          file.tenants.push_back(std::move(tenant));
        }
      } else {
        return Error(key.source(), absl::StrCat("unknown key ", AbslText(key.str()),
                                                "; known: scheduler, admission, [[tenant]]"));
      }
    }
    return file;
  }

  absl::Status Error(const toml::source_region& where, absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ":", where.begin.line, ":", where.begin.column, ": ", what));
  }

 private:
  static std::string PolicyList() {
    return absl::StrJoin(schedule::PolicyNames(), ", ",
                         [](std::string* out, std::string_view name) { out->append(name); });
  }

  absl::StatusOr<std::string> Text(const toml::key& key, const toml::node& node) {
    const std::optional<std::string> text = node.value_exact<std::string>();
    if (!text.has_value() || text->empty()) {
      return Error(node.source(), absl::StrCat(AbslText(key.str()), " wants text in quotes"));
    }
    return *text;
  }

  absl::StatusOr<Bytes> Size(const toml::key& key, const toml::node& node) {
    const std::optional<std::string> text = node.value_exact<std::string>();
    const std::optional<Bytes> size = text.has_value() ? ParseSize(*text) : std::nullopt;
    if (!size.has_value() || *size == 0) {
      return Error(node.source(),
                   absl::StrCat(AbslText(key.str()), " wants a size such as \"16GiB\""));
    }
    return *size;
  }

  absl::StatusOr<GpuList> Gpus(const toml::node& node) {
    const toml::array* array = node.as_array();
    if (array == nullptr || array->empty()) {
      return Error(node.source(),
                   "gpus wants a list such as [0, \"NVIDIA H200\"]; without gpus they are all");
    }
    GpuList list;
    for (const toml::node& entry : *array) {
      const std::optional<int64_t> number = entry.value_exact<int64_t>();
      const std::optional<std::string> text = entry.value_exact<std::string>();
      if (!text.has_value() && (!number.has_value() || *number < 0)) {
        return Error(entry.source(), "a GPU is a number from 0 on, or a UUID or model in quotes");
      }
      list.names.push_back(text.has_value() ? *text : std::to_string(*number));
    }
    const absl::Status checked = CheckGpuList(list);
    return checked.ok() ? absl::StatusOr<GpuList>(std::move(list))
                        : Error(node.source(), checked.message());
  }

  absl::StatusOr<Tenant> ReadTenant(const toml::table& table) {
    Tenant tenant;
    for (const auto& [key, node] : table) {
      if (key == "name") {
        ASSIGN_OR_RETURN(tenant.name, Text(key, node));
        if (tenant.name.size() >= sizeof(OpenSession{}.tenant)) {
          return Error(node.source(), absl::StrCat("name wants at most ",
                                                   sizeof(OpenSession{}.tenant) - 1, " bytes"));
        }
        if (!names_.insert(tenant.name).second) {
          return Error(node.source(), absl::StrCat("there are two tenants ", tenant.name,
                                                   "; give each one [[tenant]]"));
        }
      } else if (key == "weight") {
        const std::optional<int64_t> weight = node.value_exact<int64_t>();
        if (!weight.has_value() || *weight < 1 || *weight > int64_t{kTenantWeightMax}) {
          return Error(node.source(),
                       absl::StrCat("weight wants a whole number from 1 to ", kTenantWeightMax));
        }
        tenant.weight = static_cast<uint32_t>(*weight);
      } else if (key == "memory_soft") {
        ASSIGN_OR_RETURN(tenant.memory_soft, Size(key, node));
      } else if (key == "memory_hard") {
        ASSIGN_OR_RETURN(tenant.memory_hard, Size(key, node));
      } else if (key == "memory_wait_seconds") {
        const std::optional<double> seconds = node.value<double>();
        if (!seconds.has_value() || !(*seconds >= 0) ||
            *seconds > static_cast<double>(kMemoryWaitMax / kSecond)) {
          return Error(node.source(), absl::StrCat("memory_wait_seconds wants a number from 0 to ",
                                                   kMemoryWaitMax / kSecond));
        }
        tenant.memory_wait_ms = static_cast<uint64_t>(*seconds * 1000);
      } else if (key == "priority") {
        const std::optional<int64_t> priority = node.value_exact<int64_t>();
        if (!priority.has_value() || *priority < 0 || *priority > int64_t{kTenantPriorityMax}) {
          return Error(node.source(), absl::StrCat("priority wants a whole number from 0 to ",
                                                   kTenantPriorityMax));
        }
        tenant.priority = static_cast<uint32_t>(*priority);
      } else if (key == "stream_priority") {
        ASSIGN_OR_RETURN(const std::string level, Text(key, node));
        if (level != "low" && level != "normal" && level != "high") {
          return Error(node.source(), "stream_priority wants \"low\", \"normal\" or \"high\"");
        }
        tenant.stream_priority = level == "low"    ? PriorityLevel::kLow
                                 : level == "high" ? PriorityLevel::kHigh
                                                   : PriorityLevel::kNormal;
      } else if (key == "isolation") {
        ASSIGN_OR_RETURN(const std::string mode, Text(key, node));
        if (mode != "packed" && mode != "process" && mode != "partition") {
          return Error(node.source(), "isolation wants \"packed\", \"process\" or \"partition\"");
        }
        tenant.isolation = mode == "process"     ? Isolation::kProcess
                           : mode == "partition" ? Isolation::kPartition
                                                 : Isolation::kPacked;
      } else if (key == "gpus") {
        ASSIGN_OR_RETURN(tenant.gpus, Gpus(node));
      } else if (key == "placement") {
        ASSIGN_OR_RETURN(tenant.placement, Text(key, node));
        if (const absl::Status known = CheckPlacement(tenant.placement); !known.ok()) {
          return Error(node.source(), std::string(known.message()));
        }
      } else if (key == "max_launches_per_second") {
        const std::optional<int64_t> rate = node.value_exact<int64_t>();
        if (!rate.has_value() || *rate <= 0 || !IsLaunchRate(static_cast<uint64_t>(*rate))) {
          return Error(node.source(),
                       absl::StrCat(AbslText(key.str()), " wants a whole number from ",
                                    kLaunchRateLeast, " on"));
        }
        tenant.rates.launches_per_second = static_cast<uint64_t>(*rate);
      } else if (key == "max_copy_bytes_per_second") {
        ASSIGN_OR_RETURN(tenant.rates.copy_bytes_per_second, Size(key, node));
        if (!IsCopyRate(tenant.rates.copy_bytes_per_second)) {
          return Error(node.source(), absl::StrCat(AbslText(key.str()), " wants at least ",
                                                   kCopyRateLeast / kKiB, "KiB"));
        }
      } else if (key == "socket") {
        ASSIGN_OR_RETURN(tenant.socket_path, Text(key, node));
        if (tenant.socket_path[0] != '/' ||
            tenant.socket_path.size() >= sizeof(sockaddr_un{}.sun_path)) {
          return Error(node.source(), absl::StrCat("socket wants a path from / of at most ",
                                                   sizeof(sockaddr_un{}.sun_path) - 1, " bytes"));
        }
        if (!sockets_.insert(tenant.socket_path).second) {
          return Error(node.source(), "two tenants have this socket; give each its own");
        }
      } else {
        return Error(
            key.source(),
            absl::StrCat("unknown key ", AbslText(key.str()),
                         "; a tenant has name, weight, gpus, placement, max_launches_per_second, "
                         "max_copy_bytes_per_second, stream_priority, isolation, socket, "
                         "memory_soft, memory_hard, memory_wait_seconds and priority"));
      }
    }
    if (tenant.memory_hard != 0 && tenant.memory_soft > tenant.memory_hard) {
      return Error(table.source(), "memory_soft is more than memory_hard");
    }
    if (tenant.name.empty()) {
      return Error(table.source(), "a tenant without a name; add a line name = \"...\"");
    }
    return tenant;
  }

  const std::string path_;
  std::set<std::string> names_;
  std::set<std::string> sockets_;
};

}  // namespace

absl::Status CheckPlacement(std::string_view policy) {
  if (policy.empty() || !placement::PolicyPromise(policy).empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no placement ", AbslText(policy), "; known: ",
      absl::StrJoin(placement::PolicyNames(), ", ",
                    [](std::string* out, std::string_view name) { out->append(name); })));
}

bool IsLaunchRate(uint64_t per_second) { return per_second == 0 || per_second >= kLaunchRateLeast; }

bool IsCopyRate(uint64_t bytes_per_second) {
  return bytes_per_second == 0 || bytes_per_second >= kCopyRateLeast;
}

Tenant TenantsFile::Find(std::string_view name) const {
  for (const Tenant& each : tenants) {
    if (each.name == name) return each;
  }
  Tenant unknown;
  unknown.name = name;
  return unknown;
}

PartitionRange TenantsFile::PartitionOf(std::string_view tenant) const {
  uint64_t all = 0;
  uint64_t before = 0;
  uint64_t own = 0;
  for (const Tenant& each : tenants) {
    if (each.isolation != Isolation::kPartition) continue;
    if (each.name == tenant) {
      before = all;
      own = each.weight;
    }
    all += each.weight;
  }
  if (own == 0) return {};
  const auto part = [all](uint64_t weights) {
    return static_cast<uint32_t>(weights * kPartitionWhole / all);
  };
  return {part(before), part(before + own)};
}

absl::StatusOr<TenantsFile> ParseTenants(const std::string& path, std::string_view text) {
  Reader reader(path);
  const toml::parse_result parsed = toml::parse(text);
  if (!parsed) {
    return reader.Error(parsed.error().source(), AbslText(parsed.error().description()));
  }
  return reader.Read(parsed.table());
}

absl::StatusOr<TenantsFile> ReadTenants(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    const std::string text = absl::StrCat("tenants file ", path, ": ", strerror(errno));
    return errno == ENOENT ? absl::NotFoundError(text) : absl::UnavailableError(text);
  }
  std::ostringstream text;
  text << file.rdbuf();
  return ParseTenants(path, text.str());
}

}  // namespace consort::host
