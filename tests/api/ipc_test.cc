// SPDX-License-Identifier: Apache-2.0
// Memory and events of other processes: cuIpc... and shareable handles. Every case has a process of
// its own, which forks before the driver is initialized: the child exports, the case opens.
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>

#include "tests/api/support.h"

namespace consort::tests::api {
namespace {

using IpcTest = UninitializedTest;

constexpr int kPatienceMs = 60'000;

// One end of a conversation with another process. Ends the case, or the child, when the other has
// gone or says nothing.
class Line {
 public:
  explicit Line(int fd) : fd_(fd) {}
  ~Line() { close(fd_); }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  template <typename T>
  void Send(const T& value, int descriptor = -1) const {
    iovec data = {const_cast<T*>(&value), sizeof(value)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    if (descriptor >= 0) {
      message.msg_control = control;
      message.msg_controllen = sizeof(control);
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
    }
    if (sendmsg(fd_, &message, MSG_NOSIGNAL) != sizeof(value)) {
      throw UnexpectedResult{"the other process has gone"};
    }
  }

  template <typename T>
  T Receive(int* descriptor = nullptr) const {
    pollfd entry = {fd_, POLLIN, 0};
    T value = {};
    iovec data = {&value, sizeof(value)};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    if (poll(&entry, 1, kPatienceMs) != 1 || recvmsg(fd_, &message, 0) != sizeof(value)) {
      throw UnexpectedResult{"the other process has gone or says nothing"};
    }
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (descriptor != nullptr && header != nullptr) {
      std::memcpy(descriptor, CMSG_DATA(header), sizeof(int));
    }
    return value;
  }

 private:
  const int fd_;
};

void UsePrimaryContext() {
  Require(Drv().cuInit(0), "cuInit");
  Require(Drv().cuCtxSetCurrent(PrimaryContext()), "cuCtxSetCurrent");
}

// Runs `exporter` in a child with the driver initialized, and `importer` here likewise. `needed`: a
// function without which the exporter cannot begin.
void WithTwoProcesses(const char* needed, const std::function<void(const Line&)>& exporter,
                      const std::function<void(const Line&)>& importer) {
  if (DriverSymbol(needed) == nullptr) throw MissingFunction{needed};
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    close(ends[0]);
    int status = 0;
    try {
      const Line line(ends[1]);
      UsePrimaryContext();
      exporter(line);
    } catch (const UnexpectedResult& unexpected) {
      std::fprintf(stderr, "exporter: %s\n", unexpected.text.c_str());
      status = 1;
    } catch (const MissingFunction& missing) {
      std::fprintf(stderr, "exporter: no %s\n", missing.name);
      status = 1;
    }
    _exit(testing::Test::HasFailure() ? 1 : status);
  }
  close(ends[1]);
  {
    const Line line(ends[0]);
    UsePrimaryContext();
    importer(line);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "exporter's status " << status;
}

std::vector<unsigned> ReadWords(CUdeviceptr address, size_t count) {
  std::vector<unsigned> words(count);
  Require(Drv().cuMemcpyDtoH_v2(words.data(), address, count * sizeof(unsigned)), "cuMemcpyDtoH");
  return words;
}

constexpr size_t kWords = 1000;

// Exports kWords words of 7. If the importer then says 1, it has made them `written`; 0: it cannot.
void ExportAllocation(const Line& line, const std::vector<unsigned>& written) {
  // Small ones, of which the second does not begin where the memory behind it does.
  const DeviceBuffer other(512);
  const DeviceBuffer buffer(kWords * sizeof(unsigned));
  other.Fill(0xEE);
  Require(Drv().cuMemsetD32_v2(buffer, 7, kWords), "cuMemsetD32");
  Require(Drv().cuCtxSynchronize(), "cuCtxSynchronize");
  CUipcMemHandle handle;
  Require(Drv().cuIpcGetMemHandle(&handle, buffer), "cuIpcGetMemHandle");
  line.Send(handle);
  if (line.Receive<int>() == 0) return;
  EXPECT_EQ(ReadWords(buffer, kWords), written);
  EXPECT_EQ(other.ReadWord(), 0xEEEEEEEEu);
}

API_TEST_ALONE(IpcTest, MemoryOfAnotherProcessIsTheSameMemory) {
  WithTwoProcesses(
      "cuIpcGetMemHandle",
      [](const Line& line) { ExportAllocation(line, std::vector<unsigned>(kWords, 9)); },
      [](const Line& line) {
        const auto handle = line.Receive<CUipcMemHandle>();
        CUdeviceptr opened = 0;
        ASSERT_OK(Drv().cuIpcOpenMemHandle_v2(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        EXPECT_EQ(ReadWords(opened, kWords), std::vector<unsigned>(kWords, 7));
        unsigned type = 0;
        EXPECT_OK(Drv().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, opened));
        EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_DEVICE});
        EXPECT_OK(Drv().cuMemsetD32_v2(opened, 9, kWords));
        EXPECT_OK(Drv().cuCtxSynchronize());
        EXPECT_OK(Drv().cuIpcCloseMemHandle(opened));
        line.Send(1);
      });
}

API_TEST_ALONE(IpcTest, OpeningTwiceGivesOneAddressUntilItIsClosedTwice) {
  WithTwoProcesses(
      "cuIpcGetMemHandle",
      [](const Line& line) {
        const DeviceBuffer buffer(4 << 20);
        Require(Drv().cuMemsetD32_v2(buffer, 5, 16), "cuMemsetD32");
        Require(Drv().cuCtxSynchronize(), "cuCtxSynchronize");
        CUipcMemHandle handle;
        Require(Drv().cuIpcGetMemHandle(&handle, buffer), "cuIpcGetMemHandle");
        line.Send(handle);
        line.Receive<int>();
      },
      [](const Line& line) {
        const auto handle = line.Receive<CUipcMemHandle>();
        CUdeviceptr first = 0;
        CUdeviceptr second = 0;
        ASSERT_OK(Drv().cuIpcOpenMemHandle_v2(&first, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        ASSERT_OK(Drv().cuIpcOpenMemHandle_v2(&second, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        EXPECT_EQ(first, second);
        EXPECT_OK(Drv().cuIpcCloseMemHandle(first));
        EXPECT_EQ(ReadWords(first, 16), std::vector<unsigned>(16, 5));
        EXPECT_OK(Drv().cuIpcCloseMemHandle(first));
        EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuIpcCloseMemHandle(first));
        line.Send(1);
      });
}

// A wait on the device, which the importer lets go of through memory of the exporter.
API_TEST_ALONE(IpcTest, AnEventOfAnotherProcessIsItsLatestRecord) {
  struct Handles {
    CUipcMemHandle memory;
    CUipcEventHandle event;
  };
  WithTwoProcesses(
      "cuIpcGetMemHandle",
      [](const Line& line) {
        const DeviceBuffer flag(512);
        flag.Fill(0);
        const Stream stream;
        const Event event(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
        Require(Drv().cuStreamWaitValue32_v2(stream, flag, 1, CU_STREAM_WAIT_VALUE_GEQ), "wait");
        Require(Drv().cuEventRecord(event, stream), "cuEventRecord");
        Handles handles;
        Require(Drv().cuIpcGetMemHandle(&handles.memory, flag), "cuIpcGetMemHandle");
        Require(Drv().cuIpcGetEventHandle(&handles.event, event), "cuIpcGetEventHandle");
        line.Send(handles);
        line.Receive<int>();
        EXPECT_OK(Drv().cuEventQuery(event));
      },
      [](const Line& line) {
        const auto handles = line.Receive<Handles>();
        CUdeviceptr flag = 0;
        CUevent event = nullptr;
        ASSERT_OK(
            Drv().cuIpcOpenMemHandle_v2(&flag, handles.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        ASSERT_OK(Drv().cuIpcOpenEventHandle(&event, handles.event));
        EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuEventQuery(event));
        const Stream waiting;
        const Stream writing;
        EXPECT_OK(Drv().cuStreamWaitEvent(waiting, event, 0));
        EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuStreamQuery(waiting));
        EXPECT_OK(Drv().cuMemsetD32Async(flag, 1, 1, writing));
        EXPECT_OK(Drv().cuEventSynchronize(event));
        EXPECT_OK(Drv().cuStreamSynchronize(waiting));
        float milliseconds = 0;
        EXPECT_RESULT(CUDA_ERROR_INVALID_HANDLE,
                      Drv().cuEventElapsedTime(&milliseconds, event, event));
        EXPECT_OK(Drv().cuEventDestroy_v2(event));
        EXPECT_OK(Drv().cuIpcCloseMemHandle(flag));
        line.Send(1);
      });
}

// Such copies are "synchronous with respect to the host", and another process may look then.
API_TEST_ALONE(IpcTest, ASynchronousPinnedCopyIsThereForAnotherProcess) {
  WithTwoProcesses(
      "cuIpcGetMemHandle",
      [](const Line& line) {
        const DeviceBuffer words(256 * sizeof(unsigned));
        words.Fill(0);
        const PinnedBuffer pinned(sizeof(unsigned));
        const auto write = [&](unsigned first) {
          for (unsigned i = 0; i < 256; ++i) {
            *pinned.as<unsigned>() = first + i;
            Require(Drv().cuMemcpyHtoD_v2(words.get() + i * 4, pinned.get(), 4), "cuMemcpyHtoD");
          }
        };
        write(1000);
        CUipcMemHandle handle;
        Require(Drv().cuIpcGetMemHandle(&handle, words), "cuIpcGetMemHandle");
        line.Send(handle);
        for (unsigned round = 2; round < 6; ++round) {
          line.Receive<int>();
          write(1000 * round);
          line.Send(1);
        }
        line.Receive<int>();
      },
      [](const Line& line) {
        CUdeviceptr words = 0;
        ASSERT_OK(Drv().cuIpcOpenMemHandle_v2(&words, line.Receive<CUipcMemHandle>(),
                                              CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        const Stream stream;
        for (unsigned round = 1; round < 6; ++round) {
          unsigned back[256] = {};
          EXPECT_OK(Drv().cuMemcpyDtoHAsync_v2(back, words, sizeof back, stream));
          for (unsigned i = 0; i < 256; ++i) EXPECT_EQ(back[i], 1000 * round + i);
          line.Send(1);
          if (round < 5) line.Receive<int>();
        }
        EXPECT_OK(Drv().cuIpcCloseMemHandle(words));
      });
}

// The record waits for the function, and the call does not, although others may ask for the event.
API_TEST_ALONE(IpcTest, RecordingAnEventForOthersDoesNotWaitForTheStream) {
  if (DriverSymbol("cuIpcGetEventHandle") == nullptr) throw MissingFunction{"cuIpcGetEventHandle"};
  UsePrimaryContext();
  const Stream stream;
  const Event event(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
  std::atomic<bool> recorded = false;
  const auto wait = [](void* flag) {
    while (!static_cast<std::atomic<bool>*>(flag)->load()) std::this_thread::yield();
  };
  ASSERT_OK(Drv().cuLaunchHostFunc(stream, wait, &recorded));
  EXPECT_OK(Drv().cuEventRecord(event, stream));
  EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuEventQuery(event));
  EXPECT_OK(Drv().cuStreamWaitEvent(stream, event, 0));
  recorded = true;
  EXPECT_OK(Drv().cuEventSynchronize(event));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
}

// Memory of one granule that a descriptor can be exported of, and its bytes.
std::pair<CUmemGenericAllocationHandle, size_t> CreateExportable(CUmemLocation location) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = location;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  size_t granule = 0;
  Require(
      Drv().cuMemGetAllocationGranularity(&granule, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
      "granularity");
  CUmemGenericAllocationHandle memory = 0;
  Require(Drv().cuMemCreate(&memory, granule, &properties, 0), "cuMemCreate");
  return {memory, granule};
}

// Sends the granule's bytes and a descriptor of it.
void SendDescriptor(const Line& line, CUmemGenericAllocationHandle memory, size_t granule) {
  int descriptor = -1;
  Require(Drv().cuMemExportToShareableHandle(&descriptor, memory,
                                             CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
          "cuMemExportToShareableHandle");
  line.Send(granule, descriptor);
  close(descriptor);
}

// What SendDescriptor sent: the descriptor and the granule's bytes.
std::pair<int, size_t> ReceiveDescriptor(const Line& line) {
  int descriptor = -1;
  const auto granule = line.Receive<size_t>(&descriptor);
  if (descriptor < 0) throw UnexpectedResult{"no descriptor came"};
  return {descriptor, granule};
}

CUmemGenericAllocationHandle Import(int descriptor) {
  CUmemGenericAllocationHandle memory = 0;
  Require(Drv().cuMemImportFromShareableHandle(
              &memory, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          "cuMemImportFromShareableHandle");
  close(descriptor);
  return memory;
}

constexpr CUmemAccessDesc AllOf(CUmemLocationType type, int id) {
  return {{type, {id}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

// Memory at an address of the current device, for whoever is named; it goes with this.
class Mapping {
 public:
  Mapping(CUmemGenericAllocationHandle memory, size_t bytes,
          const std::vector<CUmemAccessDesc>& access)
      : memory_(memory), bytes_(bytes) {
    Require(Drv().cuMemAddressReserve(&address_, bytes, 0, 0, 0), "cuMemAddressReserve");
    Require(Drv().cuMemMap(address_, bytes, 0, memory, 0), "cuMemMap");
    Require(Drv().cuMemSetAccess(address_, bytes, access.data(), access.size()), "cuMemSetAccess");
  }
  ~Mapping() {
    EXPECT_OK(Drv().cuMemUnmap(address_, bytes_));
    EXPECT_OK(Drv().cuMemAddressFree(address_, bytes_));
    EXPECT_OK(Drv().cuMemRelease(memory_));
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  CUdeviceptr address() const { return address_; }
  // Of memory of the host.
  volatile unsigned* words() const { return reinterpret_cast<volatile unsigned*>(address_); }

 private:
  const CUmemGenericAllocationHandle memory_;
  const size_t bytes_;
  CUdeviceptr address_ = 0;
};

API_TEST_ALONE(IpcTest, AShareableDescriptorNamesTheMemory) {
  WithTwoProcesses(
      "cuMemExportToShareableHandle",
      [](const Line& line) {
        const auto [memory, granule] = CreateExportable({CU_MEM_LOCATION_TYPE_DEVICE, {0}});
        {
          const Mapping mapping(memory, granule, {AllOf(CU_MEM_LOCATION_TYPE_DEVICE, 0)});
          Require(Drv().cuMemsetD32_v2(mapping.address(), 11, kWords), "cuMemsetD32");
          Require(Drv().cuCtxSynchronize(), "cuCtxSynchronize");
          SendDescriptor(line, memory, granule);
          line.Receive<int>();  // it has imported
          EXPECT_EQ(ReadWords(mapping.address(), kWords), std::vector<unsigned>(kWords, 12));
        }
        line.Send(1);
        line.Receive<int>();
      },
      [](const Line& line) {
        const auto [descriptor, granule] = ReceiveDescriptor(line);
        const Mapping mapping(Import(descriptor), granule, {AllOf(CU_MEM_LOCATION_TYPE_DEVICE, 0)});
        EXPECT_EQ(ReadWords(mapping.address(), kWords), std::vector<unsigned>(kWords, 11));
        EXPECT_OK(Drv().cuMemsetD32_v2(mapping.address(), 12, kWords));
        EXPECT_OK(Drv().cuCtxSynchronize());
        line.Send(1);
        line.Receive<int>();  // the exporter has let go
        EXPECT_EQ(ReadWords(mapping.address(), kWords), std::vector<unsigned>(kWords, 12));
        line.Send(1);
      });
}

bool MapsMemoryOfTheHost() {
  int supported = 0;
  Require(Drv().cuDeviceGetAttribute(
              &supported, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0),
          "cuDeviceGetAttribute");
  return supported != 0;
}

const std::vector<CUmemAccessDesc> kDeviceAndHost = {AllOf(CU_MEM_LOCATION_TYPE_DEVICE, 0),
                                                     AllOf(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0)};

// What NCCL does: each process writes where the other's device and CPU see it.
API_TEST_ALONE(IpcTest, MemoryOfTheHostIsTheSameInBothProcesses) {
  WithTwoProcesses(
      "cuMemExportToShareableHandle",
      [](const Line& line) {
        if (!MapsMemoryOfTheHost()) return;
        const auto [memory, granule] = CreateExportable({CU_MEM_LOCATION_TYPE_HOST_NUMA, {0}});
        const Mapping mapping(memory, granule, kDeviceAndHost);
        mapping.words()[0] = 11;
        Require(Drv().cuMemsetD32_v2(mapping.address() + 4, 12, 1), "cuMemsetD32");
        Require(Drv().cuCtxSynchronize(), "cuCtxSynchronize");
        SendDescriptor(line, memory, granule);
        line.Receive<int>();
        EXPECT_EQ(mapping.words()[2], 13u);
        EXPECT_EQ(ReadWords(mapping.address() + 12, 1)[0], 14u);
        line.Send(1);
      },
      [](const Line& line) {
        if (!MapsMemoryOfTheHost()) GTEST_SKIP() << "the device does not map memory of the host";
        const auto [descriptor, granule] = ReceiveDescriptor(line);
        const Mapping mapping(Import(descriptor), granule, kDeviceAndHost);
        EXPECT_EQ(ReadWords(mapping.address(), 2), (std::vector<unsigned>{11, 12}));
        EXPECT_EQ(mapping.words()[1], 12u);
        EXPECT_OK(Drv().cuMemsetD32_v2(mapping.address() + 8, 13, 1));
        EXPECT_OK(Drv().cuCtxSynchronize());
        mapping.words()[3] = 14;
        line.Send(1);
        line.Receive<int>();
      });
}

// Memory of a pool that goes to another process: the pool by descriptor, then each allocation.
API_TEST_ALONE(IpcTest, MemoryOfAPoolIsTheSameInBothProcesses) {
  WithTwoProcesses(
      "cuMemPoolExportToShareableHandle",
      [](const Line& line) {
        CUmemPoolProps properties = {};
        properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
        properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        CUmemoryPool pool = nullptr;
        Require(Drv().cuMemPoolCreate(&pool, &properties), "cuMemPoolCreate");
        const Stream stream;
        CUdeviceptr address = 0;
        CUmemPoolPtrExportData data;
        EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemPoolExportPointer(nullptr, 0));
        Require(Drv().cuMemAllocFromPoolAsync(&address, kWords * 4, pool, stream), "allocate");
        Require(Drv().cuMemsetD32Async(address, 21, kWords, stream), "cuMemsetD32Async");
        Require(Drv().cuStreamSynchronize(stream), "cuStreamSynchronize");
        int descriptor = -1;
        Require(Drv().cuMemPoolExportToShareableHandle(&descriptor, pool,
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                "cuMemPoolExportToShareableHandle");
        Require(Drv().cuMemPoolExportPointer(&data, address), "cuMemPoolExportPointer");
        line.Send(data, descriptor);
        close(descriptor);
        line.Receive<int>();  // it has written, and let go
        EXPECT_EQ(ReadWords(address, kWords), std::vector<unsigned>(kWords, 22));
        EXPECT_OK(Drv().cuMemFreeAsync(address, stream));
        EXPECT_OK(Drv().cuStreamSynchronize(stream));
        EXPECT_OK(Drv().cuMemPoolDestroy(pool));
        line.Send(1);
      },
      [](const Line& line) {
        int descriptor = -1;
        auto data = line.Receive<CUmemPoolPtrExportData>(&descriptor);
        ASSERT_GE(descriptor, 0);
        CUmemoryPool pool = nullptr;
        ASSERT_OK(Drv().cuMemPoolImportFromShareableHandle(
            &pool, reinterpret_cast<void*>(static_cast<intptr_t>(descriptor)),
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        close(descriptor);
        const Stream stream;
        CUdeviceptr address = 0;
        EXPECT_NE(Drv().cuMemAllocFromPoolAsync(&address, 4096, pool, stream), CUDA_SUCCESS)
            << "nothing can be allocated from an imported pool";
        ASSERT_OK(Drv().cuMemPoolImportPointer(&address, pool, &data));
        EXPECT_EQ(ReadWords(address, kWords), std::vector<unsigned>(kWords, 21));
        EXPECT_OK(Drv().cuMemsetD32Async(address, 22, kWords, stream));
        EXPECT_OK(Drv().cuMemFreeAsync(address, stream));
        EXPECT_OK(Drv().cuStreamSynchronize(stream));
        EXPECT_OK(Drv().cuMemPoolDestroy(pool));
        line.Send(1);
        line.Receive<int>();
      });
}

API_TEST_ALONE(IpcTest, WhatWasNotMadeForOthersIsNotExported) {
  UsePrimaryContext();
  if (DriverSymbol("cuMemPoolExportToShareableHandle") == nullptr) {
    throw MissingFunction{"cuMemPoolExportToShareableHandle"};
  }
  CUmemPoolProps properties = {};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  CUmemoryPool pool = nullptr;
  ASSERT_OK(Drv().cuMemPoolCreate(&pool, &properties));
  int descriptor = -1;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuMemPoolExportToShareableHandle(
                    &descriptor, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  const Stream stream;
  CUdeviceptr address = 0;
  ASSERT_OK(Drv().cuMemAllocFromPoolAsync(&address, 4096, pool, stream));
  CUmemPoolPtrExportData data;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemPoolExportPointer(&data, address));
  const DeviceBuffer ordinary(4096);
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuMemPoolExportPointer(&data, ordinary));
  EXPECT_OK(Drv().cuMemFreeAsync(address, stream));
  EXPECT_OK(Drv().cuStreamSynchronize(stream));
  EXPECT_OK(Drv().cuMemPoolDestroy(pool));
}

API_TEST_ALONE(IpcTest, OwnMemoryIsNotOpened) {
  UsePrimaryContext();
  const DeviceBuffer buffer(4096);
  CUipcMemHandle handle;
  ASSERT_OK(Drv().cuIpcGetMemHandle(&handle, buffer));
  CUdeviceptr opened = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_CONTEXT,
                Drv().cuIpcOpenMemHandle_v2(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}

API_TEST_ALONE(IpcTest, RefusesWhatIsNoHandle) {
  UsePrimaryContext();
  const DeviceBuffer buffer(4096);
  CUipcMemHandle handle;
  CUdeviceptr opened = 0;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuIpcGetMemHandle(nullptr, buffer));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuIpcGetMemHandle(&handle, 4096));
  ASSERT_OK(Drv().cuIpcGetMemHandle(&handle, buffer));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuIpcOpenMemHandle_v2(&opened, handle, 0x80));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE,
                Drv().cuIpcOpenMemHandle_v2(nullptr, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuIpcCloseMemHandle(buffer));
  // Timing and other processes exclude each other, and an ordinary event has no handle.
  CUevent event = nullptr;
  EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuEventCreate(&event, CU_EVENT_INTERPROCESS));
  const Event ordinary(CU_EVENT_DISABLE_TIMING);
  CUipcEventHandle event_handle;
  EXPECT_ONE_OF(Drv().cuIpcGetEventHandle(&event_handle, ordinary), CUDA_ERROR_INVALID_HANDLE,
                CUDA_ERROR_INVALID_VALUE);
}

API_TEST_ALONE(IpcTest, AHandleWithAnotherTokenOpensNothing) {
  SKIP_ON_ORACLE("what is in a handle is the library's");
  UsePrimaryContext();
  const DeviceBuffer buffer(4096);
  CUipcMemHandle handle;
  ASSERT_OK(Drv().cuIpcGetMemHandle(&handle, buffer));
  for (const size_t at : {0, 4, 8, 23, 24}) {
    CUipcMemHandle changed = handle;
    changed.reserved[at] ^= 1;
    CUdeviceptr opened = 0;
    EXPECT_RESULT(
        CUDA_ERROR_INVALID_HANDLE,
        Drv().cuIpcOpenMemHandle_v2(&opened, changed, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  }
}

API_TEST_ALONE(IpcTest, OnlyMemoryThatAskedForADescriptorHasOne) {
  UsePrimaryContext();
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  size_t granule = 0;
  ASSERT_OK(
      Drv().cuMemGetAllocationGranularity(&granule, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CUmemGenericAllocationHandle memory = 0;
  ASSERT_OK(Drv().cuMemCreate(&memory, granule, &properties, 0));
  int descriptor = -1;
  EXPECT_ONE_OF(Drv().cuMemExportToShareableHandle(&descriptor, memory,
                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_OK(Drv().cuMemRelease(memory));
  int value = 0;
  ASSERT_OK(Drv().cuDeviceGetAttribute(
      &value, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0));
  EXPECT_EQ(value, 1);
}

// Memory and events of device 0 of another process, opened by device 1.
using PeerIpcTest = UninitializedTest;

// Device 1's primary context.
CUcontext OtherContext() {
  CUcontext context = nullptr;
  Require(Drv().cuDevicePrimaryCtxRetain(&context, 1), "cuDevicePrimaryCtxRetain");
  return context;
}

// Makes it current; false: there is none that reaches device 0.
bool UseOtherDevice() {
  int count = 0, possible = 0;
  Require(Drv().cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (count > 1) Require(Drv().cuDeviceCanAccessPeer(&possible, 1, 0), "cuDeviceCanAccessPeer");
  if (possible == 0) return false;
  Require(Drv().cuCtxSetCurrent(OtherContext()), "cuCtxSetCurrent");
  return true;
}

constexpr const char* kNoPeer = "needs two devices that reach each other";

API_TEST_ALONE(PeerIpcTest, MemoryOfAnotherProcessIsOpenedByAnotherDevice) {
  WithTwoProcesses(
      "cuIpcGetMemHandle", [](const Line& line) { ExportAllocation(line, Iota(kWords)); },
      [](const Line& line) {
        auto handle = line.Receive<CUipcMemHandle>();
        if (!UseOtherDevice()) {
          line.Send(0);
          GTEST_SKIP() << kNoPeer;
        }
        CUdeviceptr opened = 0, again = 0;
        ASSERT_OK(Drv().cuIpcOpenMemHandle_v2(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        EXPECT_EQ(ReadWords(opened, kWords), std::vector<unsigned>(kWords, 7));
        EXPECT_OK(Drv().cuIpcOpenMemHandle_v2(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        EXPECT_EQ(again, opened);
        // A kernel of this device.
        const Module module(kBasicPtx);
        EXPECT_OK(Launch(module.Function("fill_index"), (kWords + 255) / 256, 256, nullptr, opened,
                         static_cast<unsigned>(kWords)));
        EXPECT_OK(Drv().cuCtxSynchronize());
        EXPECT_OK(Drv().cuIpcCloseMemHandle(opened));
        EXPECT_OK(Drv().cuIpcCloseMemHandle(opened));
        EXPECT_RESULT(CUDA_ERROR_INVALID_VALUE, Drv().cuIpcCloseMemHandle(opened));
        // A token that nobody has given; what is in a handle is the library's.
        handle.reserved[8] ^= 1;
        if (!IsOracle()) {
          EXPECT_RESULT(
              CUDA_ERROR_INVALID_HANDLE,
              Drv().cuIpcOpenMemHandle_v2(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        }
        line.Send(1);
      });
}

API_TEST_ALONE(PeerIpcTest, AShareableDescriptorIsMappedOnAnotherDevice) {
  WithTwoProcesses(
      "cuMemExportToShareableHandle",
      [](const Line& line) {
        const auto [memory, granule] = CreateExportable({CU_MEM_LOCATION_TYPE_DEVICE, {0}});
        SendDescriptor(line, memory, granule);
        if (line.Receive<int>() == 0) return;
        const Mapping mapping(memory, granule, {AllOf(CU_MEM_LOCATION_TYPE_DEVICE, 0)});
        EXPECT_EQ(ReadWords(mapping.address(), kWords), Iota(kWords));
        line.Send(1);
        line.Receive<int>();
      },
      [](const Line& line) {
        const auto [descriptor, granule] = ReceiveDescriptor(line);
        if (!UseOtherDevice()) {
          line.Send(0);
          GTEST_SKIP() << kNoPeer;
        }
        const CUmemGenericAllocationHandle memory = Import(descriptor);
        CUmemAllocationProp properties = {};
        EXPECT_OK(Drv().cuMemGetAllocationPropertiesFromHandle(&properties, memory));
        EXPECT_EQ(properties.location.id, 0);
        // For this device, and for that whose memory it is.
        const Mapping mapping(
            memory, granule,
            {AllOf(CU_MEM_LOCATION_TYPE_DEVICE, 1), AllOf(CU_MEM_LOCATION_TYPE_DEVICE, 0)});
        const Module module(kBasicPtx);
        EXPECT_OK(Launch(module.Function("fill_index"), (kWords + 255) / 256, 256, nullptr,
                         mapping.address(), static_cast<unsigned>(kWords)));
        EXPECT_OK(Drv().cuCtxSynchronize());
        line.Send(1);
        line.Receive<int>();
        EXPECT_EQ(ReadWords(mapping.address(), kWords), Iota(kWords));
        Require(Drv().cuCtxSetCurrent(PrimaryContext()), "cuCtxSetCurrent");
        const Module there(kBasicPtx);
        EXPECT_OK(Launch(there.Function("store"), 1, 1, nullptr, mapping.address(), 99u));
        EXPECT_OK(Drv().cuCtxSynchronize());
        Require(Drv().cuCtxSetCurrent(OtherContext()), "cuCtxSetCurrent");
        EXPECT_EQ(ReadWords(mapping.address(), 1), std::vector<unsigned>{99});
        line.Send(1);
      });
}

// Memory and an event of device 0 for the other process.
struct Handles {
  CUipcMemHandle memory;
  CUipcEventHandle event;
};

std::pair<CUdeviceptr, CUevent> Open(const Handles& handles) {
  CUdeviceptr memory = 0;
  CUevent event = nullptr;
  Require(Drv().cuIpcOpenMemHandle_v2(&memory, handles.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
          "cuIpcOpenMemHandle");
  Require(Drv().cuIpcOpenEventHandle(&event, handles.event), "cuIpcOpenEventHandle");
  return {memory, event};
}

// Device 0's event, on which device 1 waits: what its stream has written before is then there.
API_TEST_ALONE(PeerIpcTest, AnEventOfAnotherProcessIsWaitedForByAnotherDevice) {
  WithTwoProcesses(
      "cuIpcGetEventHandle",
      [](const Line& line) {
        const DeviceBuffer flag(512);
        const DeviceBuffer buffer(kWords * sizeof(unsigned));
        flag.Fill(0);
        buffer.Fill(0);
        const Stream stream;
        const Stream writing;
        const Event event(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
        Handles handles;
        Require(Drv().cuIpcGetMemHandle(&handles.memory, buffer), "cuIpcGetMemHandle");
        Require(Drv().cuIpcGetEventHandle(&handles.event, event), "cuIpcGetEventHandle");
        for (unsigned round = 1; round <= 2; ++round) {
          Require(Drv().cuStreamWaitValue32_v2(stream, flag, round, CU_STREAM_WAIT_VALUE_GEQ),
                  "wait");
          Require(Drv().cuMemsetD32Async(buffer, round, kWords, stream), "cuMemsetD32Async");
          Require(Drv().cuEventRecord(event, stream), "cuEventRecord");
          line.Send(handles);
          if (line.Receive<int>() == 0) {
            EXPECT_OK(Drv().cuMemsetD32Async(flag, 1, 1, writing));
            return;
          }
          EXPECT_OK(Drv().cuMemsetD32Async(flag, round, 1, writing));
          line.Receive<int>();  // it has waited for this record
        }
        EXPECT_OK(Drv().cuEventQuery(event));
      },
      [](const Line& line) {
        auto handles = line.Receive<Handles>();
        if (!UseOtherDevice()) {
          line.Send(0);
          GTEST_SKIP() << kNoPeer;
        }
        auto [memory, event] = Open(handles);
        const DeviceBuffer here(kWords * sizeof(unsigned));
        const Stream stream;
        EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuEventQuery(event));
        line.Send(1);
        EXPECT_OK(Drv().cuStreamWaitEvent(stream, event, 0));
        EXPECT_OK(Drv().cuMemcpyDtoDAsync_v2(here, memory, kWords * sizeof(unsigned), stream));
        EXPECT_OK(Drv().cuStreamSynchronize(stream));
        EXPECT_EQ(here.Read<unsigned>(kWords), std::vector<unsigned>(kWords, 1));
        line.Send(1);
        // The next record, which is made in the other process.
        line.Receive<Handles>();
        EXPECT_RESULT(CUDA_ERROR_NOT_READY, Drv().cuEventQuery(event));
        line.Send(1);
        EXPECT_OK(Drv().cuEventSynchronize(event));
        EXPECT_OK(Drv().cuEventQuery(event));
        EXPECT_EQ(ReadWords(memory, kWords), std::vector<unsigned>(kWords, 2));
        EXPECT_OK(Drv().cuEventDestroy_v2(event));
        EXPECT_OK(Drv().cuIpcCloseMemHandle(memory));
        // A token that nobody has given.
        handles.event.reserved[8] ^= 1;
        EXPECT_ONE_OF(Drv().cuIpcOpenEventHandle(&event, handles.event), CUDA_ERROR_INVALID_HANDLE,
                      CUDA_ERROR_MAP_FAILED);
        line.Send(1);
      });
}

API_TEST_ALONE(PeerIpcTest, AnEventOfAnotherProcessIsRecordedByAnotherDevice) {
  WithTwoProcesses(
      "cuIpcGetEventHandle",
      [](const Line& line) {
        const DeviceBuffer buffer(kWords * sizeof(unsigned));
        buffer.Fill(0);
        const Stream stream;
        const Event event(CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
        Handles handles;
        Require(Drv().cuIpcGetMemHandle(&handles.memory, buffer), "cuIpcGetMemHandle");
        Require(Drv().cuIpcGetEventHandle(&handles.event, event), "cuIpcGetEventHandle");
        line.Send(handles);
        if (line.Receive<int>() == 0) return;
        EXPECT_OK(Drv().cuStreamWaitEvent(stream, event, 0));
        std::vector<unsigned> words(kWords);
        EXPECT_OK(
            Drv().cuMemcpyDtoHAsync_v2(words.data(), buffer, kWords * sizeof(unsigned), stream));
        EXPECT_OK(Drv().cuStreamSynchronize(stream));
        EXPECT_EQ(words, Iota(kWords));
        EXPECT_OK(Drv().cuEventQuery(event));
        line.Send(1);
      },
      [](const Line& line) {
        const auto handles = line.Receive<Handles>();
        if (!UseOtherDevice()) {
          line.Send(0);
          GTEST_SKIP() << kNoPeer;
        }
        auto [memory, event] = Open(handles);
        const Module module(kBasicPtx);
        const Stream stream;
        EXPECT_OK(Launch(module.Function("fill_index"), (kWords + 255) / 256, 256, stream, memory,
                         static_cast<unsigned>(kWords)));
        EXPECT_OK(Drv().cuEventRecord(event, stream));
        // Not in streams of another context than the one that has opened it.
        CUcontext second = nullptr;
        ASSERT_OK(Drv().cuCtxCreate_v2(&second, 0, 1));
        {
          const Stream foreign;
          EXPECT_RESULT(CUDA_ERROR_INVALID_HANDLE, Drv().cuEventRecord(event, foreign));
        }
        EXPECT_OK(Drv().cuCtxDestroy_v2(second));
        Require(Drv().cuCtxSetCurrent(OtherContext()), "cuCtxSetCurrent");
        line.Send(1);
        line.Receive<int>();  // it has waited for this record
        EXPECT_OK(Drv().cuEventQuery(event));
        EXPECT_OK(Drv().cuEventDestroy_v2(event));
        EXPECT_OK(Drv().cuIpcCloseMemHandle(memory));
      });
}

}  // namespace
}  // namespace consort::tests::api
