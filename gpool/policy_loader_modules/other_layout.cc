// SPDX-License-Identifier: Apache-2.0
// A policy of the right version whose structs lie differently.
#include <cstdlib>

#include "policies/placement/plugin.h"

extern "C" const consort_placement::Export consort_placement_policy;
const consort_placement::Export consort_placement_policy = {
    consort_placement::kVersion,
    0,
    consort_placement::Layout() + 1,
    "other-layout",
    [](const char*) -> consort_placement::Policy* { abort(); },
    [](consort_placement::Policy*) { abort(); }};
