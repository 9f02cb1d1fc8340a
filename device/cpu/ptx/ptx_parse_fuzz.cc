// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry: any bytes are PTX or an error with a line, never a crash.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "device/cpu/ptx/parser.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto module =
      consort::cpu::ptx::ParsePtx(std::string(reinterpret_cast<const char*>(data), size));
  if (!module.ok()) {
    const absl::string_view message = module.status().message();
    if (message.substr(0, 5) != "line ") std::abort();
    return 0;
  }
  // What the code generator relies on: indices of operands are inside their tables.
  for (const auto& function : (*module)->functions) {
    for (const auto& label : function.labels) {
      if (label.instruction > function.instructions.size()) std::abort();
      for (const uint32_t target : label.targets) {
        if (target >= function.labels.size()) std::abort();
      }
    }
    for (const auto& instruction : function.instructions) {
      for (const auto& operand : instruction.operands) {
        if (operand.kind == consort::cpu::ptx::OperandKind::kSymbol &&
            operand.symbol >= function.symbols.size()) {
          std::abort();
        }
      }
    }
  }
  return 0;
}
