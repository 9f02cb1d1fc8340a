// SPDX-License-Identifier: Apache-2.0
extern "C" __global__ void AddsForTheDevice(int* word) {
  atomicAdd(word, 1);
  __threadfence_system();
}
