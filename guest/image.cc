// SPDX-License-Identifier: Apache-2.0
#include "guest/image.h"

#include <elf.h>
#include <string.h>

namespace consort::guest {
namespace {

constexpr uint32_t kWrapperMagic = 0x466243B1;
constexpr uint32_t kFatBinaryMagic = 0xBA55ED50;
// Nothing larger exists (cuBLASLt's 540 MB are many fat binaries); a header that says more is no
// header.
constexpr uint64_t kImageBytesMax = uint64_t{2} << 30;

template <class T>
T Read(const void* at, uint64_t offset) {
  T value;
  memcpy(&value, static_cast<const std::byte*>(at) + offset, sizeof value);
  return value;
}

void Append(const void* from, uint64_t bytes, std::vector<std::byte>* to) {
  const auto* at = static_cast<const std::byte*>(from);
  to->insert(to->end(), at, at + bytes);
}

// Bytes of the fat binary at `code`, 0 if it is none.
uint64_t FatBinaryBytes(const void* code) {
  if (Read<uint32_t>(code, 0) != kFatBinaryMagic) return 0;
  const uint64_t bytes = uint64_t{Read<uint16_t>(code, 6)} + Read<uint64_t>(code, 8);
  return bytes <= kImageBytesMax ? bytes : 0;
}

uint64_t ElfBytes(const void* code) {
  Elf64_Ehdr header;
  memcpy(&header, code, sizeof header);
  uint64_t end = sizeof header;
  const auto extend = [&end](uint64_t offset, uint64_t bytes) {
    if (offset <= kImageBytesMax && bytes <= kImageBytesMax && offset + bytes > end)
      end = offset + bytes;
  };
  if (header.e_phoff != 0) extend(header.e_phoff, uint64_t{header.e_phnum} * header.e_phentsize);
  if (header.e_shoff == 0 || header.e_shoff > kImageBytesMax ||
      header.e_shentsize != sizeof(Elf64_Shdr))
    return end;
  const auto* sections = static_cast<const std::byte*>(code) + header.e_shoff;
  // Files with 65280 sections and more keep the count in section 0.
  uint64_t count = header.e_shnum;
  if (count == 0) count = Read<Elf64_Shdr>(sections, 0).sh_size;
  if (count > kImageBytesMax / sizeof(Elf64_Shdr)) return end;
  extend(header.e_shoff, count * sizeof(Elf64_Shdr));
  for (uint64_t i = 0; i < count; ++i) {
    const auto section = Read<Elf64_Shdr>(sections, i * sizeof(Elf64_Shdr));
    if (section.sh_type != SHT_NOBITS && section.sh_type != SHT_NULL)
      extend(section.sh_offset, section.sh_size);
  }
  return end;
}

// Whether `code` may be PTX: begins with printable text or white space.
bool LooksLikeText(const void* code) {
  const auto first = Read<unsigned char>(code, 0);
  return first == '\t' || first == '\n' || first == '\r' || (first >= 0x20 && first < 0x7F);
}

}  // namespace

std::vector<std::byte> FlattenImage(const void* code) {
  std::vector<std::byte> flat;
  // Text may be shorter than a magic number, and a fat binary begins with the letter P.
  const char* text = static_cast<const char*>(code);
  const uint32_t magic = strnlen(text, 4) == 4 ? Read<uint32_t>(code, 0) : 0;
  if (magic == kWrapperMagic) {
    const void* data = Read<const void*>(code, 8);
    if (data == nullptr) return flat;
    Append(data, FatBinaryBytes(data), &flat);
    if (Read<uint32_t>(code, 4) == 2) {
      const auto* list = Read<const void* const*>(code, 16);
      for (; list != nullptr && *list != nullptr; ++list)
        Append(*list, FatBinaryBytes(*list), &flat);
    }
    return flat;
  }
  if (magic == kFatBinaryMagic) {
    Append(code, FatBinaryBytes(code), &flat);
  } else if (magic != 0 && memcmp(code, ELFMAG, SELFMAG) == 0) {
    Append(code, ElfBytes(code), &flat);
  } else if (LooksLikeText(code)) {
    Append(code, strlen(text) + 1, &flat);
  }
  return flat;
}

}  // namespace consort::guest
