// SPDX-License-Identifier: Apache-2.0
// tests/programs/graphs.cu: graphs through the runtime: captured from two streams, made of nodes,
// updated, and launched many times.
#include <vector>

#include "check.h"

constexpr int kCount = 4096, kThreads = 128, kGrid = kCount / kThreads;
constexpr size_t kBytes = kCount * sizeof(uint32_t);

__global__ void MultiplyAdd(uint32_t* values, uint32_t factor, uint32_t summand) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  values[index] = values[index] * factor + summand;
}

__global__ void Combine(uint32_t* to, const uint32_t* left, const uint32_t* right) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  to[index] = 3 * left[index] + right[index];
}

struct Buffers {
  uint32_t *in, *left, *right, *out;
  uint32_t *host_in, *host_out;
};

Buffers MakeBuffers() {
  Buffers b;
  for (uint32_t** device : {&b.in, &b.left, &b.right, &b.out}) CUDA_OK(cudaMalloc(device, kBytes));
  CUDA_OK(cudaMallocHost(&b.host_in, kBytes));
  CUDA_OK(cudaMallocHost(&b.host_out, kBytes));
  return b;
}

// in -> left (x3+1) and right (x5+7) in two branches -> out
uint32_t Expected(uint32_t value) { return 3 * (value * 3 + 1) + (value * 5 + 7); }

void CheckOut(const Buffers& b, uint32_t seed) {
  for (int i = 0; i < kCount; ++i) {
    const uint32_t expected = Expected(seed + i);
    EXPECT(b.host_out[i] == expected, "element %d is %u, expected %u", i, b.host_out[i], expected);
  }
}

void FillIn(const Buffers& b, uint32_t seed) {
  for (int i = 0; i < kCount; ++i) b.host_in[i] = seed + i;
}

// Two branches, joined; inputs change between launches, the graph does not.
void TestCapture(const Buffers& b) {
  cudaStream_t stream, side;
  cudaEvent_t fork, join;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA_OK(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  CUDA_OK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  CUDA_OK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));

  cudaGraph_t graph;
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CUDA_OK(cudaMemcpyAsync(b.in, b.host_in, kBytes, cudaMemcpyHostToDevice, stream));
  CUDA_OK(cudaMemcpyAsync(b.left, b.in, kBytes, cudaMemcpyDeviceToDevice, stream));
  CUDA_OK(cudaEventRecord(fork, stream));
  CUDA_OK(cudaStreamWaitEvent(side, fork, 0));
  CUDA_OK(cudaMemcpyAsync(b.right, b.in, kBytes, cudaMemcpyDeviceToDevice, side));
  MultiplyAdd<<<kGrid, kThreads, 0, side>>>(b.right, 5, 7);
  CUDA_OK(cudaGetLastError());
  MultiplyAdd<<<kGrid, kThreads, 0, stream>>>(b.left, 3, 1);
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaEventRecord(join, side));
  CUDA_OK(cudaStreamWaitEvent(stream, join, 0));
  Combine<<<kGrid, kThreads, 0, stream>>>(b.out, b.left, b.right);
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaMemcpyAsync(b.host_out, b.out, kBytes, cudaMemcpyDeviceToHost, stream));
  CUDA_OK(cudaStreamEndCapture(stream, &graph));
  size_t nodes = 0;
  CUDA_OK(cudaGraphGetNodes(graph, nullptr, &nodes));
  EXPECT(nodes == 7, "%zu nodes", nodes);

  cudaGraphExec_t exec;
  CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
  CUDA_OK(cudaGraphDestroy(graph));
  for (uint32_t seed = 0; seed < 20; ++seed) {
    FillIn(b, seed * 1000);
    CUDA_OK(cudaGraphLaunch(exec, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
    CheckOut(b, seed * 1000);
  }
  CUDA_OK(cudaGraphExecDestroy(exec));
  CUDA_OK(cudaEventDestroy(fork));
  CUDA_OK(cudaEventDestroy(join));
  CUDA_OK(cudaStreamDestroy(stream));
  CUDA_OK(cudaStreamDestroy(side));
}

// The same work, node by node; then with other parameters of one kernel.
void TestNodes(const Buffers& b) {
  cudaGraph_t graph;
  CUDA_OK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t in, to_left, to_right, left, right, out, back;
  CUDA_OK(cudaGraphAddMemcpyNode1D(&in, graph, nullptr, 0, b.in, b.host_in, kBytes,
                                   cudaMemcpyHostToDevice));
  CUDA_OK(cudaGraphAddMemcpyNode1D(&to_left, graph, &in, 1, b.left, b.in, kBytes,
                                   cudaMemcpyDeviceToDevice));
  CUDA_OK(cudaGraphAddMemcpyNode1D(&to_right, graph, &in, 1, b.right, b.in, kBytes,
                                   cudaMemcpyDeviceToDevice));
  uint32_t factor = 3, summand = 1;
  uint32_t* buffer = b.left;
  void* arguments[] = {&buffer, &factor, &summand};
  cudaKernelNodeParams kernel = {};
  kernel.func = reinterpret_cast<void*>(MultiplyAdd);
  kernel.gridDim = kGrid;
  kernel.blockDim = kThreads;
  kernel.kernelParams = arguments;
  CUDA_OK(cudaGraphAddKernelNode(&left, graph, &to_left, 1, &kernel));
  buffer = b.right, factor = 1, summand = 0;  // set right below, in the executable graph
  CUDA_OK(cudaGraphAddKernelNode(&right, graph, &to_right, 1, &kernel));
  uint32_t *to = b.out, *from_left = b.left, *from_right = b.right;
  void* combine_arguments[] = {&to, &from_left, &from_right};
  cudaKernelNodeParams combine = kernel;
  combine.func = reinterpret_cast<void*>(Combine);
  combine.kernelParams = combine_arguments;
  const cudaGraphNode_t both[] = {left, right};
  CUDA_OK(cudaGraphAddKernelNode(&out, graph, both, 2, &combine));
  CUDA_OK(cudaGraphAddMemcpyNode1D(&back, graph, &out, 1, b.host_out, b.out, kBytes,
                                   cudaMemcpyDeviceToHost));
  cudaGraphExec_t exec;
  CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
  factor = 5, summand = 7;
  CUDA_OK(cudaGraphExecKernelNodeSetParams(exec, right, &kernel));
  FillIn(b, 77);
  CUDA_OK(cudaGraphLaunch(exec, cudaStreamPerThread));
  CUDA_OK(cudaStreamSynchronize(cudaStreamPerThread));
  CheckOut(b, 77);
  CUDA_OK(cudaGraphExecDestroy(exec));
  CUDA_OK(cudaGraphDestroy(graph));
}

// A stream that is captured cannot be waited for, and says so; afterwards all is as before.
void TestRefusals(const Buffers& b) {
  cudaStream_t stream;
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraph_t graph = nullptr;
  CUDA_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  CUDA_ERROR_IS(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
  CUDA_ERROR_IS(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  (void)cudaGetLastError();
  CUDA_OK(cudaMemsetAsync(b.in, 0, kBytes, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  CUDA_OK(cudaStreamDestroy(stream));
}

int main() {
  const Buffers buffers = MakeBuffers();
  TestCapture(buffers);
  TestNodes(buffers);
  TestRefusals(buffers);
  return programs::Pass();
}
