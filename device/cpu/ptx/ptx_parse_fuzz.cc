// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry: any bytes are PTX, which can be linked or not, or an error with a line, never a
// crash.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "device/cpu/ptx/linker.h"
#include "device/cpu/ptx/parser.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto module = consort::cpu::ptx::ParsePtx(text);
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
  // Two units of the same text: names of their own are told apart, others clash.
  const consort::cpu::ptx::LinkInput units[] = {{"a", text}, {"b", text}};
  if (const auto linked = consort::cpu::ptx::LinkPtx(units); linked.ok() && linked->empty()) {
    std::abort();
  }
  return 0;
}
