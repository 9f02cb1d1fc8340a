// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/engine/variable_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/statusor.h"
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

// Where variables come to lie behind each other.
class Row {
 public:
  explicit Row(bool gaps) : gaps_(gaps) {}

  // The offset of `variable`.
  absl::StatusOr<uint64_t> Append(const ptx::Variable& variable) {
    const uint64_t align =
        std::max<uint64_t>(variable.align, variable.bytes >= kAlignMin ? kAlignMin : 16);
    const uint64_t offset = (bytes_ + align - 1) / align * align;
    bytes_ = offset + variable.bytes + (gaps_ ? kGapBytes : 0);
    if (bytes_ > kAllVariablesBytesMax) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "line ", variable.line, ": variables of more than ", kAllVariablesBytesMax, " bytes"));
    }
    return offset;
  }

  // Of memory that has them all at these offsets from a multiple of kRowAlign.
  uint64_t ReservedBytes() const {
    // An empty array has an address too. Alignments up to kRowAlign are larger than a page: room to
    // move the start.
    return std::max<uint64_t>(bytes_, 1) + kRowAlign;
  }

  static uint8_t* Start(void* memory) {
    return reinterpret_cast<uint8_t*>((reinterpret_cast<uint64_t>(memory) + kRowAlign - 1) &
                                      ~(kRowAlign - 1));
  }

 private:
  static constexpr uint64_t kRowAlign = uint64_t{1} << 16;

  const bool gaps_;
  uint64_t bytes_ = 0;
};

}  // namespace

VariableMemory::~VariableMemory() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
}

absl::Status VariableMemory::Fill(const ptx::Module& module, bool gaps,
                                  const ManagedMemory& managed) {
  addresses_.assign(module.variables.size(), nullptr);
  RETURN_IF_ERROR(PlaceManaged(module, gaps, managed));
  RETURN_IF_ERROR(PlaceOthers(module, gaps));
  for (size_t i = 0; i < module.variables.size(); ++i) {
    if (addresses_[i] == nullptr) continue;
    if (has_managed_ && module.variables[i].is_managed && !managed_fresh_) continue;
    RETURN_IF_ERROR(FillIn(module, i));
  }
  return absl::OkStatus();
}

absl::Status VariableMemory::PlaceManaged(const ptx::Module& module, bool gaps,
                                          const ManagedMemory& managed) {
  if (managed.take == nullptr) return absl::OkStatus();
  Row row(gaps);
  std::vector<std::pair<size_t, uint64_t>> offsets;
  for (size_t i = 0; i < module.variables.size(); ++i) {
    if (!module.variables[i].is_managed) continue;
    ASSIGN_OR_RETURN(const uint64_t offset, row.Append(module.variables[i]));
    offsets.emplace_back(i, offset);
  }
  if (offsets.empty()) return absl::OkStatus();
  int fresh = 0;
  void* const memory = managed.take(managed.owner, row.ReservedBytes(), &fresh);
  if (memory == nullptr) return absl::OkStatus();
  for (const auto& [i, offset] : offsets) addresses_[i] = Row::Start(memory) + offset;
  has_managed_ = true;
  managed_fresh_ = fresh != 0;
  return absl::OkStatus();
}

absl::Status VariableMemory::PlaceOthers(const ptx::Module& module, bool gaps) {
  Row row(gaps);
  std::vector<std::pair<size_t, uint64_t>> offsets;
  for (size_t i = 0; i < module.variables.size(); ++i) {
    if (module.variables[i].space == ptx::Space::kShared || addresses_[i] != nullptr) continue;
    ASSIGN_OR_RETURN(const uint64_t offset, row.Append(module.variables[i]));
    offsets.emplace_back(i, offset);
  }
  mapping_bytes_ = row.ReservedBytes();
  void* mapping = mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for variables of ", mapping_bytes_,
                                                     " bytes: ", std::strerror(errno)));
  }
  mapping_ = static_cast<uint8_t*>(mapping);
  for (const auto& [i, offset] : offsets) addresses_[i] = Row::Start(mapping) + offset;
  return absl::OkStatus();
}

absl::Status VariableMemory::FillIn(const ptx::Module& module, size_t index) {
  const ptx::Variable& variable = module.variables[index];
  if (!variable.data.empty()) {
    std::memcpy(addresses_[index], variable.data.data(),
                std::min<uint64_t>(variable.data.size(), variable.bytes));
  }
  for (const ptx::Relocation& relocation : variable.relocations) {
    uint64_t value = 0;
    const auto target = module.variable_by_name.find(relocation.symbol);
    const auto function = module.function_by_name.find(relocation.symbol);
    if (target != module.variable_by_name.end() && addresses_[target->second] != nullptr) {
      value = reinterpret_cast<uint64_t>(addresses_[target->second]);
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
    std::memcpy(static_cast<uint8_t*>(addresses_[index]) + relocation.offset, &value,
                relocation.bytes);
  }
  return absl::OkStatus();
}

}  // namespace consort::cpu
