// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/driver_sanitize_test.cc: kernels with planted bugs, each of which checked
// kernels have to find, and limits of kernels. Each case runs in a process of its own, as the
// driver is initialised once and a fault stays.
#include <dlfcn.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "device/cpu/driver/cuda_api.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace consort::cpu {
namespace {

using ::testing::AllOf;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;
using ::testing::Not;

void* Symbol(const char* name) {
  static void* const library = dlopen(CONSORT_CPU_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  return library == nullptr ? nullptr : dlsym(library, name);
}

#define CU(name) (reinterpret_cast<decltype(&::name)>(Symbol(#name)))

// Exits with 0 if `condition` holds, else with the line.
#define REQUIRE(condition) \
  if (!(condition)) std::_Exit(__LINE__ % 251 + 1)

constexpr size_t kCells = 25;  // ints of the device buffer: no multiple of anything
constexpr CUdeviceptr kBytes = kCells * sizeof(int);

// A device with the planted kernels.
class Device {
 public:
  explicit Device(bool sanitize, const char* limit = "") {
    setenv("CONSORT_CPU_SANITIZE", sanitize ? "memory" : "", 1);
    setenv("CONSORT_CPU_KERNEL_LIMIT", limit, 1);
    setenv("CONSORT_CPU_CACHE", "", 1);
    CUcontext context = nullptr;
    REQUIRE(CU(cuInit)(0) == CUDA_SUCCESS);
    REQUIRE(CU(cuDevicePrimaryCtxRetain)(&context, 0) == CUDA_SUCCESS);
    REQUIRE(CU(cuCtxSetCurrent)(context) == CUDA_SUCCESS);
    REQUIRE(CU(cuModuleLoad)(&module_, CONSORT_CPU_TESTDATA "/planted_bugs.fatbin") ==
            CUDA_SUCCESS);
    data = Allocate();
    out = Allocate();
  }

  static CUdeviceptr Allocate() {
    CUdeviceptr address = 0;
    REQUIRE(CU(cuMemAlloc_v2)(&address, kBytes) == CUDA_SUCCESS);
    REQUIRE(CU(cuMemsetD32_v2)(address, 0, kCells) == CUDA_SUCCESS);
    return address;
  }

  // The error after the kernel.
  template <typename... Parameters>
  CUresult Run(const char* name, unsigned threads, unsigned shared_bytes, Parameters... values) {
    CUfunction function = nullptr;
    REQUIRE(CU(cuModuleGetFunction)(&function, module_, name) == CUDA_SUCCESS);
    void* params[] = {&values...};
    REQUIRE(CU(cuLaunchKernel)(function, 2, 1, 1, threads, 1, 1, shared_bytes, nullptr, params,
                               nullptr) == CUDA_SUCCESS);
    return CU(cuCtxSynchronize)();
  }

  CUdeviceptr data = 0;
  CUdeviceptr out = 0;

 private:
  CUmodule module_ = nullptr;
};

// The line of planted_bugs.cu with that mark, as reports name it.
std::string Line(const std::string& mark) {
  std::ifstream file(CONSORT_CPU_SOURCES "/planted_bugs.cu");
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.ends_with("BUG " + mark)) return "planted_bugs.cu:" + std::to_string(number);
  }
  return "no such mark";
}

// Runs `body` with checked kernels: it must return `expected`, and the log have the report.
void ExpectReport(CUresult expected, const ::testing::Matcher<const std::string&>& report,
                  const std::function<CUresult(Device&)>& body) {
  EXPECT_EXIT(
      {
        Device device(true);
        REQUIRE(body(device) == expected);
        // It is there to stay.
        REQUIRE(CU(cuCtxSynchronize)() == expected);
        std::_Exit(0);
      },
      ExitedWithCode(0), report);
}

const long long kGood = 0;

TEST(SanitizeTest, WriteRightBehindTheEnd) {
  ExpectReport(
      CUDA_ERROR_ILLEGAL_ADDRESS,
      AllOf(HasSubstr("Invalid __global__ write of size 4 bytes"), HasSubstr(Line("WriteGlobal")),
            HasSubstr("of the PTX: st.global"), HasSubstr("in kernel WriteGlobal"),
            HasSubstr("by thread (24,0,0) in block ("), HasSubstr("is out of bounds"),
            HasSubstr("is 1 bytes after the nearest allocation"), HasSubstr("of size 100 bytes")),
      [](Device& device) { return device.Run("WriteGlobal", kCells, 0, device.data, 1ll); });
}

TEST(SanitizeTest, WriteOfAByteRightBehindTheEnd) {
  ExpectReport(CUDA_ERROR_ILLEGAL_ADDRESS,
               AllOf(HasSubstr("Invalid __global__ write of size 1 bytes"),
                     HasSubstr("is 1 bytes after the nearest allocation")),
               [](Device& device) {
                 return device.Run("WriteByte", 1, 0, device.data, static_cast<long long>(kBytes));
               });
}

TEST(SanitizeTest, ReadRightBehindTheEnd) {
  ExpectReport(
      CUDA_ERROR_ILLEGAL_ADDRESS,
      AllOf(HasSubstr("Invalid __global__ read of size 4 bytes"),
            HasSubstr("is 1 bytes after the nearest allocation")),
      [](Device& device) { return device.Run("ReadGlobal", 1, 0, device.data, 25ll, device.out); });
}

TEST(SanitizeTest, ReadBeforeTheStart) {
  ExpectReport(
      CUDA_ERROR_ILLEGAL_ADDRESS, HasSubstr("is 4 bytes before the nearest allocation"),
      [](Device& device) { return device.Run("ReadGlobal", 1, 0, device.data, -1ll, device.out); });
}

TEST(SanitizeTest, WriteFarAway) {
  ExpectReport(
      CUDA_ERROR_ILLEGAL_ADDRESS, HasSubstr("Invalid __global__ write"),
      [](Device& device) { return device.Run("WriteGlobal", 1, 0, device.data, 1ll << 40); });
}

TEST(SanitizeTest, NullPointer) {
  ExpectReport(CUDA_ERROR_ILLEGAL_ADDRESS,
               AllOf(HasSubstr("Address 0x8 is out of bounds"), HasSubstr("null pointer")),
               [](Device& device) { return device.Run("WriteGlobal", 1, 0, CUdeviceptr{0}, 2ll); });
}

TEST(SanitizeTest, UseAfterFree) {
  ExpectReport(
      CUDA_ERROR_ILLEGAL_ADDRESS,
      AllOf(HasSubstr("is 8 bytes inside the freed allocation"), HasSubstr("of size 100 bytes")),
      [](Device& device) {
        REQUIRE(CU(cuMemFree_v2)(device.data) == CUDA_SUCCESS);
        // What comes next may not have its place.
        REQUIRE(Device::Allocate() != device.data);
        return device.Run("WriteGlobal", 1, 0, device.data, 2ll);
      });
}

TEST(SanitizeTest, VectorAcrossTheEnd) {
  ExpectReport(
      CUDA_ERROR_ILLEGAL_ADDRESS,
      AllOf(HasSubstr("Invalid __global__ read of size 16 bytes"),
            HasSubstr("is 96 bytes inside the allocation")),
      [](Device& device) { return device.Run("ReadVector", 1, 0, device.data, 6ll, device.out); });
}

TEST(SanitizeTest, AtomicBehindTheEnd) {
  ExpectReport(CUDA_ERROR_ILLEGAL_ADDRESS, HasSubstr("Invalid __global__ atomic of size 4 bytes"),
               [](Device& device) { return device.Run("AddAtomically", 1, 0, device.data, 25ll); });
}

TEST(SanitizeTest, MisalignedAddress) {
  ExpectReport(
      CUDA_ERROR_MISALIGNED_ADDRESS,
      AllOf(HasSubstr("Invalid __global__ read of size 4 bytes"), HasSubstr("is misaligned")),
      [](Device& device) {
        return device.Run("ReadUnaligned", 1, 0, device.data, 2ll, device.out);
      });
}

TEST(SanitizeTest, StaticSharedMemoryOverflows) {
  ExpectReport(
      CUDA_ERROR_ILLEGAL_ADDRESS,
      AllOf(HasSubstr("Invalid __shared__ write of size 4 bytes"),
            HasSubstr(Line("WriteStaticShared")), HasSubstr("by thread (31,0,0)"),
            HasSubstr("Address 0x80 is out of bounds"),
            HasSubstr("128 bytes of static and 0 of dynamic shared memory")),
      [](Device& device) { return device.Run("WriteStaticShared", 32, 0, device.out, 1); });
}

TEST(SanitizeTest, DynamicSharedMemoryOverflows) {
  ExpectReport(
      CUDA_ERROR_ILLEGAL_ADDRESS,
      AllOf(HasSubstr("Invalid __shared__ write of size 4 bytes"), HasSubstr("by thread (15,0,0)"),
            HasSubstr("0 bytes of static and 64 of dynamic shared memory")),
      [](Device& device) { return device.Run("WriteDynamicShared", 16, 64, device.out, 1); });
}

TEST(SanitizeTest, SharedMemoryOverflowsThroughAGenericAddress) {
  ExpectReport(
      CUDA_ERROR_ILLEGAL_ADDRESS,
      AllOf(HasSubstr("Invalid __shared__ write of size 4 bytes"),
            HasSubstr("in kernel WriteSharedThroughPointer")),
      [](Device& device) { return device.Run("WriteSharedThroughPointer", 8, 0, device.out, 32); });
}

TEST(SanitizeTest, LocalArrayOverflows) {
  ExpectReport(CUDA_ERROR_ILLEGAL_ADDRESS, HasSubstr("Invalid __local__ write of size 4 bytes"),
               [](Device& device) { return device.Run("WriteLocal", 1, 0, device.out, 8); });
}

TEST(SanitizeTest, LocalArrayOfAFunctionOverflows) {
  ExpectReport(
      CUDA_ERROR_ILLEGAL_ADDRESS,
      AllOf(HasSubstr("Invalid __local__ write of size 4 bytes"),
            HasSubstr("is 5 bytes after the nearest local variables of 24 bytes")),
      [](Device& device) { return device.Run("WriteLocalOfFunction", 1, 0, device.out, 7); });
}

TEST(SanitizeTest, MoreArgumentsAreReadThanThereAre) {
  ExpectReport(CUDA_ERROR_ILLEGAL_ADDRESS, HasSubstr("Invalid __local__ read of size 4 bytes"),
               [](Device& device) { return device.Run("ReadArguments", 1, 0, device.out, 1); });
}

TEST(SanitizeTest, ConstantOutOfRange) {
  ExpectReport(
      CUDA_ERROR_ILLEGAL_ADDRESS,
      AllOf(HasSubstr("Invalid __constant__ read of size 4 bytes"), HasSubstr("of size 16 bytes")),
      [](Device& device) { return device.Run("ReadConstant", 1, 0, device.out, 4); });
}

TEST(SanitizeTest, ModuleVariableOverflows) {
  ExpectReport(
      CUDA_ERROR_ILLEGAL_ADDRESS,
      AllOf(HasSubstr("Invalid __global__ write of size 4 bytes"),
            HasSubstr("is 1 bytes after the nearest allocation"), HasSubstr("of size 16 bytes")),
      [](Device& device) { return device.Run("WriteVariable", 1, 0, 4); });
}

TEST(SanitizeTest, BlockOfMallocOverflows) {
  ExpectReport(
      CUDA_ERROR_ILLEGAL_ADDRESS,
      AllOf(HasSubstr("is 1 bytes after the nearest allocation"), HasSubstr("of size 16 bytes")),
      [](Device& device) { return device.Run("WriteMalloc", 1, 0, device.out, 4); });
}

TEST(SanitizeTest, BlockOfMallocIsUsedAfterFree) {
  ExpectReport(CUDA_ERROR_ILLEGAL_ADDRESS, HasSubstr("is 0 bytes inside the freed allocation"),
               [](Device& device) { return device.Run("WriteFreedMalloc", 1, 0, device.out, 1); });
}

TEST(SanitizeTest, BlockOfMallocIsFreedTwice) {
  ExpectReport(CUDA_ERROR_ILLEGAL_ADDRESS, HasSubstr("Invalid free, for the second time"),
               [](Device& device) { return device.Run("FreeTwice", 1, 0, device.out, 1); });
}

TEST(SanitizeTest, AsynchronousCopyBehindTheEnd) {
  ExpectReport(
      CUDA_ERROR_ILLEGAL_ADDRESS,
      AllOf(HasSubstr("Invalid __global__ read of size 16 bytes"),
            HasSubstr("of the PTX: cp.async")),
      [](Device& device) { return device.Run("CopyAsync", 1, 0, device.data, 96ll, device.out); });
}

TEST(SanitizeTest, ParameterOutOfRange) {
  ExpectReport(CUDA_ERROR_ILLEGAL_ADDRESS, HasSubstr("in kernel ReadParameter"),
               [](Device& device) {
                 struct Numbers {
                   int values[8];
                 };
                 return device.Run("ReadParameter", 1, 0, Numbers(), 4000, device.out);
               });
}

CUtexObject TextureOf(CUdeviceptr data) {
  CUDA_RESOURCE_DESC resource = {};
  resource.resType = CU_RESOURCE_TYPE_LINEAR;
  resource.res.linear.devPtr = data;
  resource.res.linear.format = CU_AD_FORMAT_SIGNED_INT32;
  resource.res.linear.numChannels = 1;
  resource.res.linear.sizeInBytes = kBytes;
  CUDA_TEXTURE_DESC description = {};
  description.flags = CU_TRSF_READ_AS_INTEGER;
  CUtexObject texture = 0;
  REQUIRE(CU(cuTexObjectCreate)(&texture, &resource, &description, nullptr) == CUDA_SUCCESS);
  return texture;
}

TEST(SanitizeTest, TextureOfFreedMemory) {
  ExpectReport(CUDA_ERROR_ILLEGAL_ADDRESS,
               AllOf(HasSubstr("Invalid texture access"), HasSubstr("freed allocation")),
               [](Device& device) {
                 const CUtexObject texture = TextureOf(device.data);
                 REQUIRE(CU(cuMemFree_v2)(device.data) == CUDA_SUCCESS);
                 return device.Run("Fetch", 1, 0, texture, device.out);
               });
}

TEST(SanitizeTest, TextureThatIsNone) {
  ExpectReport(CUDA_ERROR_ILLEGAL_ADDRESS, HasSubstr("is no texture object"),
               [](Device& device) { return device.Run("Fetch", 1, 0, 12345ull, device.out); });
}

[[noreturn]] void RunCleanKernels() {
  Device device(true);
  struct Numbers {
    int values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  };
  int cells[kCells] = {};
  const auto good = [&](CUresult result) {
    REQUIRE(result == CUDA_SUCCESS);
    REQUIRE(CU(cuMemcpyDtoH_v2)(cells, device.out, kBytes) == CUDA_SUCCESS);
    return cells[0];
  };
  const CUdeviceptr data = device.data, out = device.out;
  good(device.Run("WriteGlobal", kCells, 0, data, kGood));
  REQUIRE(good(device.Run("ReadGlobal", 1, 0, data, 24ll, out)) == 1);
  good(device.Run("WriteByte", 1, 0, data, 99ll));
  good(device.Run("ReadVector", 1, 0, data, 5ll, out));
  good(device.Run("AddAtomically", 32, 0, data, 3ll));
  REQUIRE(good(device.Run("ReadGlobal", 1, 0, data, 3ll, out)) == 1 + 64);
  REQUIRE(good(device.Run("ReadUnaligned", 1, 0, data, 4ll, out)) == 1);
  good(device.Run("WriteStaticShared", 16, 0, out, 0));
  REQUIRE(cells[15] == 2);
  good(device.Run("WriteDynamicShared", 16, 64, out, 0));
  REQUIRE(cells[15] == 2);
  REQUIRE(good(device.Run("WriteSharedThroughPointer", 8, 0, out, 0)) == 3);
  REQUIRE(good(device.Run("WriteLocal", 1, 0, out, 7)) == 7);
  good(device.Run("WriteLocalOfFunction", 1, 0, out, 5));
  REQUIRE(good(device.Run("ReadArguments", 2, 0, out, 0)) == 13);
  REQUIRE(good(device.Run("ReadConstant", 1, 0, out, 3)) == 4);
  good(device.Run("WriteVariable", 1, 0, 3));
  REQUIRE(good(device.Run("WriteMalloc", 1, 0, out, 3)) == 5);
  REQUIRE(good(device.Run("WriteFreedMalloc", 64, 0, out, 0)) == 1);
  good(device.Run("FreeTwice", 1, 0, out, 0));
  good(device.Run("CopyAsync", 1, 0, data, 80ll, out));
  REQUIRE(good(device.Run("ReadParameter", 1, 0, Numbers(), 6, out)) == 7);
  REQUIRE(good(device.Run("Fetch", 1, 0, TextureOf(data), out)) == 1);
  good(device.Run("Recurse", 4, 0, out, 50));
  std::_Exit(0);
}

TEST(SanitizeTest, CleanKernelsReportNothing) {
  EXPECT_EXIT(RunCleanKernels(), ExitedWithCode(0), Not(HasSubstr("=========")));
}

TEST(SanitizeTest, UnknownSanitizerIsRefused) {
  EXPECT_EXIT(
      {
        setenv("CONSORT_CPU_SANITIZE", "thread", 1);
        REQUIRE(CU(cuInit)(0) == CUDA_ERROR_INVALID_VALUE);
        std::_Exit(0);
      },
      ExitedWithCode(0), "CONSORT_CPU_SANITIZE does not understand \"thread\"");
}

// --- Faults that are found without checks ---

TEST(KernelFaultTest, RecursionWithoutEndIsAStackError) {
  for (const bool sanitize : {false, true}) {
    EXPECT_EXIT(
        {
          Device device(sanitize);
          REQUIRE(device.Run("Recurse", 33, 0, device.out, 10000000) ==
                  CUDA_ERROR_HARDWARE_STACK_ERROR);
          std::_Exit(0);
        },
        ExitedWithCode(0), "");
  }
}

TEST(KernelFaultTest, KernelBeyondTheLimitIsStopped) {
  for (const char* kernel : {"LoopWhile", "LoopWithBarrier"}) {
    for (const unsigned threads : {1u, 32u, 100u}) {
      EXPECT_EXIT(
          {
            Device device(false, "50ms");
            REQUIRE(CU(cuMemsetD32_v2)(device.data, 1, 1) == CUDA_SUCCESS);
            REQUIRE(device.Run(kernel, threads, 0, device.data) == CUDA_ERROR_LAUNCH_TIMEOUT);
            REQUIRE(CU(cuCtxSynchronize)() == CUDA_ERROR_LAUNCH_TIMEOUT);
            std::_Exit(0);
          },
          ExitedWithCode(0), "");
    }
  }
}

TEST(KernelFaultTest, KernelWithinTheLimitIsNot) {
  EXPECT_EXIT(
      {
        Device device(false, "1000s");
        REQUIRE(device.Run("LoopWhile", 32, 0, device.data) == CUDA_SUCCESS);
        REQUIRE(device.Run("WriteStaticShared", 16, 0, device.out, 0) == CUDA_SUCCESS);
        std::_Exit(0);
      },
      ExitedWithCode(0), "");
}

TEST(KernelFaultTest, BadLimitIsRefused) {
  EXPECT_EXIT(
      {
        setenv("CONSORT_CPU_KERNEL_LIMIT", "soon", 1);
        REQUIRE(CU(cuInit)(0) == CUDA_ERROR_INVALID_VALUE);
        std::_Exit(0);
      },
      ExitedWithCode(0), "CONSORT_CPU_KERNEL_LIMIT does not understand \"soon\"");
}

}  // namespace
}  // namespace consort::cpu
