// SPDX-License-Identifier: Apache-2.0
// tests/programs/two_units.h: what the second unit offers the first.
#ifndef TESTS_PROGRAMS_TWO_UNITS_H_
#define TESTS_PROGRAMS_TWO_UNITS_H_

// Enqueues to[i] = 3 * from[i] - 7 for `count` elements of device memory. Ends the program if it
// cannot.
void ApplySecondUnit(const int* from, int* to, int count);

#endif  // TESTS_PROGRAMS_TWO_UNITS_H_
