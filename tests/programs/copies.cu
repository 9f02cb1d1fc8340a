// SPDX-License-Identifier: Apache-2.0
// tests/programs/copies.cu: every kind of copy and memset: linear, offsets, pitched 2D, 3D, arrays
// of patterns, symbols.
#include <cstring>
#include <vector>

#include "check.h"

__device__ uint32_t device_symbol[64];

std::vector<uint8_t> Pattern(size_t bytes, uint32_t seed) {
  programs::Random random(seed);
  std::vector<uint8_t> pattern(bytes);
  for (uint8_t& value : pattern) value = static_cast<uint8_t>(random.Next() >> 11);
  return pattern;
}

void ExpectEqual(const uint8_t* got, const uint8_t* expected, size_t bytes, const char* what) {
  for (size_t i = 0; i < bytes; ++i)
    EXPECT(got[i] == expected[i], "%s: byte %zu is %#x, expected %#x", what, i, got[i],
           expected[i]);
}

void TestLinear() {
  constexpr size_t kBytes = 100003;
  const std::vector<uint8_t> source = Pattern(kBytes, 1);
  std::vector<uint8_t> result(kBytes);
  uint8_t *device_a, *device_b;
  CUDA_OK(cudaMalloc(&device_a, kBytes));
  CUDA_OK(cudaMalloc(&device_b, kBytes));
  CUDA_OK(cudaMemcpy(device_a, source.data(), kBytes, cudaMemcpyHostToDevice));
  CUDA_OK(cudaMemcpy(device_b, device_a, kBytes, cudaMemcpyDeviceToDevice));
  CUDA_OK(cudaMemcpy(result.data(), device_b, kBytes, cudaMemcpyDeviceToHost));
  ExpectEqual(result.data(), source.data(), kBytes, "host to device to device to host");

  // The same with the direction found from the addresses.
  const std::vector<uint8_t> second = Pattern(kBytes, 2);
  CUDA_OK(cudaMemcpy(device_a, second.data(), kBytes, cudaMemcpyDefault));
  CUDA_OK(cudaMemcpy(device_b, device_a, kBytes, cudaMemcpyDefault));
  CUDA_OK(cudaMemcpy(result.data(), device_b, kBytes, cudaMemcpyDefault));
  ExpectEqual(result.data(), second.data(), kBytes, "cudaMemcpyDefault");
  std::vector<uint8_t> host_copy(kBytes);
  CUDA_OK(cudaMemcpy(host_copy.data(), second.data(), kBytes, cudaMemcpyHostToHost));
  ExpectEqual(host_copy.data(), second.data(), kBytes, "cudaMemcpyHostToHost");
  CUDA_OK(cudaMemcpy(host_copy.data(), source.data(), kBytes, cudaMemcpyDefault));
  ExpectEqual(host_copy.data(), source.data(), kBytes, "cudaMemcpyDefault on the host");

  // Offsets that are not aligned; what lies around them stays.
  std::vector<uint8_t> expected = second;
  CUDA_OK(cudaMemcpy(device_b + 333, source.data() + 7, 5001, cudaMemcpyHostToDevice));
  std::memcpy(expected.data() + 333, source.data() + 7, 5001);
  // Disjoint ranges of one allocation.
  CUDA_OK(cudaMemcpy(device_b + 60001, device_b + 333, 5001, cudaMemcpyDeviceToDevice));
  std::memcpy(expected.data() + 60001, expected.data() + 333, 5001);
  CUDA_OK(cudaMemcpy(device_b + 99999, device_b, 4, cudaMemcpyDeviceToDevice));
  std::memcpy(expected.data() + 99999, expected.data(), 4);
  CUDA_OK(cudaMemcpy(result.data(), device_b, kBytes, cudaMemcpyDeviceToHost));
  ExpectEqual(result.data(), expected.data(), kBytes, "offsets");
  std::memset(result.data(), 0, kBytes);
  CUDA_OK(cudaMemcpy(result.data() + 11, device_b + 321, 777, cudaMemcpyDeviceToHost));
  ExpectEqual(result.data() + 11, expected.data() + 321, 777, "device to host at an offset");
  EXPECT(result[10] == 0 && result[788] == 0, "a copy wrote outside its range");
  CUDA_OK(
      cudaMemcpy(device_b, source.data(), 0, cudaMemcpyHostToDevice));  // nothing is a valid amount
  CUDA_OK(cudaFree(device_a));
  CUDA_OK(cudaFree(device_b));
}

void TestMemset() {
  constexpr size_t kBytes = 8192;
  uint8_t* device;
  std::vector<uint8_t> expected(kBytes), result(kBytes);
  CUDA_OK(cudaMalloc(&device, kBytes));
  CUDA_OK(cudaMemset(device, 0xa5, kBytes));
  std::memset(expected.data(), 0xa5, kBytes);
  CUDA_OK(cudaMemset(device + 13, 0x11, 1001));
  std::memset(expected.data() + 13, 0x11, 1001);
  CUDA_OK(cudaMemsetAsync(device + 5000, 0x22, 3, nullptr));
  std::memset(expected.data() + 5000, 0x22, 3);
  CUDA_OK(cudaMemset2D(device + 2048, 64, 0x33, 17, 10));
  for (int row = 0; row < 10; ++row) std::memset(expected.data() + 2048 + row * 64, 0x33, 17);
  CUDA_OK(cudaMemcpy(result.data(), device, kBytes, cudaMemcpyDeviceToHost));
  ExpectEqual(result.data(), expected.data(), kBytes, "memset");
  CUDA_OK(cudaFree(device));
}

void TestPitched2D() {
  constexpr size_t kWidth = 301, kHeight = 37, kHostPitch = 320;
  const std::vector<uint8_t> source = Pattern(kHostPitch * kHeight, 3);
  uint8_t *device_a, *device_b;
  size_t pitch_a, pitch_b;
  CUDA_OK(cudaMallocPitch(&device_a, &pitch_a, kWidth, kHeight));
  CUDA_OK(cudaMallocPitch(&device_b, &pitch_b, 2 * kWidth, kHeight));
  EXPECT(pitch_a >= kWidth && pitch_a % 32 == 0, "pitch %zu for width %zu", pitch_a, kWidth);
  CUDA_OK(cudaMemset2D(device_a, pitch_a, 0, kWidth, kHeight));
  CUDA_OK(cudaMemcpy2D(device_a, pitch_a, source.data(), kHostPitch, kWidth, kHeight,
                       cudaMemcpyHostToDevice));
  CUDA_OK(cudaMemcpy2D(device_b + 9, pitch_b, device_a, pitch_a, kWidth, kHeight,
                       cudaMemcpyDeviceToDevice));
  constexpr size_t kResultPitch = 308;
  std::vector<uint8_t> result(kResultPitch * kHeight, 0xcc);
  CUDA_OK(cudaMemcpy2D(result.data(), kResultPitch, device_b + 9, pitch_b, kWidth, kHeight,
                       cudaMemcpyDeviceToHost));
  for (size_t row = 0; row < kHeight; ++row) {
    ExpectEqual(&result[row * kResultPitch], &source[row * kHostPitch], kWidth, "2D row");
    for (size_t i = kWidth; i < kResultPitch; ++i)
      EXPECT(result[row * kResultPitch + i] == 0xcc, "a 2D copy wrote between rows");
  }
  cudaStream_t stream;
  CUDA_OK(cudaStreamCreate(&stream));
  CUDA_OK(cudaMemset2DAsync(device_b + 9, pitch_b, 0x5a, 100, 5, stream));
  CUDA_OK(cudaMemcpy2DAsync(result.data(), kResultPitch, device_b + 9, pitch_b, kWidth, kHeight,
                            cudaMemcpyDefault, stream));
  CUDA_OK(cudaStreamSynchronize(stream));
  for (size_t row = 0; row < kHeight; ++row) {
    for (size_t i = 0; i < kWidth; ++i) {
      const uint8_t expected = row < 5 && i < 100 ? 0x5a : source[row * kHostPitch + i];
      EXPECT(result[row * kResultPitch + i] == expected, "2D memset: row %zu byte %zu is %#x", row,
             i, result[row * kResultPitch + i]);
    }
  }
  CUDA_OK(cudaStreamDestroy(stream));
  CUDA_OK(cudaFree(device_a));
  CUDA_OK(cudaFree(device_b));
}

void Test3D() {
  constexpr size_t kWidth = 50, kHeight = 12, kDepth = 7;
  const std::vector<uint8_t> source = Pattern(kWidth * kHeight * kDepth, 4);
  cudaPitchedPtr device;
  CUDA_OK(cudaMalloc3D(&device, make_cudaExtent(kWidth, kHeight, kDepth)));
  CUDA_OK(cudaMemset3D(device, 0x77, make_cudaExtent(kWidth, kHeight, kDepth)));
  // A box inside the volume, at the same place on both sides.
  cudaMemcpy3DParms in{};
  in.srcPtr = make_cudaPitchedPtr(const_cast<uint8_t*>(source.data()), kWidth, kWidth, kHeight);
  in.srcPos = make_cudaPos(3, 2, 1);
  in.dstPtr = device;
  in.dstPos = make_cudaPos(3, 2, 1);
  in.extent = make_cudaExtent(40, 8, 4);
  in.kind = cudaMemcpyHostToDevice;
  CUDA_OK(cudaMemcpy3D(&in));
  std::vector<uint8_t> result(kWidth * kHeight * kDepth);
  cudaMemcpy3DParms out{};
  out.srcPtr = device;
  out.dstPtr = make_cudaPitchedPtr(result.data(), kWidth, kWidth, kHeight);
  out.extent = make_cudaExtent(kWidth, kHeight, kDepth);
  out.kind = cudaMemcpyDeviceToHost;
  CUDA_OK(cudaMemcpy3D(&out));
  for (size_t z = 0; z < kDepth; ++z) {
    for (size_t y = 0; y < kHeight; ++y) {
      for (size_t x = 0; x < kWidth; ++x) {
        const size_t index = (z * kHeight + y) * kWidth + x;
        const bool inside = x >= 3 && x < 43 && y >= 2 && y < 10 && z >= 1 && z < 5;
        const uint8_t expected = inside ? source[index] : 0x77;
        EXPECT(result[index] == expected, "3D: (%zu, %zu, %zu) is %#x, expected %#x", x, y, z,
               result[index], expected);
      }
    }
  }
  CUDA_OK(cudaFree(device.ptr));
}

void TestSymbol() {
  std::vector<uint32_t> values(64), result(64);
  for (int i = 0; i < 64; ++i) values[i] = 31 * i + 5;
  CUDA_OK(cudaMemcpyToSymbol(device_symbol, values.data(), 64 * sizeof(uint32_t)));
  CUDA_OK(cudaMemcpyFromSymbol(result.data(), device_symbol, 64 * sizeof(uint32_t)));
  EXPECT(values == result, "a symbol did not keep its values");
  void* address;
  CUDA_OK(cudaGetSymbolAddress(&address, device_symbol));
  CUDA_OK(cudaMemset(static_cast<uint32_t*>(address) + 10, 0, 4));
  uint32_t element = 1;
  CUDA_OK(cudaMemcpyFromSymbol(&element, device_symbol, 4, 40));
  EXPECT(element == 0, "memset through the symbol's address: %u", element);
  uint32_t* device;
  CUDA_OK(cudaMalloc(&device, 64 * sizeof(uint32_t)));
  CUDA_OK(cudaMemcpyFromSymbol(device, device_symbol, 64 * sizeof(uint32_t), 0,
                               cudaMemcpyDeviceToDevice));
  CUDA_OK(cudaMemcpy(result.data(), device, 64 * sizeof(uint32_t), cudaMemcpyDeviceToHost));
  values[10] = 0;
  EXPECT(values == result, "symbol to device memory");
  CUDA_OK(cudaFree(device));
}

int main() {
  TestLinear();
  TestMemset();
  TestPitched2D();
  Test3D();
  TestSymbol();
  std::printf("copies: linear, offsets, memset, 2D, 3D and symbols\n");
  return programs::Pass();
}
