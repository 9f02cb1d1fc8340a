// SPDX-License-Identifier: Apache-2.0
#include "device/image/managed.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace consort::image {
namespace {

// The largest alignment that PTX has a use for, and less than a page.
constexpr Bytes kAlignMax = 1024;

bool IsWordCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%' ||
         c == '.';
}

struct Type {
  char kind = 0;  // of b, u, s, f
  Bytes bytes = 0;
};

std::optional<Type> TypeOf(std::string_view word) {
  if (word.size() < 3 || word[0] != '.') return std::nullopt;
  const std::string_view bits = word.substr(2);
  const Bytes bytes = bits == "8" ? 1 : bits == "16" ? 2 : bits == "32" ? 4 : bits == "64" ? 8 : 0;
  if (bytes == 0 || std::string_view("busf").find(word[1]) == std::string_view::npos) {
    return std::nullopt;
  }
  return Type{word[1], bytes};
}

// An integer as PTX writes it, without a sign.
std::optional<uint64_t> Integer(std::string_view word) {
  std::string digits(word);
  if (!digits.empty() && (digits.back() == 'U' || digits.back() == 'u')) digits.pop_back();
  if (digits.empty() || std::isdigit(static_cast<unsigned char>(digits[0])) == 0) {
    return std::nullopt;
  }
  int base = 0;
  if (digits.starts_with("0b") || digits.starts_with("0B")) {
    digits.erase(0, 2);
    base = 2;
  }
  char* end = nullptr;
  errno = 0;
  const uint64_t value = std::strtoull(digits.c_str(), &end, base);
  if (errno != 0 || digits.empty() || *end != '\0') return std::nullopt;
  return value;
}

// "0f3F800000" and "0d3FF0000000000000": the bits.
std::optional<uint64_t> FloatBits(std::string_view word, Bytes bytes) {
  const char letter = bytes == 4 ? 'f' : 'd';
  if (word.size() != 2 + 2 * bytes || word[0] != '0' || (word[1] | 0x20) != letter) {
    return std::nullopt;
  }
  const std::string digits(word.substr(2));
  char* end = nullptr;
  const uint64_t bits = std::strtoull(digits.c_str(), &end, 16);
  if (*end != '\0') return std::nullopt;
  return bits;
}

}  // namespace

class ManagedPtxParser {
 public:
  explicit ManagedPtxParser(ManagedPtx* ptx)
      : ptx_(*ptx), text_(ptx->text_), tokens_(Tokens(ptx->text_)) {}

  absl::Status Run() {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (Word(i) != ".attribute" || !MentionsManaged(i)) continue;
      RETURN_IF_ERROR(Declare(i));
    }
    RETURN_IF_ERROR(FindUses());
    // Of two at one place the first was made first.
    std::stable_sort(ptx_.edits_.begin(), ptx_.edits_.end(),
                     [](const Edit& a, const Edit& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < ptx_.edits_.size(); ++i) {
      if (ptx_.edits_[i].begin < ptx_.edits_[i - 1].end) {
        return absl::InvalidArgumentError("a statement with a managed variable in two ways");
      }
    }
    return absl::OkStatus();
  }

 private:
  struct Token {
    size_t begin = 0;
    size_t end = 0;
  };

  // Words with their dots, and single other characters. Comments, strings and space are left out.
  static std::vector<Token> Tokens(std::string_view text) {
    std::vector<Token> tokens;
    size_t i = 0;
    while (i < text.size()) {
      const char c = text[i];
      if (c == '/' && i + 1 < text.size() && (text[i + 1] == '/' || text[i + 1] == '*')) {
        const bool line = text[i + 1] == '/';
        const size_t end = text.find(line ? "\n" : "*/", i + 2);
        i = end == std::string_view::npos ? text.size() : end + (line ? 1 : 2);
      } else if (c == '"') {
        const size_t end = text.find('"', i + 1);
        i = end == std::string_view::npos ? text.size() : end + 1;
      } else if (IsWordCharacter(c)) {
        const size_t begin = i;
        while (i < text.size() && IsWordCharacter(text[i])) ++i;
        tokens.push_back({begin, i});
      } else {
        if (std::isspace(static_cast<unsigned char>(c)) == 0) tokens.push_back({i, i + 1});
        ++i;
      }
    }
    return tokens;
  }

  using Edit = ManagedPtx::Edit;

  // Empty past the end.
  std::string_view Word(size_t token) const {
    if (token >= tokens_.size()) return {};
    return text_.substr(tokens_[token].begin, tokens_[token].end - tokens_[token].begin);
  }
  bool Is(size_t token, char c) const {
    return token < tokens_.size() && Word(token) == std::string_view(&c, 1);
  }
  absl::Status Refused(size_t token, const std::string& why) const {
    const size_t at = token < tokens_.size() ? tokens_[token].begin : text_.size();
    const auto line = std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(at), '\n');
    return absl::InvalidArgumentError(absl::StrCat("line ", line + 1, ": ", why));
  }

  bool MentionsManaged(size_t attribute) const {
    for (size_t i = attribute + 1; i < tokens_.size() && !Is(i, ')') && !Is(i, ';'); ++i) {
      if (Word(i) == ".managed") return true;
    }
    return false;
  }

  // The declaration around the attribute.
  absl::Status Declare(size_t attribute) {
    size_t first = attribute;
    while (first > 0 && (Word(first - 1) == ".global" || Word(first - 1) == ".visible" ||
                         Word(first - 1) == ".weak" || Word(first - 1) == ".common")) {
      --first;
    }
    if (first == attribute || (first > 0 && Word(first - 1) == ".extern")) {
      return Refused(first, "a managed variable of another unit");
    }
    if (!Is(attribute + 1, '(') || Word(attribute + 2) != ".managed" || !Is(attribute + 3, ')')) {
      return Refused(attribute, "another attribute beside .managed");
    }
    size_t i = attribute + 4;
    Bytes align = 0;
    if (Word(i) == ".align") {
      align = Integer(Word(i + 1)).value_or(0);
      if (align == 0 || align > kAlignMax || (align & (align - 1)) != 0) {
        return Refused(i, "an alignment that is none");
      }
      i += 2;
    }
    const std::optional<Type> type = TypeOf(Word(i));
    const std::string name(Word(i + 1));
    if (!type.has_value() || name.empty() || !IsWordCharacter(name[0])) {
      return Refused(i, "a managed variable of an unknown type");
    }
    i += 2;
    Bytes bytes = type->bytes;
    for (; Is(i, '['); i += 3) {
      const std::optional<uint64_t> count = Integer(Word(i + 1));
      if (!count.has_value() || *count == 0 || !Is(i + 2, ']')) {
        return Refused(i, absl::StrCat(name, " has no length"));
      }
      if (*count > kManagedBytesMax / bytes) {
        return absl::ResourceExhaustedError(absl::StrCat(name, " is too large"));
      }
      bytes *= *count;
    }
    align = std::max(align, type->bytes);
    const Bytes offset = (ptx_.bytes_ + align - 1) / align * align;
    if (offset > kManagedBytesMax || bytes > kManagedBytesMax - offset) {
      return absl::ResourceExhaustedError("too many managed variables");
    }
    if (Is(i, '=')) {
      ++i;
      RETURN_IF_ERROR(ReadContents(&i, *type, offset, bytes, name));
    }
    if (!Is(i, ';')) return Refused(i, absl::StrCat("the declaration of ", name, " goes on"));
    if (!ptx_.variables_.emplace(name, ManagedPtx::Variable{offset, bytes}).second) {
      return Refused(first, absl::StrCat(name, " is declared twice"));
    }
    ptx_.bytes_ = offset + bytes;
    declarations_.push_back({first, i});
    ptx_.edits_.push_back({tokens_[first].begin, tokens_[i].end, " ", false, 0, ""});
    return absl::OkStatus();
  }

  // A number, or several in braces; *token is behind them then.
  absl::Status ReadContents(size_t* token, const Type& type, Bytes offset, Bytes bytes,
                            const std::string& name) {
    ManagedPtx::Contents contents;
    contents.offset = offset;
    const bool several = Is(*token, '{');
    if (several) ++*token;
    while (!(several && Is(*token, '}'))) {
      const bool negative = Is(*token, '-');
      if (negative) ++*token;
      std::optional<uint64_t> value;
      if (type.kind != 'f') value = Integer(Word(*token));
      if (!value.has_value() && type.bytes >= 4 && !negative) {
        value = FloatBits(Word(*token), type.bytes);
      }
      if (!value.has_value() || contents.bytes.size() + type.bytes > bytes) {
        return Refused(*token, absl::StrCat(name, " begins with something that is no number"));
      }
      if (negative) value = 0 - *value;
      const auto* first = reinterpret_cast<const std::byte*>(&*value);
      contents.bytes.insert(contents.bytes.end(), first, first + type.bytes);
      ++*token;
      if (!several) break;
      if (Is(*token, ',')) ++*token;
    }
    if (several) ++*token;
    ptx_.contents_.push_back(std::move(contents));
    return absl::OkStatus();
  }

  // Walks through the text, so that it is known in which statement a name stands.
  absl::Status FindUses() {
    size_t declaration = 0;
    int depth = 0;
    bool in_initialiser = false;
    bool in_section = false;
    size_t statement = 0;  // its first token
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (declaration < declarations_.size() && i == declarations_[declaration].first) {
        i = declarations_[declaration++].last;
        statement = i + 1;
      } else if (Is(i, ';')) {
        statement = i + 1;
        in_initialiser = false;
      } else if (Is(i, '=')) {
        in_initialiser = true;
      } else if (Is(i, ':') && depth > 0 && i == statement + 1) {
        statement = i + 1;  // behind a label
      } else if (Word(i) == ".loc" && i == statement) {
        // It ends with its line.
        const size_t line = text_.find('\n', tokens_[i].begin);
        while (i + 1 < tokens_.size() && tokens_[i + 1].begin < line) ++i;
        statement = i + 1;
      } else if (Is(i, '{') && depth == 0 && i >= 2 && Word(i - 2) == ".section") {
        in_section = true;  // of debug information, whose lines end without ';'
      } else if (Is(i, '{')) {
        // A block, a function's first, or a vector or an initialiser within a statement.
        if (depth > 0 ? i == statement : !in_initialiser) {
          ++depth;
          statement = i + 1;
        }
      } else if (Is(i, '}')) {
        if (in_section || (depth > 0 && i == statement)) {
          if (!in_section) --depth;
          in_section = false;
          statement = i + 1;
        }
      } else if (const auto found = ptx_.variables_.find(Word(i)); found != ptx_.variables_.end()) {
        if (in_section) {
          Replace(i, i, found->second.offset);
        } else if (depth > 0) {
          RETURN_IF_ERROR(UseInCode(&i, statement, found->second));
        } else {
          RETURN_IF_ERROR(UseInInitialiser(&i, found->second));
        }
      }
    }
    return absl::OkStatus();
  }

  // Tokens from `first` to `last` become an address.
  void Replace(size_t first, size_t last, Bytes offset) {
    ptx_.edits_.push_back({tokens_[first].begin, tokens_[last].end, "", true, offset, ""});
  }

  // "name", "name+4", "name-4", "name+-4": *token is at its last token then.
  absl::Status ReadOffset(size_t* token, Bytes* offset) const {
    size_t i = *token;
    bool negative = false;
    if (Is(i + 1, '+')) {
      negative = Is(i + 2, '-');
      i += negative ? 2 : 1;
    } else if (Is(i + 1, '-')) {
      negative = true;
      i += 1;
    } else {
      return absl::OkStatus();
    }
    const std::optional<uint64_t> distance = Integer(Word(i + 1));
    if (!distance.has_value()) return Refused(i, "what is added to a managed variable");
    *offset += negative ? 0 - *distance : *distance;
    *token = i + 1;
    return absl::OkStatus();
  }

  absl::Status UseInInitialiser(size_t* token, const ManagedPtx::Variable& variable) {
    if (*token > 0 && TypeOf(Word(*token - 1)).has_value()) {
      return Refused(*token, absl::StrCat(std::string(Word(*token)), " is declared again"));
    }
    size_t begin = *token;
    Bytes offset = variable.offset;
    RETURN_IF_ERROR(ReadOffset(token, &offset));
    if (begin >= 2 && Is(begin - 1, '(') && Word(begin - 2) == "generic" && Is(*token + 1, ')')) {
      begin -= 2;
      ++*token;
      RETURN_IF_ERROR(ReadOffset(token, &offset));
    }
    if (begin > 0 && Is(begin - 1, '(')) return Refused(begin, "a part of a managed address");
    Replace(begin, *token, offset);
    return absl::OkStatus();
  }

  absl::Status UseInCode(size_t* token, size_t statement, const ManagedPtx::Variable& variable) {
    const size_t name = *token;
    if (name > 0 && TypeOf(Word(name - 1)).has_value()) {
      return Refused(name, absl::StrCat(std::string(Word(name)), " is declared again"));
    }
    Bytes offset = variable.offset;
    RETURN_IF_ERROR(ReadOffset(token, &offset));
    const bool addresses = name > 0 && Is(name - 1, '[');
    if (!addresses) {
      const size_t opcode =
          Is(statement, '@') ? statement + (Is(statement + 1, '!') ? 3 : 2) : statement;
      if (Word(opcode).starts_with("cvta.global")) {
        // What a number stands for is a generic address already.
        ptx_.edits_.push_back(
            {tokens_[opcode].begin, tokens_[opcode].end, "mov.u64", false, 0, ""});
      } else if (!Word(opcode).starts_with("mov.")) {
        return Refused(name, absl::StrCat("a managed variable in ", std::string(Word(opcode))));
      }
      Replace(name, *token, offset);
      return absl::OkStatus();
    }
    if (!Is(*token + 1, ']')) return Refused(name, "an address that is not understood");
    size_t last = *token + 1;
    while (last < tokens_.size() && !Is(last, ';')) ++last;
    if (last == tokens_.size()) return Refused(name, "a statement without an end");
    for (size_t i = *token + 1; i < last; ++i) {
      if (ptx_.variables_.contains(Word(i))) return Refused(i, "two managed variables at once");
    }
    ptx_.edits_.push_back({tokens_[statement].begin, tokens_[statement].begin,
                           "{ .reg .b64 %consort_managed; mov.u64 %consort_managed, ", true, offset,
                           "; "});
    ptx_.edits_.push_back(
        {tokens_[name].begin, tokens_[*token].end, "%consort_managed", false, 0, ""});
    ptx_.edits_.push_back({tokens_[last].end, tokens_[last].end, " }", false, 0, ""});
    return absl::OkStatus();
  }

  struct Declaration {
    size_t first = 0;  // token
    size_t last = 0;   // token, the ';'
  };

  ManagedPtx& ptx_;
  const std::string_view text_;
  const std::vector<Token> tokens_;
  std::vector<Declaration> declarations_;
};

absl::StatusOr<ManagedPtx> ManagedPtx::Parse(std::string text) {
  ManagedPtx ptx;
  ptx.text_ = std::move(text);
  RETURN_IF_ERROR(ManagedPtxParser(&ptx).Run());
  return ptx;
}

std::string ManagedPtx::At(uint64_t address) const {
  std::string placed;
  placed.reserve(text_.size() + edits_.size() * 64);
  size_t at = 0;
  for (const Edit& edit : edits_) {
    placed.append(text_, at, edit.begin - at);
    placed += edit.text;
    if (edit.has_address) absl::StrAppend(&placed, "0x", absl::Hex(address + edit.offset), "U");
    placed += edit.after;
    at = edit.end;
  }
  placed.append(text_, at);
  return placed;
}

}  // namespace consort::image
