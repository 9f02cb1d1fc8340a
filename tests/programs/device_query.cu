// SPDX-License-Identifier: Apache-2.0
// tests/programs/device_query.cu: what the device says of itself, and that the ways to ask agree.
#include <cstring>

#include "check.h"

int Attribute(cudaDeviceAttr attribute, int device) {
  int value = -1;
  CUDA_OK(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

void TestDevice(int device) {
  cudaDeviceProp properties;
  CUDA_OK(cudaGetDeviceProperties(&properties, device));
  std::printf(
      "device %d: \"%s\", compute capability %d.%d, %.1f MiB, %d multiprocessors, %zu KiB shared a "
      "block\n",
      device, properties.name, properties.major, properties.minor,
      properties.totalGlobalMem / 1048576.0, properties.multiProcessorCount,
      properties.sharedMemPerBlock / 1024);
  EXPECT(std::strlen(properties.name) > 0 && std::strlen(properties.name) < sizeof properties.name,
         "device without a name");
  EXPECT(properties.major >= 5 && properties.major < 100 && properties.minor >= 0 &&
             properties.minor < 10,
         "compute capability %d.%d", properties.major, properties.minor);
  EXPECT(properties.warpSize == 32, "warp of %d", properties.warpSize);
  EXPECT(properties.maxThreadsPerBlock == 1024, "%d threads a block",
         properties.maxThreadsPerBlock);
  EXPECT(properties.maxThreadsDim[0] == 1024 && properties.maxThreadsDim[1] == 1024 &&
             properties.maxThreadsDim[2] == 64,
         "block of %dx%dx%d", properties.maxThreadsDim[0], properties.maxThreadsDim[1],
         properties.maxThreadsDim[2]);
  EXPECT(properties.maxGridSize[0] == 2147483647 && properties.maxGridSize[1] == 65535 &&
             properties.maxGridSize[2] == 65535,
         "grid of %dx%dx%d", properties.maxGridSize[0], properties.maxGridSize[1],
         properties.maxGridSize[2]);
  EXPECT(properties.multiProcessorCount > 0, "%d multiprocessors", properties.multiProcessorCount);
  EXPECT(properties.sharedMemPerBlock >= 48 * 1024, "%zu bytes of shared memory",
         properties.sharedMemPerBlock);
  EXPECT(properties.sharedMemPerBlockOptin >= properties.sharedMemPerBlock, "%zu bytes by opt-in",
         properties.sharedMemPerBlockOptin);
  EXPECT(properties.regsPerBlock >= 32768, "%d registers", properties.regsPerBlock);
  EXPECT(properties.totalConstMem == 65536, "%zu bytes of constant memory",
         properties.totalConstMem);
  EXPECT(properties.totalGlobalMem >= 1u << 26, "%zu bytes of memory", properties.totalGlobalMem);
  EXPECT(properties.unifiedAddressing == 1, "no unified addressing");
  EXPECT(properties.maxThreadsPerMultiProcessor >= 1024, "%d threads a multiprocessor",
         properties.maxThreadsPerMultiProcessor);

  EXPECT(Attribute(cudaDevAttrComputeCapabilityMajor, device) == properties.major,
         "attribute and property differ");
  EXPECT(Attribute(cudaDevAttrComputeCapabilityMinor, device) == properties.minor,
         "attribute and property differ");
  EXPECT(Attribute(cudaDevAttrWarpSize, device) == properties.warpSize,
         "attribute and property differ");
  EXPECT(Attribute(cudaDevAttrMultiProcessorCount, device) == properties.multiProcessorCount,
         "attribute and property differ");
  EXPECT(Attribute(cudaDevAttrMaxThreadsPerBlock, device) == properties.maxThreadsPerBlock,
         "attribute and property differ");
  EXPECT(Attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device) ==
             static_cast<int>(properties.sharedMemPerBlockOptin),
         "attribute and property differ");
  EXPECT(Attribute(cudaDevAttrClockRate, device) >= 0, "negative clock rate");

  bool uuid_set = false;
  for (char byte : properties.uuid.bytes) uuid_set |= byte != 0;
  EXPECT(uuid_set, "the UUID is all zero");
  char bus_id[32];
  CUDA_OK(cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, device));
  int by_bus_id = -1;
  CUDA_OK(cudaDeviceGetByPCIBusId(&by_bus_id, bus_id));
  EXPECT(by_bus_id == device, "PCI id %s names device %d, expected %d", bus_id, by_bus_id, device);

  CUDA_OK(cudaSetDevice(device));
  int current = -1;
  CUDA_OK(cudaGetDevice(&current));
  EXPECT(current == device, "current device is %d, expected %d", current, device);
  size_t free_bytes, total_bytes;
  CUDA_OK(cudaMemGetInfo(&free_bytes, &total_bytes));
  EXPECT(free_bytes <= total_bytes && total_bytes <= properties.totalGlobalMem,
         "%zu of %zu bytes free, device has %zu", free_bytes, total_bytes,
         properties.totalGlobalMem);
  // An allocation shows in the free memory. A driver may keep what is freed for the next one.
  constexpr size_t kBytes = 32u << 20;
  void* memory;
  size_t free_during, free_after;
  CUDA_OK(cudaMalloc(&memory, kBytes));
  CUDA_OK(cudaMemGetInfo(&free_during, &total_bytes));
  CUDA_OK(cudaFree(memory));
  CUDA_OK(cudaMemGetInfo(&free_after, &total_bytes));
  EXPECT(free_during < free_bytes && free_during <= free_after,
         "%zu bytes free before an allocation, %zu during, %zu after", free_bytes, free_during,
         free_after);
  std::printf("  PCI %s, %.1f MiB free\n", bus_id, free_bytes / 1048576.0);
}

int main() {
  int driver_version = 0, runtime_version = 0, count = 0;
  CUDA_OK(cudaDriverGetVersion(&driver_version));
  CUDA_OK(cudaRuntimeGetVersion(&runtime_version));
  EXPECT(driver_version / 1000 >= runtime_version / 1000, "driver %d, runtime %d", driver_version,
         runtime_version);
  CUDA_OK(cudaGetDeviceCount(&count));
  EXPECT(count > 0, "no device");
  std::printf("device_query: driver %d, runtime %d, %d devices\n", driver_version, runtime_version,
              count);
  for (int device = 0; device < count; ++device) TestDevice(device);
  CUDA_ERROR_IS(cudaSetDevice(count), cudaErrorInvalidDevice);
  CUDA_ERROR_IS(cudaGetLastError(), cudaErrorInvalidDevice);
  cudaDeviceProp properties;
  CUDA_ERROR_IS(cudaGetDeviceProperties(&properties, count), cudaErrorInvalidDevice);
  CUDA_ERROR_IS(cudaGetLastError(), cudaErrorInvalidDevice);
  return programs::Pass();
}
