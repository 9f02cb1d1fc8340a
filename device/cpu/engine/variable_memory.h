// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/variable_memory.h: memory of a module's .global and .const variables.
//
// Owned by a Program. The memory is the kernels' and the user's to write; addresses never change.
#ifndef CONSORT_DEVICE_CPU_ENGINE_VARIABLE_MEMORY_H_
#define CONSORT_DEVICE_CPU_ENGINE_VARIABLE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "device/cpu/program.h"
#include "device/cpu/ptx/ast.h"

namespace consort::cpu {

class VariableMemory {
 public:
  VariableMemory() = default;
  ~VariableMemory();
  VariableMemory(const VariableMemory&) = delete;
  VariableMemory& operator=(const VariableMemory&) = delete;

  // Maps and initialises all variables of `module`. Once.
  // kResourceExhausted: no memory. kOutOfRange: an address of an unknown symbol.
  // With `gaps` there is room between variables, so that an overflow does not reach the next.
  absl::Status Fill(const ptx::Module& module, bool gaps, const ManagedMemory& managed);

  // Whether managed variables lie in memory of `managed`.
  bool has_managed() const { return has_managed_; }

  // Parallel to module.variables; null for .shared variables.
  const std::vector<void*>& addresses() const { return addresses_; }

 private:
  // Asks for memory for the managed variables, if there are any.
  absl::Status PlaceManaged(const ptx::Module& module, bool gaps, const ManagedMemory& managed);
  absl::Status PlaceOthers(const ptx::Module& module, bool gaps);
  absl::Status FillIn(const ptx::Module& module, size_t index);

  uint8_t* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  bool has_managed_ = false;
  bool managed_fresh_ = false;
  std::vector<void*> addresses_;
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_ENGINE_VARIABLE_MEMORY_H_
