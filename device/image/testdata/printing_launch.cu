// SPDX-License-Identifier: Apache-2.0
// A kernel that prints, launched by one that does not.
#include <cstdio>

extern "C" __global__ void Child(int value) { printf("%d\n", value); }
extern "C" __global__ void Parent(int value) { Child<<<1, 1>>>(value); }
