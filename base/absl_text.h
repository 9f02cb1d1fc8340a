// SPDX-License-Identifier: Apache-2.0
// base/absl_text.h: a std::string_view for Abseil.
//
// Debian builds Abseil for C++14, where absl::string_view is a class of its own that
// std::string_view does not turn into.
#ifndef CONSORT_BASE_ABSL_TEXT_H_
#define CONSORT_BASE_ABSL_TEXT_H_

#include <string_view>

#include "absl/strings/string_view.h"

namespace consort {

inline absl::string_view AbslText(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace consort

#endif  // CONSORT_BASE_ABSL_TEXT_H_
