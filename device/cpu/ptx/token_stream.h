// SPDX-License-Identifier: Apache-2.0
// device/cpu/ptx/token_stream.h: the parser's view of the tokens, and the rules that both the
// module level and function bodies use: constants, sizes, declarations.
//
// Thread compatible. The text must outlive the stream.
#ifndef CONSORT_DEVICE_CPU_PTX_TOKEN_STREAM_H_
#define CONSORT_DEVICE_CPU_PTX_TOKEN_STREAM_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "device/cpu/ptx/ast.h"
#include "device/cpu/ptx/lexer.h"

namespace consort::cpu::ptx {

// A number as written. Source: PTX ISA, 4.5 "Constants".
struct Number {
  bool is_float = false;
  uint8_t float_bits = 64;
  int64_t integer = 0;
  double real = 0;
};

// What stands between a state space directive and the ';' or ','.
struct Declaration {
  Type type = Type::kB8;
  uint8_t vector_width = 1;
  uint32_t align = 0;  // 0: natural
  std::string_view name;
  uint32_t family = 0;  // N of %r<N>, else 0
  std::vector<uint64_t> dimensions;
  bool is_array = false;
  bool is_unsized = false;  // the first dimension is empty: []
  bool is_managed = false;  // .attribute(.managed)
  int line = 0;

  uint32_t ElementBytes() const { return TypeBytes(type) * vector_width; }
  uint32_t AlignBytes() const { return align != 0 ? align : ElementBytes(); }
};

class TokenStream {
 public:
  explicit TokenStream(std::string_view text) : lexer_(text) { token_ = lexer_.Next(); }

  const Token& token() const { return token_; }
  Token Take();
  bool TakeIf(char punctuation);
  bool TakeIfDotted(std::string_view name);

  // kInvalidArgument at the present token: "line N: expected WHAT, found `x`".
  absl::Status Expected(std::string_view what) const;
  absl::Status Expect(char punctuation);
  absl::StatusOr<std::string_view> ExpectName();

  // Skips the rest of the present token's line (.loc, .file, @@DWARF have no terminator).
  void SkipLine();
  // `.loc FILE LINE COLUMN ...` and `.file NUMBER "NAME" ...`, neither of which may be continued on
  // a further line. What does not read like one is skipped, as it says nothing about the program.
  void TakeLocation(uint32_t& file, uint32_t& line);
  void TakeFile(absl::flat_hash_map<uint32_t, std::string_view>& files);
  // Skips to the ';' that ends a directive, or the end of text.
  void SkipStatement();
  // Skips a `{ ... }`, the present token being the '{'. Reports an unclosed one.
  absl::Status SkipBraces();

  // A literal, with its sign.
  absl::StatusOr<Number> ParseNumber();
  // A constant integer: literals joined by + and -.
  absl::StatusOr<int64_t> ParseInteger();

  // [.align N] [.v2|.v4] [.ptr ...] .type name [<N>] [dimensions]; for parameters the name may be
  // _.
  absl::StatusOr<Declaration> ParseDeclaration();
  // The name part alone: further names of `.reg .b32 a, b<4>;` share type, vector and alignment.
  absl::Status ParseDeclarator(Declaration& declaration);

  // Bytes of the declared array or scalar, at most `bytes_max`. kResourceExhausted above.
  absl::StatusOr<uint64_t> BytesOf(const Declaration& declaration, uint64_t bytes_max) const;

 private:
  absl::Status ParseAlign(uint32_t& align);

  Lexer lexer_;
  Token token_;
};

// "line N: message" with the given code.
absl::Status ErrorAt(absl::StatusCode code, int line, std::string_view message);
absl::Status SyntaxError(int line, std::string_view message);

}  // namespace consort::cpu::ptx

#endif  // CONSORT_DEVICE_CPU_PTX_TOKEN_STREAM_H_
