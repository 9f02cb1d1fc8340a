// SPDX-License-Identifier: Apache-2.0
#include "gpool/policy_loader.h"

#include <dlfcn.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace consort::gpool {

absl::StatusOr<std::unique_ptr<placement::PluginPolicy>> LoadPolicy(const std::string& path,
                                                                    const std::string& argument,
                                                                    const placement::Pool* pool) {
  if (path.find('/') == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("placement policy '", path,
                     "': a shared object is named by its path; one of the tree has another name"));
  }
  void* object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) {
    const char* error = dlerror();
    return absl::NotFoundError(
        absl::StrCat("cannot open placement policy ", error != nullptr ? error : path));
  }
  const auto* exported =
      static_cast<const consort_placement::Export*>(dlsym(object, "consort_placement_policy"));
  if (exported == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is no placement policy: it has no symbol consort_placement_policy"));
  }
  if (exported->version != consort_placement::kVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " was built for version ", exported->version,
                     " of policies/placement/plugin.h, this is version ",
                     consort_placement::kVersion, ": build it again"));
  }
  if (exported->layout != consort_placement::Layout()) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " was built with another layout of the structs of policies/placement/plugin.h: ",
        "build it again, with that header and a compiler of this ABI"));
  }
  consort_placement::Policy* made = nullptr;
  try {
    made = exported->make(argument.c_str());
  } catch (...) {
    made = nullptr;
  }
  if (made == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the policy does not take the argument '", argument, "'"));
  }
  return std::make_unique<placement::PluginPolicy>(
      exported->name, placement::PluginPolicy::Owned(made, exported->destroy), pool);
}

}  // namespace consort::gpool
