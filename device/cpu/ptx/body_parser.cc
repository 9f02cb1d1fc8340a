// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/ptx/body_parser.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/absl_text.h"
#include "base/status_macros.h"
#include "device/cpu/ptx/parser.h"

namespace consort::cpu::ptx {

absl::Status BodyParser::Parse() {
  scopes_.emplace_back();
  for (uint32_t i = 0; i < function_.symbols.size(); ++i) {
    const Symbol& symbol = function_.symbols[i];
    if (symbol.name != "_") RETURN_IF_ERROR(Declare(symbol.name, i, symbol.line));
  }
  RETURN_IF_ERROR(tokens_.Expect('{'));
  depth_ = 1;
  while (depth_ > 0) {
    if (tokens_.token().kind == TokenKind::kEnd) return tokens_.Expected("`}`");
    if (tokens_.TakeIf('{')) {
      if (++depth_ > kNestingMax) {
        return ErrorAt(absl::StatusCode::kResourceExhausted, tokens_.token().line,
                       "blocks are nested too deeply");
      }
      Scope inner;
      inner.parent = scope_;
      scope_ = static_cast<uint32_t>(scopes_.size());
      scopes_.push_back(std::move(inner));
    } else if (tokens_.TakeIf('}')) {
      --depth_;
      if (depth_ > 0) scope_ = scopes_[scope_].parent;
    } else {
      RETURN_IF_ERROR(ParseStatement());
    }
  }
  return ResolveLabels();
}

absl::Status BodyParser::Declare(std::string_view name, uint32_t symbol, int line) {
  if (!scopes_[scope_].symbols.emplace(name, symbol).second) {
    return SyntaxError(line, absl::StrCat("`", AbslText(name), "` is declared twice"));
  }
  return absl::OkStatus();
}

// The symbol named `name` in this scope or one around it; kNone if there is none. A register of a
// family, %r<9>, becomes a symbol when it is first named, so that a large family costs nothing.
uint32_t BodyParser::FindSymbol(std::string_view name) {
  size_t digits = name.size();
  while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
  for (uint32_t at = scope_; at != kNone; at = scopes_[at].parent) {
    Scope& scope = scopes_[at];
    if (const auto found = scope.symbols.find(name); found != scope.symbols.end()) {
      return found->second;
    }
    for (const Family& family : scope.families) {
      // "%r1<20>" with the name "%r15": the prefix may itself end in digits.
      if (family.prefix.size() < digits || name.size() <= family.prefix.size()) continue;
      if (name.substr(0, family.prefix.size()) != family.prefix) continue;
      const std::string_view number = name.substr(family.prefix.size());
      if (number.size() > 8 || (number.size() > 1 && number[0] == '0')) continue;
      uint32_t value = 0;
      for (const char c : number) value = value * 10 + static_cast<uint32_t>(c - '0');
      if (value >= family.count) continue;
      const uint32_t index = static_cast<uint32_t>(function_.symbols.size());
      function_.symbols.push_back(family.pattern);
      function_.symbols.back().name = name;
      scope.symbols.emplace(name, index);
      return index;
    }
  }
  return kNone;
}

absl::Status BodyParser::ParseStatement() {
  const Token& token = tokens_.token();
  if (token.kind == TokenKind::kDotted) return ParseDirective();
  if (token.text == "@@") {
    tokens_.SkipLine();
    return absl::OkStatus();
  }
  if (tokens_.TakeIf(';')) return absl::OkStatus();
  return ParseInstruction();
}

absl::Status BodyParser::ParseDirective() {
  const Token word = tokens_.token();
  if (word.text == "loc") {
    tokens_.TakeLocation(source_file_, source_line_);
    return absl::OkStatus();
  }
  if (word.text == "file") {
    tokens_.SkipLine();
    return absl::OkStatus();
  }
  tokens_.Take();
  if (word.text == "reg") return ParseRegisters();
  if (word.text == "local") return ParseVariable(Space::kLocal);
  if (word.text == "shared") return ParseVariable(Space::kShared);
  if (word.text == "global") return ParseVariable(Space::kGlobal);
  if (word.text == "const") return ParseVariable(Space::kConst);
  if (word.text == "param") return ParseVariable(Space::kParam);
  if (word.text == "extern" || word.text == "visible" || word.text == "weak") {
    return absl::OkStatus();  // linkage of the variable that follows
  }
  if (word.text == "pragma") {
    tokens_.SkipStatement();
    return absl::OkStatus();
  }
  return ErrorAt(absl::StatusCode::kUnimplemented, word.line,
                 absl::StrCat("directive `.", AbslText(word.text), "` is not supported"));
}

absl::Status BodyParser::ParseRegisters() {
  ASSIGN_OR_RETURN(Declaration declaration, tokens_.ParseDeclaration());
  while (true) {
    if (declaration.is_array) return SyntaxError(declaration.line, "a register is no array");
    Symbol symbol;
    symbol.type = declaration.type;
    symbol.vector_width = declaration.vector_width;
    symbol.bytes = declaration.ElementBytes();
    symbol.name = declaration.name;
    symbol.line = declaration.line;
    if (declaration.family > 0) {
      scopes_[scope_].families.push_back({declaration.name, declaration.family, symbol});
    } else {
      const uint32_t index = static_cast<uint32_t>(function_.symbols.size());
      function_.symbols.push_back(symbol);
      RETURN_IF_ERROR(Declare(declaration.name, index, declaration.line));
    }
    if (!tokens_.TakeIf(',')) break;
    RETURN_IF_ERROR(tokens_.ParseDeclarator(declaration));
  }
  return tokens_.Expect(';');
}

absl::Status BodyParser::ParseVariable(Space space) {
  ASSIGN_OR_RETURN(Declaration declaration, tokens_.ParseDeclaration());
  while (true) {
    if (declaration.family > 0) return SyntaxError(declaration.line, "only registers take <N>");
    Symbol symbol;
    symbol.space = space;
    symbol.type = declaration.type;
    symbol.align = declaration.AlignBytes();
    symbol.name = declaration.name;
    symbol.line = declaration.line;
    if (space == Space::kParam || space == Space::kLocal) {
      symbol.kind = space == Space::kParam ? SymbolKind::kCallParam : SymbolKind::kLocal;
      if (declaration.is_unsized) return SyntaxError(declaration.line, "the array needs a size");
      ASSIGN_OR_RETURN(
          symbol.bytes,
          tokens_.BytesOf(declaration, space == Space::kParam ? kParamBytesMax : kLocalBytesMax));
    } else {
      Variable variable;
      variable.name = declaration.name;
      variable.space = space;
      variable.type = declaration.type;
      variable.align = declaration.AlignBytes();
      variable.line = declaration.line;
      variable.is_extern = declaration.is_unsized;
      ASSIGN_OR_RETURN(variable.bytes, tokens_.BytesOf(declaration, kVariableBytesMax));
      if (tokens_.TakeIf('=')) {
        variable.is_extern = false;
        RETURN_IF_ERROR(ParseInitialiser(tokens_, declaration, variable));
      }
      symbol.kind = SymbolKind::kVariable;
      symbol.bytes = variable.bytes;
      symbol.index = static_cast<uint32_t>(module_.variables.size());
      module_.variables.push_back(std::move(variable));
    }
    const uint32_t index = static_cast<uint32_t>(function_.symbols.size());
    function_.symbols.push_back(symbol);
    RETURN_IF_ERROR(Declare(declaration.name, index, declaration.line));
    if (!tokens_.TakeIf(',')) break;
    RETURN_IF_ERROR(tokens_.ParseDeclarator(declaration));
  }
  return tokens_.Expect(';');
}

absl::Status BodyParser::ParseLabel(std::string_view name, int line) {
  Label label;
  label.name = name;
  label.line = line;
  label.instruction = static_cast<uint32_t>(function_.instructions.size());
  const uint32_t index = static_cast<uint32_t>(function_.labels.size());
  if (!scopes_[scope_].labels.emplace(name, index).second) {
    return SyntaxError(line, absl::StrCat("label `", AbslText(name), "` is defined twice"));
  }
  // A label names a list when one of these directives follows it.
  // Source: PTX ISA, 11.3.1 ".branchtargets", 11.3.2 ".calltargets", 11.3.3 ".callprototype".
  if (tokens_.TakeIfDotted("branchtargets")) {
    label.is_table = true;
    do {
      const int target_line = tokens_.token().line;
      ASSIGN_OR_RETURN(const std::string_view target, tokens_.ExpectName());
      pending_targets_.push_back({index, scope_, target, target_line});
    } while (tokens_.TakeIf(','));
    RETURN_IF_ERROR(tokens_.Expect(';'));
  } else if (tokens_.token().IsDotted("callprototype") || tokens_.token().IsDotted("calltargets")) {
    label.is_table = true;
    tokens_.SkipStatement();
  }
  function_.labels.push_back(std::move(label));
  return absl::OkStatus();
}

absl::Status BodyParser::ParseGuard(Instruction& instruction) {
  instruction.guard_negated = tokens_.TakeIf('!');
  const int line = tokens_.token().line;
  ASSIGN_OR_RETURN(const std::string_view name, tokens_.ExpectName());
  instruction.guard = FindSymbol(name);
  if (instruction.guard == kNone || function_.symbols[instruction.guard].type != Type::kPred) {
    return SyntaxError(line, absl::StrCat("`", AbslText(name), "` is no predicate register"));
  }
  return absl::OkStatus();
}

absl::Status BodyParser::ParseInstruction() {
  Instruction instruction;
  instruction.line = tokens_.token().line;
  instruction.source_file = source_file_;
  instruction.source_line = source_line_;
  if (tokens_.TakeIf('@')) {
    RETURN_IF_ERROR(ParseGuard(instruction));
    instruction.line = tokens_.token().line;
  }
  if (tokens_.token().kind != TokenKind::kIdentifier) return tokens_.Expected("an instruction");
  instruction.opcode = tokens_.Take().text;
  if (instruction.guard == kNone && tokens_.TakeIf(':')) {
    return ParseLabel(instruction.opcode, instruction.line);
  }
  while (tokens_.token().kind == TokenKind::kDotted && !tokens_.token().space_before) {
    instruction.modifiers.push_back(tokens_.Take().text);
  }
  if (!tokens_.token().Is(';')) {
    do {
      ASSIGN_OR_RETURN(Operand operand, ParseOperand(0));
      instruction.operands.push_back(std::move(operand));
    } while (tokens_.TakeIf(','));
  }
  RETURN_IF_ERROR(tokens_.Expect(';'));
  function_.instructions.push_back(std::move(instruction));
  return absl::OkStatus();
}

absl::Status BodyParser::ParseOperandList(char close, int depth, std::vector<Operand>& out) {
  if (tokens_.TakeIf(close)) return absl::OkStatus();
  do {
    ASSIGN_OR_RETURN(Operand operand, ParseOperand(depth + 1));
    out.push_back(std::move(operand));
  } while (tokens_.TakeIf(','));
  return tokens_.Expect(close);
}

// Bytes or halves of a register, and masks of them: PTX ISA 9.0, 9.7.10 "Video Instructions".
bool BodyParser::IsVideoSelector(std::string_view text) {
  return text.size() >= 2 && text.size() <= 5 && (text[0] == 'b' || text[0] == 'h') &&
         text.find_first_not_of("01234567", 1) == std::string_view::npos;
}

absl::StatusOr<Operand> BodyParser::ParseNameOperand() {
  Operand operand;
  operand.text = tokens_.Take().text;
  operand.scope = scope_;
  if (operand.text == "_") return operand;
  operand.symbol = FindSymbol(operand.text);
  if (operand.symbol != kNone) {
    operand.kind = OperandKind::kSymbol;
  } else if (operand.text == "WARP_SZ") {
    operand.kind = OperandKind::kInteger;
    operand.integer = 32;
    return operand;
  } else {
    operand.kind = operand.text[0] == '%' ? OperandKind::kSpecial : OperandKind::kName;
  }
  if (tokens_.token().kind == TokenKind::kDotted && !tokens_.token().space_before) {
    const Token component = tokens_.Take();
    const size_t at = std::string_view("xyzwrgba").find(component.text);
    if (IsVideoSelector(component.text) && operand.kind == OperandKind::kSymbol) {
      operand.selector = component.text;
      return operand;
    }
    if (component.text.size() != 1 || at == std::string_view::npos) {
      return SyntaxError(component.line,
                         absl::StrCat("no component `.", AbslText(component.text), "`"));
    }
    operand.component = "xyzw"[at % 4];
  }
  if (operand.kind != OperandKind::kSpecial &&
      (tokens_.token().Is('+') || tokens_.token().Is('-'))) {
    ASSIGN_OR_RETURN(operand.integer, tokens_.ParseInteger());
  }
  return operand;
}

absl::StatusOr<Operand> BodyParser::ParseOperand(int depth) {
  if (depth > kNestingMax) {
    return ErrorAt(absl::StatusCode::kResourceExhausted, tokens_.token().line,
                   "operands are nested too deeply");
  }
  Operand operand;
  const Token& token = tokens_.token();
  if (tokens_.TakeIf('[')) {
    operand.kind = OperandKind::kAddress;
    RETURN_IF_ERROR(ParseOperandList(']', depth, operand.elements));
    if (operand.elements.empty()) return tokens_.Expected("an address before `]`");
  } else if (tokens_.TakeIf('{')) {
    operand.kind = OperandKind::kVector;
    RETURN_IF_ERROR(ParseOperandList('}', depth, operand.elements));
  } else if (tokens_.TakeIf('(')) {
    operand.kind = OperandKind::kList;
    RETURN_IF_ERROR(ParseOperandList(')', depth, operand.elements));
  } else if (tokens_.TakeIf('!')) {
    if (tokens_.token().kind != TokenKind::kIdentifier) return tokens_.Expected("a predicate");
    ASSIGN_OR_RETURN(operand, ParseNameOperand());
    operand.negated = true;
  } else if (token.kind == TokenKind::kIdentifier) {
    ASSIGN_OR_RETURN(operand, ParseNameOperand());
  } else if (token.kind == TokenKind::kNumber || token.Is('-') || token.Is('+')) {
    ASSIGN_OR_RETURN(const Number number, tokens_.ParseNumber());
    operand.kind = number.is_float ? OperandKind::kFloat : OperandKind::kInteger;
    operand.integer = number.integer;
    operand.real = number.real;
    operand.float_bits = number.float_bits;
    if (!number.is_float && (tokens_.token().Is('+') || tokens_.token().Is('-'))) {
      ASSIGN_OR_RETURN(const int64_t rest, tokens_.ParseInteger());
      operand.integer = static_cast<int64_t>(static_cast<uint64_t>(operand.integer) +
                                             static_cast<uint64_t>(rest));
    }
  } else {
    return tokens_.Expected("an operand");
  }
  if (tokens_.TakeIf('|')) {
    Operand pair;
    pair.kind = OperandKind::kPair;
    ASSIGN_OR_RETURN(Operand second, ParseOperand(depth + 1));
    pair.elements.push_back(std::move(operand));
    pair.elements.push_back(std::move(second));
    return pair;
  }
  return operand;
}

absl::Status BodyParser::ResolveOperand(Operand& operand, int line) {
  for (Operand& element : operand.elements) RETURN_IF_ERROR(ResolveOperand(element, line));
  if (operand.kind != OperandKind::kName) return absl::OkStatus();
  for (uint32_t at = operand.scope; at != kNone; at = scopes_[at].parent) {
    const auto found = scopes_[at].labels.find(operand.text);
    if (found == scopes_[at].labels.end()) continue;
    operand.kind = OperandKind::kLabel;
    operand.label = found->second;
    return absl::OkStatus();
  }
  return absl::OkStatus();  // a name of the module: the code generator looks it up
}

absl::Status BodyParser::ResolveLabels() {
  for (Instruction& instruction : function_.instructions) {
    for (Operand& operand : instruction.operands) {
      RETURN_IF_ERROR(ResolveOperand(operand, instruction.line));
    }
  }
  for (const PendingTarget& target : pending_targets_) {
    uint32_t at = target.scope;
    while (at != kNone && !scopes_[at].labels.contains(target.name)) at = scopes_[at].parent;
    if (at == kNone) {
      return SyntaxError(target.line, absl::StrCat("no label `", AbslText(target.name), "`"));
    }
    function_.labels[target.label].targets.push_back(scopes_[at].labels.find(target.name)->second);
  }
  return absl::OkStatus();
}

}  // namespace consort::cpu::ptx
