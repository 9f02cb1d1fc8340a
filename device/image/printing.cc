// SPDX-License-Identifier: Apache-2.0
#include "device/image/printing.h"

#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace consort::image {
namespace {

using ByteSpan = std::span<const std::byte>;

constexpr std::string_view kPrintf = "vprintf";
// What the driver provides and launches nothing.
constexpr std::string_view kHarmless[] = {kPrintf, "__assertfail", "malloc", "free"};
// Callees from here on stand for something else than a symbol.
constexpr uint32_t kMarksFirst = 0xFFFFFF00;

// Whether a declaration or call names it: the name with none of a name's characters around it.
bool TextPrints(std::string_view text) {
  const auto in_name = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_' ||
           c == '$' || c == '%';
  };
  for (size_t at = text.find(kPrintf); at != std::string_view::npos;
       at = text.find(kPrintf, at + 1)) {
    const size_t end = at + kPrintf.size();
    if ((at == 0 || !in_name(text[at - 1])) && (end == text.size() || !in_name(text[end]))) {
      return true;
    }
  }
  return false;
}

// The sections of a cubin; bytes outside of it read as nothing.
class Cubin {
 public:
  explicit Cubin(ByteSpan image) : image_(image) {
    Elf64_Ehdr header = {};
    if (!Read(image, 0, &header)) return;
    if (header.e_shoff > image.size()) return;
    const ByteSpan headers = image.subspan(header.e_shoff);
    Elf64_Shdr section = {};
    if (!Read(headers, 0, &section)) return;
    // Numbers that do not fit the header are in section 0.
    const uint64_t count = header.e_shnum != 0 ? header.e_shnum : section.sh_size;
    const uint64_t names = header.e_shstrndx != SHN_XINDEX ? header.e_shstrndx : section.sh_link;
    for (uint64_t i = 0; i < count && Read(headers, i * sizeof(section), &section); ++i) {
      sections_.push_back(section);
    }
    if (names < sections_.size()) names_ = Contents(sections_[names]);
  }

  const std::vector<Elf64_Shdr>& sections() const { return sections_; }
  std::string_view NameOf(const Elf64_Shdr& section) const { return Text(names_, section.sh_name); }

  ByteSpan Contents(const Elf64_Shdr& section) const {
    if (section.sh_type == SHT_NOBITS || section.sh_offset > image_.size() ||
        section.sh_size > image_.size() - section.sh_offset) {
      return {};
    }
    return image_.subspan(section.sh_offset, section.sh_size);
  }

  template <typename T>
  static bool Read(ByteSpan bytes, uint64_t offset, T* value) {
    if (offset > bytes.size() || bytes.size() - offset < sizeof(T)) return false;
    std::memcpy(value, bytes.data() + offset, sizeof(T));
    return true;
  }

  // The text that begins at `offset`, up to its NUL; empty if it has none.
  static std::string_view Text(ByteSpan strings, uint64_t offset) {
    if (offset >= strings.size()) return {};
    const ByteSpan rest = strings.subspan(offset);
    const auto end = std::find(rest.begin(), rest.end(), std::byte{0});
    if (end == rest.end()) return {};
    return {reinterpret_cast<const char*>(rest.data()), static_cast<size_t>(end - rest.begin())};
  }

 private:
  ByteSpan image_;
  ByteSpan names_;
  std::vector<Elf64_Shdr> sections_;
};

Printing CubinPrinting(ByteSpan image) {
  const Cubin cubin(image);
  const Elf64_Shdr* symbols = nullptr;
  const Elf64_Shdr* calls = nullptr;
  for (const Elf64_Shdr& section : cubin.sections()) {
    if (section.sh_type == SHT_SYMTAB) symbols = &section;
    if (cubin.NameOf(section) == ".nv.callgraph") calls = &section;
  }
  Printing printing;
  if (symbols == nullptr || symbols->sh_link >= cubin.sections().size()) return printing;
  const ByteSpan table = cubin.Contents(*symbols);
  const ByteSpan strings = cubin.Contents(cubin.sections()[symbols->sh_link]);

  std::vector<uint32_t> reach;  // what calls it reaches vprintf
  bool launches = false;
  Elf64_Sym symbol = {};
  for (uint32_t i = 0; Cubin::Read(table, uint64_t{i} * sizeof(symbol), &symbol); ++i) {
    if (symbol.st_shndx != SHN_UNDEF || ELF64_ST_TYPE(symbol.st_info) != STT_FUNC) continue;
    const std::string_view name = Cubin::Text(strings, symbol.st_name);
    if (name == kPrintf) reach.push_back(i);
    launches |= std::find(std::begin(kHarmless), std::end(kHarmless), name) == std::end(kHarmless);
  }
  if (reach.empty()) return printing;
  printing.all = launches || calls == nullptr;
  if (printing.all) return printing;

  std::multimap<uint32_t, uint32_t> callers;  // by callee
  const ByteSpan pairs = cubin.Contents(*calls);
  uint32_t pair[2];
  for (uint64_t at = 0; Cubin::Read(pairs, at, &pair); at += sizeof(pair)) {
    if (pair[1] < kMarksFirst) callers.emplace(pair[1], pair[0]);
  }
  std::set<uint32_t> seen(reach.begin(), reach.end());
  while (!reach.empty()) {
    const auto [first, last] = callers.equal_range(reach.back());
    reach.pop_back();
    for (auto it = first; it != last; ++it) {
      if (seen.insert(it->second).second) reach.push_back(it->second);
    }
  }
  for (const uint32_t index : seen) {
    if (!Cubin::Read(table, uint64_t{index} * sizeof(symbol), &symbol)) continue;
    if (symbol.st_shndx == SHN_UNDEF) continue;
    const std::string_view name = Cubin::Text(strings, symbol.st_name);
    if (!name.empty()) printing.kernels.emplace(name);
  }
  return printing;
}

Printing EntryPrinting(const FatEntry& entry) {
  const auto plain = Decompress(entry);
  if (!plain.ok()) return {};
  if (entry.kind == EntryKind::kElf) return CubinPrinting(*plain);
  Printing printing;
  printing.all = TextPrints({reinterpret_cast<const char*>(plain->data()), plain->size()});
  return printing;
}

}  // namespace

Printing FindPrinting(ByteSpan image, const Target& target) {
  Printing printing;
  switch (Classify(image)) {
    case ImageKind::kPtx:
      printing.all = TextPrints({reinterpret_cast<const char*>(image.data()), image.size()});
      return printing;
    case ImageKind::kElf:
      return CubinPrinting(image);
    case ImageKind::kUnknown:
      return printing;
    case ImageKind::kFatBinary:
      break;
  }
  const absl::StatusOr<std::vector<FatBinary>> binaries = ParseFatBinaries(image);
  if (!binaries.ok()) return printing;
  for (size_t i = 0; i < binaries->size(); ++i) {
    const auto entry = ChooseEntry((*binaries)[i].entries, target);
    if (!entry.ok()) continue;
    Printing more = EntryPrinting(**entry);
    printing.all |= more.all;
    printing.kernels.merge(more.kernels);
    if (i == 0) break;  // the device-linked whole
  }
  return printing;
}

}  // namespace consort::image
