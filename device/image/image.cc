// SPDX-License-Identifier: Apache-2.0
#include "device/image/image.h"

#include <elf.h>
#include <lz4.h>
#include <zstd.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <cstring>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace consort::image {
namespace {

using ByteSpan = std::span<const std::byte>;

constexpr size_t kFatHeaderBytes = 16;
constexpr size_t kEntryHeaderBytesMin = 64;
constexpr uint16_t kKindPtx = 1;
constexpr uint16_t kKindElf = 2;
constexpr uint64_t kFlagLz4 = 0x2000;
constexpr uint64_t kFlagZstd = 0x8000;
constexpr uint64_t kFlagArchitectureSpecific = 0x100000;
constexpr uint64_t kFlagFamilySpecific = 0x200000;
// Larger version and architecture numbers than any that will be.
constexpr uint32_t kPtxNumberMax = 100'000;

// Reads a little-endian integer; the caller has checked that it is inside.
template <typename T>
T Load(ByteSpan bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

std::string Version(uint32_t capability) {
  return absl::StrCat(capability / 10, ".", capability % 10);
}

std::string ArchitectureName(const FatEntry& entry, const char* prefix) {
  return absl::StrCat(prefix, entry.architecture, entry.architecture_specific ? "a" : "",
                      entry.family_specific ? "f" : "");
}

absl::StatusOr<FatEntry> ParseEntry(ByteSpan rest, size_t offset, size_t* entry_bytes) {
  if (rest.size() < kEntryHeaderBytesMin) {
    return absl::InvalidArgumentError(
        absl::StrCat("fat binary entry at ", offset, ": header is cut off"));
  }
  const uint32_t header_bytes = Load<uint32_t>(rest, 4);
  const uint64_t payload_bytes = Load<uint64_t>(rest, 8);
  if (header_bytes < kEntryHeaderBytesMin || header_bytes > rest.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("fat binary entry at ", offset, ": header size ", header_bytes));
  }
  if (payload_bytes > rest.size() - header_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("fat binary entry at ", offset, ": payload of ",
                                                   payload_bytes, " bytes is cut off"));
  }
  const uint16_t kind = Load<uint16_t>(rest, 0);
  const uint32_t compressed_bytes = Load<uint32_t>(rest, 16);
  const uint32_t options_offset = Load<uint32_t>(rest, 20);
  const uint64_t flags = Load<uint64_t>(rest, 40);

  FatEntry entry;
  entry.kind = kind == kKindPtx   ? EntryKind::kPtx
               : kind == kKindElf ? EntryKind::kElf
                                  : EntryKind::kOther;
  entry.version_minor = Load<uint16_t>(rest, 24);
  entry.version_major = Load<uint16_t>(rest, 26);
  entry.architecture = Load<uint32_t>(rest, 28);
  entry.architecture_specific = (flags & kFlagArchitectureSpecific) != 0;
  entry.family_specific = (flags & kFlagFamilySpecific) != 0;
  entry.stored = rest.subspan(header_bytes, payload_bytes);
  if ((flags & (kFlagLz4 | kFlagZstd)) != 0) {
    entry.compression = (flags & kFlagZstd) != 0 ? Compression::kZstd : Compression::kLz4Block;
    entry.decompressed_bytes = Load<uint64_t>(rest, 56);
    if (compressed_bytes == 0 || compressed_bytes > payload_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("fat binary entry at ", offset,
                                                     ": compressed size ", compressed_bytes,
                                                     " in a payload of ", payload_bytes));
    }
    entry.stored = entry.stored.first(compressed_bytes);
  } else {
    entry.decompressed_bytes = payload_bytes;
  }
  if (options_offset != 0) {
    if (options_offset > header_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("fat binary entry at ", offset, ": options at ", options_offset));
    }
    entry.options = rest.subspan(options_offset, header_bytes - options_offset);
  }
  *entry_bytes = header_bytes + payload_bytes;
  return entry;
}

// Bytes of the fat binary at the start of `image`: header and payload.
absl::StatusOr<size_t> FatBinaryBytes(ByteSpan image, size_t offset) {
  if (image.size() < kFatHeaderBytes || Load<uint32_t>(image, 0) != kFatBinaryMagic) {
    return absl::InvalidArgumentError(absl::StrCat("no fat binary header at ", offset));
  }
  const uint16_t header_bytes = Load<uint16_t>(image, 6);
  const uint64_t payload_bytes = Load<uint64_t>(image, 8);
  if (header_bytes < kFatHeaderBytes || header_bytes > image.size() ||
      payload_bytes > image.size() - header_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("fat binary at ", offset, ": header of ",
                                                   header_bytes, " and payload of ", payload_bytes,
                                                   " bytes in ", image.size()));
  }
  return header_bytes + payload_bytes;
}

// Architecture of a cubin, from e_flags: bits 8 to 15 for the OS ABI of CUDA 13, else the low byte.
// 0 if the header is cut off. Source: observed (nvcc 11.8, 12.4, 13.0).
uint32_t ElfArchitecture(ByteSpan image) {
  constexpr unsigned char kOsAbiCuda13 = 0x41;
  if (image.size() < sizeof(Elf64_Ehdr)) return 0;
  const auto header = Load<Elf64_Ehdr>(image, 0);
  return header.e_ident[EI_OSABI] == kOsAbiCuda13 ? (header.e_flags >> 8) & 0xFF
                                                  : header.e_flags & 0xFF;
}

// End of the last section or header table of a cubin. Extended section numbering (e_shnum 0) keeps
// the count in section 0. Source: ELF-64 object file format, section header.
absl::StatusOr<size_t> ElfBytes(ByteSpan image) {
  const auto cut_off = [] { return absl::InvalidArgumentError("cubin is cut off"); };
  if (image.size() < sizeof(Elf64_Ehdr)) return cut_off();
  const auto header = Load<Elf64_Ehdr>(image, 0);
  uint64_t end = sizeof(Elf64_Ehdr);
  if (header.e_phoff != 0) {
    const uint64_t table_bytes = uint64_t{header.e_phnum} * sizeof(Elf64_Phdr);
    if (header.e_phoff > image.size() || table_bytes > image.size() - header.e_phoff) {
      return cut_off();
    }
    end = std::max(end, header.e_phoff + table_bytes);
  }
  if (header.e_shoff == 0) return end;
  if (header.e_shoff > image.size() || image.size() - header.e_shoff < sizeof(Elf64_Shdr)) {
    return cut_off();
  }
  const uint64_t count =
      header.e_shnum != 0 ? header.e_shnum : Load<Elf64_Shdr>(image, header.e_shoff).sh_size;
  if (count > (image.size() - header.e_shoff) / sizeof(Elf64_Shdr)) return cut_off();
  end = std::max(end, header.e_shoff + count * sizeof(Elf64_Shdr));
  for (uint64_t i = 0; i < count; ++i) {
    const auto section = Load<Elf64_Shdr>(image, header.e_shoff + i * sizeof(Elf64_Shdr));
    // Section 0's fields hold counts, and NOBITS sections occupy no bytes of the file.
    if (section.sh_type == SHT_NOBITS || section.sh_type == SHT_NULL) continue;
    if (section.sh_offset > image.size() || section.sh_size > image.size() - section.sh_offset) {
      return cut_off();
    }
    end = std::max(end, section.sh_offset + section.sh_size);
  }
  return end;
}

// How well `entry` suits `target`; 0 if it does not.
uint64_t Score(const FatEntry& entry, const Target& target) {
  constexpr uint64_t kMachineCode = uint64_t{1} << 40;
  constexpr uint64_t kPortable = uint64_t{1} << 32;
  const bool same_major = entry.architecture / 10 == target.capability / 10;
  if (entry.architecture == 0 || entry.architecture > target.capability) return 0;
  if (entry.architecture_specific && entry.architecture != target.capability) return 0;
  if (entry.family_specific && !same_major) return 0;
  const bool portable = !entry.architecture_specific && !entry.family_specific;
  // Among equal architectures the most specific code is the best, unless portable is preferred.
  uint64_t score = uint64_t{entry.architecture} * 4 + (entry.architecture_specific ? 2
                                                       : entry.family_specific     ? 1
                                                                                   : 0);
  if (target.prefer_portable && portable) score += kPortable;
  switch (entry.kind) {
    case EntryKind::kElf:
      return target.machine_code && same_major ? score + kMachineCode : 0;
    case EntryKind::kPtx:
      return score;
    case EntryKind::kOther:
      return 0;
  }
  return 0;
}

std::string DescribeEntries(std::span<const FatEntry> entries, const Target& target) {
  std::vector<std::string> machine_code, ptx;
  for (const FatEntry& entry : entries) {
    if (entry.kind == EntryKind::kElf) machine_code.push_back(ArchitectureName(entry, "sm_"));
    if (entry.kind == EntryKind::kPtx) ptx.push_back(ArchitectureName(entry, "compute_"));
  }
  if (entries.empty()) return "image holds no code at all";
  if (machine_code.empty() && ptx.empty()) {
    return "image holds neither machine code nor PTX (only link-time code)";
  }
  if (ptx.empty()) {
    return absl::StrCat("image holds only ", absl::StrJoin(machine_code, ", "),
                        " machine code and no PTX");
  }
  return absl::StrCat("image holds ",
                      machine_code.empty()
                          ? std::string()
                          : absl::StrCat(absl::StrJoin(machine_code, ", "), " machine code and "),
                      absl::StrJoin(ptx, ", "), " PTX, none for compute capability ",
                      Version(target.capability), " or below");
}

// The next token of PTX text: a run of characters other than white space, comments left out. Empty
// at the end.
std::string_view NextToken(std::string_view* text) {
  constexpr std::string_view kSpace(" \t\r\n\0", 5);
  while (true) {
    text->remove_prefix(std::min(text->find_first_not_of(kSpace), text->size()));
    const std::string_view end = text->starts_with("//")   ? "\n"
                                 : text->starts_with("/*") ? "*/"
                                                           : "";
    if (end.empty()) break;
    const size_t at = text->find(end, 2);
    if (at == std::string_view::npos) return {};
    text->remove_prefix(at + end.size());
  }
  const std::string_view token = text->substr(0, text->find_first_of(kSpace));
  text->remove_prefix(token.size());
  return token;
}

// The decimal number at the start of `text`, which loses it; 0 if there is none or it is too large.
uint32_t TakeNumber(std::string_view* text) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || value > kPtxNumberMax) return 0;
  text->remove_prefix(static_cast<size_t>(end - text->data()));
  return value;
}

std::string_view WithoutTrailingNuls(std::string_view text) {
  const size_t last = text.find_last_not_of('\0');
  return last == std::string_view::npos ? std::string_view() : text.substr(0, last + 1);
}

}  // namespace

ImageKind Classify(ByteSpan image) {
  if (image.size() >= 4 && Load<uint32_t>(image, 0) == kFatBinaryMagic)
    return ImageKind::kFatBinary;
  if (image.size() >= SELFMAG && std::memcmp(image.data(), ELFMAG, SELFMAG) == 0) {
    return ImageKind::kElf;
  }
  for (const std::byte b : image) {
    const char c = static_cast<char>(b);
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') continue;
    return c == '.' || c == '/' ? ImageKind::kPtx : ImageKind::kUnknown;
  }
  return ImageKind::kUnknown;
}

absl::StatusOr<std::vector<FatBinary>> ParseFatBinaries(ByteSpan image) {
  std::vector<FatBinary> binaries;
  size_t offset = 0;
  while (offset < image.size()) {
    // Sections pad with zeros between fat binaries and at the end.
    if (!binaries.empty() && image[offset] == std::byte{0}) {
      ++offset;
      continue;
    }
    const ByteSpan rest = image.subspan(offset);
    if (binaries.size() == kFatBinariesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("more than ", kFatBinariesMax, " fat binaries in one image"));
    }
    ASSIGN_OR_RETURN(const size_t binary_bytes, FatBinaryBytes(rest, offset));
    FatBinary binary;
    size_t at = Load<uint16_t>(rest, 6);
    while (at < binary_bytes) {
      if (binary.entries.size() == kEntriesMax) {
        return absl::InvalidArgumentError(
            absl::StrCat("more than ", kEntriesMax, " entries in one fat binary"));
      }
      size_t entry_bytes = 0;
      ASSIGN_OR_RETURN(FatEntry entry,
                       ParseEntry(rest.subspan(at, binary_bytes - at), offset + at, &entry_bytes));
      binary.entries.push_back(entry);
      at += entry_bytes;
    }
    binaries.push_back(std::move(binary));
    offset += binary_bytes;
  }
  if (binaries.empty()) return absl::InvalidArgumentError("image is empty");
  return binaries;
}

absl::StatusOr<size_t> ImageBytes(ByteSpan image) {
  switch (Classify(image)) {
    case ImageKind::kFatBinary:
      return FatBinaryBytes(image, 0);
    case ImageKind::kElf:
      return ElfBytes(image);
    case ImageKind::kPtx: {
      const auto nul = std::find(image.begin(), image.end(), std::byte{0});
      if (nul == image.end()) return absl::InvalidArgumentError("PTX text does not end in NUL");
      return static_cast<size_t>(nul - image.begin()) + 1;
    }
    case ImageKind::kUnknown:
      break;
  }
  return absl::InvalidArgumentError("image is neither a fat binary, nor a cubin, nor PTX text");
}

absl::StatusOr<const FatEntry*> ChooseEntry(std::span<const FatEntry> entries,
                                            const Target& target) {
  const FatEntry* best = nullptr;
  uint64_t best_score = 0;
  for (const FatEntry& entry : entries) {
    const uint64_t score = Score(entry, target);
    if (score > best_score) {
      best = &entry;
      best_score = score;
    }
  }
  if (best == nullptr) return absl::NotFoundError(DescribeEntries(entries, target));
  return best;
}

absl::StatusOr<std::vector<std::byte>> Decompress(const FatEntry& entry) {
  if (entry.compression == Compression::kNone) {
    return std::vector<std::byte>(entry.stored.begin(), entry.stored.end());
  }
  if (entry.decompressed_bytes > kDecompressedBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("entry declares ", entry.decompressed_bytes,
                                                     " bytes; the limit is ",
                                                     kDecompressedBytesMax));
  }
  static_assert(kDecompressedBytesMax <= INT_MAX, "LZ4's sizes are int");
  std::vector<std::byte> plain(entry.decompressed_bytes);
  if (entry.compression == Compression::kLz4Block) {
    if (entry.stored.size() > INT_MAX) {
      return absl::ResourceExhaustedError("LZ4 block of more than 2 GiB");
    }
    const int written = LZ4_decompress_safe(
        reinterpret_cast<const char*>(entry.stored.data()), reinterpret_cast<char*>(plain.data()),
        static_cast<int>(entry.stored.size()), static_cast<int>(plain.size()));
    if (written < 0 || static_cast<size_t>(written) != plain.size()) {
      return absl::DataLossError("entry is damaged (LZ4)");
    }
    return plain;
  }
  const size_t written =
      ZSTD_decompress(plain.data(), plain.size(), entry.stored.data(), entry.stored.size());
  if (ZSTD_isError(written) != 0) {
    return absl::DataLossError(
        absl::StrCat("entry is damaged (zstd: ", ZSTD_getErrorName(written), ")"));
  }
  if (written != plain.size()) return absl::DataLossError("entry is shorter than it declares");
  return plain;
}

absl::StatusOr<std::string> PtxText(const FatEntry& entry) {
  if (entry.kind != EntryKind::kPtx) return absl::InvalidArgumentError("entry is not PTX");
  ASSIGN_OR_RETURN(const std::vector<std::byte> plain, Decompress(entry));
  const std::string_view text = WithoutTrailingNuls(
      std::string_view(reinterpret_cast<const char*>(plain.data()), plain.size()));
  std::string result;
  if (ReadPtxHeader(text).version == 0) {
    result = absl::StrCat(".version ", entry.version_major, ".", entry.version_minor, "\n");
  }
  result.append(text);
  return result;
}

PtxHeader ReadPtxHeader(std::string_view text) {
  PtxHeader header;
  // .version comes first and .target second; .address_size or anything else ends the header.
  while (true) {
    const std::string_view directive = NextToken(&text);
    if (directive == ".version") {
      std::string_view value = NextToken(&text);
      const uint32_t major = TakeNumber(&value);
      if (value.starts_with(".")) value.remove_prefix(1);
      header.version = major * 10 + TakeNumber(&value);
    } else if (directive == ".target") {
      std::string_view value = NextToken(&text);
      if (!value.starts_with("sm_")) return header;
      value.remove_prefix(3);
      header.target = TakeNumber(&value);
    } else {
      return header;
    }
  }
}

absl::StatusOr<std::vector<std::string>> SelectPtx(ByteSpan image, const Target& target) {
  switch (Classify(image)) {
    case ImageKind::kPtx: {
      const std::string_view text(reinterpret_cast<const char*>(image.data()), image.size());
      return std::vector<std::string>{std::string(WithoutTrailingNuls(text))};
    }
    case ImageKind::kElf:
      return absl::NotFoundError(
          absl::StrCat("image holds only sm_", ElfArchitecture(image), " machine code and no PTX"));
    case ImageKind::kUnknown:
      return absl::InvalidArgumentError("image is neither a fat binary, nor a cubin, nor PTX text");
    case ImageKind::kFatBinary:
      break;
  }
  ASSIGN_OR_RETURN(const std::vector<FatBinary> binaries, ParseFatBinaries(image));
  std::vector<std::string> texts;
  absl::Status nothing;
  for (size_t i = 0; i < binaries.size(); ++i) {
    const absl::StatusOr<const FatEntry*> entry = ChooseEntry(binaries[i].entries, target);
    if (!entry.ok()) {
      if (nothing.ok()) nothing = entry.status();
      continue;
    }
    ASSIGN_OR_RETURN(std::string text, PtxText(**entry));
    texts.push_back(std::move(text));
    if (i == 0) break;
  }
  if (texts.empty()) return nothing;
  return texts;
}

}  // namespace consort::image
