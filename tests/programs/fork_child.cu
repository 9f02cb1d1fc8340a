// SPDX-License-Identifier: Apache-2.0
// tests/programs/fork_child.cu: CUDA and fork: a child made before the first CUDA call works; one
// made after it gets cudaErrorInitializationError and the parent goes on. Source: CUDA Runtime API,
// cudaErrorInitializationError; CUDA C++ Programming Guide: the CUDA state of a process cannot be
// used in a forked child.
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

__global__ void Square(int* value) { *value *= *value; }

int SquareOnDevice(int value) {
  int* device;
  CUDA_OK(cudaMalloc(&device, sizeof value));
  CUDA_OK(cudaMemcpy(device, &value, sizeof value, cudaMemcpyHostToDevice));
  Square<<<1, 1>>>(device);
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaMemcpy(&value, device, sizeof value, cudaMemcpyDeviceToHost));
  CUDA_OK(cudaFree(device));
  return value;
}

// Waits for the child; it must have exited with 0.
void ExpectChildSucceeds(pid_t child, const char* what) {
  int status = -1;
  EXPECT(waitpid(child, &status, 0) == child, "waitpid failed");
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s ended with wait status %#x", what,
         status);
}

int main() {
  pid_t child = fork();
  EXPECT(child >= 0, "fork failed");
  if (child == 0) {
    const int square = SquareOnDevice(12);
    EXPECT(square == 144, "child: 12 * 12 is %d", square);
    std::_Exit(0);
  }
  ExpectChildSucceeds(child, "the child made before the first CUDA call");

  int square = SquareOnDevice(13);
  EXPECT(square == 169, "13 * 13 is %d", square);
  child = fork();
  EXPECT(child >= 0, "fork failed");
  if (child == 0) {
    void* memory = nullptr;
    CUDA_ERROR_IS(cudaMalloc(&memory, 16), cudaErrorInitializationError);
    CUDA_ERROR_IS(cudaDeviceSynchronize(), cudaErrorInitializationError);
    std::_Exit(0);
  }
  ExpectChildSucceeds(child, "the child made after the first CUDA call");
  square = SquareOnDevice(14);  // the parent is not disturbed
  EXPECT(square == 196, "14 * 14 is %d", square);
  std::printf("fork_child: a child before and a child after the first CUDA call\n");
  return programs::Pass();
}
