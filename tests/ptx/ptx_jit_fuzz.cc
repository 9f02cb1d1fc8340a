// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry: any text is machine code or an error with a line, never a crash.
//
// An input goes the way of a module that a program loads: parsed, laid out, each function emitted
// and verified; then one kernel is compiled and linked for one shape of block, which the input's
// bytes choose, mostly without LLVM's optimiser. Nothing is run. The mutator knows what PTX looks
// like: it moves statements, exchanges types, modifiers, registers, numbers and labels of real PTX,
// and puts in instructions of the table in instruction_rows.cc.
#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "device/cpu/codegen/code_cache.h"
#include "device/cpu/codegen/compiler.h"
#include "device/cpu/codegen/layout.h"
#include "device/cpu/engine/variable_memory.h"
#include "device/cpu/ptx/parser.h"
#include "tests/ptx/instruction_rows.h"
#include "tests/ptx/kernel_text.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t size_max);

namespace consort::ptx_suite {
namespace {

using std::string;
using std::string_view;

// --- The target ---

[[noreturn]] void Fail(const char* where, const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", where, status.ToString().c_str());
  std::abort();
}

// The input may be refused, by a message for whoever wrote it.
void MustNameTheLine(const char* where, const absl::Status& status) {
  const absl::string_view message = status.message();
  if (message.substr(0, 5) != "line " || status.code() == absl::StatusCode::kInternal) {
    Fail(where, status);
  }
}

uint32_t Hash(string_view text) {
  uint32_t hash = 0x811C9DC5;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x01000193;
  return hash;
}

// One of each way to run the threads of a block.
constexpr uint32_t kBlocks[][3] = {{1, 1, 1},  {32, 1, 1}, {33, 1, 1}, {8, 2, 1},
                                   {16, 3, 2}, {7, 5, 1},  {32, 2, 1}, {1, 1, 1}};

void CompileText(string_view text) {
  using namespace cpu;
  const auto module = ptx::ParsePtx(string(text));
  if (!module.ok()) return MustNameTheLine("parser", module.status());
  const auto layout = ModuleLayout::Make(**module);
  if (!layout.ok()) return MustNameTheLine("layout", layout.status());
  VariableMemory memory;
  const absl::Status filled = memory.Fill(**module, /*gaps=*/false, {});
  // Variables may be larger than what this machine has.
  if (filled.code() == absl::StatusCode::kResourceExhausted) return;
  if (!filled.ok()) return MustNameTheLine("variables", filled);
  const uint32_t hash = Hash(text);
  const CodeCache no_cache("", 0);
  CodeOptions options;
  options.optimise = hash >> 24 < 8;
  const auto compiler = Compiler::Create(**module, *layout, memory.addresses(), no_cache, options);
  if (!compiler.ok()) Fail("compiler", compiler.status());
  const absl::Status checked = (*compiler)->Check();
  if (!checked.ok()) return MustNameTheLine("emitter", checked);
  std::vector<uint32_t> kernels;
  for (uint32_t i = 0; i < (*module)->functions.size(); ++i) {
    if ((*module)->functions[i].is_entry && (*module)->functions[i].has_body) kernels.push_back(i);
  }
  if (kernels.empty()) return;
  const auto code =
      (*compiler)->Compile(kernels[hash % kernels.size()], GroupShape::Of(kBlocks[hash >> 8 & 7]));
  if (!code.ok()) MustNameTheLine("LLVM", code.status());
}

// --- The mutator ---

constexpr string_view kTypes[] = {"u8",    "u16",   "u32",  "u64",   "s8",   "s16",
                                  "s32",   "s64",   "b8",   "b16",   "b32",  "b64",
                                  "b128",  "f16",   "bf16", "f16x2", "f32",  "bf16x2",
                                  "u16x2", "s16x2", "f64",  "pred",  "tf32", "e4m3x2"};
constexpr string_view kModifiers[] = {
    "global", "shared",  "local",   "param",     "const",   "generic", "v2",       "v4",
    "sat",    "ftz",     "rn",      "rz",        "rm",      "rp",      "rni",      "rzi",
    "approx", "full",    "hi",      "lo",        "wide",    "cc",      "relu",     "NaN",
    "eq",     "lt",      "geu",     "nan",       "and",     "xor",     "sync",     "aligned",
    "red",    "arrive",  "popc",    "cta",       "sys",     "relaxed", "acq_rel",  "volatile",
    "add",    "min",     "inc",     "exch",      "cas",     "noftz",   "to",       "uni",
    "idx",    "bfly",    "up",      "ballot",    "all",     "any",     "clamp",    "wrap",
    "async",  "ca",      "b4e",     "x4",        "trans",   "m8n8",    "m16n8k16", "row",
    "col",    "load",    "store",   "mma",       "init",    "parity",  "try_wait", "2d",
    "a2d",    "trap",    "zero",    "satfinite", "xorsign", "abs",     "warp",     "cluster",
    "align",  "maxntid", "reqntid", "extern",    "visible", "weak",    "reg",      "noreturn"};
constexpr string_view kOpcodes[] = {
    "add",  "sub",   "mul",      "mad",  "fma",  "div",     "rem", "abs",   "neg",  "min",
    "cvt",  "cvta",  "mov",      "ld",   "st",   "atom",    "red", "setp",  "selp", "set",
    "shl",  "shr",   "prmt",     "bfe",  "bfi",  "lop3",    "shf", "popc",  "clz",  "bra",
    "call", "ret",   "exit",     "bar",  "shfl", "vote",    "mma", "wmma",  "tex",  "suld",
    "sust", "redux", "ldmatrix", "trap", "rcp",  "sqrt",    "ex2", "testp", "slct", "vadd",
    "brx",  "elect", "mbarrier", "cp",   "dp4a", "isspacep"};
constexpr string_view kNumbers[] = {"0",
                                    "1",
                                    "2",
                                    "3",
                                    "4",
                                    "7",
                                    "8",
                                    "15",
                                    "16",
                                    "31",
                                    "32",
                                    "33",
                                    "63",
                                    "64",
                                    "127",
                                    "128",
                                    "255",
                                    "256",
                                    "1023",
                                    "1024",
                                    "1025",
                                    "4095",
                                    "4096",
                                    "65535",
                                    "65536",
                                    "2147483647",
                                    "2147483648",
                                    "4294967295",
                                    "4294967296",
                                    "-1",
                                    "-2",
                                    "-128",
                                    "-2147483648",
                                    "9223372036854775807",
                                    "-9223372036854775808",
                                    "18446744073709551615",
                                    "524288",
                                    "1048576",
                                    "0f3F800000",
                                    "0f7FC00001",
                                    "0dFFF8000000000001",
                                    "1.5",
                                    "0x10",
                                    "1099511627776"};

class Mutator {
 public:
  Mutator(string text, unsigned seed) : text_(std::move(text)), random_(seed) {}

  // Mostly one change: libFuzzer asks several times, and after two or three few texts are PTX.
  void Mutate() {
    for (size_t left = Below(4) == 0 ? 1 + Below(4) : 1; left > 0; --left) MutateOnce();
  }
  // Puts some lines of `other` in.
  void Splice(string_view other) {
    const std::vector<string> from = Lines(other);
    std::vector<string> lines = Lines(text_);
    if (from.empty()) return;
    const size_t first = Below(from.size());
    const size_t count = std::min(from.size() - first, 1 + Below(16));
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(first);
    lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(Below(lines.size() + 1)), begin,
                 begin + static_cast<std::ptrdiff_t>(count));
    Join(lines);
  }
  const string& text() const { return text_; }

 private:
  struct Word {
    size_t at;
    size_t bytes;
  };

  size_t Below(size_t end) { return end == 0 ? 0 : random_() % end; }
  template <typename Table>
  string Any(const Table& table) {
    return string(table[Below(std::size(table))]);
  }

  static std::vector<string> Lines(string_view text) {
    std::vector<string> lines;
    while (!text.empty()) {
      const size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
      lines.emplace_back(text.substr(0, end));
      text.remove_prefix(end);
    }
    return lines;
  }
  void Join(const std::vector<string>& lines) {
    text_.clear();
    for (const string& line : lines) text_ += line;
  }

  static bool IsWord(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$';
  }

  // Words that begin with `first`: '.' modifiers and types, '%' registers, '$' labels, '0' numbers,
  // 'a' other names.
  std::vector<Word> Words(char first) const {
    std::vector<Word> words;
    for (size_t at = 0; at < text_.size();) {
      const char c = text_[at];
      size_t end = at + 1;
      const bool is_start =
          IsWord(c) || c == '%' || (c == '.' && end < text_.size() && IsWord(text_[end]));
      if (is_start) {
        while (end < text_.size() && (IsWord(text_[end]) || (text_[end] == ':' && c == '.'))) ++end;
        const char kind = c == '.' || c == '%' || c == '$'                   ? c
                          : std::isdigit(static_cast<unsigned char>(c)) != 0 ? '0'
                                                                             : 'a';
        if (kind == first) words.push_back({at, end - at});
      }
      at = end;
    }
    return words;
  }

  void ReplaceWord(char kind, const string& with) {
    const std::vector<Word> words = Words(kind);
    if (words.empty()) return;
    const Word word = words[Below(words.size())];
    text_.replace(word.at, word.bytes, with);
  }
  // Another word of the kind that the text has.
  string AnotherWord(char kind) {
    const std::vector<Word> words = Words(kind);
    if (words.empty()) return "";
    const Word word = words[Below(words.size())];
    return text_.substr(word.at, word.bytes);
  }

  void MutateLines(size_t how) {
    std::vector<string> lines = Lines(text_);
    if (lines.empty()) return;
    const size_t a = Below(lines.size());
    const size_t b = Below(lines.size());
    const auto at = lines.begin() + static_cast<std::ptrdiff_t>(a);
    switch (how) {
      case 0:
        std::swap(lines[a], lines[b]);
        break;
      case 1: {
        const string copy = lines[b];
        lines.insert(at, copy);
        break;
      }
      case 2:
        lines.erase(
            at, at + static_cast<std::ptrdiff_t>(std::min(lines.size() - a, size_t{1} + Below(3))));
        break;
      default: {
        static const std::vector<Instance> instances = Instances();
        lines.insert(at, BlockText(instances[Below(instances.size())]));
        break;
      }
    }
    Join(lines);
  }

  void MutateOnce() {
    const size_t how = Below(16);
    switch (how) {
      case 0:
      case 1:
      case 2:
      case 3:
        return MutateLines(how);
      case 4:
      case 5:
        return ReplaceWord('.', "." + Any(kTypes));
      case 6:
        return ReplaceWord('.', "." + Any(kModifiers));
      case 7:
        return ReplaceWord('.', Below(2) == 0 ? "" : AnotherWord('.') + AnotherWord('.'));
      case 8:
      case 9:
        return ReplaceWord('%', AnotherWord('%'));
      case 10:
        return ReplaceWord('0', Any(kNumbers));
      case 11:
        return ReplaceWord('$', AnotherWord('$'));
      case 12:
        return ReplaceWord('a', Below(2) == 0 ? Any(kOpcodes) : AnotherWord('a'));
      case 13:
        return ReplaceWord('%', Below(2) == 0 ? Any(kNumbers) : AnotherWord('a'));
      case 14:
        return ReplaceWord('0', AnotherWord('%'));
      default: {
        std::vector<uint8_t> bytes(text_.begin(), text_.end());
        bytes.resize(text_.size() + 64);
        const size_t size = LLVMFuzzerMutate(bytes.data(), text_.size(), bytes.size());
        text_.assign(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
      }
    }
  }

  string text_;
  std::minstd_rand random_;
};

size_t PutText(const string& text, uint8_t* data, size_t size_max) {
  const size_t size = std::min(text.size(), size_max);
  std::memcpy(data, text.data(), size);
  return size;
}

string TextOf(const uint8_t* data, size_t size) {
  return string(reinterpret_cast<const char*>(data), size);
}

}  // namespace
}  // namespace consort::ptx_suite

using namespace consort::ptx_suite;  // the entry points are libFuzzer's

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  CompileText(TextOf(data, size));
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t size_max,
                                          unsigned int seed) {
  Mutator mutator(TextOf(data, size), seed);
  mutator.Mutate();
  return PutText(mutator.text(), data, size_max);
}

extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* data1, size_t size1,
                                            const uint8_t* data2, size_t size2, uint8_t* out,
                                            size_t size_max, unsigned int seed) {
  Mutator mutator(TextOf(data1, size1), seed);
  mutator.Splice(TextOf(data2, size2));
  return PutText(mutator.text(), out, size_max);
}
