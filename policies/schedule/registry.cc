// SPDX-License-Identifier: Apache-2.0
// The policies by name. A new one is a line here.
#include <memory>

#include "policies/schedule/fair_share.h"
#include "policies/schedule/orders.h"
#include "policies/schedule/policy.h"

namespace consort::schedule {
namespace {

std::unique_ptr<Policy> MakeSlowdown(const Options& options) {
  return std::make_unique<FairShare>(options, FairShare::Shared::kAloneTime);
}

template <class P>
std::unique_ptr<Policy> Make(const Options& options) {
  return std::make_unique<P>(options);
}

struct Named {
  std::string_view name;
  std::unique_ptr<Policy> (*make)(const Options&);
  std::string_view promise;
};

constexpr Named kPolicies[] = {
    {"tfs", Make<FairShare>,
     "Device time of tenants that compete follows their weights; who overshot pays later."},
    {"slowdown", MakeSlowdown,
     "Tenants that compete are slowed down alike, by weight, whatever part of the device they "
     "use."},
    {"las", Make<LeastAttained>, "The application that was served least of late goes first."},
    {"ps", Make<PhaseSelection>, "Kernels and copies of different applications overlap."},
    {"fcfs", Make<FirstCome>, "Batches start in the order in which they were ready."},
    {"sjf", Make<ShortestFirst>, "The shortest batch goes first."},
    {"credit", Make<Credit>, "Tenants that have not used up their credit go first."},
    {"idle", Make<MaximumIdle>,
     "One application has the device until it has left it idle for too long."},
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

std::unique_ptr<Policy> MakePolicy(std::string_view name, const Options& options) {
  for (const Named& policy : kPolicies) {
    if (policy.name == name) return policy.make(options);
  }
  return nullptr;
}

}  // namespace consort::schedule
