// SPDX-License-Identifier: Apache-2.0
// A policy as the version after this one might build it: nothing but its version may be looked at.
#include <cstdlib>

#include "policies/placement/plugin.h"

extern "C" const consort_placement::Export consort_placement_policy;
const consort_placement::Export consort_placement_policy = {
    consort_placement::kVersion + 1,
    0,
    consort_placement::Layout(),
    "other-version",
    [](const char*) -> consort_placement::Policy* { abort(); },
    [](consort_placement::Policy*) { abort(); }};
