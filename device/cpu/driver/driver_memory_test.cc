// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/driver_memory_test.cc: allocations, pinned memory, virtual memory, pointers.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "base/units.h"
#include "device/cpu/driver/driver_test.h"
#include "device/cpu/driver/limits.h"

namespace consort::cpu {
namespace {

constexpr CUdeviceptr kWindow = 0x200000000000;

class MemoryTest : public DriverTest {
 protected:
  size_t FreeBytes() {
    size_t free = 0, total = 0;
    EXPECT_CU(CU(cuMemGetInfo_v2)(&free, &total));
    return free;
  }
};

TEST_F(MemoryTest, AllocationsCountAgainstTheDevice) {
  const size_t before = FreeBytes();
  const CUdeviceptr memory = Allocate(10 * kMiB);
  EXPECT_EQ(FreeBytes(), before - 10 * kMiB);
  EXPECT_CU(CU(cuMemFree_v2)(memory));
  EXPECT_EQ(FreeBytes(), before);
  CUdeviceptr address = 0;
  EXPECT_CU(CU(cuMemAlloc_v2)(&address, before));
  EXPECT_EQ(FreeBytes(), 0u);
  CUdeviceptr one_more = 0;
  EXPECT_EQ(CU(cuMemAlloc_v2)(&one_more, 1), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_CU(CU(cuMemFree_v2)(address));
  EXPECT_EQ(CU(cuMemAlloc_v2)(&address, ~size_t{0}), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(CU(cuMemAlloc_v2)(&address, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(FreeBytes(), before);
}

TEST_F(MemoryTest, FreeTakesOnlyWhatAllocGave) {
  const CUdeviceptr memory = Allocate(8192);
  EXPECT_EQ(CU(cuMemFree_v2)(memory + 256), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemFreeHost)(reinterpret_cast<void*>(memory)), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CU(CU(cuMemFree_v2)(0));
  EXPECT_CU(CU(cuMemFree_v2)(memory));
  EXPECT_EQ(CU(cuMemFree_v2)(memory), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryTest, AddressRangeIsTheAllocation) {
  const CUdeviceptr memory = Allocate(5000);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  EXPECT_CU(CU(cuMemGetAddressRange_v2)(&base, &bytes, memory + 4999));
  EXPECT_EQ(base, memory);
  EXPECT_EQ(bytes, 5000u);
  EXPECT_CU(CU(cuMemGetAddressRange_v2)(nullptr, nullptr, memory));
  EXPECT_EQ(CU(cuMemGetAddressRange_v2)(&base, &bytes, memory + 5000), CUDA_ERROR_NOT_FOUND);
}

TEST_F(MemoryTest, PitchIsAligned) {
  CUdeviceptr memory = 0;
  size_t pitch = 0;
  ASSERT_CU(CU(cuMemAllocPitch_v2)(&memory, &pitch, 1000, 7, 4));
  EXPECT_EQ(pitch, 1024u);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  EXPECT_CU(CU(cuMemGetAddressRange_v2)(&base, &bytes, memory));
  EXPECT_EQ(bytes, 7 * 1024u);
  EXPECT_EQ(CU(cuMemAllocPitch_v2)(&memory, &pitch, 1000, 7, 3), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryTest, HostMemoryIsMapped) {
  void* host = nullptr;
  ASSERT_CU(CU(cuMemHostAlloc)(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
  CUdeviceptr device = 0;
  EXPECT_CU(CU(cuMemHostGetDevicePointer_v2)(&device, host, 0));
  EXPECT_EQ(device, reinterpret_cast<CUdeviceptr>(host));
  unsigned int flags = 0;
  EXPECT_CU(CU(cuMemHostGetFlags)(&flags, host));
  EXPECT_TRUE((flags & CU_MEMHOSTALLOC_DEVICEMAP) != 0);
  EXPECT_CU(CU(cuMemsetD8_v2)(device, 0x5A, 4096));
  EXPECT_EQ(static_cast<unsigned char*>(host)[4095], 0x5A);
  EXPECT_CU(CU(cuMemFreeHost)(host));
  EXPECT_EQ(CU(cuMemFreeHost)(host), CUDA_ERROR_INVALID_VALUE);
  ASSERT_CU(CU(cuMemAllocHost_v2)(&host, 1));
  EXPECT_CU(CU(cuMemFreeHost)(host));
}

TEST_F(MemoryTest, RegisteringIsCheckedForOverlapAndPresence) {
  std::vector<char> buffer(64 * kKiB);
  char* const start = buffer.data() + 4096;
  ASSERT_CU(CU(cuMemHostRegister_v2)(start, 4096, 0));
  EXPECT_EQ(CU(cuMemHostRegister_v2)(start, 4096, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(CU(cuMemHostRegister_v2)(start - 4096, 4097, 0),
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  ASSERT_CU(CU(cuMemHostRegister_v2)(start - 4096, 4096, 0));
  EXPECT_CU(CU(cuMemHostUnregister)(start - 4096));
  EXPECT_EQ(CU(cuMemHostUnregister)(start + 1), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_CU(CU(cuMemHostUnregister)(start));
  EXPECT_EQ(CU(cuMemHostUnregister)(start), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(CU(cuMemHostRegister_v2)(start, 0, 0), CUDA_ERROR_INVALID_VALUE);

  void* hole = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(static_cast<char*>(hole) + 4096, 4096);
  EXPECT_EQ(CU(cuMemHostRegister_v2)(hole, 8192, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CU(CU(cuMemHostRegister_v2)(hole, 4096, 0));
  EXPECT_CU(CU(cuMemHostUnregister)(hole));
  munmap(hole, 4096);
}

TEST_F(MemoryTest, ReadOnlyRegistrationIsNotWritten) {
  std::vector<uint32_t> buffer(1024, 7);
  ASSERT_CU(CU(cuMemHostRegister_v2)(buffer.data(), 4096, CU_MEMHOSTREGISTER_READ_ONLY));
  const CUdeviceptr address = reinterpret_cast<CUdeviceptr>(buffer.data());
  EXPECT_EQ(CU(cuMemsetD32_v2)(address, 1, 1), CUDA_ERROR_INVALID_VALUE);
  uint32_t value = 0;
  EXPECT_CU(CU(cuMemcpyDtoH_v2)(&value, address, 4));
  EXPECT_EQ(value, 7u);
  EXPECT_CU(CU(cuMemHostUnregister)(buffer.data()));
}

TEST_F(MemoryTest, PointerAttributesTellDeviceFromHost) {
  const CUdeviceptr memory = Allocate(4096);
  unsigned int type = 0;
  EXPECT_CU(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory + 100));
  EXPECT_EQ(type, CU_MEMORYTYPE_DEVICE);
  CUcontext context = nullptr;
  EXPECT_CU(CU(cuPointerGetAttribute)(&context, CU_POINTER_ATTRIBUTE_CONTEXT, memory));
  EXPECT_EQ(context, context_);
  CUdeviceptr start = 0;
  size_t bytes = 0;
  EXPECT_CU(CU(cuPointerGetAttribute)(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, memory + 9));
  EXPECT_CU(CU(cuPointerGetAttribute)(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, memory + 9));
  EXPECT_EQ(start, memory);
  EXPECT_EQ(bytes, 4096u);
  void* host_pointer = nullptr;
  EXPECT_EQ(CU(cuPointerGetAttribute)(&host_pointer, CU_POINTER_ATTRIBUTE_HOST_POINTER, memory),
            CUDA_ERROR_INVALID_VALUE);

  void* host = nullptr;
  ASSERT_CU(CU(cuMemHostAlloc)(&host, 4096, 0));
  const CUdeviceptr host_address = reinterpret_cast<CUdeviceptr>(host);
  EXPECT_CU(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, host_address));
  EXPECT_EQ(type, CU_MEMORYTYPE_HOST);
  EXPECT_CU(
      CU(cuPointerGetAttribute)(&host_pointer, CU_POINTER_ATTRIBUTE_HOST_POINTER, host_address));
  EXPECT_EQ(host_pointer, host);
  EXPECT_CU(CU(cuMemFreeHost)(host));
}

TEST_F(MemoryTest, UnknownMemoryFailsOneQueryAndIsNeutralInTheOther) {
  int on_stack = 0;
  const CUdeviceptr unknown = reinterpret_cast<CUdeviceptr>(&on_stack);
  unsigned int type = 77;
  EXPECT_EQ(CU(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, unknown),
            CUDA_ERROR_INVALID_VALUE);
  int ordinal = 77;
  CUdeviceptr device = 77;
  CUpointer_attribute attributes[] = {
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
      CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_BUFFER_ID};
  void* data[] = {&type, &ordinal, &device, nullptr};
  EXPECT_CU(CU(cuPointerGetAttributes)(4, attributes, data, unknown));
  EXPECT_EQ(type, 0u);
  EXPECT_EQ(ordinal, -2);
  EXPECT_EQ(device, 0u);
  EXPECT_CU(CU(cuPointerGetAttributes)(4, attributes, data, Allocate(4)));
  EXPECT_EQ(type, CU_MEMORYTYPE_DEVICE);
  EXPECT_EQ(ordinal, 0);
}

class VirtualMemoryTest : public MemoryTest {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "ThreadSanitizer leaves no room at the window's addresses";
#endif
    MemoryTest::SetUp();
  }
  void TearDown() override {
    if (!IsSkipped()) MemoryTest::TearDown();
  }

  static CUmemAllocationProp Properties(int device) {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return properties;
  }
  CUmemGenericAllocationHandle Create(size_t bytes, int device = 0) {
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp properties = Properties(device);
    EXPECT_CU(CU(cuMemCreate)(&handle, bytes, &properties, 0));
    return handle;
  }
  CUresult SetAccess(CUdeviceptr address, size_t bytes, CUmemAccess_flags flags, int device = 0) {
    const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
    return CU(cuMemSetAccess)(address, bytes, &access, 1);
  }
  uint32_t Read(CUdeviceptr address) {
    uint32_t value = 0;
    EXPECT_CU(CU(cuMemcpyDtoH_v2)(&value, address, 4));
    return value;
  }
};

TEST_F(VirtualMemoryTest, FixedWindowIsHonouredExactly) {
  CUdeviceptr window = 0, other = 0;
  ASSERT_CU(CU(cuMemAddressReserve)(&window, kTiB, 0, kWindow, 0));
  EXPECT_EQ(window, kWindow);
  // Taken: somewhere else, still aligned.
  ASSERT_CU(CU(cuMemAddressReserve)(&other, kGranularity, 64 * kMiB, kWindow, 0));
  EXPECT_NE(other, kWindow);
  EXPECT_EQ(other % (64 * kMiB), 0u);
  EXPECT_CU(CU(cuMemAddressFree)(other, kGranularity));
  EXPECT_EQ(CU(cuMemAddressFree)(window, kGranularity), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CU(CU(cuMemAddressFree)(window, kTiB));
  EXPECT_EQ(CU(cuMemAddressFree)(window, kTiB), CUDA_ERROR_INVALID_VALUE);
  // Free again.
  ASSERT_CU(CU(cuMemAddressReserve)(&window, kGranularity, 0, kWindow, 0));
  EXPECT_EQ(window, kWindow);
  EXPECT_CU(CU(cuMemAddressFree)(window, kGranularity));
}

TEST_F(VirtualMemoryTest, MemoryOfTheProgramIsNeverReplaced) {
  void* taken = mmap(reinterpret_cast<void*>(kWindow + kGranularity), 4096, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  ASSERT_EQ(taken, reinterpret_cast<void*>(kWindow + kGranularity));
  static_cast<char*>(taken)[0] = 42;
  CUdeviceptr window = 0;
  ASSERT_CU(CU(cuMemAddressReserve)(&window, 4 * kGranularity, 0, kWindow, 0));
  EXPECT_NE(window, kWindow);
  EXPECT_EQ(static_cast<char*>(taken)[0], 42);
  EXPECT_CU(CU(cuMemAddressFree)(window, 4 * kGranularity));
  munmap(taken, 4096);
}

TEST_F(VirtualMemoryTest, ContentsStayWithTheMemory) {
  CUdeviceptr window = 0;
  ASSERT_CU(CU(cuMemAddressReserve)(&window, 16 * kGranularity, 0, kWindow, 0));
  const size_t free_before = FreeBytes();
  const CUmemGenericAllocationHandle first = Create(kGranularity), second = Create(kGranularity);
  EXPECT_EQ(FreeBytes(), free_before - 2 * kGranularity);
  ASSERT_CU(CU(cuMemMap)(window, kGranularity, 0, first, 0));
  ASSERT_CU(CU(cuMemMap)(window + kGranularity, kGranularity, 0, second, 0));
  ASSERT_CU(SetAccess(window, 2 * kGranularity, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  // One fill across both mappings.
  ASSERT_CU(CU(cuMemsetD32_v2)(window, 0x11111111, 2 * kGranularity / 4));
  ASSERT_CU(CU(cuMemsetD32_v2)(window + kGranularity, 0x22222222, kGranularity / 4));
  ASSERT_CU(CU(cuMemUnmap)(window, 2 * kGranularity));
  // Swapped.
  ASSERT_CU(CU(cuMemMap)(window, kGranularity, 0, second, 0));
  ASSERT_CU(CU(cuMemMap)(window + 8 * kGranularity, kGranularity, 0, first, 0));
  ASSERT_CU(SetAccess(window, kGranularity, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  ASSERT_CU(SetAccess(window + 8 * kGranularity, kGranularity, CU_MEM_ACCESS_FLAGS_PROT_READ));
  EXPECT_EQ(Read(window + kGranularity - 4), 0x22222222u);
  EXPECT_EQ(Read(window + 8 * kGranularity), 0x11111111u);
  // Read-only, and not mapped.
  EXPECT_EQ(CU(cuMemsetD32_v2)(window + 8 * kGranularity, 1, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemsetD32_v2)(window + kGranularity, 1, 1), CUDA_ERROR_INVALID_VALUE);
  uint32_t word = 0;
  EXPECT_EQ(CU(cuMemcpyDtoH_v2)(&word, window + kGranularity, 4), CUDA_ERROR_INVALID_VALUE);

  // The memory lives on while it is mapped.
  EXPECT_CU(CU(cuMemRelease)(first));
  EXPECT_EQ(CU(cuMemRelease)(first), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Read(window + 8 * kGranularity), 0x11111111u);
  CUmemGenericAllocationHandle retained = 0;
  EXPECT_CU(CU(cuMemRetainAllocationHandle)(&retained,
                                            reinterpret_cast<void*>(window + 8 * kGranularity)));
  EXPECT_EQ(retained, first);
  EXPECT_CU(CU(cuMemUnmap)(window + 8 * kGranularity, kGranularity));
  EXPECT_EQ(FreeBytes(), free_before - 2 * kGranularity);
  EXPECT_CU(CU(cuMemRelease)(retained));
  EXPECT_EQ(FreeBytes(), free_before - kGranularity);
  EXPECT_CU(CU(cuMemRelease)(second));
  EXPECT_EQ(CU(cuMemAddressFree)(window, 16 * kGranularity), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CU(CU(cuMemUnmap)(window, kGranularity));
  EXPECT_EQ(FreeBytes(), free_before);
  EXPECT_CU(CU(cuMemAddressFree)(window, 16 * kGranularity));
}

TEST_F(VirtualMemoryTest, MappingErrors) {
  CUdeviceptr window = 0;
  ASSERT_CU(CU(cuMemAddressReserve)(&window, 4 * kGranularity, 0, kWindow, 0));
  const CUmemGenericAllocationHandle memory = Create(2 * kGranularity);
  EXPECT_EQ(CU(cuMemMap)(window + 4096, kGranularity, 0, memory, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemMap)(window, 4096, 0, memory, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemMap)(window, kGranularity, 2 * kGranularity, memory, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemMap)(window + 3 * kGranularity, 2 * kGranularity, 0, memory, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemMap)(window - kGranularity, kGranularity, 0, memory, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemMap)(window, kGranularity, 0, memory + 1, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(SetAccess(window, kGranularity, CU_MEM_ACCESS_FLAGS_PROT_READ),
            CUDA_ERROR_INVALID_VALUE);
  ASSERT_CU(CU(cuMemMap)(window, 2 * kGranularity, 0, memory, 0));
  EXPECT_EQ(CU(cuMemMap)(window + kGranularity, kGranularity, 0, memory, 0),
            CUDA_ERROR_INVALID_VALUE);
  // Mapped without access.
  EXPECT_EQ(CU(cuMemsetD8_v2)(window, 1, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(SetAccess(window, kGranularity, CU_MEM_ACCESS_FLAGS_PROT_READ),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(SetAccess(window, 2 * kGranularity, CU_MEM_ACCESS_FLAGS_PROT_READ, 7),
            CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(CU(cuMemUnmap)(window, kGranularity), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CU(CU(cuMemUnmap)(window, 2 * kGranularity));
  EXPECT_EQ(CU(cuMemUnmap)(window, 2 * kGranularity), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CU(CU(cuMemRelease)(memory));
  EXPECT_CU(CU(cuMemAddressFree)(window, 4 * kGranularity));

  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp properties = Properties(0);
  EXPECT_EQ(CU(cuMemCreate)(&handle, 4096, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(CU(cuMemCreate)(&handle, kGiB, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
  properties.location.type = CU_MEM_LOCATION_TYPE_HOST;
  EXPECT_EQ(CU(cuMemCreate)(&handle, kGranularity, &properties, 0), CUDA_ERROR_NOT_SUPPORTED);
  properties = Properties(9);
  EXPECT_EQ(CU(cuMemCreate)(&handle, kGranularity, &properties, 0), CUDA_ERROR_INVALID_DEVICE);
  size_t granularity = 0;
  properties = Properties(0);
  EXPECT_CU(CU(cuMemGetAllocationGranularity)(&granularity, &properties,
                                              CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  EXPECT_EQ(granularity, 2 * kMiB);
}

TEST_F(VirtualMemoryTest, PointerAttributesKnowWindowAndMapping) {
  CUdeviceptr window = 0;
  ASSERT_CU(CU(cuMemAddressReserve)(&window, 4 * kGranularity, 0, kWindow, 0));
  const CUmemGenericAllocationHandle memory = Create(kGranularity, 1);
  ASSERT_CU(CU(cuMemMap)(window + kGranularity, kGranularity, 0, memory, 0));
  const CUdeviceptr inside = window + kGranularity + 123;
  uint64_t value = 0;
  EXPECT_CU(CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside));
  EXPECT_EQ(value, window);
  EXPECT_CU(CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, inside));
  EXPECT_EQ(value, window + kGranularity);
  EXPECT_CU(CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_MAPPING_SIZE, inside));
  EXPECT_EQ(value, kGranularity);
  int ordinal = -1;
  EXPECT_CU(CU(cuPointerGetAttribute)(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, inside));
  EXPECT_EQ(ordinal, 1);
  EXPECT_EQ(CU(cuPointerGetAttribute)(&value, CU_POINTER_ATTRIBUTE_MAPPED, window),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_CU(CU(cuMemUnmap)(window + kGranularity, kGranularity));
  EXPECT_CU(CU(cuMemRelease)(memory));
  EXPECT_CU(CU(cuMemAddressFree)(window, 4 * kGranularity));
}

TEST_F(VirtualMemoryTest, ExportedMemoryIsKnownAgainHere) {
  const CUmemGenericAllocationHandle memory = Create(kGranularity);
  const size_t free_before = FreeBytes();
  int fd = -1;
  ASSERT_CU(
      CU(cuMemExportToShareableHandle)(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  CUmemGenericAllocationHandle imported = 0;
  ASSERT_CU(CU(cuMemImportFromShareableHandle)(&imported,
                                               reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  EXPECT_EQ(FreeBytes(), free_before);
  // The descriptor cannot be used to take the memory away.
  EXPECT_NE(ftruncate(fd, 0), 0);
  close(fd);
  EXPECT_CU(CU(cuMemRelease)(memory));
  EXPECT_CU(CU(cuMemRelease)(imported));
  EXPECT_EQ(FreeBytes(), free_before + kGranularity);
  EXPECT_EQ(CU(cuMemImportFromShareableHandle)(&imported, reinterpret_cast<void*>(intptr_t{0}),
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_ERROR_INVALID_VALUE);
}

// The keeper's case: memory made by one process is mapped and written by another.
TEST_F(VirtualMemoryTest, ExportedMemoryOutlivesItsMaker) {
  int sockets[2];
  ASSERT_EQ(pipe(sockets), 0);
  const pid_t child = fork();
  if (child == 0) {
    // A descriptor number in /proc is enough here: the parent opens it while the child sleeps.
    const CUmemAllocationProp properties = Properties(1);
    CUmemGenericAllocationHandle memory = 0;
    CUdeviceptr window = 0;
    int fd = -1;
    bool good =
        CU(cuMemCreate)(&memory, kGranularity, &properties, 0) == CUDA_SUCCESS &&
        CU(cuMemAddressReserve)(&window, kGranularity, 0, 0, 0) == CUDA_SUCCESS &&
        CU(cuMemMap)(window, kGranularity, 0, memory, 0) == CUDA_SUCCESS &&
        SetAccess(window, kGranularity, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 1) == CUDA_SUCCESS &&
        CU(cuMemExportToShareableHandle)(&fd, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                         0) == CUDA_SUCCESS;
    if (good) *reinterpret_cast<uint32_t*>(window) = 0xC0FFEE;
    if (!good) fd = -1;
    if (write(sockets[1], &fd, sizeof(fd)) != sizeof(fd)) _exit(1);
    pause();
    _exit(0);
  }
  int child_fd = -1;
  ASSERT_EQ(read(sockets[0], &child_fd, sizeof(child_fd)), static_cast<ssize_t>(sizeof(child_fd)));
  ASSERT_GE(child_fd, 0);
  const std::string path = "/proc/" + std::to_string(child) + "/fd/" + std::to_string(child_fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(sockets[0]);
  close(sockets[1]);

  CUmemGenericAllocationHandle memory = 0;
  ASSERT_CU(CU(cuMemImportFromShareableHandle)(&memory,
                                               reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                               CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  close(fd);
  CUdeviceptr window = 0;
  ASSERT_CU(CU(cuMemAddressReserve)(&window, kGranularity, 0, kWindow, 0));
  ASSERT_CU(CU(cuMemMap)(window, kGranularity, 0, memory, 0));
  ASSERT_CU(SetAccess(window, kGranularity, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 1));
  EXPECT_EQ(Read(window), 0xC0FFEEu);
  int ordinal = -1;
  EXPECT_CU(CU(cuPointerGetAttribute)(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, window));
  EXPECT_EQ(ordinal, 1);
  EXPECT_CU(CU(cuMemUnmap)(window, kGranularity));
  EXPECT_CU(CU(cuMemRelease)(memory));
  EXPECT_CU(CU(cuMemAddressFree)(window, kGranularity));
}

}  // namespace
}  // namespace consort::cpu
