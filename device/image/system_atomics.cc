// SPDX-License-Identifier: Apache-2.0
#include "device/image/system_atomics.h"

#include <algorithm>

#include "device/image/image.h"

namespace consort::image {
namespace {

constexpr std::string_view kSystemScope = ".sys";
// From the beginning of an instruction to its scope; the longest has some 30.
constexpr size_t kInstructionBytesMax = 64;

bool InWord(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

// The instruction whose modifier begins at `at`: what comes before it of words and dots.
std::string_view InstructionBefore(std::string_view text, size_t at) {
  size_t begin = at;
  while (begin > 0 && at - begin < kInstructionBytesMax &&
         (InWord(text[begin - 1]) || text[begin - 1] == '.'))
    --begin;
  return text.substr(begin, at + 1 - begin);
}

}  // namespace

bool MayHaveSystemAtomicsInPtx(std::string_view text) {
  for (size_t at = text.find(kSystemScope); at != std::string_view::npos;
       at = text.find(kSystemScope, at + 1)) {
    const size_t end = at + kSystemScope.size();
    if (end < text.size() && InWord(text[end])) continue;
    const std::string_view instruction = InstructionBefore(text, at);
    if (instruction.starts_with("atom.") || instruction.starts_with("red.")) return true;
  }
  return false;
}

bool MayHaveSystemAtomics(std::span<const std::byte> image, uint32_t capability) {
  if (Classify(image) == ImageKind::kPtx) {
    return MayHaveSystemAtomicsInPtx({reinterpret_cast<const char*>(image.data()), image.size()});
  }
  if (Classify(image) != ImageKind::kFatBinary) return false;
  const absl::StatusOr<std::vector<FatBinary>> binaries = ParseFatBinaries(image);
  if (!binaries.ok()) return false;
  const Target target = {.capability = capability, .machine_code = true, .prefer_portable = false};
  // Of code that was linked the PTX is with the objects that went into it, not with the whole.
  return std::any_of(binaries->begin(), binaries->end(), [&](const FatBinary& binary) {
    const absl::StatusOr<const FatEntry*> chosen = ChooseEntry(binary.entries, target);
    if (!chosen.ok()) return false;
    return std::any_of(binary.entries.begin(), binary.entries.end(), [&](const FatEntry& entry) {
      if (entry.kind != EntryKind::kPtx || entry.architecture != (*chosen)->architecture) {
        return false;
      }
      const absl::StatusOr<std::string> text = PtxText(entry);
      return text.ok() && MayHaveSystemAtomicsInPtx(*text);
    });
  });
}

}  // namespace consort::image
