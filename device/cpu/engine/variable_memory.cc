// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/engine/variable_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "device/cpu/codegen/layout.h"

namespace consort::cpu {
namespace {

// No GPU of today has as much memory; sums of sizes stay far from 2^64.
constexpr uint64_t kAllVariablesBytesMax = uint64_t{1} << 38;
// What the driver gives to variables of any type.
constexpr uint64_t kAlignMin = 256;
// More than the stride of what a program usually has in an array.
constexpr uint64_t kGapBytes = 256;

}  // namespace

VariableMemory::~VariableMemory() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
}

absl::Status VariableMemory::Fill(const ptx::Module& module, bool gaps) {
  addresses_.assign(module.variables.size(), nullptr);
  std::vector<uint64_t> offsets(module.variables.size(), 0);
  uint64_t bytes = 0;
  for (size_t i = 0; i < module.variables.size(); ++i) {
    const ptx::Variable& variable = module.variables[i];
    if (variable.space == ptx::Space::kShared) continue;
    const uint64_t align =
        std::max<uint64_t>(variable.align, variable.bytes >= kAlignMin ? kAlignMin : 16);
    bytes = (bytes + align - 1) / align * align;
    offsets[i] = bytes;
    bytes += variable.bytes + (gaps ? kGapBytes : 0);
    if (bytes > kAllVariablesBytesMax) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "line ", variable.line, ": variables of more than ", kAllVariablesBytesMax, " bytes"));
    }
  }
  if (bytes == 0) bytes = 1;  // an empty array has an address too
  // Alignments up to kAlignMax are larger than a page: room to move the start.
  mapping_bytes_ = bytes + (uint64_t{1} << 16);
  void* mapping = mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for variables of ", bytes, " bytes: ", std::strerror(errno)));
  }
  mapping_ = static_cast<uint8_t*>(mapping);
  const uint64_t start = (reinterpret_cast<uint64_t>(mapping_) + 0xFFFF) & ~uint64_t{0xFFFF};
  uint8_t* base = reinterpret_cast<uint8_t*>(start);
  for (size_t i = 0; i < module.variables.size(); ++i) {
    const ptx::Variable& variable = module.variables[i];
    if (variable.space == ptx::Space::kShared) continue;
    addresses_[i] = base + offsets[i];
    if (!variable.data.empty()) {
      std::memcpy(addresses_[i], variable.data.data(),
                  std::min<uint64_t>(variable.data.size(), variable.bytes));
    }
  }
  for (size_t i = 0; i < module.variables.size(); ++i) {
    for (const ptx::Relocation& relocation : module.variables[i].relocations) {
      uint64_t value = 0;
      const auto variable = module.variable_by_name.find(relocation.symbol);
      const auto function = module.function_by_name.find(relocation.symbol);
      if (variable != module.variable_by_name.end() && addresses_[variable->second] != nullptr) {
        value = reinterpret_cast<uint64_t>(addresses_[variable->second]);
      } else if (function != module.function_by_name.end()) {
        value = FunctionToken(function->second);
      } else {
        return absl::OutOfRangeError(
            absl::StrCat("line ", relocation.line, ": `",
                         absl::string_view(relocation.symbol.data(), relocation.symbol.size()),
                         "` has no address that a variable can hold"));
      }
      value += static_cast<uint64_t>(relocation.addend);
      value >>= relocation.shift;
      std::memcpy(static_cast<uint8_t*>(addresses_[i]) + relocation.offset, &value,
                  relocation.bytes);
    }
  }
  return absl::OkStatus();
}

}  // namespace consort::cpu
