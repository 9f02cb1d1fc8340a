// SPDX-License-Identifier: Apache-2.0
// device/image/variables.h: the module variables (__device__, __constant__) that an image has. The
// driver finds one by its name and lists none.
//
// Read from PTX declarations and from the symbol tables of machine code. The bytes are a guest's:
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

// By name, with the bytes of each as far as its declaration tells them plainly: at least 1.
using Variables = std::map<std::string, Bytes>;

// Those of one PTX text. Declarations of other units' variables (.extern) are left out.
Variables VariablesOfPtx(std::string_view text);

// Those of every entry of the image. kInvalidArgument, kDataLoss, kResourceExhausted as in image.h.
absl::StatusOr<Variables> VariablesOf(std::span<const std::byte> image);

}  // namespace consort::image

#endif  // CONSORT_DEVICE_IMAGE_VARIABLES_H_
