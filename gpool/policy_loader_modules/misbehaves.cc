// SPDX-License-Identifier: Apache-2.0
// A policy that misbehaves as its argument says: "refuse" to be made, "throw", or choose "nobody"
// or a GPU that is "absent".
#include <stdexcept>
#include <string>

#include "policies/placement/plugin.h"

namespace {

class Misbehaves : public consort_placement::Policy {
 public:
  explicit Misbehaves(const char* how) : how_(how) {
    if (how_ == "refuse") throw std::invalid_argument("refused");
  }
  uint32_t Choose(const consort_placement::Question&) const override {
    if (how_ == "throw") throw std::runtime_error("thrown");
    return how_ == "absent" ? 123456 : consort_placement::kNobody;
  }

 private:
  const std::string how_;
};

}  // namespace

CONSORT_PLACEMENT_POLICY("misbehaves", Misbehaves)
