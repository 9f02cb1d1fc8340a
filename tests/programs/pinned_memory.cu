// SPDX-License-Identifier: Apache-2.0
// tests/programs/pinned_memory.cu: copies through page-locked memory.
//
//   pinned_memory [ROUNDS]
//
// Asynchronous ones take the data at their turn in the stream; ROUNDS synchronous ones (500), one
// after the other, are done when their calls return.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "check.h"

__global__ void AddOne(uint32_t* values, int count) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < count) values[index] += 1;
}

__global__ void Add(uint32_t* sum, const uint32_t* value) { *sum += *value; }

constexpr int kCount = 8192;
constexpr size_t kBytes = kCount * sizeof(uint32_t);

void ExpectRamp(const uint32_t* values, uint32_t first, const char* what) {
  for (int i = 0; i < kCount; ++i)
    EXPECT(values[i] == first + i, "%s: element %d is %u, expected %u", what, i, values[i],
           first + i);
}

// The data goes device -> pinned -> other device buffer many times in one stream, without a wait:
// every host-to-device copy reads what the copy before it has not written yet when it is enqueued.
void TestBounce(uint32_t* pinned, const char* what) {
  uint32_t *device_a, *device_b;
  cudaStream_t stream;
  CUDA_OK(cudaMalloc(&device_a, kBytes));
  CUDA_OK(cudaMalloc(&device_b, kBytes));
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  for (int i = 0; i < kCount; ++i) pinned[i] = i;
  CUDA_OK(cudaMemcpyAsync(device_a, pinned, kBytes, cudaMemcpyHostToDevice, stream));
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    AddOne<<<kCount / 128, 128, 0, stream>>>(device_a, kCount);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaMemcpyAsync(pinned, device_a, kBytes, cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaMemcpyAsync(device_b, pinned, kBytes, cudaMemcpyHostToDevice, stream));
    AddOne<<<kCount / 128, 128, 0, stream>>>(device_b, kCount);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaMemcpyAsync(pinned, device_b, kBytes, cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaMemcpyAsync(device_a, pinned, kBytes, cudaMemcpyHostToDevice, stream));
  }
  CUDA_OK(cudaStreamSynchronize(stream));
  ExpectRamp(pinned, 2 * kRounds, what);
  CUDA_OK(cudaFree(device_a));
  CUDA_OK(cudaFree(device_b));
  CUDA_OK(cudaStreamDestroy(stream));
}

struct Fill {
  uint32_t* pinned;
  uint32_t first;
};

void CUDART_CB FillRamp(void* data) {
  const Fill* fill = static_cast<Fill*>(data);
  for (int i = 0; i < kCount; ++i) fill->pinned[i] = fill->first + i;
}

// A host function in the stream fills the buffer that the next copy reads.
void TestFilledByHostFunction(uint32_t* pinned) {
  uint32_t* device;
  cudaStream_t stream;
  CUDA_OK(cudaMalloc(&device, kBytes));
  CUDA_OK(cudaStreamCreate(&stream));
  std::memset(pinned, 0xee, kBytes);
  Fill fills[2] = {{pinned, 100}, {pinned, 5000}};
  std::vector<uint32_t> first(kCount), second(kCount);
  CUDA_OK(cudaLaunchHostFunc(stream, FillRamp, &fills[0]));
  CUDA_OK(cudaMemcpyAsync(device, pinned, kBytes, cudaMemcpyHostToDevice, stream));
  AddOne<<<kCount / 128, 128, 0, stream>>>(device, kCount);
  CUDA_OK(cudaGetLastError());
  CUDA_OK(cudaMemcpyAsync(first.data(), device, kBytes, cudaMemcpyDeviceToHost, stream));
  CUDA_OK(cudaLaunchHostFunc(stream, FillRamp, &fills[1]));
  CUDA_OK(cudaMemcpyAsync(device, pinned, kBytes, cudaMemcpyHostToDevice, stream));
  CUDA_OK(cudaMemcpyAsync(second.data(), device, kBytes, cudaMemcpyDeviceToHost, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  ExpectRamp(first.data(), 101, "filled by the first host function");
  ExpectRamp(second.data(), 5000, "filled by the second host function");
  CUDA_OK(cudaFree(device));
  CUDA_OK(cudaStreamDestroy(stream));
}

// A copy from pageable memory has read its source when it returns: the caller may change it at
// once. Source: CUDA Driver API, "API synchronization behavior".
void TestPageableIsTakenAtOnce() {
  constexpr int kSmall = 4096;  // elements: 16 KiB
  uint32_t* device;
  cudaStream_t stream;
  CUDA_OK(cudaMalloc(&device, kBytes));
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  std::vector<uint32_t> pageable(kSmall), result(kSmall);
  for (int i = 0; i < kSmall; ++i) pageable[i] = 77 + i;
  CUDA_OK(cudaMemcpyAsync(device, pageable.data(), kSmall * sizeof(uint32_t),
                          cudaMemcpyHostToDevice, stream));
  for (uint32_t& value : pageable) value = 0xdead;
  CUDA_OK(cudaMemcpyAsync(result.data(), device, kSmall * sizeof(uint32_t), cudaMemcpyDeviceToHost,
                          stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  for (int i = 0; i < kSmall; ++i)
    EXPECT(result[i] == 77u + i, "pageable copy took element %d late: %#x", i, result[i]);
  CUDA_OK(cudaFree(device));
  CUDA_OK(cudaStreamDestroy(stream));
}

// Each reaches a stream that waits for no other.
void TestSynchronous(uint32_t* pinned, int rounds) {
  uint32_t *device, *sums;
  cudaStream_t stream;
  CUDA_OK(cudaMalloc(&device, kBytes));
  CUDA_OK(cudaMalloc(&sums, sizeof(uint32_t)));
  CUDA_OK(cudaMemset(sums, 0, sizeof(uint32_t)));
  CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUDA_OK(cudaDeviceSynchronize());
  uint32_t expected = 0;
  for (int round = 0; round < rounds; ++round) {
    *pinned = round;
    CUDA_OK(cudaMemcpy(device + round % kCount, pinned, sizeof *pinned, cudaMemcpyHostToDevice));
    *pinned = 0xdead;
    if (round % 100 != 0) continue;
    Add<<<1, 1, 0, stream>>>(sums, device + round % kCount);
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaDeviceSynchronize());
    expected += round;
  }
  uint32_t sum = 0;
  CUDA_OK(cudaMemcpy(&sum, sums, sizeof sum, cudaMemcpyDeviceToHost));
  EXPECT(sum == expected, "the copied words add up to %u, expected %u", sum, expected);
  CUDA_OK(cudaFree(device));
  CUDA_OK(cudaFree(sums));
  CUDA_OK(cudaStreamDestroy(stream));
}

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 500;
  uint32_t* pinned;
  CUDA_OK(cudaMallocHost(&pinned, kBytes));
  cudaPointerAttributes attributes;
  CUDA_OK(cudaPointerGetAttributes(&attributes, pinned));
  EXPECT(attributes.type == cudaMemoryTypeHost, "type of pinned memory is %d", attributes.type);
  unsigned flags = 0;
  CUDA_OK(cudaHostGetFlags(&flags, pinned));
  TestBounce(pinned, "cudaMallocHost");
  TestFilledByHostFunction(pinned);
  TestPageableIsTakenAtOnce();
  TestSynchronous(pinned, rounds);
  CUDA_OK(cudaFreeHost(pinned));

  uint32_t* portable;
  CUDA_OK(cudaHostAlloc(&portable, kBytes, cudaHostAllocPortable));
  TestBounce(portable, "cudaHostAlloc");
  CUDA_OK(cudaFreeHost(portable));

  // Registered: the program's own memory, not aligned to a page.
  std::vector<uint32_t> own(kCount + 16);
  CUDA_OK(cudaPointerGetAttributes(&attributes, own.data() + 5));
  EXPECT(attributes.type == cudaMemoryTypeUnregistered, "type of ordinary memory is %d",
         attributes.type);
  CUDA_OK(cudaHostRegister(own.data() + 5, kBytes, cudaHostRegisterDefault));
  CUDA_OK(cudaPointerGetAttributes(&attributes, own.data() + 5));
  EXPECT(attributes.type == cudaMemoryTypeHost, "type of registered memory is %d", attributes.type);
  CUDA_ERROR_IS(cudaHostRegister(own.data() + 5, kBytes, cudaHostRegisterDefault),
                cudaErrorHostMemoryAlreadyRegistered);
  CUDA_ERROR_IS(cudaGetLastError(), cudaErrorHostMemoryAlreadyRegistered);
  TestBounce(own.data() + 5, "cudaHostRegister");
  CUDA_OK(cudaHostUnregister(own.data() + 5));
  CUDA_ERROR_IS(cudaHostUnregister(own.data() + 5), cudaErrorHostMemoryNotRegistered);
  CUDA_ERROR_IS(cudaGetLastError(), cudaErrorHostMemoryNotRegistered);
  std::printf(
      "pinned_memory: allocated, portable and registered memory bounced, host functions filled "
      "it\n");
  return programs::Pass();
}
