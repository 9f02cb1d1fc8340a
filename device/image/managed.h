// SPDX-License-Identifier: Apache-2.0
// device/image/managed.h: PTX whose managed variables (__managed__) lie where somebody else wants
// them.
//
// A driver gives them memory of its own, which only its process has. Where host memory has one
// address in the program, in the worker and on the device, the variables can lie in that: each
// declaration is taken out of the text, and each use of a name becomes the address as a number, in
// a register of its own where PTX wants one ("[immAddr]" has 32 bits). The text comes from a guest:
// what is not understood is refused and nothing is read outside of it. Source: PTX ISA 9.0,
// ".attribute", "Addresses as Operands", "Initializers"; what nvcc (13.0) was seen to write.
#ifndef CONSORT_DEVICE_IMAGE_MANAGED_H_
#define CONSORT_DEVICE_IMAGE_MANAGED_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/units.h"

namespace consort::image {

// All managed variables of one text together; more is refused.
inline constexpr Bytes kManagedBytesMax = 1024 * kGiB;

class ManagedPtx {
 public:
  struct Variable {
    Bytes offset = 0;  // from where the first one lies, which is aligned for all
    Bytes bytes = 0;
  };
  // What a variable begins with; the rest is 0.
  struct Contents {
    Bytes offset = 0;
    std::vector<std::byte> bytes;
  };

  // Whether it is worth to Parse a text.
  static bool MayBeIn(std::string_view text) {
    return text.find(".managed") != std::string_view::npos;
  }
  // kInvalidArgument: what the text does with a managed variable is not understood; names it.
  // kResourceExhausted: more than kManagedBytesMax.
  static absl::StatusOr<ManagedPtx> Parse(std::string text);

  const std::map<std::string, Variable, std::less<>>& variables() const { return variables_; }
  Bytes bytes() const { return bytes_; }
  const std::vector<Contents>& contents() const { return contents_; }
  // The text, with the variables in bytes() of memory at `address`, a multiple of 4096.
  std::string At(uint64_t address) const;

 private:
  friend class ManagedPtxParser;
  // Put in place of text_[begin, end).
  struct Edit {
    size_t begin = 0;
    size_t end = 0;
    std::string text;
    bool has_address = false;  // and the address of `offset` behind it
    Bytes offset = 0;
    std::string after;
  };

  std::string text_;
  std::map<std::string, Variable, std::less<>> variables_;
  Bytes bytes_ = 0;
  std::vector<Contents> contents_;
  std::vector<Edit> edits_;  // in order
};

}  // namespace consort::image

#endif  // CONSORT_DEVICE_IMAGE_MANAGED_H_
