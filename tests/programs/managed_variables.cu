// SPDX-License-Identifier: Apache-2.0
// tests/programs/managed_variables.cu: __managed__ variables, which host and kernels read and write
// by their names. Goes on until its input ends, so that it can be moved while it runs.

#include <numeric>

#include "check.h"
#include "hold.h"

struct Node {
  Node* next;
  int value;
};

__managed__ unsigned counter = 5;
__device__ __managed__ float squares[1000] = {1.0f, 2.0f, 3.0f};
__managed__ Node nodes[4];
__managed__ Node* first;
__managed__ double sum;
__device__ unsigned step = 3;

__global__ void Count() { atomicAdd(&counter, step); }

__global__ void Square(int count) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < count) squares[index] *= squares[index];
}

// By pointers that the host has stored.
__global__ void Walk() {
  sum = 0;
  for (Node* node = first; node != nullptr; node = node->next) sum += node->value++;
}

__global__ void Add(const int* from, unsigned* to) { *to += *from; }

int main() {
  int managed = 0;
  CUDA_OK(cudaDeviceGetAttribute(&managed, cudaDevAttrManagedMemory, 0));
  if (managed == 0) {
    std::printf("managed_variables: host and device do not share memory here\n");
    return programs::Pass();
  }
  // Before anything of CUDA but that.
  EXPECT(counter == 5, "counter begins at %u", counter);
  EXPECT(squares[2] == 3.0f && squares[3] == 0.0f, "squares begin with %g, %g", squares[2],
         squares[3]);
  unsigned expected = 5;
  for (int round = 1; round <= 3 || !programs::InputEnded(); ++round) {
    counter += 100;
    Count<<<4, 64>>>();
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaDeviceSynchronize());
    expected += 100 + 3 * 256;
    EXPECT(counter == expected, "counter is %u in round %d", counter, round);
    EXPECT(squares[2] == 3.0f, "squares[2] is %g in round %d", squares[2], round);
  }

  std::iota(squares, squares + 1000, 0.0f);
  Square<<<8, 128>>>(1000);
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaDeviceSynchronize());
  for (int i = 0; i < 1000; ++i)
    EXPECT(squares[i] == static_cast<float>(i * i), "the square of %d is %g", i, squares[i]);

  for (int i = 0; i < 4; ++i) nodes[i] = {i < 3 ? &nodes[i + 1] : nullptr, 10 * i};
  first = &nodes[1];
  Walk<<<1, 1>>>();
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaDeviceSynchronize());
  EXPECT(sum == 60, "the nodes have %g", sum);
  EXPECT(nodes[0].value == 0 && nodes[3].value == 31, "nodes became %d, %d", nodes[0].value,
         nodes[3].value);

  // As arguments, as symbols, and by copies.
  Add<<<1, 1>>>(&nodes[2].value, &counter);
  CUDA_OK(cudaDeviceSynchronize());
  EXPECT(counter == expected + 21, "counter is %u after Add", counter);
  void* address = nullptr;
  CUDA_OK(cudaGetSymbolAddress(&address, squares));
  EXPECT(address == squares, "the symbol lies at %p, the variable at %p", address,
         static_cast<void*>(squares));
  size_t size = 0;
  CUDA_OK(cudaGetSymbolSize(&size, squares));
  EXPECT(size == 4000, "squares have %zu bytes", size);
  const unsigned value = 77;
  CUDA_OK(cudaMemcpyToSymbol(counter, &value, sizeof value));
  CUDA_OK(cudaDeviceSynchronize());
  EXPECT(counter == 77, "counter is %u after a copy", counter);
  float back[3] = {};
  CUDA_OK(cudaMemcpy(back, squares + 2, sizeof back, cudaMemcpyDeviceToHost));
  EXPECT(back[0] == 4 && back[2] == 16, "copied %g, %g", back[0], back[2]);
  CUDA_OK(cudaMemset(squares, 0, 8));
  CUDA_OK(cudaDeviceSynchronize());
  EXPECT(squares[1] == 0 && squares[2] == 4, "filled: %g, %g", squares[1], squares[2]);
  cudaPointerAttributes attributes = {};
  CUDA_OK(cudaPointerGetAttributes(&attributes, &squares[5]));
  EXPECT(attributes.type == cudaMemoryTypeManaged, "memory of type %d",
         static_cast<int>(attributes.type));
  CUDA_ERROR_IS(cudaFree(&counter), cudaErrorInvalidValue);
  (void)cudaGetLastError();
  counter = 1;
  Count<<<1, 1>>>();
  CUDA_OK(cudaDeviceSynchronize());
  std::printf("managed_variables: counter is %u\n", counter);
  EXPECT(counter == 4, "counter is %u at the end", counter);
  return programs::Pass();
}
