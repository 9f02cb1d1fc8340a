// SPDX-License-Identifier: Apache-2.0
// policies/placement/plugin_policy.h: an administrator's policy (plugin.h) as one of ours. What it
// says is not believed: a choice that it may not make is replaced. Thread compatible, like it.
#ifndef CONSORT_POLICIES_PLACEMENT_PLUGIN_POLICY_H_
#define CONSORT_POLICIES_PLACEMENT_PLUGIN_POLICY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policies/placement/plugin.h"
#include "policies/placement/policy.h"

namespace consort::placement {

class PluginPolicy final : public Policy {
 public:
  using Owned =
      std::unique_ptr<consort_placement::Policy, std::function<void(consort_placement::Policy*)>>;

  // `pool` is borrowed. Mapper::Install makes the policy watch it.
  PluginPolicy(std::string name, Owned plugin, const Pool* pool)
      : name_(std::move(name)), plugin_(std::move(plugin)), pool_(pool) {}

  std::string_view name() const override { return name_; }
  // It sees what is known, and has to make the best of what is not.
  bool by_feedback() const override { return false; }
  Choice Choose(const Request& request) const override;
  void GpuChanged(Slot slot, const GpuState& state) override;
  void GpuRemoved(Slot slot) override;

  // Choices that were replaced (none made, one that is not allowed), and exceptions.
  uint64_t replaced() const { return replaced_; }

 private:
  const std::string name_;
  const Owned plugin_;
  const Pool* const pool_;
  std::vector<Gid> gids_;  // by slot
  mutable uint64_t replaced_ = 0;
};

}  // namespace consort::placement

#endif  // CONSORT_POLICIES_PLACEMENT_PLUGIN_POLICY_H_
