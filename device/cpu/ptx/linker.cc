// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/ptx/linker.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/absl_text.h"
#include "base/status_macros.h"
#include "device/cpu/ptx/lexer.h"
#include "device/cpu/ptx/parser.h"

namespace consort::cpu::ptx {
namespace {

// One name at module level, where it is declared or defined.
struct Mention {
  std::string_view name;
  size_t statement = 0;
  bool is_extern = false;
  bool is_weak = false;     // .common too
  bool is_visible = false;  // or an entry
  bool defines = false;
};

// Tokens [first, end) of a unit.
struct Statement {
  size_t first = 0;
  size_t end = 0;
  bool is_header = false;  // .version, .target, .address_size
};

// What all mentions of a name in one unit come to.
struct SymbolUse {
  bool is_own = true;
  bool is_weak = false;
  bool defines = false;
};

// One input, parsed, and taken apart into statements.
class Unit {
 public:
  // Borrows `input`.
  static absl::StatusOr<std::unique_ptr<Unit>> Make(const LinkInput& input) {
    auto unit = std::unique_ptr<Unit>(new Unit(input));
    absl::StatusOr<std::unique_ptr<Module>> module = ParsePtx(input.text);
    if (!module.ok()) {
      return absl::Status(module.status().code(),
                          absl::StrCat(input.name, ", ", module.status().message()));
    }
    unit->module_ = *std::move(module);
    Lexer lexer(input.text);
    for (Token token = lexer.Next(); token.kind != TokenKind::kEnd; token = lexer.Next()) {
      unit->tokens_.push_back(token);
    }
    unit->Split();
    return unit;
  }

  const std::string& name() const { return input_.name; }
  const Module& module() const { return *module_; }
  const std::vector<Token>& tokens() const { return tokens_; }
  const std::vector<Statement>& statements() const { return statements_; }
  const std::vector<Mention>& mentions() const { return mentions_; }
  const absl::flat_hash_map<std::string_view, SymbolUse>& symbols() const { return symbols_; }

  // Writes the statement, names and numbers of source files changed as asked.
  void Write(const Statement& statement,
             const absl::flat_hash_map<std::string_view, std::string>& renamed, uint64_t first_file,
             std::string& out) const {
    const char* at = tokens_[statement.first].text.data();
    if (tokens_[statement.first].kind == TokenKind::kDotted) --at;
    int location_line = 0;  // of a .file or .loc; its next number is a file's
    for (size_t i = statement.first; i < statement.end; ++i) {
      const Token& token = tokens_[i];
      const char* begin = token.text.data();
      std::string changed;
      if (token.kind == TokenKind::kDotted && (token.text == "file" || token.text == "loc")) {
        location_line = token.line;
      } else if (token.kind == TokenKind::kIdentifier && token.text == "inlined_at") {
        location_line = token.line;
      } else if (token.kind == TokenKind::kNumber && token.line == location_line) {
        location_line = 0;
        changed = std::to_string(first_file + FileNumber(token.text));
      } else if (token.kind == TokenKind::kIdentifier) {
        const auto found = renamed.find(token.text);
        if (found != renamed.end()) changed = found->second;
      }
      if (changed.empty()) continue;
      out.append(at, begin);
      out.append(changed);
      at = begin + token.text.size();
    }
    const Token& last = tokens_[statement.end - 1];
    out.append(at, last.text.data() + last.text.size() + (last.kind == TokenKind::kString ? 1 : 0));
    out.push_back('\n');
  }

  // One more than the largest number of a source file.
  uint64_t file_count() const {
    uint64_t count = 0;
    for (const auto& [number, name] : module_->source_files) {
      count = std::max<uint64_t>(count, uint64_t{number} + 1);
    }
    return count;
  }

 private:
  explicit Unit(const LinkInput& input) : input_(input) {}

  static uint64_t FileNumber(std::string_view digits) {
    return std::strtoull(std::string(digits).c_str(), nullptr, 10);
  }

  bool Done(size_t at) const { return at >= tokens_.size(); }
  bool IsDotted(size_t at, std::string_view name) const {
    return !Done(at) && tokens_[at].IsDotted(name);
  }
  bool Is(size_t at, char c) const { return !Done(at) && tokens_[at].Is(c); }

  // Past the bracket that closes the one at `at`.
  size_t PastGroup(size_t at, char open, char close) const {
    int depth = 0;
    do {
      if (Is(at, open)) ++depth;
      if (Is(at, close)) --depth;
      ++at;
    } while (depth > 0 && !Done(at));
    return at;
  }
  size_t PastSemicolon(size_t at) const {
    while (!Done(at) && !Is(at, ';')) at = Is(at, '{') ? PastGroup(at, '{', '}') : at + 1;
    return std::min(at + 1, tokens_.size());
  }
  size_t PastLine(size_t at) const {
    const int line = tokens_[at].line;
    while (!Done(at) && tokens_[at].line == line) ++at;
    return at;
  }

  // The parser has taken the text, so every statement is one that it knows.
  void Split() {
    for (size_t at = 0; !Done(at);) {
      Statement statement;
      statement.first = at;
      statement.end = std::min(End(at, statement.is_header), tokens_.size());
      statements_.push_back(statement);
      at = statement.end;
    }
    for (const Mention& mention : mentions_) {
      SymbolUse& symbol = symbols_[mention.name];
      symbol.is_own &= !mention.is_extern && !mention.is_weak && !mention.is_visible;
      symbol.is_weak |= mention.is_weak;
      symbol.defines |= mention.defines;
    }
  }

  size_t End(size_t at, bool& is_header) {
    const Token& word = tokens_[at];
    if (word.text == "@@" || word.IsDotted("loc") || word.IsDotted("file")) return PastLine(at);
    if (word.IsDotted("version") || word.IsDotted("address_size")) {
      is_header = true;
      return at + 2;
    }
    if (word.IsDotted("target")) {
      is_header = true;
      at += 2;
      while (Is(at, ',')) at += 2;
      return at;
    }
    if (word.IsDotted("section")) return PastGroup(at + 2, '{', '}');
    if (word.kind != TokenKind::kDotted || word.IsDotted("pragma")) return PastSemicolon(at);
    Mention mention;
    mention.statement = statements_.size();
    for (;; ++at) {
      if (IsDotted(at, "extern")) {
        mention.is_extern = true;
      } else if (IsDotted(at, "weak") || IsDotted(at, "common")) {
        mention.is_weak = true;
      } else if (IsDotted(at, "visible")) {
        mention.is_visible = true;
      } else {
        break;
      }
    }
    if (IsDotted(at, "entry") || IsDotted(at, "func")) {
      mention.is_visible |= tokens_[at].text == "entry";
      return EndOfFunction(at + 1, mention);
    }
    return EndOfVariables(at, mention);
  }

  size_t EndOfFunction(size_t at, Mention& mention) {
    while (!Done(at) && tokens_[at].kind != TokenKind::kIdentifier) {
      at = Is(at, '(') ? PastGroup(at, '(', ')') : at + 1;
    }
    if (Done(at)) return at;
    mention.name = tokens_[at].text;
    while (!Done(at) && !Is(at, '{') && !Is(at, ';')) {
      at = IsDotted(at, "pragma") ? PastSemicolon(at) : at + 1;
    }
    mention.defines = Is(at, '{');
    mentions_.push_back(mention);
    return mention.defines ? PastGroup(at, '{', '}') : std::min(at + 1, tokens_.size());
  }

  size_t EndOfVariables(size_t at, Mention& mention) {
    const size_t end = PastSemicolon(at);
    bool expects_name = true;
    while (at < end) {
      if (Is(at, '(')) {
        at = PastGroup(at, '(', ')');
      } else if (Is(at, '{')) {
        at = PastGroup(at, '{', '}');
      } else {
        if (expects_name && tokens_[at].kind == TokenKind::kIdentifier) {
          mention.name = tokens_[at].text;
          const auto found = module_->variable_by_name.find(mention.name);
          mention.defines = !mention.is_extern && found != module_->variable_by_name.end() &&
                            !module_->variables[found->second].is_extern;
          mentions_.push_back(mention);
          expects_name = false;
        }
        if (Is(at, ',')) expects_name = true;
        ++at;
      }
    }
    return end;
  }

  const LinkInput& input_;
  std::unique_ptr<Module> module_;
  std::vector<Token> tokens_;
  std::vector<Statement> statements_;
  std::vector<Mention> mentions_;
  absl::flat_hash_map<std::string_view, SymbolUse> symbols_;
};

class Linker {
 public:
  explicit Linker(std::vector<std::unique_ptr<Unit>> units) : units_(std::move(units)) {}

  absl::StatusOr<std::string> Link() {
    RETURN_IF_ERROR(Resolve());
    RETURN_IF_ERROR(CheckMeanings());
    std::string out = Header();
    uint64_t first_file = 0;
    for (size_t u = 0; u < units_.size(); ++u) {
      const Unit& unit = *units_[u];
      const auto renamed = OwnNames(u);
      ASSIGN_OR_RETURN(const auto dropped, Dropped(u));
      for (size_t s = 0; s < unit.statements().size(); ++s) {
        const Statement& statement = unit.statements()[s];
        if (statement.is_header || dropped.contains(s)) continue;
        unit.Write(statement, renamed, first_file, out);
      }
      first_file += unit.file_count();
    }
    return out;
  }

 private:
  // Which unit's definition counts, of each name that is no unit's own.
  absl::Status Resolve() {
    for (size_t u = 0; u < units_.size(); ++u) {
      for (const auto& [name, symbol] : units_[u]->symbols()) ++units_with_[name];
      for (const Mention& mention : units_[u]->mentions()) {
        const std::string_view name = mention.name;
        const SymbolUse& symbol = units_[u]->symbols().at(name);
        if (symbol.is_own || !mention.defines) continue;
        const auto [found, is_new] = definitions_.emplace(name, u);
        if (is_new || symbol.is_weak) continue;
        const Unit& first = *units_[found->second];
        if (!first.symbols().at(name).is_weak) {
          return absl::AlreadyExistsError(absl::StrCat("Multiple definition of '", AbslText(name),
                                                       "' in '", units_[u]->name(),
                                                       "', first defined in '", first.name(), "'"));
        }
        found->second = u;
      }
    }
    return absl::OkStatus();
  }

  // The size of what a name stands for, in the terms of its declaration: to be equal in all units.
  // Empty: this unit does not say.
  static std::vector<uint64_t> MeaningOf(const Module& module, std::string_view name) {
    std::vector<uint64_t> meaning;
    if (const auto found = module.variable_by_name.find(name);
        found != module.variable_by_name.end()) {
      const Variable& variable = module.variables[found->second];
      if (variable.bytes != 0) meaning = {0, static_cast<uint64_t>(variable.space), variable.bytes};
    } else if (const auto function = module.function_by_name.find(name);
               function != module.function_by_name.end()) {
      const Function& declared = module.functions[function->second];
      meaning = {1, declared.returns.size()};
      for (const uint32_t symbol : declared.returns) {
        meaning.push_back(declared.symbols[symbol].bytes);
      }
      for (const uint32_t symbol : declared.inputs) {
        meaning.push_back(declared.symbols[symbol].bytes);
      }
    }
    return meaning;
  }

  absl::Status CheckMeanings() const {
    for (const auto& unit : units_) {
      for (const Mention& mention : unit->mentions()) {
        const auto definition = definitions_.find(mention.name);
        if (definition == definitions_.end() || unit->symbols().at(mention.name).is_own) continue;
        const Unit& where = *units_[definition->second];
        const std::vector<uint64_t> defined = MeaningOf(where.module(), mention.name);
        const std::vector<uint64_t> meant = MeaningOf(unit->module(), mention.name);
        if (defined.empty() || meant.empty() || meant == defined) continue;
        return absl::FailedPreconditionError(
            absl::StrCat("Declaration of '", AbslText(mention.name), "' in '", unit->name(),
                         "' does not match its definition in '", where.name(), "'"));
      }
    }
    return absl::OkStatus();
  }

  // New names for what is the unit's own and has another unit's name.
  absl::flat_hash_map<std::string_view, std::string> OwnNames(size_t u) {
    if (taken_.empty()) {
      for (const auto& unit : units_) {
        for (const Token& token : unit->tokens()) {
          if (token.kind == TokenKind::kIdentifier) taken_.insert(std::string(token.text));
        }
      }
    }
    absl::flat_hash_map<std::string_view, std::string> renamed;
    for (const auto& [name, symbol] : units_[u]->symbols()) {
      if (!symbol.is_own || units_with_.at(name) == 1) continue;
      std::string fresh = absl::StrCat(AbslText(name), "$", u);
      while (!taken_.insert(fresh).second) fresh.push_back('$');
      renamed.emplace(name, std::move(fresh));
    }
    return renamed;
  }

  // Statements of the unit whose definitions do not count, as another unit's does.
  absl::StatusOr<absl::flat_hash_set<size_t>> Dropped(size_t u) const {
    absl::flat_hash_set<size_t> dropped;
    absl::flat_hash_set<size_t> kept;
    for (const Mention& mention : units_[u]->mentions()) {
      const auto definition = definitions_.find(mention.name);
      const bool loses = mention.defines && definition != definitions_.end() &&
                         definition->second != u && !units_[u]->symbols().at(mention.name).is_own;
      (loses ? dropped : kept).insert(mention.statement);
      if (dropped.contains(mention.statement) && kept.contains(mention.statement)) {
        return absl::UnimplementedError(absl::StrCat("weak '", AbslText(mention.name), "' in '",
                                                     units_[u]->name(),
                                                     "' is defined in one statement with others"));
      }
    }
    return dropped;
  }

  std::string Header() const {
    uint32_t version = 0;
    uint32_t target = 0;
    for (const auto& unit : units_) {
      version = std::max(version, unit->module().version);
      target = std::max(target, unit->module().target);
    }
    std::string header;
    if (version != 0) absl::StrAppend(&header, ".version ", version / 10, ".", version % 10, "\n");
    if (target != 0) absl::StrAppend(&header, ".target sm_", target, "\n");
    return header + ".address_size 64\n";
  }

  const std::vector<std::unique_ptr<Unit>> units_;
  absl::flat_hash_map<std::string_view, size_t> units_with_;   // how many mention the name
  absl::flat_hash_map<std::string_view, size_t> definitions_;  // name to unit
  absl::flat_hash_set<std::string> taken_;                     // names that are in use
};

}  // namespace

absl::StatusOr<std::string> LinkPtx(std::span<const LinkInput> inputs) {
  std::vector<std::unique_ptr<Unit>> units;
  for (const LinkInput& input : inputs) {
    ASSIGN_OR_RETURN(auto unit, Unit::Make(input));
    units.push_back(std::move(unit));
  }
  return Linker(std::move(units)).Link();
}

}  // namespace consort::cpu::ptx
