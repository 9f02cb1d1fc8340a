// SPDX-License-Identifier: Apache-2.0
// host/memory/size_text.h: sizes as operators write them. Pure.
#ifndef CONSORT_HOST_MEMORY_SIZE_TEXT_H_
#define CONSORT_HOST_MEMORY_SIZE_TEXT_H_

#include <optional>
#include <string_view>

#include "base/units.h"

namespace consort::host {

// "40GiB", "512 MiB", "4096": a whole number, and KiB, MiB, GiB or TiB; without one, bytes. Nothing
// for anything else, and beyond 2^62.
std::optional<Bytes> ParseSize(std::string_view text);

}  // namespace consort::host

#endif  // CONSORT_HOST_MEMORY_SIZE_TEXT_H_
