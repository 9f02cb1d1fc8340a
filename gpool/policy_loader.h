// SPDX-License-Identifier: Apache-2.0
// gpool/policy_loader.h: opens an administrator's placement policy (policies/placement/plugin.h).
// Opening runs the object's own constructors, as with every library; nothing else of it runs before
// its version is known to be ours.
#ifndef CONSORT_GPOOL_POLICY_LOADER_H_
#define CONSORT_GPOOL_POLICY_LOADER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "policies/placement/plugin_policy.h"

namespace consort::gpool {

// A policy for Mapper::Install. `path` has a slash in it; `argument` is passed to the policy.
// `pool` is borrowed. The object stays open for the life of the process: code of it may be on
// anybody's stack.
// kNotFound: no such file, or it does not load. kInvalidArgument: no slash; it does not take the
// argument. kFailedPrecondition: it is no placement policy, or was built for another version.
absl::StatusOr<std::unique_ptr<placement::PluginPolicy>> LoadPolicy(const std::string& path,
                                                                    const std::string& argument,
                                                                    const placement::Pool* pool);

}  // namespace consort::gpool

#endif  // CONSORT_GPOOL_POLICY_LOADER_H_
