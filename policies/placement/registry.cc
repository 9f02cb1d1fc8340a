// SPDX-License-Identifier: Apache-2.0
// The policies by name. A new one is a line here.
#include <memory>

#include "policies/placement/policies.h"
#include "policies/placement/policy.h"

namespace consort::placement {
namespace {

template <class P>
std::unique_ptr<Policy> Make(const Pool* pool) {
  return std::make_unique<P>(pool);
}

struct Named {
  std::string_view name;
  std::unique_ptr<Policy> (*make)(const Pool*);
  std::string_view promise;
};

constexpr Named kPolicies[] = {
    {"static", Make<Static>, "The device of its node that the program asked for."},
    {"grr", Make<RoundRobin>, "All GPUs of the pool in turn."},
    {"gmin", Make<LeastBound>, "The GPU with the least applications."},
    {"gwtmin", Make<LeastWeighted>, "The GPU with the least applications for its weight."},
    {"rtf", Make<RuntimeFeedback>, "The GPU on which it would end first, by measured runtimes."},
    {"guf", Make<UtilisationFeedback>, "Programs of high GPU utilisation are kept apart."},
    {"dtf", Make<TransferFeedback>, "Programs that copy much go beside those that compute."},
    {"mbf", Make<BandwidthFeedback>, "Programs that are bound by memory bandwidth are kept apart."},
};

}  // namespace

const std::vector<std::string_view>& PolicyNames() {
  static const auto* const names = [] {
    auto* made = new std::vector<std::string_view>;
    for (const Named& policy : kPolicies) made->push_back(policy.name);
    return made;
  }();
  return *names;
}

std::string_view PolicyPromise(std::string_view name) {
  for (const Named& policy : kPolicies) {
    if (policy.name == name) return policy.promise;
  }
  return {};
}

std::unique_ptr<Policy> MakePolicy(std::string_view name, Pool* pool) {
  for (const Named& policy : kPolicies) {
    if (policy.name != name) continue;
    std::unique_ptr<Policy> made = policy.make(pool);
    pool->Watch(made.get());
    return made;
  }
  return nullptr;
}

}  // namespace consort::placement
