// SPDX-License-Identifier: Apache-2.0
// tests/programs/driver_api.cu: the driver API alone, linked against libcuda.so.1, with PTX text
// compiled at load time.
#include <cuda.h>

#include <cstddef>
#include <vector>

#include "check.h"

// driver_api_kernels.cu as PTX; made at build time, ends with a zero byte.
static const char kKernels[] = {
#include "driver_api_kernels.ptx.inc"
    , 0};

void CheckDriver(CUresult got, CUresult expected, const char* call, int line) {
  if (got == expected) return;
  const char *name = "?", *expected_name = "?";
  cuGetErrorName(got, &name);
  cuGetErrorName(expected, &expected_name);
  programs::Fail(__FILE__, line, "%s returned %s (%d), expected %s", call, name,
                 static_cast<int>(got), expected_name);
}
#define DRIVER_OK(call) CheckDriver((call), CUDA_SUCCESS, #call, __LINE__)
#define DRIVER_ERROR_IS(call, expected) CheckDriver((call), (expected), #call, __LINE__)

constexpr int kCount = 1000;

// Scale through an array of pointers and through one packed argument block must give the same.
void TestScale(CUmodule module, CUstream stream) {
  CUfunction scale;
  DRIVER_OK(cuModuleGetFunction(&scale, module, "Scale"));
  CUdeviceptr bias, calls;
  size_t bias_bytes, calls_bytes;
  DRIVER_OK(cuModuleGetGlobal(&bias, &bias_bytes, module, "scale_bias"));
  DRIVER_OK(cuModuleGetGlobal(&calls, &calls_bytes, module, "scale_calls"));
  EXPECT(bias_bytes == 8 && calls_bytes == 4, "globals of %zu and %zu bytes", bias_bytes,
         calls_bytes);
  const float host_bias[2] = {0.5f, -1.0f};
  DRIVER_OK(cuMemcpyHtoD(bias, host_bias, sizeof host_bias));

  std::vector<float> values(kCount), result(kCount);
  for (int i = 0; i < kCount; ++i) values[i] = i * 0.25f;
  CUdeviceptr device;
  DRIVER_OK(cuMemAlloc(&device, kCount * sizeof(float)));
  DRIVER_OK(cuMemcpyHtoDAsync(device, values.data(), kCount * sizeof(float), stream));

  char factor = 3;
  int count = kCount;
  void* parameters[] = {&factor, &device, &count};
  DRIVER_OK(
      cuLaunchKernel(scale, (kCount + 127) / 128, 1, 1, 128, 1, 1, 0, stream, parameters, nullptr));

  struct {
    char factor;
    alignas(8) CUdeviceptr values;
    int count;
  } block{-2, device, kCount};
  size_t block_bytes = offsetof(decltype(block), count) + sizeof block.count;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &block, CU_LAUNCH_PARAM_BUFFER_SIZE,
                   &block_bytes, CU_LAUNCH_PARAM_END};
  DRIVER_OK(
      cuLaunchKernel(scale, (kCount + 127) / 128, 1, 1, 128, 1, 1, 0, stream, nullptr, extra));
  DRIVER_OK(cuMemcpyDtoHAsync(result.data(), device, kCount * sizeof(float), stream));
  DRIVER_OK(cuStreamSynchronize(stream));
  for (int i = 0; i < kCount; ++i) {
    const float expected =
        (values[i] * 3 + host_bias[i % 2]) * -2 + host_bias[i % 2];  // exact in float
    EXPECT(result[i] == expected, "element %d is %g, expected %g", i, result[i], expected);
  }
  unsigned call_count = 0;
  DRIVER_OK(cuMemcpyDtoH(&call_count, calls, sizeof call_count));
  EXPECT(call_count == 9, "the kernel counted %u calls, expected 9", call_count);

  CUdeviceptr base;
  size_t bytes;
  DRIVER_OK(cuMemGetAddressRange(&base, &bytes, device + 100));
  EXPECT(base == device && bytes == kCount * sizeof(float), "address range of %zu bytes", bytes);
  CUmemorytype type{};
  DRIVER_OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device));
  EXPECT(type == CU_MEMORYTYPE_DEVICE, "memory type %d", static_cast<int>(type));
  DRIVER_OK(cuMemFree(device));
  DRIVER_ERROR_IS(cuModuleGetFunction(&scale, module, "NoSuchKernel"), CUDA_ERROR_NOT_FOUND);
}

void TestReverse(CUmodule module, CUstream stream) {
  constexpr int kBlocks = 5, kThreads = 96;
  constexpr size_t kBytes = kBlocks * kThreads * sizeof(unsigned);
  CUfunction reverse;
  DRIVER_OK(cuModuleGetFunction(&reverse, module, "ReverseBlocks"));
  int threads_max = 0;
  DRIVER_OK(cuFuncGetAttribute(&threads_max, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, reverse));
  EXPECT(threads_max >= kThreads && threads_max <= 1024, "%d threads a block", threads_max);
  CUdeviceptr from, to;
  DRIVER_OK(cuMemAlloc(&from, kBytes));
  DRIVER_OK(cuMemAlloc(&to, kBytes));
  DRIVER_OK(cuMemsetD32(to, 0xabababab, kBytes / 4));
  void* host;
  DRIVER_OK(cuMemAllocHost(&host, kBytes));
  unsigned* values = static_cast<unsigned*>(host);
  for (int i = 0; i < kBlocks * kThreads; ++i) values[i] = i;
  CUevent start, stop;
  DRIVER_OK(cuEventCreate(&start, CU_EVENT_DEFAULT));
  DRIVER_OK(cuEventCreate(&stop, CU_EVENT_DEFAULT));
  DRIVER_OK(cuEventRecord(start, stream));
  DRIVER_OK(cuMemcpyHtoDAsync(from, host, kBytes, stream));
  void* parameters[] = {&from, &to};
  DRIVER_OK(cuLaunchKernel(reverse, kBlocks, 1, 1, kThreads, 1, 1, kThreads * sizeof(unsigned),
                           stream, parameters, nullptr));
  DRIVER_OK(cuMemcpyDtoHAsync(host, to, kBytes, stream));
  DRIVER_OK(cuEventRecord(stop, stream));
  DRIVER_OK(cuEventSynchronize(stop));
  float milliseconds = -1.0f;
  DRIVER_OK(cuEventElapsedTime(&milliseconds, start, stop));
  EXPECT(milliseconds > 0.0f, "%g ms", milliseconds);
  for (int block = 0; block < kBlocks; ++block) {
    for (int i = 0; i < kThreads; ++i) {
      const unsigned expected = block * kThreads + kThreads - 1 - i;
      EXPECT(values[block * kThreads + i] == expected, "block %d element %d is %u, expected %u",
             block, i, values[block * kThreads + i], expected);
    }
  }
  DRIVER_OK(cuEventDestroy(start));
  DRIVER_OK(cuEventDestroy(stop));
  DRIVER_OK(cuMemFreeHost(host));
  DRIVER_OK(cuMemFree(from));
  DRIVER_OK(cuMemFree(to));
}

int main() {
  CUdevice device;
  DRIVER_ERROR_IS(cuDeviceGet(&device, 0), CUDA_ERROR_NOT_INITIALIZED);
  DRIVER_OK(cuInit(0));
  int version = 0, count = 0;
  DRIVER_OK(cuDriverGetVersion(&version));
  DRIVER_OK(cuDeviceGetCount(&count));
  EXPECT(version >= 12000 && count > 0, "version %d, %d devices", version, count);
  DRIVER_OK(cuDeviceGet(&device, 0));
  char name[128];
  DRIVER_OK(cuDeviceGetName(name, sizeof name, device));
  DRIVER_ERROR_IS(cuDeviceGet(&device, count), CUDA_ERROR_INVALID_DEVICE);
  DRIVER_OK(cuDeviceGet(&device, 0));

  CUcontext context, current = nullptr;
  CUdeviceptr memory;
  DRIVER_ERROR_IS(cuMemAlloc(&memory, 16), CUDA_ERROR_INVALID_CONTEXT);
  DRIVER_OK(cuDevicePrimaryCtxRetain(&context, device));
  DRIVER_OK(cuCtxPushCurrent(context));
  DRIVER_OK(cuCtxGetCurrent(&current));
  EXPECT(current == context, "the current context is another one");

  CUmodule module;
  DRIVER_ERROR_IS(cuModuleLoadData(&module, ".version 6.4\n.target sm_30\nthis is not PTX\n"),
                  CUDA_ERROR_INVALID_PTX);
  DRIVER_OK(cuModuleLoadData(&module, kKernels));
  CUstream stream;
  DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  TestScale(module, stream);
  TestReverse(module, stream);
  void* entry = nullptr;
  CUdriverProcAddressQueryResult found;
  DRIVER_OK(cuGetProcAddress("cuMemAlloc", &entry, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &found));
  EXPECT(entry != nullptr && found == CU_GET_PROC_ADDRESS_SUCCESS,
         "cuGetProcAddress found nothing");
  DRIVER_OK(reinterpret_cast<CUresult (*)(CUdeviceptr*, size_t)>(entry)(&memory, 16));
  DRIVER_OK(cuMemFree(memory));
  DRIVER_OK(cuStreamDestroy(stream));
  DRIVER_OK(cuModuleUnload(module));
  DRIVER_OK(cuCtxPopCurrent(&current));
  EXPECT(current == context, "popped another context");
  DRIVER_OK(cuDevicePrimaryCtxRelease(device));
  std::printf(
      "driver_api: on \"%s\", %zu bytes of PTX, launches by pointers and by an argument block\n",
      name, sizeof kKernels - 1);
  return programs::Pass();
}
