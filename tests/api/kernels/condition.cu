// SPDX-License-Identifier: Apache-2.0
// Kernels that set the conditions of conditional graph nodes.

extern "C" {

__global__ void set_from(cudaGraphConditionalHandle condition, const unsigned* word) {
  cudaGraphSetConditional(condition, *word);
}

// Takes one from the word, whose new value is the condition.
__global__ void count_down(cudaGraphConditionalHandle condition, unsigned* word) {
  cudaGraphSetConditional(condition, --*word);
}

__global__ void add_to(unsigned* out, unsigned value) { *out += value; }
}
