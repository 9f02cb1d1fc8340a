// SPDX-License-Identifier: Apache-2.0
// device/cpu/ptx/ast.h: what the parser makes of one PTX module.
//
// Plain data. Names are views of Module::text, so a Module neither moves nor copies. Names inside a
// function are resolved already: an operand holds the index of its symbol or label. What an
// instruction means, and whether its modifiers and operands fit, is the code generator's to say.
// Source: PTX ISA 9.0, 4 "Syntax", 5 "State Spaces, Types, and Variables", 6 "Instruction
// Operands".
#ifndef CONSORT_DEVICE_CPU_PTX_AST_H_
#define CONSORT_DEVICE_CPU_PTX_AST_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "device/cpu/ptx/type.h"

namespace consort::cpu::ptx {

enum class Space : uint8_t { kRegister, kParam, kLocal, kShared, kGlobal, kConst };

inline constexpr uint32_t kNone = 0xFFFFFFFF;  // no index

// An address written into a variable by its initialiser.
struct Relocation {
  uint64_t offset = 0;  // in the variable
  uint32_t bytes = 8;
  std::string_view symbol;
  int64_t addend = 0;
  uint32_t shift = 0;  // of the byte taken by a mask operator 0xFF00(symbol); bytes is 1 then
  int line = 0;
};

// A variable with one address for the whole module or block: .global, .const, .shared. Those
// declared inside a function are here too, and the function's symbol points here.
struct Variable {
  std::string_view name;
  Space space = Space::kGlobal;
  Type type = Type::kB8;
  uint32_t align = 1;
  uint64_t bytes = 0;  // 0 for an extern array without a size
  bool is_extern = false;
  bool is_managed = false;    // host and kernels see the same bytes
  std::vector<uint8_t> data;  // the initialiser; shorter than bytes when the rest is zero
  std::vector<Relocation> relocations;
  int line = 0;
};

enum class SymbolKind : uint8_t {
  kRegister,
  kInput,      // parameter of this function
  kReturn,     // return parameter of this function
  kCallParam,  // .param variable in the body, for calls
  kLocal,      // .local variable
  kVariable,   // index into Module::variables
};

struct Symbol {
  SymbolKind kind = SymbolKind::kRegister;
  Space space = Space::kRegister;  // of a parameter: kRegister for .reg, else kParam
  Type type = Type::kB32;
  uint8_t vector_width = 1;  // registers only: .v2, .v4
  uint32_t align = 1;
  uint64_t bytes = 0;      // parameters and .local: the whole array
  uint32_t index = kNone;  // kVariable: the variable; kInput, kReturn: its position
  std::string_view name;
  int line = 0;

  // The last parameter of a variadic function: `.param .b8 rest[]`.
  bool IsUnsized() const {
    return kind == SymbolKind::kInput && space == Space::kParam && bytes == 0;
  }
};

enum class OperandKind : uint8_t {
  kSymbol,   // symbol (+ integer)
  kName,     // text (+ integer): a name of the module: variable or function
  kLabel,    // label
  kSpecial,  // %tid with component x, ...; text without the component
  kInteger,  // integer
  kFloat,    // real, float_bits
  kAddress,  // [elements[0] + integer]; more elements for textures and the like
  kVector,   // {elements}
  kList,     // (elements), of calls
  kPair,     // elements[0] | elements[1]
  kSink,     // _
};

struct Operand {
  OperandKind kind = OperandKind::kSink;
  bool negated = false;     // !%p
  char component = 0;       // x, y, z, w
  uint8_t float_bits = 64;  // 32 for 0f..., 64 for 0d... and decimals
  uint32_t symbol = kNone;
  uint32_t label = kNone;     // index into Function::labels
  uint32_t scope = 0;         // of the parser
  int64_t integer = 0;        // value or offset
  std::string_view selector;  // "b0", "h1", "h10", "b3210" of video instructions
  double real = 0;
  std::string_view text;
  std::vector<Operand> elements;
};

struct Instruction {
  std::string_view opcode;                             // "ld"
  absl::InlinedVector<std::string_view, 4> modifiers;  // "global", "v4", "f32"
  uint32_t guard = kNone;                              // symbol of @%p
  bool guard_negated = false;
  std::vector<Operand> operands;
  int line = 0;
  // Where it comes from, by the .loc before it: 0 when there is none.
  uint32_t source_file = 0;  // the number of a .file
  uint32_t source_line = 0;
};

struct Label {
  std::string_view name;
  uint32_t instruction = 0;       // it stands before this one; may be instructions.size()
  std::vector<uint32_t> targets;  // of a .branchtargets list: labels
  bool is_table = false;          // a .branchtargets or .callprototype: no branch may go there
  int line = 0;
};

struct Function {
  std::string_view name;
  bool is_entry = false;
  bool has_body = false;
  std::vector<Symbol> symbols;
  std::vector<uint32_t> inputs;   // symbols
  std::vector<uint32_t> returns;  // symbols
  std::vector<Instruction> instructions;
  std::vector<Label> labels;
  uint32_t threads_max = 0;  // .maxntid or .reqntid, 0 when not given
  int line = 0;
};

struct Module {
  std::string text;
  uint32_t version = 0;  // major * 10 + minor; 0 when .version is missing
  uint32_t target = 0;   // 75 for sm_75
  std::vector<Variable> variables;
  std::vector<Function> functions;
  // Module scope only; a function's declaration and definition are one entry.
  absl::flat_hash_map<std::string_view, uint32_t> variable_by_name;
  absl::flat_hash_map<std::string_view, uint32_t> function_by_name;
  absl::flat_hash_map<uint32_t, std::string_view> source_files;  // by number

  Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
};

}  // namespace consort::cpu::ptx

#endif  // CONSORT_DEVICE_CPU_PTX_AST_H_
