// SPDX-License-Identifier: Apache-2.0
// memmgr/memory_budget.h: who says how much memory one session may have.
//
//   allot   a promise: bytes of allocations, wherever their contents are. Quotas bound it
//   device  physical memory of the device. Its size bounds it
//
// Called by the owner of an address window, and by who moves its contents, never by both at once.
// Implementations are thread safe among windows. All bytes are multiples of kGranuleBytes.
#ifndef CONSORT_MEMMGR_MEMORY_BUDGET_H_
#define CONSORT_MEMMGR_MEMORY_BUDGET_H_

#include <memory>
#include <utility>

#include "base/units.h"

namespace consort::memmgr {

class MemoryBudget {
 public:
  virtual ~MemoryBudget() = default;
  // False: refused, nothing was taken.
  virtual bool Allot(Bytes bytes) = 0;
  virtual void Unallot(Bytes bytes) = 0;
  virtual bool TakeDevice(Bytes bytes) = 0;
  virtual void ReturnDevice(Bytes bytes) = 0;
};

// For windows that nothing bounds but the device itself.
class NoBudget final : public MemoryBudget {
 public:
  bool Allot(Bytes) override { return true; }
  void Unallot(Bytes) override {}
  bool TakeDevice(Bytes) override { return true; }
  void ReturnDevice(Bytes) override {}
};

// Bytes of a budget, allotted and on the device, given back with this object's end.
class BudgetShare {
 public:
  // Null: refused. `budget` is borrowed for the object's life.
  static std::shared_ptr<BudgetShare> Take(MemoryBudget* budget, Bytes bytes) {
    if (!budget->Allot(bytes)) return nullptr;
    if (budget->TakeDevice(bytes)) {
      return std::shared_ptr<BudgetShare>(new BudgetShare(budget, bytes));
    }
    budget->Unallot(bytes);
    return nullptr;
  }
  ~BudgetShare() {
    budget_->ReturnDevice(bytes_);
    budget_->Unallot(bytes_);
  }
  BudgetShare(const BudgetShare&) = delete;
  BudgetShare& operator=(const BudgetShare&) = delete;

 private:
  BudgetShare(MemoryBudget* budget, Bytes bytes) : budget_(budget), bytes_(bytes) {}
  MemoryBudget* const budget_;
  const Bytes bytes_;
};

}  // namespace consort::memmgr

#endif  // CONSORT_MEMMGR_MEMORY_BUDGET_H_
