// SPDX-License-Identifier: Apache-2.0
// host/daemon/gpu_list.h: which GPUs a tenant may use, as an operator writes it. Value type.
//
// A name is a number (a device of this host; in a pool a gid, as `consortctl gpus` shows both), a
// UUID or a model's name, exactly as consortd shows it.
#ifndef CONSORT_HOST_DAEMON_GPU_LIST_H_
#define CONSORT_HOST_DAEMON_GPU_LIST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace consort::host {

struct GpuList {
  std::vector<std::string> names;  // none: all GPUs

  bool all() const { return names.empty(); }
  bool Has(uint32_t number, std::string_view uuid, std::string_view model) const;
  // For people: "all", or the names, joined.
  std::string Text() const;

  friend bool operator==(const GpuList&, const GpuList&) = default;
};

// kInvalidArgument: too many, or a name that is empty, too long, not printable, or there twice.
absl::Status CheckGpuList(const GpuList& list);

// What a program is told: `what` is "GPU 3 of the pool", say.
std::string MayNotUseText(const std::string& tenant, const GpuList& list, const std::string& what);

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_GPU_LIST_H_
