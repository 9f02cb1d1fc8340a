// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/ptx/lexer.h"

namespace consort::cpu::ptx {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsWord(char c) { return IsLetter(c) || IsDigit(c) || c == '_' || c == '$'; }
bool IsWordStart(char c) { return IsLetter(c) || c == '_' || c == '$' || c == '%'; }
bool IsPunctuation(char c) {
  return std::string_view("@!{}()[]<>,;:=+-*|~&^/?").find(c) != std::string_view::npos;
}

}  // namespace

void Lexer::SkipSpace() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c == '\n') {
      ++line_;
      ++at_;
    } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v') {
      ++at_;
    } else if (text_.substr(at_, 2) == "//") {
      while (at_ < text_.size() && text_[at_] != '\n') ++at_;
    } else if (text_.substr(at_, 2) == "/*") {
      at_ += 2;
      while (at_ < text_.size() && text_.substr(at_, 2) != "*/") {
        if (text_[at_] == '\n') ++line_;
        ++at_;
      }
      at_ = at_ < text_.size() ? at_ + 2 : at_;
    } else {
      return;
    }
  }
}

Token Lexer::Next() {
  const size_t before = at_;
  SkipSpace();
  Token token;
  token.line = line_;
  token.space_before = at_ != before;
  if (at_ >= text_.size() || text_[at_] == '\0') {
    at_ = text_.size();
    return token;
  }
  const size_t start = at_;
  const char c = text_[at_];
  auto take = [&](TokenKind kind, size_t skip_front = 0, size_t skip_back = 0) {
    token.kind = kind;
    token.text = text_.substr(start + skip_front, at_ - start - skip_front - skip_back);
    return token;
  };
  auto peek = [&](size_t ahead) { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; };

  if (IsWordStart(c)) {
    ++at_;
    while (IsWord(peek(0))) ++at_;
    return take(TokenKind::kIdentifier);
  }
  if (IsDigit(c)) {
    // One run of letters, digits and dots, with a sign after the exponent of a decimal float.
    const bool is_decimal = !(c == '0' && IsLetter(peek(1)));
    while (IsWord(peek(0)) || (is_decimal && peek(0) == '.') ||
           (is_decimal && (peek(0) == '+' || peek(0) == '-') &&
            (text_[at_ - 1] == 'e' || text_[at_ - 1] == 'E'))) {
      ++at_;
    }
    return take(TokenKind::kNumber);
  }
  if (c == '.' && IsWord(peek(1))) {
    ++at_;
    while (IsWord(peek(0)) || (peek(0) == ':' && peek(1) == ':' && IsWord(peek(2)))) {
      at_ += peek(0) == ':' ? 2 : 1;
    }
    return take(TokenKind::kDotted, 1);
  }
  if (c == '"') {
    ++at_;
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\n') {
      at_ += text_[at_] == '\\' && peek(1) != '\n' && peek(1) != '\0' ? 2 : 1;
    }
    if (peek(0) != '"') return take(TokenKind::kUnknown);
    ++at_;
    return take(TokenKind::kString, 1, 1);
  }
  ++at_;
  if (c == '@' && peek(0) == '@') {
    ++at_;
    return take(TokenKind::kPunctuation);
  }
  return take(IsPunctuation(c) ? TokenKind::kPunctuation : TokenKind::kUnknown);
}

}  // namespace consort::cpu::ptx
