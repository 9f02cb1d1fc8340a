// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/codegen/build_id.h"

#include <elf.h>
#include <link.h>

#include <cstdint>
#include <string_view>

namespace consort::cpu {
namespace {

constexpr uintptr_t AlignUp(uintptr_t value) { return (value + 3) / 4 * 4; }

int Visit(dl_phdr_info* info, size_t, void* result) {
  const auto here = reinterpret_cast<uintptr_t>(&Visit);
  bool is_ours = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    const uintptr_t begin = info->dlpi_addr + header.p_vaddr;
    is_ours |= header.p_type == PT_LOAD && here >= begin && here - begin < header.p_memsz;
  }
  if (!is_ours) return 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = info->dlpi_phdr[i];
    if (header.p_type != PT_NOTE) continue;
    uintptr_t at = info->dlpi_addr + header.p_vaddr;
    const uintptr_t end = at + header.p_memsz;
    while (at + sizeof(ElfW(Nhdr)) <= end) {
      const auto& note = *reinterpret_cast<const ElfW(Nhdr)*>(at);
      const uintptr_t name = at + sizeof(note);
      const uintptr_t description = name + AlignUp(note.n_namesz);
      if (note.n_type == NT_GNU_BUILD_ID &&
          std::string_view(reinterpret_cast<const char*>(name), note.n_namesz) ==
              std::string_view("GNU\0", 4)) {
        static_cast<std::string*>(result)->assign(reinterpret_cast<const char*>(description),
                                                  note.n_descsz);
        return 1;
      }
      at = description + AlignUp(note.n_descsz);
    }
  }
  return 1;
}

}  // namespace

std::string BuildId() {
  std::string id;
  dl_iterate_phdr(&Visit, &id);
  return id;
}

}  // namespace consort::cpu
