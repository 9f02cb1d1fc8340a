// SPDX-License-Identifier: Apache-2.0
// What kernels print comes to the program's own stdout, at the points at which CUDA shows it, in
// order with what the program prints itself.
//
//   printing              every such point once, and more text than a pipe or a frame holds
//   printing TAG ROUNDS   prints lines with TAG, a synchronisation every round
//
// Whoever runs it compares what comes: tests/e2e/printing_test.py has the lines. Source: CUDA C++
// Programming Guide, "Formatted Output".
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#include "check.h"

namespace {

constexpr int kBigLines = 6000;
constexpr int kTextMax = 16;

struct Text {
  char bytes[kTextMax];
};

__global__ void Say(const char* what, int value) { printf("device: %s %d\n", what, value); }

__global__ void SayTag(Text tag, int round) {
  for (int i = 0; i < 20; ++i) printf("%s round %d line %d\n", tag.bytes, round, i);
}

// Lines of 128 bytes.
__global__ void SayMuch(int lines) {
  for (int i = 0; i < lines; ++i) {
    printf(
        "big %06d "
        "................................................................"
        "....................................................\n",
        i);
  }
}

__global__ void Quiet(int* value) { *value = 7; }

__device__ const char kDeviceSynchronize[] = "before cudaDeviceSynchronize";
__device__ const char kStreamSynchronize[] = "before cudaStreamSynchronize";
__device__ const char kEventSynchronize[] = "before cudaEventSynchronize";
__device__ const char kCopy[] = "before cudaMemcpy";
__device__ const char kHostFunction[] = "before a host function";
__device__ const char kGraph[] = "in a graph";
__device__ const char kReset[] = "before cudaDeviceReset";

// The address of a string of the device.
template <size_t count>
const char* On(const char (&text)[count]) {
  void* address = nullptr;
  CUDA_OK(cudaGetSymbolAddress(&address, text));
  return static_cast<const char*>(address);
}

void HostFunction(void* number) { std::printf("host: function %d\n", *static_cast<int*>(number)); }

void EveryPoint() {
  CUDA_OK(cudaDeviceSetLimit(cudaLimitPrintfFifoSize, size_t{32} << 20));
  cudaStream_t a, b;
  CUDA_OK(cudaStreamCreate(&a));
  CUDA_OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
  int* memory = nullptr;
  CUDA_OK(cudaMalloc(&memory, sizeof(int)));

  std::printf("host: begin\n");
  Say<<<1, 1>>>(On(kDeviceSynchronize), 1);
  CUDA_OK(cudaDeviceSynchronize());
  std::printf("host: after cudaDeviceSynchronize\n");

  Say<<<1, 1, 0, a>>>(On(kStreamSynchronize), 2);
  CUDA_OK(cudaStreamSynchronize(a));
  std::printf("host: after cudaStreamSynchronize\n");

  // Work that prints nothing, behind work that does.
  Say<<<1, 1, 0, b>>>(On(kStreamSynchronize), 3);
  Quiet<<<1, 1, 0, b>>>(memory);
  CUDA_OK(cudaStreamSynchronize(b));
  std::printf("host: after the other stream\n");

  cudaEvent_t event;
  CUDA_OK(cudaEventCreate(&event));
  Say<<<1, 1, 0, a>>>(On(kEventSynchronize), 4);
  CUDA_OK(cudaEventRecord(event, a));
  CUDA_OK(cudaEventSynchronize(event));
  std::printf("host: after cudaEventSynchronize\n");

  int value = 0;
  Say<<<1, 1>>>(On(kCopy), 5);
  CUDA_OK(cudaMemcpy(&value, memory, sizeof(value), cudaMemcpyDeviceToHost));
  std::printf("host: after cudaMemcpy, value %d\n", value);

  int number = 6;
  Say<<<1, 1, 0, a>>>(On(kHostFunction), number);
  CUDA_OK(cudaLaunchHostFunc(a, HostFunction, &number));
  CUDA_OK(cudaStreamSynchronize(a));

  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CUDA_OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeGlobal));
  Say<<<1, 1, 0, a>>>(On(kGraph), 7);
  Say<<<1, 1, 0, a>>>(On(kGraph), 8);
  CUDA_OK(cudaStreamEndCapture(a, &graph));
  CUDA_OK(cudaGraphInstantiate(&executable, graph, 0));
  CUDA_OK(cudaGraphLaunch(executable, b));
  CUDA_OK(cudaStreamSynchronize(b));
  std::printf("host: after the graph\n");

  SayMuch<<<1, 1>>>(kBigLines);
  CUDA_OK(cudaDeviceSynchronize());
  std::printf("host: after much\n");

  Say<<<1, 1>>>(On(kReset), 9);
  CUDA_OK(cudaDeviceReset());
  std::printf("host: after cudaDeviceReset\n");
}

void Rounds(const char* name, int rounds) {
  Text tag = {};
  std::snprintf(tag.bytes, sizeof(tag.bytes), "%s", name);
  for (int round = 0; round < rounds; ++round) {
    SayTag<<<1, 1>>>(tag, round);
    CUDA_OK(cudaDeviceSynchronize());
    std::printf("%s round %d end\n", name, round);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3) {
    Rounds(argv[1], std::atoi(argv[2]));
  } else {
    EveryPoint();
  }
  return programs::Pass();
}
