// SPDX-License-Identifier: Apache-2.0
// A second translation unit, for images of several fat binaries.
extern "C" __global__ void Fill(int* out, int value) { out[threadIdx.x] = value; }
