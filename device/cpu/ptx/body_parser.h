// SPDX-License-Identifier: Apache-2.0
// device/cpu/ptx/body_parser.h: the body of one function, `{` to `}`.
//
// Owned by ParsePtx for one function; thread compatible. Names live in nested scopes (PTX ISA, 4.1:
// a block in braces is a scope for registers, variables and labels). Registers and variables must
// be declared before use and are resolved at once; labels and names of the module at the end.
#ifndef CONSORT_DEVICE_CPU_PTX_BODY_PARSER_H_
#define CONSORT_DEVICE_CPU_PTX_BODY_PARSER_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/cpu/ptx/ast.h"
#include "device/cpu/ptx/token_stream.h"

namespace consort::cpu::ptx {

// Reads `= value` or `= {values}` of a variable declared by `declaration` into `variable`, whose
// bytes are set, unless an unsized array takes its size from here. The '=' is taken already.
absl::Status ParseInitialiser(TokenStream& tokens, const Declaration& declaration,
                              Variable& variable);

class BodyParser {
 public:
  // `function`'s parameters are declared already; the present token is the opening brace.
  BodyParser(TokenStream& tokens, Module& module, Function& function)
      : tokens_(tokens), module_(module), function_(function) {}

  absl::Status Parse();

 private:
  struct Family {
    std::string_view prefix;
    uint32_t count = 0;
    Symbol pattern;
  };
  struct Scope {
    uint32_t parent = kNone;
    absl::flat_hash_map<std::string_view, uint32_t> symbols;
    absl::flat_hash_map<std::string_view, uint32_t> labels;
    std::vector<Family> families;
  };

  absl::Status Declare(std::string_view name, uint32_t symbol, int line);
  uint32_t FindSymbol(std::string_view name);
  absl::Status ParseStatement();
  absl::Status ParseDirective();
  absl::Status ParseRegisters();
  absl::Status ParseVariable(Space space);
  absl::Status ParseLabel(std::string_view name, int line);
  absl::Status ParseGuard(Instruction& instruction);
  absl::Status ParseInstruction();
  absl::StatusOr<Operand> ParseOperand(int depth);
  absl::Status ParseOperandList(char close, int depth, std::vector<Operand>& out);
  static bool IsVideoSelector(std::string_view text);
  absl::StatusOr<Operand> ParseNameOperand();
  absl::Status ResolveLabels();
  absl::Status ResolveOperand(Operand& operand, int line);

  TokenStream& tokens_;
  Module& module_;
  Function& function_;
  std::vector<Scope> scopes_;
  uint32_t scope_ = 0;
  int depth_ = 0;
  uint32_t source_file_ = 0;  // of the last .loc
  uint32_t source_line_ = 0;
  struct PendingTarget {
    uint32_t label = 0;  // the table
    uint32_t scope = 0;
    std::string_view name;
    int line = 0;
  };
  std::vector<PendingTarget> pending_targets_;
};

}  // namespace consort::cpu::ptx

#endif  // CONSORT_DEVICE_CPU_PTX_BODY_PARSER_H_
