// SPDX-License-Identifier: Apache-2.0
// device/cpu/ptx/initialiser.cc: initial values of .global and .const variables.
// Source: PTX ISA 9.0, 5.4.4 "Initializers".
#include <cstdint>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/absl_text.h"
#include "base/status_macros.h"
#include "device/cpu/ptx/body_parser.h"
#include "device/cpu/ptx/parser.h"

namespace consort::cpu::ptx {
namespace {

class InitialiserParser {
 public:
  InitialiserParser(TokenStream& tokens, const Declaration& declaration, Variable& variable)
      : tokens_(tokens), declaration_(declaration), variable_(variable) {
    element_bytes_ = TypeBytes(declaration.type);
  }

  absl::Status Parse() {
    if (!tokens_.token().Is('{')) return ParseElement(0);
    uint64_t written = 0;
    RETURN_IF_ERROR(ParseBraces(0, 0, written));
    if (declaration_.is_unsized) variable_.bytes = variable_.data.size();
    return absl::OkStatus();
  }

 private:
  // Elements of the innermost type in one element of dimension `depth`.
  uint64_t Stride(size_t depth) const {
    uint64_t stride = declaration_.vector_width;
    for (size_t i = depth + 1; i < declaration_.dimensions.size(); ++i) {
      stride *= declaration_.dimensions[i];
    }
    return stride;
  }

  // A brace list of dimension `depth` whose first element is number `first`.
  absl::Status ParseBraces(size_t depth, uint64_t first, uint64_t& written) {
    if (depth > static_cast<size_t>(kNestingMax)) {
      return SyntaxError(tokens_.token().line, "initialisers are nested too deeply");
    }
    RETURN_IF_ERROR(tokens_.Expect('{'));
    uint64_t at = first;
    if (!tokens_.token().Is('}')) {
      do {
        if (tokens_.token().Is('{')) {
          uint64_t inner = 0;
          RETURN_IF_ERROR(ParseBraces(depth + 1, at, inner));
          at += Stride(depth);
        } else {
          RETURN_IF_ERROR(ParseElement(at));
          ++at;
        }
      } while (tokens_.TakeIf(','));
    }
    written = at - first;
    return tokens_.Expect('}');
  }

  absl::Status Write(uint64_t index, uint64_t bits) {
    // Bounded first, so that the product below cannot wrap.
    if (index > kVariableBytesMax) {
      return SyntaxError(tokens_.token().line, "more initial values than elements");
    }
    const uint64_t offset = index * element_bytes_;
    const bool inside = declaration_.is_unsized ? offset < kPtxBytesMax * 8
                                                : offset + element_bytes_ <= variable_.bytes;
    if (!inside) return SyntaxError(tokens_.token().line, "more initial values than elements");
    if (bits == 0 && !declaration_.is_unsized) return absl::OkStatus();
    if (variable_.data.size() < offset + element_bytes_) {
      // Values come in rising order; a gap of zeros costs memory only when a value follows it.
      if (offset + element_bytes_ > kInitialBytesMax) {
        return ErrorAt(absl::StatusCode::kResourceExhausted, tokens_.token().line,
                       "the initialiser reaches too far");
      }
      variable_.data.resize(offset + element_bytes_);
    }
    std::memcpy(variable_.data.data() + offset, &bits, element_bytes_);
    return absl::OkStatus();
  }

  absl::Status AddRelocation(uint64_t index, std::string_view symbol, uint32_t shift, int line) {
    Relocation relocation;
    relocation.offset = index * element_bytes_;
    relocation.bytes = element_bytes_;
    relocation.symbol = symbol;
    relocation.shift = shift;
    relocation.line = line;
    if (tokens_.token().Is('+') || tokens_.token().Is('-')) {
      ASSIGN_OR_RETURN(relocation.addend, tokens_.ParseInteger());
    }
    RETURN_IF_ERROR(Write(index, 0));
    variable_.relocations.push_back(relocation);
    return absl::OkStatus();
  }

  absl::Status ParseElement(uint64_t index) {
    const Token token = tokens_.token();
    if (token.kind == TokenKind::kIdentifier) {
      tokens_.Take();
      // generic(symbol): on this device every address is a generic one.
      if (token.text == "generic" && tokens_.TakeIf('(')) {
        ASSIGN_OR_RETURN(const std::string_view symbol, tokens_.ExpectName());
        if (tokens_.token().Is('+') || tokens_.token().Is('-')) {
          RETURN_IF_ERROR(AddRelocation(index, symbol, 0, token.line));
          return tokens_.Expect(')');
        }
        RETURN_IF_ERROR(tokens_.Expect(')'));
        return AddRelocation(index, symbol, 0, token.line);
      }
      return AddRelocation(index, token.text, 0, token.line);
    }
    ASSIGN_OR_RETURN(const Number number, tokens_.ParseNumber());
    if (!number.is_float && tokens_.TakeIf('(')) {
      // 0xFF00(symbol): byte 1 of the address.
      const uint64_t mask = static_cast<uint64_t>(number.integer);
      uint32_t shift = 0;
      while (shift < 64 && mask != uint64_t{0xFF} << shift) shift += 8;
      if (shift >= 64 || element_bytes_ != 1) {
        return SyntaxError(token.line, "a mask takes one byte of an address");
      }
      ASSIGN_OR_RETURN(std::string_view symbol, tokens_.ExpectName());
      if (symbol == "generic" && tokens_.TakeIf('(')) {
        ASSIGN_OR_RETURN(symbol, tokens_.ExpectName());
        RETURN_IF_ERROR(tokens_.Expect(')'));
      }
      RETURN_IF_ERROR(AddRelocation(index, symbol, shift, token.line));
      return tokens_.Expect(')');
    }
    return Write(index, BitsOf(number));
  }

  uint64_t BitsOf(const Number& number) const {
    if (!number.is_float) {
      if (declaration_.type == Type::kF32 || declaration_.type == Type::kF64) {
        return FloatBits(static_cast<double>(number.integer));
      }
      return static_cast<uint64_t>(number.integer);
    }
    if (declaration_.type == Type::kF32 || declaration_.type == Type::kF64) {
      const bool same_width = number.float_bits == TypeBits(declaration_.type);
      return same_width ? static_cast<uint64_t>(number.integer) : FloatBits(number.real);
    }
    return static_cast<uint64_t>(number.integer);
  }

  uint64_t FloatBits(double value) const {
    uint64_t bits = 0;
    if (declaration_.type == Type::kF32) {
      const float narrow = static_cast<float>(value);
      std::memcpy(&bits, &narrow, sizeof(narrow));
    } else {
      std::memcpy(&bits, &value, sizeof(value));
    }
    return bits;
  }

  // An initialiser holds at most what its text can: one value of 8 bytes for each two characters.
  static constexpr uint64_t kInitialBytesMax = kPtxBytesMax * 4;

  TokenStream& tokens_;
  const Declaration& declaration_;
  Variable& variable_;
  uint32_t element_bytes_ = 1;
};

}  // namespace

absl::Status ParseInitialiser(TokenStream& tokens, const Declaration& declaration,
                              Variable& variable) {
  if (declaration.type == Type::kPred || TypeBytes(declaration.type) > 8) {
    return ErrorAt(
        absl::StatusCode::kUnimplemented, declaration.line,
        absl::StrCat("initialiser of `", AbslText(declaration.name), "` is not supported"));
  }
  if (variable.space != Space::kGlobal && variable.space != Space::kConst) {
    return SyntaxError(declaration.line, "only .global and .const variables have initial values");
  }
  return InitialiserParser(tokens, declaration, variable).Parse();
}

}  // namespace consort::cpu::ptx
