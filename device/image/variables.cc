// SPDX-License-Identifier: Apache-2.0
#include "device/image/variables.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/status_macros.h"
#include "device/image/image.h"

namespace consort::image {
namespace {

bool IsNameCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%';
}

std::string_view Strip(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin);
}

// Takes the next word, directives with their dot, off `text`; empty: something else comes.
std::string_view TakeWord(std::string_view* text) {
  *text = Strip(*text);
  size_t end = !text->empty() && text->front() == '.' ? 1 : 0;
  while (end < text->size() && IsNameCharacter((*text)[end])) ++end;
  const std::string_view word = text->substr(0, end);
  text->remove_prefix(end);
  return word;
}

// ".b8" to 1, ".f64" to 8; 0: no type.
Bytes TypeBytes(std::string_view word) {
  if (word == ".pred") return 1;
  if (word == ".texref" || word == ".surfref" || word == ".samplerref") return 8;
  if (word.size() < 3 || std::string_view("bufs").find(word[1]) == std::string_view::npos) return 0;
  const unsigned long bits = std::strtoul(std::string(word.substr(2)).c_str(), nullptr, 10);
  return bits / 8;
}

void Add(const std::string& name, const DeclaredVariable& declared, Variables* variables) {
  const auto [found, is_new] = variables->emplace(name, declared);
  if (is_new) return;
  found->second.bytes = std::max(found->second.bytes, declared.bytes);
  found->second.constant &= declared.constant;
  found->second.managed |= declared.managed;
}

// A statement outside of braces: adds what it declares.
void AddDeclared(std::string_view statement, Variables* variables) {
  bool in_memory = false;
  bool constant = false;
  bool managed = false;
  Bytes element = 0;
  while (true) {
    const std::string_view word = TakeWord(&statement);
    if (word.empty()) return;
    if (word == ".extern") return;
    if (word == ".global" || word == ".const") {
      in_memory = true;
      constant = word == ".const";
    } else if (word == ".attribute") {
      // ".attribute(.managed)", and others to come.
      const size_t close = statement.find(')');
      managed = statement.substr(0, close).find(".managed") != std::string_view::npos;
      statement.remove_prefix(std::min(close, statement.size() - 1) + 1);
    } else if (word == ".align" || word == ".v2" || word == ".v4") {
      if (word == ".align") TakeWord(&statement);
    } else if (word.front() == '.') {
      if (element == 0) element = TypeBytes(word);
    } else if (!in_memory || element == 0) {
      return;
    } else {
      Bytes bytes = element;
      for (statement = Strip(statement); !statement.empty() && statement.front() == '[';
           statement = Strip(statement)) {
        const size_t close = statement.find(']');
        if (close == std::string_view::npos) break;
        const std::string count(statement.substr(1, close - 1));
        bytes *= std::strtoull(count.c_str(), nullptr, 0);
        statement.remove_prefix(close + 1);
      }
      Add(std::string(word),
          {.bytes = std::max<Bytes>(bytes, 1), .constant = constant, .managed = managed},
          variables);
      // ".global .u32 a, b;"
      if (statement.empty() || statement.front() != ',') return;
      statement.remove_prefix(1);
    }
  }
}

// Whether the directive has no ';'.
bool EndsWithItsLine(std::string_view statement) {
  const std::string_view word = TakeWord(&statement);
  return word == ".version" || word == ".target" || word == ".address_size" || word == ".file";
}

template <typename T>
bool Read(std::span<const std::byte> from, uint64_t at, T* value) {
  if (at > from.size() || sizeof(T) > from.size() - at) return false;
  std::memcpy(value, from.data() + at, sizeof(T));
  return true;
}

// ELF64, little endian, by offset.
struct SectionHeader {
  uint32_t name, type;
  uint64_t flags, address, offset, bytes;
  uint32_t link, info;
  uint64_t alignment, entry_bytes;
};
static_assert(sizeof(SectionHeader) == 64);
struct Symbol {
  uint32_t name;
  uint8_t info, other;
  uint16_t section;
  uint64_t value, bytes;
};
static_assert(sizeof(Symbol) == 24);

// True: there may be code.
bool AddOfElf(std::span<const std::byte> elf, Variables* variables) {
  constexpr uint64_t kSectionTableAt = 40, kSectionCountAt = 60, kSectionNamesAt = 62;
  constexpr uint32_t kSymbolTable = 2;
  constexpr uint8_t kObject = 1, kFunction = 2;
  uint64_t table = 0;
  uint16_t count = 0, names_of_sections = 0;
  if (!Read(elf, kSectionTableAt, &table) || !Read(elf, kSectionCountAt, &count) ||
      !Read(elf, kSectionNamesAt, &names_of_sections)) {
    return true;
  }
  const auto section = [&](uint64_t index, SectionHeader* header) {
    return index < count && table <= elf.size() &&
           Read(elf, table + index * sizeof(SectionHeader), header);
  };
  // What begins at `at` of the section's text, up to a NUL or the text's end.
  const auto name_in = [&](uint64_t names_section, uint64_t at) -> std::string_view {
    SectionHeader names;
    if (!section(names_section, &names) || names.offset > elf.size()) return {};
    const std::span<const std::byte> text =
        elf.subspan(names.offset, std::min<uint64_t>(names.bytes, elf.size() - names.offset));
    if (at >= text.size()) return {};
    const char* const begin = reinterpret_cast<const char*>(text.data()) + at;
    return {begin, strnlen(begin, text.size() - at)};
  };
  // Where there are too many sections for the header, none is looked at.
  bool code = count == 0;
  for (uint64_t i = 0; i < count; ++i) {
    SectionHeader symbols;
    if (!section(i, &symbols) || symbols.type != kSymbolTable || symbols.offset > elf.size()) {
      continue;
    }
    for (uint64_t at = 0; at + sizeof(Symbol) <= symbols.bytes; at += sizeof(Symbol)) {
      Symbol symbol;
      if (!Read(elf, symbols.offset + at, &symbol)) break;
      code |= (symbol.info & 0xf) == kFunction;
      if ((symbol.info & 0xf) != kObject || symbol.section == 0) continue;
      const std::string name(name_in(symbols.link, symbol.name));
      if (name.empty()) continue;
      SectionHeader place;
      const bool constant = section(symbol.section, &place) &&
                            name_in(names_of_sections, place.name).starts_with(".nv.constant");
      Add(name, {std::max<Bytes>(symbol.bytes, 1), constant}, variables);
      if (variables->size() > kVariablesMax) return true;
    }
  }
  return code;
}

}  // namespace

bool HasNoState(std::string_view name, const DeclaredVariable& declared) {
  if (name.starts_with("$str") || name.starts_with("__unnamed_")) return true;
  if (declared.bytes != 1 || declared.managed || !name.starts_with("_ZN")) return false;
  name.remove_prefix(3);
  // The namespace of what is internal to a unit: its length, "_INTERNAL_" and what names the unit.
  const size_t digits = name.find_first_not_of("0123456789");
  if (digits == 0 || digits > 4 ||
      !name.substr(std::min(digits, name.size())).starts_with("_INTERNAL_")) {
    return false;
  }
  const size_t length = std::strtoul(std::string(name.substr(0, digits)).c_str(), nullptr, 10);
  if (length > name.size() - digits) return false;
  name.remove_prefix(digits + length);
  return name.starts_with("4cuda3std") || name.starts_with("6thrust") || name.starts_with("3cub");
}

Variables VariablesOfPtx(std::string_view text) {
  Variables variables;
  // A statement outside of functions ends with ';'; inside of braces are initialisers and code.
  int depth = 0;
  std::string statement;
  for (size_t i = 0; i < text.size() && variables.size() <= kVariablesMax; ++i) {
    const char c = text[i];
    if (c == '/' && i + 1 < text.size() && (text[i + 1] == '/' || text[i + 1] == '*')) {
      const bool line = text[i + 1] == '/';
      const size_t end = text.find(line ? "\n" : "*/", i + 2);
      if (end == std::string_view::npos) break;
      i = end + (line ? 0 : 1);
      statement += ' ';
    } else if (c == '"') {
      i = std::min(text.find('"', i + 1), text.size());
    } else if (c == '{') {
      ++depth;
    } else if (c == '}') {
      // A function's end is that of a statement; an initialiser's is not.
      if (depth > 0) --depth;
      if (depth == 0 && statement.find('=') == std::string::npos) statement.clear();
    } else if (depth != 0) {
      continue;
    } else if (c == ';') {
      AddDeclared(statement, &variables);
      statement.clear();
    } else if (c == '\n' && EndsWithItsLine(statement)) {
      statement.clear();
    } else {
      statement += c;
    }
  }
  return variables;
}

absl::StatusOr<Variables> VariablesOf(std::span<const std::byte> bytes) {
  Variables variables;
  bool code = false;
  const auto add_ptx = [&](std::string_view text) {
    code |= text.find(".entry") != text.npos || text.find(".func") != text.npos;
    for (const auto& [name, declared] : VariablesOfPtx(text)) Add(name, declared, &variables);
  };
  switch (Classify(bytes)) {
    case ImageKind::kPtx:
      add_ptx({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
      break;
    case ImageKind::kElf:
      code = AddOfElf(bytes, &variables);
      break;
    case ImageKind::kFatBinary: {
      ASSIGN_OR_RETURN(const std::vector<FatBinary> binaries, ParseFatBinaries(bytes));
      for (const FatBinary& binary : binaries) {
        for (const FatEntry& entry : binary.entries) {
          if (entry.kind == EntryKind::kPtx) {
            ASSIGN_OR_RETURN(const std::string text, PtxText(entry));
            add_ptx(text);
          } else if (entry.kind == EntryKind::kElf) {
            ASSIGN_OR_RETURN(const std::vector<std::byte> elf, Decompress(entry));
            code |= AddOfElf(elf, &variables);
          } else {
            code = true;
          }
        }
      }
      break;
    }
    case ImageKind::kUnknown:
      return absl::InvalidArgumentError("no module image");
  }
  if (variables.size() > kVariablesMax) {
    return absl::ResourceExhaustedError("an image with too many variables");
  }
  if (!code && variables.size() == 1) variables.begin()->second.alone = true;
  return variables;
}

}  // namespace consort::image
