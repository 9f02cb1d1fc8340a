// SPDX-License-Identifier: Apache-2.0
#include "policies/admission/admission.h"

#include <utility>

namespace consort::admission {
namespace {

constexpr std::pair<std::string_view, Order> kOrders[] = {
    {"fifo", Order::kFifo},
    {"mmu", Order::kMmu},
    {"priority-fifo", Order::kPriorityFifo},
    {"priority-mmu", Order::kPriorityMmu},
};

// Whether `a`, which came later than `b`, goes before it all the same.
bool Overtakes(Order order, const Waiter& a, const Waiter& b) {
  if (a.over_soft != b.over_soft) return b.over_soft;
  const bool by_priority = order == Order::kPriorityFifo || order == Order::kPriorityMmu;
  return by_priority && a.priority > b.priority;
}

}  // namespace

std::optional<Order> OrderByName(std::string_view name) {
  for (const auto& [known, order] : kOrders) {
    if (known == name) return order;
  }
  return std::nullopt;
}

std::string_view OrderName(Order order) {
  for (const auto& [name, known] : kOrders) {
    if (known == order) return name;
  }
  return {};
}

std::vector<std::string_view> OrderNames() {
  std::vector<std::string_view> names;
  for (const auto& [name, order] : kOrders) names.push_back(name);
  return names;
}

std::optional<size_t> NextAdmitted(Order order, std::span<const Waiter> waiters, Bytes free) {
  const bool only_first = order == Order::kFifo || order == Order::kPriorityFifo;
  std::optional<size_t> best;
  for (size_t i = 0; i < waiters.size(); ++i) {
    if (!only_first && waiters[i].bytes > free) continue;
    if (!best.has_value() || Overtakes(order, waiters[i], waiters[*best])) best = i;
  }
  if (best.has_value() && waiters[*best].bytes > free) return std::nullopt;
  return best;
}

}  // namespace consort::admission
