// SPDX-License-Identifier: Apache-2.0
#include <cuda/atomic>

extern "C" __global__ void AddsForTheHost(int* word) { atomicAdd_system(word, 1); }
extern "C" __global__ void AddsByLibrary(int* word) { cuda::atomic_ref<int>(*word).fetch_add(1); }
