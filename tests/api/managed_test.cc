// SPDX-License-Identifier: Apache-2.0
// Managed memory, on devices that have it; the host uses it when their work is done.
// Source: CUDA Driver API reference 13.0, "Memory Management" (cuMemAllocManaged, cuMemFree),
// "Unified Addressing" (cuMemPrefetchAsync, cuMemAdvise, cuMemRangeGetAttribute, batches of
// ranges), "Stream Management" (cuStreamAttachMemAsync), "Library Management"
// (cuLibraryGetManaged).
#include <algorithm>
#include <numeric>
#include <random>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

class ManagedTest : public ContextTest {
 protected:
  void SetUp() override {
    ContextTest::SetUp();
    if (Attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY) == 0)
      GTEST_SKIP() << "the device does not say that it has managed memory";
  }
};

// `count` values in managed memory.
template <typename T>
class ManagedArray {
 public:
  explicit ManagedArray(size_t count, unsigned flags = CU_MEM_ATTACH_GLOBAL) : count_(count) {
    Require(Drv().cuMemAllocManaged(&address_, count * sizeof(T), flags), "cuMemAllocManaged");
  }
  ~ManagedArray() { Drv().cuMemFree_v2(address_); }
  ManagedArray(const ManagedArray&) = delete;
  ManagedArray& operator=(const ManagedArray&) = delete;
  CUdeviceptr address() const { return address_; }
  T* begin() const { return reinterpret_cast<T*>(address_); }
  T* end() const { return begin() + count_; }
  T& operator[](size_t index) const { return begin()[index]; }

 private:
  size_t count_;
  CUdeviceptr address_ = 0;
};

class ManagedVariableTest : public ManagedTest {
 protected:
  static unsigned* Values(CUdeviceptr address) { return reinterpret_cast<unsigned*>(address); }
};

API_TEST(ManagedTest, HostAndKernelsUseTheSameAddress) {
  Module module(kBasicPtx);
  constexpr unsigned kCount = 100000;
  ManagedArray<float> a(kCount), b(kCount, CU_MEM_ATTACH_HOST), sum(kCount);
  for (int round = 1; round <= 3; ++round) {
    std::iota(a.begin(), a.end(), static_cast<float>(round));
    std::fill(b.begin(), b.end(), 0.5f);
    ASSERT_OK(Launch(module.Function("vector_add"), (kCount + 255) / 256, 256, nullptr, a.address(),
                     b.address(), sum.address(), kCount));
    ASSERT_OK(Drv().cuCtxSynchronize());
    for (unsigned index = 0; index < kCount; ++index) {
      ASSERT_EQ(sum[index], static_cast<float>(index) + static_cast<float>(round) + 0.5f) << index;
    }
  }
}

API_TEST(ManagedTest, AtomicsOfHostAndKernelsAddUp) {
  Module module(kSystemAtomicsPtx);
  ManagedArray<unsigned> word(1);
  word[0] = 0;
  constexpr unsigned kBlocks = 16, kThreads = 128, kRounds = 50, kOfTheHost = 100000;
  ASSERT_OK(
      Launch(module.Function("add_for_host"), kBlocks, kThreads, nullptr, word.address(), kRounds));
  for (unsigned i = 0; i < kOfTheHost; ++i) __atomic_fetch_add(&word[0], 1u, __ATOMIC_RELAXED);
  ASSERT_OK(Drv().cuCtxSynchronize());
  EXPECT_EQ(word[0], kBlocks * kThreads * kRounds + kOfTheHost);
}

constexpr unsigned long long kLateNanos = 50'000'000;

// A program may not use managed memory then, but must not end with wrong sums if it does.
API_TEST(ManagedTest, WithoutConcurrentAccessTheHostWaitsForAtomics) {
  if (Attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) != 0)
    GTEST_SKIP() << "host and kernels may use managed memory at the same time";
  Module module(kSystemAtomicsPtx);
  ManagedArray<unsigned> word(1);
  word[0] = 0;
  Stream stream;
  ASSERT_OK(Launch(module.Function("add_late"), 1, 1, stream, kLateNanos, word.address()));
  EXPECT_EQ(word[0], 1u);
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  ASSERT_OK(Drv().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  EXPECT_OK(Launch(module.Function("add_late"), 1, 1, stream, kLateNanos, word.address()));
  ASSERT_OK(Drv().cuStreamEndCapture(stream, &graph));
  ASSERT_OK(Drv().cuGraphInstantiateWithFlags(&exec, graph, 0));
  EXPECT_EQ(word[0], 1u);
  ASSERT_OK(Drv().cuGraphLaunch(exec, stream));
  EXPECT_EQ(word[0], 2u);
  EXPECT_OK(Drv().cuGraphExecDestroy(exec));
  EXPECT_OK(Drv().cuGraphDestroy(graph));
}

API_TEST(ManagedTest, CopiesAndFillsTakeIt) {
  ManagedArray<unsigned> managed(1000);
  DeviceBuffer buffer(4000);
  buffer.Write(Iota(1000));
  EXPECT_OK(Drv().cuMemcpyDtoD_v2(managed.address(), buffer, 4000));
  EXPECT_OK(Drv().cuCtxSynchronize());
  EXPECT_EQ(std::vector<unsigned>(managed.begin(), managed.end()), Iota(1000));
  EXPECT_OK(Drv().cuMemsetD32_v2(managed.address() + 40, 7, 990));
  EXPECT_OK(Drv().cuCtxSynchronize());
  EXPECT_EQ(managed[9], 9u);
  EXPECT_EQ(managed[10], 7u);
  EXPECT_EQ(managed[999], 7u);
  managed[0] = 12345;
  unsigned back[2] = {};
  EXPECT_OK(Drv().cuMemcpyDtoH_v2(back, managed.address(), 8));
  EXPECT_EQ(back[0], 12345u);
  const unsigned there[2] = {3, 4};
  EXPECT_OK(Drv().cuMemcpyHtoD_v2(managed.address() + 8, there, 8));
  EXPECT_OK(Drv().cuCtxSynchronize());  // the copy may still be on its way
  EXPECT_EQ(managed[3], 4u);
}

API_TEST(ManagedTest, PointerIsManaged) {
  ManagedArray<unsigned> managed(100);
  const auto ask = [&](CUpointer_attribute attribute, auto value) {
    EXPECT_OK(Drv().cuPointerGetAttribute(&value, attribute, managed.address() + 4));
    return value;
  };
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_IS_MANAGED, 0u), 1u);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CUdeviceptr{0}), managed.address() + 4);
  EXPECT_EQ(ask(CU_POINTER_ATTRIBUTE_HOST_POINTER, static_cast<unsigned*>(nullptr)), &managed[1]);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  EXPECT_OK(Drv().cuMemGetAddressRange_v2(&base, &bytes, managed.address() + 4));
  EXPECT_EQ(base, managed.address());
  EXPECT_EQ(bytes, 400u);
}

API_TEST(ManagedTest, AllocationChecksItsArguments) {
  CUdeviceptr address = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemAllocManaged(nullptr, 4, CU_MEM_ATTACH_GLOBAL));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemAllocManaged(&address, 0, CU_MEM_ATTACH_GLOBAL));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemAllocManaged(&address, 4, 0));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemAllocManaged(&address, 4, CU_MEM_ATTACH_SINGLE));
}

API_TEST(ManagedTest, IsFreedOnce) {
  CUdeviceptr address = 0;
  ASSERT_OK(Drv().cuMemAllocManaged(&address, 4096, CU_MEM_ATTACH_GLOBAL));
  EXPECT_OK(Drv().cuMemFree_v2(address));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemFree_v2(address));
}

API_TEST(ManagedTest, PrefetchAndAdviceAreAboutManagedMemoryOnly) {
  ManagedArray<unsigned> managed(1024);
  DeviceBuffer buffer(4096);
  CUmemLocation there = {};
  there.type = CU_MEM_LOCATION_TYPE_DEVICE;
  there.id = device();
  CUmemLocation host = {};
  host.type = CU_MEM_LOCATION_TYPE_HOST;
  managed[5] = 55;
  EXPECT_OK(Drv().cuMemPrefetchAsync_v2(managed.address(), 4096, there, 0, nullptr));
  EXPECT_OK(Drv().cuMemPrefetchAsync_v2(managed.address(), 4096, host, 0, nullptr));
  EXPECT_OK(Drv().cuMemAdvise_v2(managed.address(), 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, there));
  EXPECT_OK(
      Drv().cuMemAdvise_v2(managed.address(), 4096, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
  EXPECT_OK(Drv().cuCtxSynchronize());
  EXPECT_EQ(managed[5], 55u);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemPrefetchAsync_v2(buffer, 4096, there, 0, nullptr));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemAdvise_v2(buffer, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, there));
}

// The old ones name the host by a device's number.
API_TEST(ManagedTest, OldPrefetchAndAdviceTakeADevice) {
  ManagedArray<unsigned> managed(1024);
  DeviceBuffer buffer(4096);
  managed[5] = 55;
  EXPECT_OK(Drv().cuMemPrefetchAsync(managed.address(), 4096, CU_DEVICE_CPU, nullptr));
  EXPECT_OK(
      Drv().cuMemAdvise(managed.address(), 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, CU_DEVICE_CPU));
  EXPECT_OK(Drv().cuMemAdvise(managed.address(), 4096, CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
                              CU_DEVICE_CPU));
  EXPECT_OK(Drv().cuCtxSynchronize());
  EXPECT_EQ(managed[5], 55u);
  int count = 0;
  EXPECT_OK(Drv().cuDeviceGetCount(&count));
  EXPECT_RESULT(CUDA_ERROR_INVALID_DEVICE,
                Drv().cuMemPrefetchAsync(managed.address(), 4096, count, nullptr));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemPrefetchAsync(buffer, 4096, CU_DEVICE_CPU, nullptr));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemAdvise(managed.address(), 4096, static_cast<CUmem_advise>(99), 0));
}

API_TEST(ManagedTest, BatchesAreForDevicesThatShareItWithTheHost) {
  if (Attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) != 0)
    GTEST_SKIP() << "the device shares managed memory with the host";
  ManagedArray<unsigned> managed(1024);
  Stream stream;
  CUdeviceptr address = managed.address();
  size_t bytes = 4096, first = 0;
  CUmemLocation host = {};
  host.type = CU_MEM_LOCATION_TYPE_HOST;
  EXPECT_NE(Drv().cuMemPrefetchBatchAsync(&address, &bytes, 1, &host, &first, 1, 0, stream.get()),
            CUDA_SUCCESS);
  EXPECT_NE(Drv().cuMemDiscardBatchAsync(&address, &bytes, 1, 0, stream.get()), CUDA_SUCCESS);
  EXPECT_NE(Drv().cuMemDiscardAndPrefetchBatchAsync(&address, &bytes, 1, &host, &first, 1, 0,
                                                    stream.get()),
            CUDA_SUCCESS);
}

constexpr size_t kPageBytes = 4096;

CUmemLocation DeviceLocation(int device) {
  CUmemLocation location = {};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}

CUmemLocation HostLocation() {
  CUmemLocation location = {};
  location.type = CU_MEM_LOCATION_TYPE_HOST;
  return location;
}

// What a program has said of managed memory of some pages, on a device that takes it all.
class ManagedRangeTest : public ManagedTest {
 protected:
  void SetUp() override {
    ManagedTest::SetUp();
    if (IsSkipped()) return;
    int count = 0;
    Require(Drv().cuDeviceGetCount(&count), "cuDeviceGetCount");
    for (int i = 0; i < count; ++i) {
      int value = 0;
      Require(Drv().cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, i),
              "cuDeviceGetAttribute");
      if (value == 0) GTEST_SKIP() << "a device does not share managed memory with the host";
    }
  }
  // Of `count` pages from page `first` on.
  static int Ask(const ManagedArray<char>& memory, CUmem_range_attribute attribute, size_t first,
                 size_t count) {
    int value = 77;
    EXPECT_OK(Drv().cuMemRangeGetAttribute(&value, sizeof(value), attribute,
                                           memory.address() + first * kPageBytes,
                                           count * kPageBytes));
    return value;
  }
  static CUresult Advise(const ManagedArray<char>& memory, size_t first, size_t count,
                         CUmem_advise advice, const CUmemLocation& location) {
    return Drv().cuMemAdvise_v2(memory.address() + first * kPageBytes, count * kPageBytes, advice,
                                location);
  }
  static std::vector<int> AccessedBy(const ManagedArray<char>& memory, size_t first, size_t count,
                                     size_t room) {
    std::vector<int> devices(room, 77);
    EXPECT_OK(Drv().cuMemRangeGetAttribute(
        devices.data(), room * sizeof(int), CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY,
        memory.address() + first * kPageBytes, count * kPageBytes));
    return devices;
  }
};

API_TEST(ManagedRangeTest, BeginsWithoutAdvice) {
  ManagedArray<char> memory(4 * kPageBytes);
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 0, 4), 0);
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, 0, 4), CU_DEVICE_INVALID);
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, 0, 4), CU_DEVICE_INVALID);
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, 0, 4),
            CU_MEM_LOCATION_TYPE_INVALID);
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, 0, 4),
            CU_MEM_LOCATION_TYPE_INVALID);
  EXPECT_EQ(AccessedBy(memory, 0, 4, 2), (std::vector<int>{CU_DEVICE_INVALID, CU_DEVICE_INVALID}));
}

API_TEST(ManagedRangeTest, IsWhatWasSaidOfAllPages) {
  ManagedArray<char> memory(8 * kPageBytes);
  EXPECT_OK(Advise(memory, 2, 4, CU_MEM_ADVISE_SET_READ_MOSTLY, DeviceLocation(device())));
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 2, 4), 1);
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 3, 1), 1);
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 1, 2), 0);
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 5, 2), 0);
  EXPECT_OK(Advise(memory, 4, 1, CU_MEM_ADVISE_UNSET_READ_MOSTLY, DeviceLocation(device())));
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 2, 4), 0);
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 2, 2), 1);
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 5, 1), 1);

  EXPECT_OK(Advise(memory, 0, 8, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, DeviceLocation(device())));
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, 0, 8), device());
  EXPECT_OK(Advise(memory, 6, 2, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, HostLocation()));
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, 0, 8), CU_DEVICE_INVALID);
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, 0, 6), device());
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, 0, 6),
            CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID, 0, 6), device());
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, 6, 2), CU_DEVICE_CPU);
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, 6, 2),
            CU_MEM_LOCATION_TYPE_HOST);
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, 5, 2),
            CU_MEM_LOCATION_TYPE_INVALID);
  EXPECT_OK(Advise(memory, 1, 1, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, DeviceLocation(device())));
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, 0, 2), CU_DEVICE_INVALID);
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, 2, 4), device());
}

API_TEST(ManagedRangeTest, ListsTheProcessorsThatAccessAllOfIt) {
  ManagedArray<char> memory(4 * kPageBytes);
  EXPECT_OK(Advise(memory, 0, 4, CU_MEM_ADVISE_SET_ACCESSED_BY, DeviceLocation(device())));
  EXPECT_EQ(AccessedBy(memory, 0, 4, 3),
            (std::vector<int>{device(), CU_DEVICE_INVALID, CU_DEVICE_INVALID}));
  EXPECT_OK(Advise(memory, 1, 2, CU_MEM_ADVISE_SET_ACCESSED_BY, HostLocation()));
  std::vector<int> both = AccessedBy(memory, 1, 2, 3);
  EXPECT_EQ(std::count(both.begin(), both.end(), device()), 1);
  EXPECT_EQ(std::count(both.begin(), both.end(), CU_DEVICE_CPU), 1);
  EXPECT_EQ(both[2], CU_DEVICE_INVALID);
  EXPECT_NE(AccessedBy(memory, 1, 2, 1)[0], CU_DEVICE_INVALID);
  EXPECT_EQ(AccessedBy(memory, 0, 4, 2), (std::vector<int>{device(), CU_DEVICE_INVALID}));
  EXPECT_OK(Advise(memory, 3, 1, CU_MEM_ADVISE_UNSET_ACCESSED_BY, DeviceLocation(device())));
  EXPECT_EQ(AccessedBy(memory, 0, 4, 1), std::vector<int>{CU_DEVICE_INVALID});
  EXPECT_EQ(AccessedBy(memory, 0, 3, 1), std::vector<int>{device()});
  CUmemLocation node = HostLocation();
  node.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Advise(memory, 0, 4, CU_MEM_ADVISE_SET_ACCESSED_BY, node));
}

API_TEST(ManagedRangeTest, RemembersTheLatestPrefetch) {
  ManagedArray<char> memory(4 * kPageBytes);
  Stream stream;
  EXPECT_OK(Drv().cuMemPrefetchAsync_v2(memory.address(), 4 * kPageBytes, DeviceLocation(device()),
                                        0, stream));
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, 0, 4), device());
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, 0, 4),
            CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID, 0, 4), device());
  EXPECT_OK(Drv().cuMemPrefetchAsync(memory.address(), kPageBytes, CU_DEVICE_CPU, stream));
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, 0, 4), CU_DEVICE_INVALID);
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, 0, 1), CU_DEVICE_CPU);
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, 0, 1),
            CU_MEM_LOCATION_TYPE_HOST);
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, 1, 3), device());
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
}

// "Rounded down and rounded up respectively to be aligned to CPU page size".
API_TEST(ManagedRangeTest, IsAboutWholePages) {
  ManagedArray<char> memory(4 * kPageBytes);
  EXPECT_OK(Drv().cuMemAdvise_v2(memory.address() + kPageBytes + 100, kPageBytes,
                                 CU_MEM_ADVISE_SET_READ_MOSTLY, HostLocation()));
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 1, 2), 1);
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 0, 1), 0);
  EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 3, 1), 0);
}

API_TEST(ManagedRangeTest, GoesWithItsMemory) {
  CUdeviceptr first = 0;
  {
    ManagedArray<char> memory(4 * kPageBytes);
    first = memory.address();
    EXPECT_OK(Advise(memory, 0, 4, CU_MEM_ADVISE_SET_READ_MOSTLY, HostLocation()));
  }
  // Until the address is used again, where it ever is.
  for (int i = 0; i < 20; ++i) {
    ManagedArray<char> memory(4 * kPageBytes);
    EXPECT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, 0, 4), 0);
    if (memory.address() == first) break;
  }
}

API_TEST(ManagedRangeTest, RandomAdviceIsToldAsAPageByPageModelSays) {
  constexpr size_t kPages = 40;
  ManagedArray<char> memory(kPages * kPageBytes);
  std::mt19937 random(21);
  std::vector<int> read_mostly(kPages, 0), preferred(kPages, CU_DEVICE_INVALID);
  const auto common = [](const std::vector<int>& pages, size_t first, size_t count, int other) {
    const bool same = std::all_of(pages.begin() + first, pages.begin() + first + count,
                                  [&](int page) { return page == pages[first]; });
    return same ? pages[first] : other;
  };
  for (int round = 0; round < 600; ++round) {
    const size_t first = random() % kPages;
    const size_t count = 1 + random() % (kPages - first);
    const bool set = random() % 2 == 0;
    if (random() % 2 == 0) {
      ASSERT_OK(Advise(memory, first, count,
                       set ? CU_MEM_ADVISE_SET_READ_MOSTLY : CU_MEM_ADVISE_UNSET_READ_MOSTLY,
                       HostLocation()));
      std::fill_n(read_mostly.begin() + first, count, set ? 1 : 0);
    } else {
      const bool host = random() % 2 == 0;
      ASSERT_OK(Advise(
          memory, first, count,
          set ? CU_MEM_ADVISE_SET_PREFERRED_LOCATION : CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION,
          host ? HostLocation() : DeviceLocation(device())));
      const int where = host ? CU_DEVICE_CPU : device();
      std::fill_n(preferred.begin() + first, count, set ? where : CU_DEVICE_INVALID);
    }
    const size_t asked = random() % kPages;
    const size_t pages = 1 + random() % std::min<size_t>(4, kPages - asked);
    ASSERT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, asked, pages),
              common(read_mostly, asked, pages, 0))
        << round;
    ASSERT_EQ(Ask(memory, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, asked, pages),
              common(preferred, asked, pages, CU_DEVICE_INVALID))
        << round;
  }
}

API_TEST(ManagedRangeTest, TellsSeveralAttributesAtOnce) {
  ManagedArray<char> memory(2 * kPageBytes);
  EXPECT_OK(Advise(memory, 0, 2, CU_MEM_ADVISE_SET_READ_MOSTLY, HostLocation()));
  EXPECT_OK(Advise(memory, 0, 2, CU_MEM_ADVISE_SET_ACCESSED_BY, DeviceLocation(device())));
  int mostly = 0, where = 0;
  int devices[2] = {};
  void* data[] = {&mostly, devices, &where};
  size_t sizes[] = {sizeof(mostly), sizeof(devices), sizeof(where)};
  CUmem_range_attribute attributes[] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
                                        CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY,
                                        CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION};
  EXPECT_OK(
      Drv().cuMemRangeGetAttributes(data, sizes, attributes, 3, memory.address(), 2 * kPageBytes));
  EXPECT_EQ(mostly, 1);
  EXPECT_EQ(devices[0], device());
  EXPECT_EQ(devices[1], CU_DEVICE_INVALID);
  EXPECT_EQ(where, CU_DEVICE_INVALID);
}

API_TEST(ManagedRangeTest, SizesAndRangesOfQuestionsAreChecked) {
  ManagedArray<char> memory(2 * kPageBytes);
  const DeviceBuffer buffer(4096);
  int values[4] = {};
  const auto ask = [&](size_t bytes, int attribute, CUdeviceptr address, size_t count) {
    return Drv().cuMemRangeGetAttribute(
        values, bytes, static_cast<CUmem_range_attribute>(attribute), address, count);
  };
  for (int attribute = CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY;
       attribute <= CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID; ++attribute) {
    EXPECT_OK(ask(4, attribute, memory.address(), kPageBytes)) << attribute;
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, ask(3, attribute, memory.address(), kPageBytes))
        << attribute;
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, ask(0, attribute, memory.address(), kPageBytes))
        << attribute;
    EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, ask(4, attribute, buffer, 4096)) << attribute;
  }
  EXPECT_OK(ask(16, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, memory.address(), kPageBytes));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, ask(4, 99, memory.address(), kPageBytes));
}

// Batches. They are about the same as single calls.

API_TEST(ManagedRangeTest, BatchesPrefetchEachRangeToItsLocation) {
  ManagedArray<char> memory(8 * kPageBytes);
  memory[0] = 'a';
  Stream stream;
  CUdeviceptr addresses[3];
  size_t sizes[3] = {kPageBytes, 2 * kPageBytes, kPageBytes};
  for (size_t i = 0; i < 3; ++i) addresses[i] = memory.address() + 2 * i * kPageBytes;
  CUmemLocation locations[] = {DeviceLocation(device()), HostLocation()};
  size_t firsts[] = {0, 2};
  ASSERT_OK(Drv().cuMemPrefetchBatchAsync(addresses, sizes, 3, locations, firsts, 2, 0, stream));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(memory[0], 'a');
  const auto where = [&](size_t page) {
    return Ask(memory, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, page, 1);
  };
  EXPECT_EQ(where(0), device());
  EXPECT_EQ(where(1), CU_DEVICE_INVALID);
  EXPECT_EQ(where(2), device());
  EXPECT_EQ(where(3), device());
  EXPECT_EQ(where(4), CU_DEVICE_CPU);
}

API_TEST(ManagedRangeTest, DiscardedMemoryCanBeWrittenAgain) {
  ManagedArray<char> memory(2 * kPageBytes);
  Stream stream;
  CUdeviceptr address = memory.address();
  size_t bytes = 2 * kPageBytes, first = 0;
  CUmemLocation location = DeviceLocation(device());
  ASSERT_OK(Drv().cuMemDiscardBatchAsync(&address, &bytes, 1, 0, stream));
  ASSERT_OK(Drv().cuMemsetD8Async(address, 7, bytes, stream));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(memory[2 * kPageBytes - 1], 7);
  ASSERT_OK(Drv().cuMemDiscardAndPrefetchBatchAsync(&address, &bytes, 1, &location, &first, 1, 0,
                                                    stream));
  ASSERT_OK(Drv().cuMemsetD8Async(address, 8, bytes, stream));
  ASSERT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_EQ(memory[0], 8);
}

API_TEST(ManagedRangeTest, BatchesAreChecked) {
  ManagedArray<char> memory(4 * kPageBytes);
  const DeviceBuffer buffer(4096);
  Stream stream;
  CUdeviceptr addresses[2] = {memory.address(), memory.address() + 2 * kPageBytes};
  size_t sizes[2] = {kPageBytes, kPageBytes};
  CUmemLocation locations[2] = {HostLocation(), HostLocation()};
  const auto prefetch = [&](std::vector<size_t> firsts, unsigned long long flags = 0,
                            CUstream in = nullptr) {
    return Drv().cuMemPrefetchBatchAsync(addresses, sizes, 2, locations, firsts.data(),
                                         firsts.size(), flags, in == nullptr ? stream.get() : in);
  };
  EXPECT_OK(prefetch({0, 1}));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, prefetch({1}));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, prefetch({0, 0}));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, prefetch({0, 2}));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, prefetch({0}, 1));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, prefetch({0}, 0, CU_STREAM_LEGACY));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemDiscardBatchAsync(addresses, sizes, 2, 1, stream));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemDiscardBatchAsync(addresses, sizes, 2, 0, CU_STREAM_LEGACY));
  addresses[1] = buffer;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, prefetch({0}));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemDiscardBatchAsync(addresses, sizes, 2, 0, stream));
}

API_TEST(ManagedTest, AttachesToAStream) {
  ManagedArray<unsigned> managed(1024);
  DeviceBuffer buffer(4096);
  Stream stream;
  EXPECT_OK(Drv().cuStreamAttachMemAsync(stream.get(), managed.address(), 0, CU_MEM_ATTACH_SINGLE));
  EXPECT_OK(Drv().cuStreamAttachMemAsync(stream.get(), managed.address(), 0, CU_MEM_ATTACH_GLOBAL));
  EXPECT_OK(Drv().cuStreamSynchronize(stream.get()));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuStreamAttachMemAsync(stream.get(), buffer, 0, CU_MEM_ATTACH_SINGLE));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuStreamAttachMemAsync(stream.get(), managed.address(), 0, 8));
}

API_TEST(ManagedVariableTest, HostAndKernelsUseTheSameVariables) {
  Module module(kManagedPtx);
  unsigned* const total = Values(module.Global("total"));
  unsigned* const values = Values(module.Global("values"));
  EXPECT_EQ(*total, 40u);
  EXPECT_EQ(values[299], 0u);
  for (unsigned round = 1; round <= 3; ++round) {
    std::iota(values, values + 300, 1u);
    *total += 1000;
    ASSERT_OK(Launch(module.Function("accumulate"), 1, 256, nullptr));
    ASSERT_OK(Drv().cuCtxSynchronize());
    EXPECT_EQ(*total, 40 + round * (1000 + 256 * 257 / 2 + 2));
    EXPECT_EQ(values[255], 0u);
    EXPECT_EQ(values[256], 257u);
  }
  EXPECT_OK(Drv().cuMemsetD32_v2(module.Global("values"), 9, 300));
  const unsigned two[2] = {20, 30};
  EXPECT_OK(Drv().cuMemcpyHtoD_v2(module.Global("values") + 4, two, sizeof(two)));
  EXPECT_OK(Drv().cuCtxSynchronize());
  EXPECT_EQ(values[0], 9u);
  EXPECT_EQ(values[2], 30u);
  EXPECT_EQ(values[299], 9u);
}

API_TEST(ManagedVariableTest, WithoutConcurrentAccessTheHostWaitsForAtomics) {
  if (Attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS) != 0)
    GTEST_SKIP() << "host and kernels may use managed memory at the same time";
  Module module(kManagedAtomicsPtx);
  unsigned* const counter = Values(module.Global("counter"));
  EXPECT_EQ(*counter, 5u);
  ASSERT_OK(Launch(module.Function("count_late"), 1, 1, nullptr, kLateNanos));
  EXPECT_EQ(*counter, 6u);
}

API_TEST(ManagedVariableTest, LibrariesTellManagedFromOthers) {
  CUlibrary library = nullptr;
  ASSERT_OK(Drv().cuLibraryLoadData(&library, kManagedPtx.data, nullptr, nullptr, 0, nullptr,
                                    nullptr, 0));
  CUdeviceptr managed = 0;
  CUdeviceptr global = 0;
  size_t bytes = 0;
  EXPECT_OK(Drv().cuLibraryGetManaged(&managed, &bytes, library, "values"));
  EXPECT_EQ(bytes, 1200u);
  Values(managed)[7] = 70;
  EXPECT_OK(Drv().cuLibraryGetGlobal(&global, &bytes, library, "values"));
  EXPECT_EQ(global, managed);
  EXPECT_RESULT(CUDA_ERROR_NOT_FOUND,
                Drv().cuLibraryGetManaged(&global, &bytes, library, "ordinary"));
  EXPECT_OK(Drv().cuLibraryGetGlobal(&global, &bytes, library, "ordinary"));
  EXPECT_RESULT(CUDA_ERROR_NOT_FOUND,
                Drv().cuLibraryGetManaged(&global, &bytes, library, "ordinary"));
  EXPECT_RESULT(CUDA_ERROR_NOT_FOUND,
                Drv().cuLibraryGetManaged(&global, &bytes, library, "missing"));
  EXPECT_OK(Drv().cuLibraryUnload(library));
}

API_TEST(ManagedVariableTest, BelongsToItsModule) {
  Module module(kManagedPtx);
  const CUdeviceptr address = module.Global("values");
  CUdeviceptr other_address = 0;
  {
    Module other(kManagedPtx);
    other_address = other.Global("values");
    EXPECT_NE(other_address, address);
    Values(address)[1] = 5;
    Values(other_address)[1] = 6;
    unsigned is_managed = 0;
    EXPECT_OK(Drv().cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                          other_address + 8));
    EXPECT_EQ(is_managed, 1u);
  }
  unsigned is_managed = 0;
  EXPECT_RESULT(
      CUDA_ERROR_INVALID_VALUE,
      Drv().cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, other_address + 8));
  EXPECT_EQ(Values(address)[1], 5u);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemFree_v2(address));
  CUdeviceptr base = 0;
  size_t bytes = 0;
  EXPECT_OK(Drv().cuMemGetAddressRange_v2(&base, &bytes, address + 100));
  EXPECT_EQ(base, address);
  EXPECT_EQ(bytes, 1200u);
  ASSERT_OK(Launch(module.Function("accumulate"), 1, 300, nullptr));
  ASSERT_OK(Drv().cuCtxSynchronize());
  EXPECT_EQ(Values(address)[1], 0u);
  EXPECT_EQ(*Values(module.Global("total")), 47u);
}

}  // namespace
}  // namespace consort::tests::api
