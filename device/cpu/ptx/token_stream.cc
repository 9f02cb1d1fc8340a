// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/ptx/token_stream.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/absl_text.h"
#include "base/status_macros.h"
#include "device/cpu/ptx/parser.h"

namespace consort::cpu::ptx {
namespace {

// Longest piece of foreign text that an error message repeats.
constexpr size_t kQuotedBytesMax = 64;

// Digits of `base` to a value; false when a byte is no digit, there is none, or it exceeds 64 bits.
bool DigitsToValue(std::string_view digits, uint64_t base, uint64_t& value) {
  if (digits.empty()) return false;
  value = 0;
  for (const char c : digits) {
    uint64_t digit = 99;
    if (c >= '0' && c <= '9') digit = static_cast<uint64_t>(c - '0');
    if (c >= 'a' && c <= 'f') digit = static_cast<uint64_t>(c - 'a' + 10);
    if (c >= 'A' && c <= 'F') digit = static_cast<uint64_t>(c - 'A' + 10);
    if (digit >= base) return false;
    if (value > (UINT64_MAX - digit) / base) return false;
    value = value * base + digit;
  }
  return true;
}

// Source: PTX ISA, 4.5.1 "Integer Constants" and 4.5.2 "Floating-Point Constants".
bool ParseNumberText(std::string_view text, Number& number) {
  uint64_t bits = 0;
  const char kind = text.size() > 2 && text[0] == '0' ? text[1] : '\0';
  if (kind == 'f' || kind == 'F') {
    if (text.size() != 10 || !DigitsToValue(text.substr(2), 16, bits)) return false;
    const uint32_t bits32 = static_cast<uint32_t>(bits);
    float value;
    std::memcpy(&value, &bits32, sizeof(value));
    number.is_float = true;
    number.float_bits = 32;
    number.real = value;
    number.integer = bits32;  // the exact bits: a NaN's payload need not survive the double
    return true;
  }
  if (kind == 'd' || kind == 'D') {
    if (text.size() != 18 || !DigitsToValue(text.substr(2), 16, bits)) return false;
    number.is_float = true;
    std::memcpy(&number.real, &bits, sizeof(bits));
    number.integer = static_cast<int64_t>(bits);
    return true;
  }
  const bool is_hex = kind == 'x' || kind == 'X';
  if (!is_hex && text.find_first_of(".eE") != std::string_view::npos) {
    const std::string copy(text);
    char* end = nullptr;
    number.is_float = true;
    number.real = std::strtod(copy.c_str(), &end);
    std::memcpy(&number.integer, &number.real, sizeof(number.real));
    return end == copy.c_str() + copy.size();
  }
  if (text.size() > 1 && text.back() == 'U') text.remove_suffix(1);
  bool good;
  if (is_hex) {
    good = DigitsToValue(text.substr(2), 16, bits);
  } else if (kind == 'b' || kind == 'B') {
    good = DigitsToValue(text.substr(2), 2, bits);
  } else if (text.size() > 1 && text[0] == '0') {
    good = DigitsToValue(text.substr(1), 8, bits);
  } else {
    good = DigitsToValue(text, 10, bits);
  }
  number.integer = static_cast<int64_t>(bits);
  return good;
}

}  // namespace

absl::Status ErrorAt(absl::StatusCode code, int line, std::string_view message) {
  return absl::Status(code, absl::StrCat("line ", line, ": ", AbslText(message)));
}

absl::Status SyntaxError(int line, std::string_view message) {
  return ErrorAt(absl::StatusCode::kInvalidArgument, line, message);
}

Token TokenStream::Take() {
  Token taken = token_;
  token_ = lexer_.Next();
  return taken;
}

bool TokenStream::TakeIf(char punctuation) {
  if (!token_.Is(punctuation)) return false;
  Take();
  return true;
}

bool TokenStream::TakeIfDotted(std::string_view name) {
  if (!token_.IsDotted(name)) return false;
  Take();
  return true;
}

absl::Status TokenStream::Expected(std::string_view what) const {
  const std::string_view found = token_.text.substr(0, kQuotedBytesMax);
  if (token_.kind == TokenKind::kEnd) {
    return SyntaxError(token_.line, absl::StrCat("expected ", AbslText(what), ", found the end"));
  }
  return SyntaxError(token_.line, absl::StrCat("expected ", AbslText(what), ", found `",
                                               token_.kind == TokenKind::kDotted ? "." : "",
                                               AbslText(found), "`"));
}

absl::Status TokenStream::Expect(char punctuation) {
  if (TakeIf(punctuation)) return absl::OkStatus();
  return Expected(std::string("`") + punctuation + "`");
}

absl::StatusOr<std::string_view> TokenStream::ExpectName() {
  if (token_.kind != TokenKind::kIdentifier) return Expected("a name");
  return Take().text;
}

void TokenStream::SkipLine() {
  const int line = token_.line;
  while (token_.kind != TokenKind::kEnd && token_.line == line) Take();
}

void TokenStream::TakeLocation(uint32_t& file, uint32_t& line) {
  const int own_line = token_.line;
  uint64_t numbers[2] = {};
  Take();
  for (uint64_t& number : numbers) {
    if (token_.kind != TokenKind::kNumber || token_.line != own_line) break;
    if (!DigitsToValue(Take().text, 10, number)) break;
  }
  file = static_cast<uint32_t>(numbers[0]);
  line = static_cast<uint32_t>(numbers[1]);
  while (token_.kind != TokenKind::kEnd && token_.line == own_line) Take();
}

void TokenStream::TakeFile(absl::flat_hash_map<uint32_t, std::string_view>& files) {
  const int line = token_.line;
  uint64_t number = 0;
  Take();
  if (token_.kind == TokenKind::kNumber && token_.line == line &&
      DigitsToValue(Take().text, 10, number) && token_.kind == TokenKind::kString &&
      token_.line == line) {
    files[static_cast<uint32_t>(number)] = token_.text;
  }
  while (token_.kind != TokenKind::kEnd && token_.line == line) Take();
}

void TokenStream::SkipStatement() {
  while (token_.kind != TokenKind::kEnd && !TakeIf(';')) Take();
}

absl::Status TokenStream::SkipBraces() {
  RETURN_IF_ERROR(Expect('{'));
  for (int depth = 1; depth > 0;) {
    if (token_.kind == TokenKind::kEnd) return Expected("`}`");
    if (token_.Is('{')) ++depth;
    if (token_.Is('}')) --depth;
    Take();
  }
  return absl::OkStatus();
}

absl::StatusOr<Number> TokenStream::ParseNumber() {
  // nvcc writes [%rd1+-4].
  TakeIf('+');
  const bool negative = TakeIf('-');
  if (token_.kind != TokenKind::kNumber) return Expected("a number");
  Number number;
  if (!ParseNumberText(token_.text, number)) return Expected("a well-formed number");
  Take();
  if (negative) {
    if (number.is_float) {
      number.real = -number.real;
      number.integer = static_cast<int64_t>(static_cast<uint64_t>(number.integer) ^
                                            (uint64_t{1} << (number.float_bits - 1)));
    } else {
      number.integer = static_cast<int64_t>(0 - static_cast<uint64_t>(number.integer));
    }
  }
  return number;
}

absl::StatusOr<int64_t> TokenStream::ParseInteger() {
  uint64_t sum = 0;
  do {
    ASSIGN_OR_RETURN(const Number number, ParseNumber());
    if (number.is_float) return SyntaxError(token_.line, "expected an integer, found a float");
    sum += static_cast<uint64_t>(number.integer);
  } while (token_.Is('+') || token_.Is('-'));
  return static_cast<int64_t>(sum);
}

absl::Status TokenStream::ParseAlign(uint32_t& align) {
  ASSIGN_OR_RETURN(const int64_t value, ParseInteger());
  if (value <= 0 || value > kAlignMax || (value & (value - 1)) != 0) {
    return SyntaxError(token_.line, "alignment is no power of two up to 65536");
  }
  align = static_cast<uint32_t>(value);
  return absl::OkStatus();
}

absl::StatusOr<Declaration> TokenStream::ParseDeclaration() {
  Declaration declaration;
  bool has_type = false;
  while (token_.kind == TokenKind::kDotted) {
    const Token word = Take();
    if (const auto type = TypeFromName(word.text)) {
      declaration.type = *type;
      has_type = true;
    } else if (word.text == "align") {
      RETURN_IF_ERROR(ParseAlign(declaration.align));
    } else if (word.text == "v2") {
      declaration.vector_width = 2;
    } else if (word.text == "v4") {
      declaration.vector_width = 4;
    } else if (word.text == "ptr" || word.text == "global" || word.text == "shared" ||
               word.text == "const" || word.text == "local") {
      // `.param .u64 .ptr .global .align 16 p`: a promise about the pointer's target. The alignment
      // that follows is the target's, not the parameter's.
      if (TakeIfDotted("align")) {
        uint32_t target_align = 0;
        RETURN_IF_ERROR(ParseAlign(target_align));
      }
    } else if (word.text == "attribute") {
      RETURN_IF_ERROR(Expect('('));
      while (token_.kind != TokenKind::kEnd && !TakeIf(')')) {
        declaration.is_managed |= Take().IsDotted("managed");
      }
    } else {
      return ErrorAt(absl::StatusCode::kUnimplemented, word.line,
                     absl::StrCat("directive `.", AbslText(word.text), "` is not supported"));
    }
  }
  if (!has_type) return Expected("a type");
  RETURN_IF_ERROR(ParseDeclarator(declaration));
  return declaration;
}

absl::Status TokenStream::ParseDeclarator(Declaration& declaration) {
  declaration.line = token_.line;
  declaration.family = 0;
  declaration.dimensions.clear();
  declaration.is_array = false;
  declaration.is_unsized = false;
  ASSIGN_OR_RETURN(declaration.name, ExpectName());
  if (TakeIf('<')) {
    ASSIGN_OR_RETURN(const int64_t count, ParseInteger());
    if (count <= 0 || count > kRegistersPerFamilyMax) {
      return SyntaxError(token_.line, "register count is not within 1..16777216");
    }
    declaration.family = static_cast<uint32_t>(count);
    return Expect('>');
  }
  while (TakeIf('[')) {
    if (TakeIf(']')) {
      if (declaration.is_array) return SyntaxError(token_.line, "only the first dimension is open");
      declaration.is_unsized = true;
      declaration.dimensions.push_back(0);
    } else {
      ASSIGN_OR_RETURN(const int64_t count, ParseInteger());
      if (count < 0) return SyntaxError(token_.line, "negative array size");
      declaration.dimensions.push_back(static_cast<uint64_t>(count));
      RETURN_IF_ERROR(Expect(']'));
    }
    declaration.is_array = true;
    if (declaration.dimensions.size() > static_cast<size_t>(kNestingMax)) {
      return SyntaxError(token_.line, "too many dimensions");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> TokenStream::BytesOf(const Declaration& declaration,
                                              uint64_t bytes_max) const {
  uint64_t bytes = declaration.ElementBytes();
  for (const uint64_t count : declaration.dimensions) {
    if (count != 0 && bytes > bytes_max / count) {
      return ErrorAt(absl::StatusCode::kResourceExhausted, declaration.line,
                     absl::StrCat("`", AbslText(declaration.name.substr(0, kQuotedBytesMax)),
                                  "` is larger than ", bytes_max, " bytes"));
    }
    bytes *= count;
  }
  return bytes;
}

}  // namespace consort::cpu::ptx
