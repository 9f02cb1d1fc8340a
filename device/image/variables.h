// SPDX-License-Identifier: Apache-2.0
// device/image/variables.h: the module variables (__device__, __constant__) that an image has. The
// driver finds one by its name and lists none.
//
// Read from PTX declarations and from the symbol tables of machine code, in which those in constant
// memory lie in sections .nv.constant*, as ptxas was seen to write. The bytes are a guest's:
// see image.h. Pure; thread safe. Sources: PTX ISA 9.0, state spaces and linkage directives; System
// V ABI, symbol table.
#ifndef CONSORT_DEVICE_IMAGE_VARIABLES_H_
#define CONSORT_DEVICE_IMAGE_VARIABLES_H_

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/units.h"

namespace consort::image {

// Variables of all entries of one image; more is refused.
inline constexpr size_t kVariablesMax = 1 << 16;

struct DeclaredVariable {
  Bytes bytes = 1;        // at least, as far as declarations tell plainly
  bool constant = false;  // everywhere in constant memory, which kernels cannot write
  bool alone = false;     // nothing else is in its image: no code either, which could name it
  bool managed = false;   // declared so in PTX
  bool operator==(const DeclaredVariable&) const = default;
};
using Variables = std::map<std::string, DeclaredVariable>;  // by name

// Whether one copy of the variable is as good as several, since no program writes it: a text that a
// compiler has made, or one of the objects without members by which CUDA's C++ libraries choose
// among overloads (one byte, of internal linkage, in namespaces cuda::std, thrust or cub). False
// where that cannot be told. Source: what nvcc 13.0 was seen to write; Itanium C++ ABI, nested
// names.
bool HasNoState(std::string_view name, const DeclaredVariable& declared);

// Those of one PTX text. Declarations of other units' variables (.extern) are left out.
Variables VariablesOfPtx(std::string_view text);

// Those of every entry of the image. kInvalidArgument, kDataLoss, kResourceExhausted as in image.h.
absl::StatusOr<Variables> VariablesOf(std::span<const std::byte> image);

}  // namespace consort::image

#endif  // CONSORT_DEVICE_IMAGE_VARIABLES_H_
