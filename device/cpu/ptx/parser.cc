// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/ptx/parser.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/absl_text.h"
#include "base/status_macros.h"
#include "device/cpu/ptx/body_parser.h"
#include "device/cpu/ptx/token_stream.h"

namespace consort::cpu::ptx {
namespace {

class ModuleParser {
 public:
  explicit ModuleParser(Module& module) : module_(module), tokens_(module.text) {}

  absl::Status Parse() {
    while (tokens_.token().kind != TokenKind::kEnd) RETURN_IF_ERROR(ParseTopLevel());
    return absl::OkStatus();
  }

 private:
  absl::Status ParseTopLevel() {
    if (tokens_.token().text == "@@") {
      tokens_.SkipLine();
      return absl::OkStatus();
    }
    if (tokens_.TakeIf(';')) return absl::OkStatus();
    if (tokens_.token().kind != TokenKind::kDotted) return tokens_.Expected("a directive");
    const Token word = tokens_.token();
    if (word.text == "loc") {
      tokens_.SkipLine();
      return absl::OkStatus();
    }
    if (word.text == "file") {
      tokens_.TakeFile(module_.source_files);
      return absl::OkStatus();
    }
    tokens_.Take();
    if (word.text == "version") return ParseVersion();
    if (word.text == "target") return ParseTarget();
    if (word.text == "address_size") return ParseAddressSize();
    if (word.text == "section") {
      tokens_.Take();  // its name
      return tokens_.SkipBraces();
    }
    if (word.text == "pragma") {
      tokens_.SkipStatement();
      return absl::OkStatus();
    }
    bool is_extern = false;
    Token kind = word;
    while (kind.text == "extern" || kind.text == "visible" || kind.text == "weak" ||
           kind.text == "common") {
      is_extern = is_extern || kind.text == "extern";
      if (tokens_.token().kind != TokenKind::kDotted) return tokens_.Expected("a directive");
      kind = tokens_.Take();
    }
    if (kind.text == "entry") return ParseFunction(true);
    if (kind.text == "func") return ParseFunction(false);
    if (kind.text == "global") return ParseVariables(Space::kGlobal, is_extern);
    if (kind.text == "const") return ParseVariables(Space::kConst, is_extern);
    if (kind.text == "shared") return ParseVariables(Space::kShared, is_extern);
    return ErrorAt(absl::StatusCode::kUnimplemented, kind.line,
                   absl::StrCat("directive `.", AbslText(kind.text), "` is not supported"));
  }

  absl::Status ParseVersion() {
    ASSIGN_OR_RETURN(const Number number, tokens_.ParseNumber());
    // Written so that a NaN is none.
    if (!number.is_float || !(number.real >= 1 && number.real <= 99)) {
      return SyntaxError(tokens_.token().line, "no version");
    }
    module_.version = static_cast<uint32_t>(number.real * 10 + 0.5);
    return absl::OkStatus();
  }

  // `.target sm_90a, texmode_independent, debug`.
  absl::Status ParseTarget() {
    do {
      ASSIGN_OR_RETURN(const std::string_view name, tokens_.ExpectName());
      const size_t underscore = name.find('_');
      if (name.substr(0, underscore) != "sm" && name.substr(0, underscore) != "compute") continue;
      uint32_t value = 0;
      for (size_t i = underscore + 1; i < name.size() && i < underscore + 5; ++i) {
        if (name[i] < '0' || name[i] > '9') break;
        value = value * 10 + static_cast<uint32_t>(name[i] - '0');
      }
      module_.target = value;
    } while (tokens_.TakeIf(','));
    return absl::OkStatus();
  }

  absl::Status ParseAddressSize() {
    const int line = tokens_.token().line;
    ASSIGN_OR_RETURN(const int64_t bits, tokens_.ParseInteger());
    if (bits != 64) {
      return ErrorAt(absl::StatusCode::kUnimplemented, line, "only 64-bit addresses are supported");
    }
    return absl::OkStatus();
  }

  absl::Status ParseVariables(Space space, bool is_extern) {
    ASSIGN_OR_RETURN(Declaration declaration, tokens_.ParseDeclaration());
    while (true) {
      if (declaration.family > 0) return SyntaxError(declaration.line, "only registers take <N>");
      Variable variable;
      variable.name = declaration.name;
      variable.space = space;
      variable.type = declaration.type;
      variable.align = declaration.AlignBytes();
      variable.line = declaration.line;
      variable.is_extern = is_extern || declaration.is_unsized;
      variable.is_managed = declaration.is_managed && space == Space::kGlobal;
      ASSIGN_OR_RETURN(variable.bytes, tokens_.BytesOf(declaration, kVariableBytesMax));
      if (tokens_.TakeIf('=')) {
        variable.is_extern = false;
        RETURN_IF_ERROR(ParseInitialiser(tokens_, declaration, variable));
      }
      RETURN_IF_ERROR(AddVariable(std::move(variable)));
      if (!tokens_.TakeIf(',')) break;
      RETURN_IF_ERROR(tokens_.ParseDeclarator(declaration));
    }
    return tokens_.Expect(';');
  }

  absl::Status AddVariable(Variable variable) {
    const uint32_t index = static_cast<uint32_t>(module_.variables.size());
    const auto [found, is_new] = module_.variable_by_name.emplace(variable.name, index);
    if (is_new) {
      module_.variables.push_back(std::move(variable));
      return absl::OkStatus();
    }
    Variable& old = module_.variables[found->second];
    if (!old.is_extern && !variable.is_extern) {
      return SyntaxError(variable.line,
                         absl::StrCat("`", AbslText(variable.name), "` is defined twice"));
    }
    if (!variable.is_extern) old = std::move(variable);
    return absl::OkStatus();
  }

  // One parenthesised list of parameters into `function`.
  absl::Status ParseParams(Function& function, SymbolKind kind, std::vector<uint32_t>& out) {
    RETURN_IF_ERROR(tokens_.Expect('('));
    if (tokens_.TakeIf(')')) return absl::OkStatus();
    uint64_t total = 0;
    do {
      const Token space = tokens_.Take();
      if (!space.IsDotted("param") && !space.IsDotted("reg")) {
        return SyntaxError(space.line, "expected `.param` or `.reg`");
      }
      ASSIGN_OR_RETURN(const Declaration declaration, tokens_.ParseDeclaration());
      if (declaration.family > 0 || declaration.vector_width > 1) {
        return SyntaxError(declaration.line, "a parameter is a scalar or an array");
      }
      Symbol symbol;
      symbol.kind = kind;
      symbol.space = space.text == "reg" ? Space::kRegister : Space::kParam;
      symbol.type = declaration.type;
      symbol.align = declaration.AlignBytes();
      symbol.name = declaration.name;
      symbol.line = declaration.line;
      symbol.index = static_cast<uint32_t>(out.size());
      ASSIGN_OR_RETURN(symbol.bytes, tokens_.BytesOf(declaration, kParamBytesMax));
      // The arguments of a variadic function. Source: PTX ISA 9.0, 7.2 "Variadic Functions".
      if (declaration.is_unsized &&
          (function.is_entry || kind != SymbolKind::kInput || !tokens_.token().Is(')'))) {
        return SyntaxError(declaration.line, "only a function's last parameter may have no size");
      }
      total += symbol.bytes;
      if (total > kParamBytesMax) {
        return ErrorAt(absl::StatusCode::kResourceExhausted, symbol.line,
                       absl::StrCat("parameters of more than ", kParamBytesMax, " bytes"));
      }
      out.push_back(static_cast<uint32_t>(function.symbols.size()));
      function.symbols.push_back(symbol);
    } while (tokens_.TakeIf(','));
    return tokens_.Expect(')');
  }

  // Performance directives between the parameters and the body.
  // Source: PTX ISA, 11.4 "Performance-Tuning Directives".
  absl::Status ParseTuning(Function& function) {
    while (tokens_.token().kind == TokenKind::kDotted) {
      const Token word = tokens_.Take();
      if (word.text == "maxntid" || word.text == "reqntid") {
        uint64_t product = 1;
        do {
          ASSIGN_OR_RETURN(const int64_t extent, tokens_.ParseInteger());
          if (extent < 1 || extent > kThreadsPerBlockMax) {
            return SyntaxError(word.line, "a block has 1 to 1024 threads");
          }
          product =
              std::min<uint64_t>(product * static_cast<uint64_t>(extent), kThreadsPerBlockMax);
        } while (tokens_.TakeIf(','));
        function.threads_max = static_cast<uint32_t>(product);
      } else if (word.text == "minnctapersm" || word.text == "maxnctapersm" ||
                 word.text == "maxnreg" || word.text == "maxclusterrank") {
        RETURN_IF_ERROR(tokens_.ParseInteger().status());
      } else if (word.text == "noreturn") {
        // Says nothing that this device needs.
      } else if (word.text == "pragma") {
        tokens_.SkipStatement();
      } else {
        return ErrorAt(absl::StatusCode::kUnimplemented, word.line,
                       absl::StrCat("directive `.", AbslText(word.text), "` is not supported"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ParseFunction(bool is_entry) {
    Function function;
    function.is_entry = is_entry;
    if (tokens_.TakeIfDotted("attribute")) {
      RETURN_IF_ERROR(tokens_.Expect('('));
      while (tokens_.token().kind != TokenKind::kEnd && !tokens_.TakeIf(')')) tokens_.Take();
    }
    if (!is_entry && tokens_.token().Is('(')) {
      RETURN_IF_ERROR(ParseParams(function, SymbolKind::kReturn, function.returns));
    }
    function.line = tokens_.token().line;
    ASSIGN_OR_RETURN(function.name, tokens_.ExpectName());
    if (tokens_.token().Is('(')) {
      RETURN_IF_ERROR(ParseParams(function, SymbolKind::kInput, function.inputs));
    }
    RETURN_IF_ERROR(ParseTuning(function));
    if (!tokens_.TakeIf(';')) {
      if (!tokens_.token().Is('{')) return tokens_.Expected("`{` or `;`");
      function.has_body = true;
      BodyParser body(tokens_, module_, function);
      RETURN_IF_ERROR(body.Parse());
    }
    return AddFunction(std::move(function));
  }

  absl::Status AddFunction(Function function) {
    const uint32_t index = static_cast<uint32_t>(module_.functions.size());
    const auto [found, is_new] = module_.function_by_name.emplace(function.name, index);
    if (is_new) {
      module_.functions.push_back(std::move(function));
      return absl::OkStatus();
    }
    Function& old = module_.functions[found->second];
    if (old.has_body && function.has_body) {
      return SyntaxError(function.line,
                         absl::StrCat("`", AbslText(function.name), "` is defined twice"));
    }
    if (function.has_body) old = std::move(function);
    return absl::OkStatus();
  }

  // Source: CUDA C++ Programming Guide, compute capabilities.
  static constexpr int64_t kThreadsPerBlockMax = 1024;

  Module& module_;
  TokenStream tokens_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Module>> ParsePtx(std::string text) {
  if (text.size() > kPtxBytesMax) {
    return ErrorAt(absl::StatusCode::kResourceExhausted, 1,
                   absl::StrCat("PTX of more than ", kPtxBytesMax, " bytes"));
  }
  auto module = std::make_unique<Module>();
  module->text = std::move(text);
  RETURN_IF_ERROR(ModuleParser(*module).Parse());
  return module;
}

}  // namespace consort::cpu::ptx
