// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/gpu_list.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "host/limits.h"

namespace consort::host {

bool GpuList::Has(uint32_t number, std::string_view uuid, std::string_view model) const {
  if (all()) return true;
  const std::string as_text = std::to_string(number);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name == as_text || name == uuid || name == model;
  });
}

std::string GpuList::Text() const { return all() ? "all" : absl::StrJoin(names, ", "); }

std::string MayNotUseText(const std::string& tenant, const GpuList& list, const std::string& what) {
  return absl::StrCat("tenant ", tenant, " may not use ", what, ", only ", list.Text(),
                      " (gpus in the tenants' file; consortctl tenant list)");
}

absl::Status CheckGpuList(const GpuList& list) {
  if (list.names.size() > kTenantGpusMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("gpus wants at most ", kTenantGpusMax, " names"));
  }
  std::set<std::string> seen;
  for (const std::string& name : list.names) {
    if (name.empty() || name.size() > kGpuNameBytesMax ||
        !std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return absl::ascii_isprint(c); })) {
      return absl::InvalidArgumentError(
          "gpus wants numbers, UUIDs and models of GPUs, as consortctl gpus shows them");
    }
    if (!seen.insert(name).second) {
      return absl::InvalidArgumentError(absl::StrCat("gpus names ", name, " twice"));
    }
  }
  return absl::OkStatus();
}

}  // namespace consort::host
