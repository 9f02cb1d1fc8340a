// SPDX-License-Identifier: Apache-2.0
// Device-side assert.
#undef NDEBUG
#include <cassert>

extern "C" __global__ void assert_equal(unsigned a, unsigned b) { assert(a == b); }
