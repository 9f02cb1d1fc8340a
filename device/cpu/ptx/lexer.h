// SPDX-License-Identifier: Apache-2.0
// device/cpu/ptx/lexer.h: PTX text to tokens.
//
// Thread compatible. Tokens are views of the text, which must outlive them. Never fails: an unknown
// byte is a token of kind kUnknown, which no rule of the parser takes.
// Source: PTX ISA 9.0, 4.1 "Source Format" to 4.5 "Constants".
#ifndef CONSORT_DEVICE_CPU_PTX_LEXER_H_
#define CONSORT_DEVICE_CPU_PTX_LEXER_H_

#include <cstddef>
#include <string_view>

namespace consort::cpu::ptx {

enum class TokenKind {
  kEnd,          // end of text (or the first NUL: fat binaries pad PTX with NULs)
  kIdentifier,   // abc, %r1, $L__BB0_1, _
  kDotted,       // .abc, .L2::128B, .x: the text is without the dot
  kNumber,       // 12, 0x1F, 0f3F800000, 1.5e3, 7U
  kString,       // the text is without the quotes, escapes not resolved
  kPunctuation,  // one byte, but @@ is one token too
  kUnknown,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string_view text;
  int line = 1;
  bool space_before = false;  // white space or a comment stands before it

  bool Is(char c) const {
    return kind == TokenKind::kPunctuation && text.size() == 1 && text[0] == c;
  }
  bool IsDotted(std::string_view name) const { return kind == TokenKind::kDotted && text == name; }
};

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  // The next token; after the end, kEnd again and again.
  Token Next();

 private:
  void SkipSpace();

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
};

}  // namespace consort::cpu::ptx

#endif  // CONSORT_DEVICE_CPU_PTX_LEXER_H_
