// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/driver_test.h: the built library, loaded as a program would load it.
//
// CU(cuMemAlloc_v2)(...) calls the function of that name in libconsort-cpu.so. The process has
// three devices: 256 MiB, 64 MiB and 64 MiB.
#ifndef CONSORT_DEVICE_CPU_DRIVER_DRIVER_TEST_H_
#define CONSORT_DEVICE_CPU_DRIVER_DRIVER_TEST_H_

#include <cstddef>
#include <string>
#include <vector>

#include "device/cpu/driver/cuda_api.h"
#include "gtest/gtest.h"

namespace consort::cpu {

// The function `name` of the library; ends the program if it is not exported.
void* DriverSymbol(const char* name);

#define CU(name) (reinterpret_cast<decltype(&::name)>(::consort::cpu::DriverSymbol(#name)))
#define EXPECT_CU(call) EXPECT_EQ(call, CUDA_SUCCESS)
#define ASSERT_CU(call) ASSERT_EQ(call, CUDA_SUCCESS)

// Bytes of a file that was built for these tests ("kernels_none.fatbin").
std::vector<char> ReadTestData(const std::string& name);

// A fresh primary context of device 0, current in the test's thread.
class DriverTest : public ::testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

  CUdeviceptr Allocate(size_t bytes);
  CUstream NewStream(unsigned int flags = CU_STREAM_NON_BLOCKING);

  CUcontext context_ = nullptr;
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_DRIVER_DRIVER_TEST_H_
