// SPDX-License-Identifier: Apache-2.0
#include "host/session/kernel_reach.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <optional>
#include <vector>

#include "device/image/image.h"
#include "host/limits.h"

namespace consort::host {
namespace {

bool IsNameCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%';
}

// The text with comments made blank.
std::string WithoutComments(std::string_view text) {
  std::string plain(text);
  for (size_t i = 0; i + 1 < plain.size(); ++i) {
    if (plain[i] != '/') continue;
    size_t end = i;
    if (plain[i + 1] == '/') {
      end = plain.find('\n', i);
    } else if (plain[i + 1] == '*') {
      end = plain.find("*/", i + 2);
      if (end != std::string::npos) end += 2;
    } else {
      continue;
    }
    if (end == std::string::npos) end = plain.size();
    std::fill(plain.begin() + static_cast<ptrdiff_t>(i),
              plain.begin() + static_cast<ptrdiff_t>(end), ' ');
    i = end - 1;
  }
  return plain;
}

bool StartsWith(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

bool Has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool Is64Bits(std::string_view opcode) {
  for (const char* type : {".b64", ".u64", ".s64", ".b128"}) {
    if (Has(opcode, type)) return true;
  }
  return false;
}

// The last operand as a number, if it is one.
std::optional<unsigned long long> LastNumber(std::string_view operands) {
  const size_t comma = operands.rfind(',');
  if (comma == std::string_view::npos) return std::nullopt;
  const std::string last(operands.substr(comma + 1));
  const size_t begin = last.find_first_not_of(" \t\r\n");
  if (begin == std::string::npos || std::isdigit(static_cast<unsigned char>(last[begin])) == 0) {
    return std::nullopt;
  }
  return std::strtoull(last.c_str() + begin, nullptr, 0);
}

// Whether the instruction could make, or lead to, a pointer that is no argument's.
bool MayFollow(std::string_view statement) {
  // Label and predicate.
  while (true) {
    const size_t begin = statement.find_first_not_of(" \t\r\n");
    if (begin == std::string_view::npos) return false;
    statement.remove_prefix(begin);
    if (statement[0] == '@') {
      const size_t end = statement.find_first_of(" \t\r\n");
      if (end == std::string_view::npos) return true;
      statement.remove_prefix(end);
      continue;
    }
    size_t end = 0;
    while (end < statement.size() && IsNameCharacter(statement[end])) ++end;
    if (end != 0 && end < statement.size() && statement[end] == ':') {
      statement.remove_prefix(end + 1);
      continue;
    }
    break;
  }
  size_t end = 0;
  while (end < statement.size() && std::isspace(static_cast<unsigned char>(statement[end])) == 0) {
    ++end;
  }
  const std::string_view opcode = statement.substr(0, end);
  const std::string_view operands = statement.substr(end);
  if (opcode[0] == '.') return false;  // a declaration
  if (StartsWith(opcode, "ld.param")) return false;
  if (StartsWith(opcode, "ld.") || StartsWith(opcode, "ldu.") || StartsWith(opcode, "atom.") ||
      StartsWith(opcode, "shfl.") || StartsWith(opcode, "multimem.")) {
    return Is64Bits(opcode);
  }
  if (StartsWith(opcode, "mov.")) return Is64Bits(opcode) && Has(operands, "{");
  if (StartsWith(opcode, "or.") || StartsWith(opcode, "xor.") || StartsWith(opcode, "bfi.") ||
      StartsWith(opcode, "prmt.")) {
    return Is64Bits(opcode);
  }
  // An index is scaled by an element's size; more puts a pointer together.
  constexpr unsigned kScaleBitsMax = 15;
  if (StartsWith(opcode, "shl.") && Is64Bits(opcode)) {
    const auto bits = LastNumber(operands);
    return !bits.has_value() || *bits > kScaleBitsMax;
  }
  for (const char* refused :
       {"call", "tex", "tld4", "txq", "sust", "suld", "sured", "suq", "brx"}) {
    if (StartsWith(opcode, refused)) return true;
  }
  return Has(opcode, "tensor") || Has(opcode, "bulk");
}

size_t MatchingBrace(std::string_view text, size_t open) {
  int depth = 0;
  for (size_t i = open; i < text.size(); ++i) {
    if (text[i] == '{') ++depth;
    if (text[i] == '}' && --depth == 0) return i;
  }
  return std::string_view::npos;
}

}  // namespace

std::set<std::string> DirectKernelsOfPtx(std::string_view text) {
  const std::string plain = WithoutComments(text);
  const std::string_view all = plain;
  std::set<std::string> direct;
  constexpr std::string_view kEntry = ".entry";
  for (size_t at = all.find(kEntry); at != std::string_view::npos; at = all.find(kEntry, at)) {
    at += kEntry.size();
    const size_t name = all.find_first_not_of(" \t\r\n", at);
    if (name == std::string_view::npos) break;
    size_t name_end = name;
    while (name_end < all.size() && IsNameCharacter(all[name_end])) ++name_end;
    const size_t open = all.find_first_of("{;", name_end);
    if (open == std::string_view::npos) break;
    if (all[open] == ';') continue;  // declared only
    const size_t close = MatchingBrace(all, open);
    if (close == std::string_view::npos) break;
    bool follows = false;
    std::string_view body = all.substr(open + 1, close - open - 1);
    while (!body.empty() && !follows) {
      const size_t end = std::min(body.find(';'), body.size());
      std::string_view statement = body.substr(0, end);
      body.remove_prefix(std::min(end + 1, body.size()));
      // Blocks, and directives that end with their line.
      while (true) {
        const size_t begin = statement.find_first_not_of(" \t\r\n{}");
        statement.remove_prefix(std::min(begin, statement.size()));
        if (!StartsWith(statement, ".loc") && !StartsWith(statement, ".pragma")) break;
        const size_t line = statement.find('\n');
        statement.remove_prefix(line == std::string_view::npos ? statement.size() : line);
      }
      follows = MayFollow(statement);
    }
    if (!follows) direct.insert(std::string(all.substr(name, name_end - name)));
    at = close;
  }
  return direct;
}

std::set<std::string> DirectKernels(std::span<const std::byte> bytes) {
  if (bytes.size() > kReachImageBytesMax) return {};
  const image::ImageKind kind = image::Classify(bytes);
  if (kind == image::ImageKind::kPtx) {
    return DirectKernelsOfPtx({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  if (kind != image::ImageKind::kFatBinary) return {};
  const auto binaries = image::ParseFatBinaries(bytes);
  if (!binaries.ok() || binaries->size() != 1) return {};
  const std::vector<image::FatEntry>& entries = binaries->front().entries;
  std::optional<std::set<std::string>> direct;
  for (const image::FatEntry& entry : entries) {
    if (entry.kind == image::EntryKind::kOther) return {};
    if (entry.kind == image::EntryKind::kElf) {
      const bool has_ptx = std::any_of(entries.begin(), entries.end(), [&](const auto& other) {
        return other.kind == image::EntryKind::kPtx && other.architecture == entry.architecture &&
               other.architecture_specific == entry.architecture_specific &&
               other.family_specific == entry.family_specific;
      });
      if (!has_ptx) return {};
      continue;
    }
    if (entry.decompressed_bytes > kReachImageBytesMax) return {};
    const auto text = image::PtxText(entry);
    if (!text.ok()) return {};
    std::set<std::string> here = DirectKernelsOfPtx(*text);
    if (direct.has_value()) {
      std::erase_if(here, [&](const std::string& name) { return !direct->contains(name); });
    }
    direct = std::move(here);
  }
  return direct.value_or(std::set<std::string>());
}

}  // namespace consort::host
