// SPDX-License-Identifier: Apache-2.0
// Sessions over the CPU device, driven by frames: what an honest guest library sends, and what none
// does.
#include "host/session/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "host/limits.h"
#include "host/session/session_test_support.h"
#include "memmgr/limits.h"
#include "policies/schedule/policy.h"

namespace consort::host {
namespace {

// PTX of a word.
constexpr char kVariable[] = ".visible .global .align 4 .u32 variable = 7;\n";

struct AddParams {
  uint64_t words;
  uint32_t count;
  uint32_t value;
};

template <typename T>
std::span<const std::byte> BytesOf(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

std::vector<std::byte> RandomBytes(size_t count) {
  std::mt19937_64 random(count);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

uint64_t Allocate(SessionPeer& peer, Bytes bytes) {
  wire::MemAllocRequest request;
  request.bytes = bytes;
  wire::MemAllocReply reply;
  EXPECT_EQ(peer.Ask(request, &reply), CUDA_SUCCESS);
  return reply.address;
}

void CopyIn(SessionPeer& peer, uint64_t address, std::span<const std::byte> data,
            uint64_t stream = kLegacy) {
  for (size_t at = 0; at < data.size(); at += wire::kBulkBytesMax) {
    wire::CopyToDeviceRequest request;
    request.stream = stream;
    request.dst = address + at;
    request.data = data.subspan(at, std::min<size_t>(wire::kBulkBytesMax, data.size() - at));
    request.width = request.dst_pitch = request.data.size();
    request.rows = 1;
    peer.Post(request);
  }
}

void CopyOut(SessionPeer& peer, uint64_t address, Bytes bytes, uint64_t transfer,
             uint64_t stream = kLegacy) {
  wire::CopyToHostRequest request;
  request.stream = stream;
  request.src = address;
  request.width = request.src_pitch = bytes;
  request.rows = 1;
  request.transfer = transfer;
  peer.Post(request);
}

void LoadAdd(SessionPeer& peer) {
  wire::KernelGetReply kernel;
  LoadLibrary(&peer, kVariable, {}, &kernel);
  // Three parameters at offsets 0, 8 and 12.
  const uint32_t expected[] = {0, 8, 8, 4, 12, 4};
  ASSERT_EQ(kernel.layout.size(), sizeof(expected));
  EXPECT_EQ(std::memcmp(kernel.layout.data(), expected, sizeof(expected)), 0);
  EXPECT_EQ(kernel.attributes.size(), 4u * CU_FUNC_ATTRIBUTE_MAX);
}

wire::LaunchRequest AddLaunch(const AddParams& params, uint64_t stream = kLegacy) {
  wire::LaunchRequest launch;
  launch.kernel = GuestId(kKernelKind, 1);
  launch.stream = stream;
  launch.grid_x = (params.count + 127) / 128;
  launch.grid_y = launch.grid_z = launch.block_y = launch.block_z = 1;
  launch.block_x = 128;
  launch.params = BytesOf(params);
  return launch;
}

void CreateStream(SessionPeer& peer, uint64_t stream) {
  wire::StreamCreateRequest create;
  create.stream = stream;
  create.flags = CU_STREAM_NON_BLOCKING;
  peer.Post(create);
}

void AddHostFunction(SessionPeer& peer, uint64_t stream, uint64_t callback) {
  wire::HostFunctionRequest function;
  function.stream = stream;
  function.callback = callback;
  peer.Post(function);
}

void EndHostFunction(SessionPeer& peer, uint64_t callback) {
  wire::HostFunctionDoneRequest done;
  done.callback = callback;
  peer.Post(done);
}

class SessionTest : public ChannelsTest {};
INSTANTIATE_TEST_SUITE_P(Channels, SessionTest, ::testing::Bool(), ChannelKind);

TEST_P(SessionTest, WelcomesWithItsWindow) {
  SessionPeer peer(Options());
  EXPECT_EQ(peer.welcome().status, wire::kWelcomeOk);
  EXPECT_EQ(peer.welcome().window_bytes, kWindowSlotBytes);
  EXPECT_EQ(peer.welcome().shared_host_base + peer.welcome().shared_host_bytes,
            peer.welcome().window_base + kWindowSlotBytes);
}

TEST_P(SessionTest, CopiesOfEverySizeComeBackAsTheyWent) {
  SessionPeer peer(Options());
  uint64_t transfer = 1;
  for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{65536}, size_t{65537},
                             size_t{512 * 1024}, size_t{40 * 1024 * 1024 + 3}}) {
    const uint64_t address = Allocate(peer, bytes);
    EXPECT_GE(address, peer.welcome().window_base);
    const std::vector<std::byte> data = RandomBytes(bytes);
    CopyIn(peer, address, data);
    CopyOut(peer, address, bytes, transfer);
    ASSERT_EQ(peer.Synchronize(), CUDA_SUCCESS);
    // All of it came before the reply.
    EXPECT_TRUE(peer.Transfer(transfer) == data) << bytes;
    ++transfer;
  }
}

TEST_P(SessionTest, CopiesRowsWithPitch) {
  SessionPeer peer(Options());
  constexpr uint64_t kPitch = 700, kWidth = 600, kRows = 800;
  const uint64_t address = Allocate(peer, kPitch * kRows);
  wire::cuMemsetD8AsyncRequest clear;
  clear.dstDevice = address;
  clear.uc = 0xee;
  clear.N = kPitch * kRows;
  clear.hStream = kLegacy;
  peer.Post(clear);
  const std::vector<std::byte> data = RandomBytes(kWidth * kRows);
  wire::CopyToDeviceRequest in;
  in.stream = kLegacy;
  in.dst = address;
  in.dst_pitch = kPitch;
  in.width = kWidth;
  in.rows = kRows;
  in.data = data;
  peer.Post(in);
  wire::CopyToHostRequest out;
  out.stream = kLegacy;
  out.src = address;
  out.src_pitch = kPitch;
  out.width = kWidth;
  out.rows = kRows;
  out.transfer = 1;
  peer.Post(out);
  CopyOut(peer, address + kWidth, kPitch - kWidth, 2);  // between two rows nothing was written
  ASSERT_EQ(peer.Synchronize(), CUDA_SUCCESS);
  EXPECT_TRUE(peer.Transfer(1) == data);
  EXPECT_EQ(peer.Transfer(2), std::vector<std::byte>(kPitch - kWidth, std::byte{0xee}));
}

TEST_P(SessionTest, RunsKernelsInStreamOrderAndAccountsForThem) {
  SessionPeer peer(Options());
  LoadAdd(peer);
  constexpr uint32_t kCount = 1000;
  const uint64_t address = Allocate(peer, kCount * 4);
  wire::cuMemsetD32AsyncRequest set;
  set.dstDevice = address;
  set.ui = 5;
  set.N = kCount;
  set.hStream = kLegacy;
  peer.Post(set);
  const AddParams params{address, kCount, 3};
  for (int i = 0; i < 10; ++i) peer.Post(AddLaunch(params));
  CopyOut(peer, address, kCount * 4, 1);
  ASSERT_EQ(peer.Synchronize(), CUDA_SUCCESS);
  const std::vector<std::byte> bytes = peer.Transfer(1);
  ASSERT_EQ(bytes.size(), kCount * 4);
  for (uint32_t i = 0; i < kCount; ++i) {
    uint32_t word;
    std::memcpy(&word, bytes.data() + 4 * i, 4);
    ASSERT_EQ(word, 35u) << i;
  }
  peer.Close();
  SessionEnded ended;
  EXPECT_TRUE(peer.AwaitEnd(&ended));
  EXPECT_EQ(ended.kernel_launches, 10u);
  EXPECT_GT(ended.kernel_nanos, 0u);
  EXPECT_EQ(ended.bytes_to_host, kCount * 4);
  EXPECT_STREQ(ended.reason, "closed");
}

TEST_P(SessionTest, ReadsAndWritesModuleVariables) {
  SessionPeer peer(Options());
  LoadAdd(peer);
  wire::GlobalGetReply global;
  ASSERT_EQ(AskGlobal(&peer, "variable", &global), CUDA_SUCCESS);
  EXPECT_EQ(global.bytes, 4u);
  CopyOut(peer, global.address, 4, 1);
  ASSERT_EQ(peer.Synchronize(), CUDA_SUCCESS);
  const uint32_t seven = 7;
  EXPECT_EQ(std::memcmp(peer.Transfer(1).data(), &seven, 4), 0);
  // One byte more is not the variable's.
  CopyOut(peer, global.address, 5, 2);
  EXPECT_EQ(peer.Synchronize(), CUDA_ERROR_INVALID_VALUE);
  wire::KernelNamesRequest names;
  names.library = GuestId(kLibraryKind, 1);
  wire::KernelNamesReply reply;
  ASSERT_EQ(peer.Ask(names, &reply), CUDA_SUCCESS);
  EXPECT_EQ(reply.names.size(), 4u);
}

// A driver that would keep managed variables for itself, as NVIDIA's does.
const WorkerDevice& DeviceThatAsksForNoMemory() {
  static const WorkerDevice* const device = [] {
    device::LoadedDriver driver = CpuDriver();
    driver.set_managed_memory = nullptr;
    return OpenDevice(driver).release();
  }();
  return *device;
}

constexpr char kManaged[] = R"(
.visible .global .attribute(.managed) .align 4 .u32 counter = 5;
.visible .global .attribute(.managed) .align 8 .b8 pair[16] = {1, 2, 3};
.visible .entry bump(.param .u64 to, .param .u32 by)
{
  .reg .b32 %r<3>;
  .reg .b64 %rd<2>;
  ld.param.u32 %r1, [by];
  atom.global.add.u32 %r2, [counter], %r1;
  mov.u64 %rd1, pair;
  st.global.u64 [pair+8], %rd1;
  ret;
}
)";

TEST_P(SessionTest, ManagedVariablesOfAnyDriverAreTheGuestsToo) {
  for (const WorkerDevice* device : {&CpuDevice(), &DeviceThatAsksForNoMemory()}) {
    PeerOptions options = Options();
    options.device = device;
    SessionPeer peer(options);
    LoadLibrary(&peer, kManaged, {"bump"});
    wire::GlobalGetReply pair;
    ASSERT_EQ(AskGlobal(&peer, "pair", &pair), CUDA_SUCCESS);
    EXPECT_EQ(pair.bytes, 16u);
    wire::GlobalGetReply counter;
    ASSERT_EQ(AskGlobal(&peer, "counter", &counter), CUDA_SUCCESS);
    EXPECT_EQ(counter.bytes, 4u);
    wire::ManagedShareRequest share;
    share.library = GuestId(kLibraryKind, 1);
    wire::ManagedShareReply shared;
    ASSERT_EQ(peer.Ask(share, &shared), CUDA_SUCCESS);
    ASSERT_GE(shared.address, peer.welcome().shared_host_base);
    const UniqueFd memory(peer.channel()->ReceiveDescriptor(kSecond));
    void* mapped = mmap(nullptr, shared.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
    ASSERT_NE(mapped, MAP_FAILED);
    const auto here = [&](uint64_t address) {
      return static_cast<std::byte*>(mapped) + (address - shared.address);
    };
    auto* count = reinterpret_cast<uint32_t*>(here(counter.address));
    EXPECT_EQ(*count, 5u);
    EXPECT_EQ(*reinterpret_cast<uint32_t*>(here(pair.address)), 0x030201u);
    struct {
      uint64_t to = 0;
      uint32_t by = 3;
    } params;
    wire::LaunchRequest launch = AddLaunch({});
    launch.kernel = GuestId(kKernelKind, 2);
    launch.params = std::as_bytes(std::span(&params, 1)).first(12);
    launch.grid_x = 2;
    peer.Post(launch);
    ASSERT_EQ(peer.Synchronize(), CUDA_SUCCESS);
    EXPECT_EQ(*count, 5 + 3 * 256u);
    EXPECT_EQ(*reinterpret_cast<uint64_t*>(here(pair.address + 8)), pair.address);
    *count = 100;
    peer.Post(launch);
    ASSERT_EQ(peer.Synchronize(), CUDA_SUCCESS);
    EXPECT_EQ(*count, 100 + 3 * 256u);
    munmap(mapped, shared.bytes);
  }
}

// Where it would go with the session. Its memory is free when its library is gone.
TEST_P(SessionTest, TellsOfConstantsInItsWindow) {
  SessionPeer peer(Options());
  const auto& window = peer.welcome();
  uint64_t first = 0;
  for (int round = 0; round < 2; ++round) {
    wire::KernelGetReply kernel;
    LoadLibrary(&peer, ".visible .const .align 4 .u32 constant = 9;\n", {}, &kernel);
    wire::GlobalGetReply global;
    ASSERT_EQ(AskGlobal(&peer, "constant", &global), CUDA_SUCCESS);
    EXPECT_EQ(global.bytes, 4u);
    EXPECT_GE(global.address, window.window_base);
    EXPECT_LT(global.address - window.window_base, window.window_bytes);
    first = round == 0 ? global.address : first;
    EXPECT_EQ(global.address, first);
    wire::GlobalGetReply again;
    ASSERT_EQ(AskGlobal(&peer, "constant", &again), CUDA_SUCCESS);
    EXPECT_EQ(again.address, first);
    // It is no allocation of the guest's.
    wire::MemFreeRequest free;
    free.address = first;
    EXPECT_EQ(peer.Ask(free), CUDA_ERROR_INVALID_VALUE);
    CopyOut(peer, first, 4, 1 + round);
    ASSERT_EQ(peer.Synchronize(), CUDA_SUCCESS);
    const uint32_t nine = 9;
    EXPECT_EQ(std::memcmp(peer.Transfer(1 + round).data(), &nine, 4), 0);
    wire::LibraryUnloadRequest unload;
    unload.library = GuestId(kLibraryKind, 1);
    peer.Post(unload);
    ASSERT_EQ(peer.Synchronize(), CUDA_SUCCESS);
  }
}

TEST_P(SessionTest, TellsAFailureOfAPostedRequestAtTheNextSynchronisationOnce) {
  SessionPeer peer(Options());
  wire::cuEventRecordRequest record;
  record.hEvent = GuestId(kEventKind, 9);
  record.hStream = kLegacy;
  peer.Post(record);
  // Not here: this request synchronises nothing.
  Allocate(peer, 16);
  EXPECT_EQ(peer.Synchronize(), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(peer.Synchronize(), CUDA_SUCCESS);
}

// What a launch used last is remembered: not beyond the end of its name.
TEST_P(SessionTest, NamesThatHaveGoneAreNotFoundAndMayBeMadeAnew) {
  SessionPeer peer(Options());
  LoadAdd(peer);
  const AddParams params{Allocate(peer, 4), 1, 1};
  constexpr uint64_t kStream = 16;
  wire::StreamCreateRequest create;
  create.stream = kStream;
  wire::StreamDestroyRequest destroy;
  destroy.stream = kStream;
  for (int round = 0; round < 2; ++round) {
    peer.Post(create);
    for (int i = 0; i < 3; ++i) peer.Post(AddLaunch(params, kStream));
    EXPECT_EQ(peer.Synchronize(kStream), CUDA_SUCCESS);
    peer.Post(destroy);
    peer.Post(AddLaunch(params, kStream));
    EXPECT_EQ(peer.Synchronize(), CUDA_ERROR_INVALID_HANDLE);
  }
  peer.Post(create);
  peer.Post(AddLaunch(params, kStream));
  EXPECT_EQ(peer.Synchronize(kStream), CUDA_SUCCESS);
  wire::LibraryUnloadRequest unload;
  unload.library = GuestId(kLibraryKind, 1);
  peer.Post(unload);
  peer.Post(AddLaunch(params, kStream));
  EXPECT_EQ(peer.Synchronize(kStream), CUDA_ERROR_INVALID_HANDLE);
  LoadAdd(peer);
  peer.Post(AddLaunch(params, kStream));
  EXPECT_EQ(peer.Synchronize(kStream), CUDA_SUCCESS);
}

TEST_P(SessionTest, HostFunctionHoldsItsStreamAndNoOther) {
  SessionPeer peer(Options());
  const uint64_t address = Allocate(peer, 4096);
  for (uint32_t index : {1, 2}) CreateStream(peer, GuestId(kStreamKind, index));
  AddHostFunction(peer, GuestId(kStreamKind, 1), 77);
  wire::StreamSynchronizeRequest synchronize;
  synchronize.stream = GuestId(kStreamKind, 1);
  const uint32_t held = peer.Start(synchronize);
  EXPECT_EQ(peer.AwaitHostFunction(), 77u);
  CopyIn(peer, address, RandomBytes(64), GuestId(kStreamKind, 2));
  EXPECT_EQ(peer.Synchronize(GuestId(kStreamKind, 2)), CUDA_SUCCESS);
  EXPECT_FALSE(peer.Arrived(held));
  EndHostFunction(peer, 77);
  EXPECT_EQ(peer.Await(held), CUDA_SUCCESS);
}

TEST_P(SessionTest, AllocationTellsWhetherAllWorkIsDone) {
  SessionPeer peer(Options());
  const auto flags = [&](Bytes bytes) {
    wire::MemAllocRequest request;
    request.bytes = bytes;
    wire::MemAllocReply reply;
    EXPECT_EQ(peer.Ask(request, &reply), CUDA_SUCCESS);
    return reply.flags;
  };
  // Only small ones may stay with the guest.
  EXPECT_EQ(flags(4096), wire::kAllocationIdle | wire::kAllocationMayKeep);
  EXPECT_EQ(flags(memmgr::kSharedAllocationBytesMax),
            wire::kAllocationIdle | wire::kAllocationMayKeep);
  EXPECT_EQ(flags(memmgr::kSharedAllocationBytesMax + 1), wire::kAllocationIdle);
  CreateStream(peer, GuestId(kStreamKind, 1));
  // A host function, and what waits behind it, are work.
  AddHostFunction(peer, GuestId(kStreamKind, 1), 77);
  EXPECT_EQ(peer.AwaitHostFunction(), 77u);
  EXPECT_EQ(flags(4096), wire::kAllocationMayKeep);
  const uint64_t address = Allocate(peer, 4096);
  CopyIn(peer, address, RandomBytes(64), GuestId(kStreamKind, 1));
  EXPECT_EQ(flags(4096), wire::kAllocationMayKeep);
  EndHostFunction(peer, 77);
  EXPECT_EQ(peer.Synchronize(GuestId(kStreamKind, 1)), CUDA_SUCCESS);
  EXPECT_EQ(flags(4096), wire::kAllocationIdle | wire::kAllocationMayKeep);
  // What has failed without anybody knowing is to be asked for.
  wire::MemFreeRequest wrong;
  wrong.address = address + 512;
  peer.Post(wrong);
  EXPECT_EQ(flags(4096), wire::kAllocationMayKeep);
  EXPECT_EQ(peer.Synchronize(kLegacy), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(flags(4096), wire::kAllocationIdle | wire::kAllocationMayKeep);
}

TEST_P(SessionTest, HostFunctionIsFinishedWhileACopyBehindItFillsAllStaging) {
  SessionPeer peer(Options());
  constexpr Bytes kBytes = (kStagingPieces + 4) * kStagingPieceBytes;
  const uint64_t address = Allocate(peer, kBytes);
  const std::vector<std::byte> data = RandomBytes(kBytes);
  CopyIn(peer, address, data);
  AddHostFunction(peer, kLegacy, 1);
  CopyOut(peer, address, kBytes, 1);
  wire::StreamSynchronizeRequest synchronize;
  synchronize.stream = kLegacy;
  const uint32_t call = peer.Start(synchronize);
  EXPECT_EQ(peer.AwaitHostFunction(), 1u);
  EndHostFunction(peer, 1);
  EXPECT_EQ(peer.Await(call), CUDA_SUCCESS);
  EXPECT_TRUE(peer.Transfer(1) == data);
}

TEST_P(SessionTest, DefaultStreamWaitsForBlockingStreamsAndNotForOthers) {
  SessionPeer peer(Options());
  for (uint32_t index : {1, 2}) {
    wire::StreamCreateRequest create;
    create.stream = GuestId(kStreamKind, index);
    create.flags = index == 1 ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
    peer.Post(create);
    wire::HostFunctionRequest function;
    function.stream = GuestId(kStreamKind, index);
    function.callback = index;
    peer.Post(function);
  }
  ASSERT_TRUE(peer.AwaitHostFunction().has_value());
  ASSERT_TRUE(peer.AwaitHostFunction().has_value());
  wire::StreamSynchronizeRequest synchronize;
  synchronize.stream = kLegacy;
  const uint32_t call = peer.Start(synchronize);
  // Another context's default stream waits for neither.
  EXPECT_EQ(peer.Synchronize(kLegacy, 2), CUDA_SUCCESS);
  EXPECT_FALSE(peer.Arrived(call));
  wire::HostFunctionDoneRequest done;
  done.callback = 1;
  peer.Post(done);
  EXPECT_EQ(peer.Await(call), CUDA_SUCCESS);  // stream 2 is still held
  done.callback = 2;
  peer.Post(done);
  EXPECT_EQ(peer.Synchronize(GuestId(kStreamKind, 2)), CUDA_SUCCESS);
}

// Two sessions that both have work at all times, so that each takes turns; streams come and go
// while their batches are open, and host functions and frees wait among them.
TEST_P(SessionTest, ContendingSessionsTakeTurnsWhileStreamsComeAndGo) {
  Scheduler scheduler(schedule::MakePolicy("tfs", schedule::Options()));
  PeerOptions options = Options();
  options.scheduler = &scheduler;
  const auto work = [&options](uint32_t rounds) {
    SessionPeer peer(options);
    wire::HostFunctionDoneRequest done;
    for (uint32_t round = 1; round <= rounds; ++round) {
      const uint64_t stream = GuestId(kStreamKind, round);
      wire::StreamCreateRequest create;
      create.stream = stream;
      create.flags = CU_STREAM_NON_BLOCKING;
      peer.Post(create);
      const uint64_t address = Allocate(peer, 256 * kKiB);
      const std::vector<std::byte> data = RandomBytes(256 * kKiB - round);
      CopyIn(peer, address, data, stream);
      if (round % 4 == 0) {
        wire::HostFunctionRequest function;
        function.stream = stream;
        function.callback = done.callback = round;
        peer.Post(function);
      }
      CopyOut(peer, address, data.size(), round, stream);
      wire::StreamDestroyRequest destroy;
      destroy.stream = stream;
      peer.Post(destroy);
      wire::MemFreeRequest free;
      free.address = address;
      peer.Post(free);
      if (round % 4 != 0) continue;
      ASSERT_EQ(peer.AwaitHostFunction(), round);
      peer.Post(done);
      wire::ContextSynchronizeRequest synchronize;
      ASSERT_EQ(peer.Ask(synchronize), CUDA_SUCCESS);
      ASSERT_TRUE(peer.Transfer(round) == data);
    }
  };
  std::thread other(work, 80);
  work(80);
  other.join();
}

TEST_P(SessionTest, EventsCompleteWithTheWorkBeforeThem) {
  SessionPeer peer(Options());
  wire::StreamCreateRequest create_stream;
  create_stream.stream = GuestId(kStreamKind, 1);
  peer.Post(create_stream);
  wire::EventCreateRequest create;
  create.event = GuestId(kEventKind, 1);
  peer.Post(create);
  wire::HostFunctionRequest function;
  function.stream = GuestId(kStreamKind, 1);
  function.callback = 3;
  peer.Post(function);
  wire::cuEventRecordRequest record;
  record.hEvent = GuestId(kEventKind, 1);
  record.hStream = GuestId(kStreamKind, 1);
  peer.Post(record);
  wire::cuEventQueryRequest query;
  query.hEvent = GuestId(kEventKind, 1);
  EXPECT_EQ(peer.Ask(query), CUDA_ERROR_NOT_READY);
  wire::EventSynchronizeRequest synchronize;
  synchronize.event = GuestId(kEventKind, 1);
  const uint32_t call = peer.Start(synchronize);
  // The waiting call keeps the event alive.
  wire::EventDestroyRequest destroy;
  destroy.event = GuestId(kEventKind, 1);
  peer.Post(destroy);
  ASSERT_EQ(peer.AwaitHostFunction(), 3u);
  EXPECT_FALSE(peer.Arrived(call));
  wire::HostFunctionDoneRequest done;
  done.callback = 3;
  peer.Post(done);
  EXPECT_EQ(peer.Await(call), CUDA_SUCCESS);
  EXPECT_EQ(peer.Ask(query), CUDA_ERROR_INVALID_HANDLE);
}

wire::MemoryShareReply ShareMemory(SessionPeer& peer, uint64_t address) {
  wire::MemoryShareRequest request;
  request.address = address;
  wire::MemoryShareReply reply;
  EXPECT_EQ(peer.Ask(request, &reply), CUDA_SUCCESS);
  return reply;
}

TEST_P(SessionTest, OthersOfTheTenantOpenSharedMemory) {
  SessionPeer owner(Options());
  SessionPeer other(Options());
  // Not at the beginning of the physical memory behind it.
  Allocate(owner, 512);
  const uint64_t address = Allocate(owner, 4096);
  const std::vector<std::byte> data = RandomBytes(4096);
  CopyIn(owner, address, data);
  EXPECT_EQ(owner.Synchronize(), CUDA_SUCCESS);
  const wire::MemoryShareReply token = ShareMemory(owner, address);
  EXPECT_EQ(ShareMemory(owner, address).token_low, token.token_low);

  wire::SharedMemoryOpenRequest open;
  open.token_high = token.token_high;
  open.token_low = token.token_low;
  EXPECT_EQ(owner.Ask(open), CUDA_ERROR_INVALID_CONTEXT);
  wire::SharedMemoryOpenReply opened;
  ASSERT_EQ(other.Ask(open, &opened), CUDA_SUCCESS);
  EXPECT_EQ(opened.bytes, 4096u);
  EXPECT_GE(opened.address, other.welcome().window_base);
  CopyOut(other, opened.address, 4096, 1);
  EXPECT_EQ(other.Synchronize(), CUDA_SUCCESS);
  EXPECT_EQ(other.Transfer(1), data);

  // The owner lets go: what is open stays, and nobody opens it any more.
  wire::MemFreeRequest free;
  free.address = address;
  owner.Post(free);
  EXPECT_EQ(owner.Synchronize(), CUDA_SUCCESS);
  SessionPeer third(Options());
  EXPECT_EQ(third.Ask(open), CUDA_ERROR_INVALID_HANDLE);
  owner.Close();
  CopyOut(other, opened.address, 4096, 2);
  EXPECT_EQ(other.Synchronize(), CUDA_SUCCESS);
  EXPECT_EQ(other.Transfer(2), data);
  wire::SharedMemoryCloseRequest close;
  close.address = opened.address;
  EXPECT_EQ(other.Ask(close), CUDA_SUCCESS);
  EXPECT_EQ(other.Ask(close), CUDA_ERROR_INVALID_VALUE);
}

TEST_P(SessionTest, OthersOfTheTenantSeeSharedEvents) {
  SessionPeer owner(Options());
  SessionPeer other(Options());
  wire::EventCreateRequest create;
  create.event = GuestId(kEventKind, 1);
  create.flags = CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
  owner.Post(create);
  wire::EventShareRequest share;
  share.event = create.event;
  wire::EventShareReply token;
  ASSERT_EQ(owner.Ask(share, &token), CUDA_SUCCESS);
  wire::SharedEventOpenRequest open;
  open.event = GuestId(kEventKind, 7);
  open.token_high = token.token_high;
  open.token_low = token.token_low;
  ASSERT_EQ(other.Ask(open), CUDA_SUCCESS);
  EXPECT_EQ(other.Ask(open), CUDA_ERROR_INVALID_HANDLE);  // the name is taken
  wire::cuEventQueryRequest query;
  query.hEvent = open.event;
  EXPECT_EQ(other.Ask(query), CUDA_SUCCESS);
  // Its record would wait in the owner's session, where the other does not see it.
  wire::HostFunctionRequest function;
  function.stream = kLegacy;
  function.callback = 3;
  owner.Post(function);
  wire::cuEventRecordRequest record;
  record.hEvent = create.event;
  record.hStream = kLegacy;
  owner.Post(record);
  ASSERT_EQ(owner.AwaitHostFunction(), 3u);
  wire::HostFunctionDoneRequest done;
  done.callback = 3;
  owner.Post(done);
  EXPECT_EQ(owner.Synchronize(), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(owner.Synchronize(), CUDA_SUCCESS);
  // The opener's name outlives the owner.
  owner.Close();
  EXPECT_EQ(other.Ask(query), CUDA_SUCCESS);
}

TEST_P(SessionTest, FreedMemoryIsKeptWhileWorkIsGoingOn) {
  SessionPeer peer(Options());
  constexpr Bytes kHuge = 3 * kGiB;  // of the device's four
  const uint64_t address = Allocate(peer, kHuge);
  wire::StreamCreateRequest create;
  create.stream = GuestId(kStreamKind, 1);
  peer.Post(create);
  wire::HostFunctionRequest function;
  function.stream = GuestId(kStreamKind, 1);
  function.callback = 1;
  peer.Post(function);
  wire::MemFreeRequest free;
  free.address = address;
  peer.Post(free);
  // There is no room for a second one before the stream goes on.
  wire::MemAllocRequest allocate;
  allocate.bytes = kHuge;
  const uint32_t call = peer.Start(allocate);
  ASSERT_EQ(peer.AwaitHostFunction(), 1u);
  EXPECT_FALSE(peer.Arrived(call));
  wire::HostFunctionDoneRequest done;
  done.callback = 1;
  peer.Post(done);
  EXPECT_EQ(peer.Await(call), CUDA_SUCCESS);
  // Twice freed is an error of the program.
  peer.Post(free);
  peer.Post(free);
  EXPECT_EQ(peer.Synchronize(), CUDA_ERROR_INVALID_VALUE);
}

TEST_P(SessionTest, SharedHostMemoryIsAtOneAddressInDeviceAndGuest) {
  SessionPeer peer(Options());
  wire::HostAllocRequest allocate;
  allocate.bytes = 10000;
  allocate.flags = CU_MEMHOSTALLOC_DEVICEMAP;
  wire::HostAllocReply reply;
  ASSERT_EQ(peer.Ask(allocate, &reply), CUDA_SUCCESS);
  ASSERT_GE(reply.address, peer.welcome().shared_host_base);
  const int memory = peer.channel()->ReceiveDescriptor(kSecond);
  ASSERT_GE(memory, 0);
  // This process is the worker too, so the guest's view is mapped elsewhere.
  auto* words =
      static_cast<uint32_t*>(mmap(nullptr, 12288, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0));
  ASSERT_NE(words, MAP_FAILED);
  EXPECT_NE(ftruncate(memory, 0), 0);  // a guest cannot take pages from under the device
  close(memory);
  words[0] = 41;
  LoadAdd(peer);
  const AddParams params{reply.address, 1, 1};
  peer.Post(AddLaunch(params));
  ASSERT_EQ(peer.Synchronize(), CUDA_SUCCESS);
  EXPECT_EQ(words[0], 42u);

  const uint64_t address = Allocate(peer, 4);
  wire::CopyRowsRequest copy;
  copy.stream = kLegacy;
  copy.dst = address;
  copy.src = reply.address;
  copy.width = copy.dst_pitch = copy.src_pitch = 4;
  copy.rows = 1;
  peer.Post(copy);
  CopyOut(peer, address, 4, 1);
  ASSERT_EQ(peer.Synchronize(), CUDA_SUCCESS);
  EXPECT_EQ(std::memcmp(peer.Transfer(1).data(), words, 4), 0);
  wire::HostFreeRequest free;
  free.address = reply.address;
  peer.Post(free);
  EXPECT_EQ(peer.Synchronize(), CUDA_SUCCESS);
  munmap(words, 12288);
}

TEST_P(SessionTest, HostMemoryIsShownByAnyOfItsAddressesAndReachedOfKnownSessions) {
  SessionPeer peer(Options());
  wire::HostAllocRequest allocate;
  allocate.bytes = 10000;
  wire::HostAllocReply allocated;
  ASSERT_EQ(peer.Ask(allocate, &allocated), CUDA_SUCCESS);
  const UniqueFd memory(peer.channel()->ReceiveDescriptor(kSecond));
  wire::HostShowRequest show;
  wire::HostShowReply shown;
  show.address = allocated.address + 9999;
  ASSERT_EQ(peer.Ask(show, &shown), CUDA_SUCCESS);
  EXPECT_EQ(shown.address, allocated.address);
  EXPECT_EQ(shown.bytes, 12288u);
  EXPECT_TRUE(UniqueFd(peer.channel()->ReceiveDescriptor(kSecond)).valid());
  show.address = allocated.address + 12288;
  EXPECT_EQ(peer.Ask(show, &shown), CUDA_ERROR_INVALID_VALUE);
  // Of no session that it reaches, its own among them.
  wire::HostReachRequest reach;
  reach.address = allocated.address;
  reach.bytes = 12288;
  wire::HostLeaveRequest leave;
  leave.address = allocated.address;
  for (uint64_t session : {uint64_t{0}, uint64_t{1}, uint64_t{99}}) {
    reach.session = leave.session = session;
    EXPECT_TRUE(peer.channel()->SendDescriptor(memory.get()));
    EXPECT_EQ(peer.Ask(reach), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(peer.Ask(leave), CUDA_ERROR_INVALID_VALUE);
  }
  EXPECT_EQ(peer.Synchronize(), CUDA_SUCCESS);
}

// A file of the guest's of that length, with `value` in its first word.
UniqueFd GuestFile(Bytes bytes, uint32_t value) {
  UniqueFd file(memfd_create("guest", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(pwrite(file.get(), &value, sizeof(value), 0), ssize_t{sizeof(value)});
  return file;
}

TEST_P(SessionTest, AdoptedMemoryIsAlignedAndReplaced) {
  SessionPeer peer(Options());
  wire::HostAdoptRequest adopt;
  wire::HostAdoptReply reply;
  const auto ask = [&](const UniqueFd& file) {
    EXPECT_TRUE(peer.channel()->SendDescriptor(file.get()));
    return peer.Ask(adopt, &reply);
  };
  // The first word at the address, as the device sees it.
  uint64_t transfer = 0;
  const auto seen = [&](uint64_t address) {
    CopyOut(peer, address, 4, ++transfer);
    EXPECT_EQ(peer.Synchronize(), CUDA_SUCCESS);
    uint32_t word = 0;
    std::memcpy(&word, peer.Transfer(transfer).data(), sizeof(word));
    return word;
  };
  const UniqueFd one = GuestFile(8192, 11);
  const UniqueFd two = GuestFile(8192, 22);
  const UniqueFd longer = GuestFile(12288, 33);
  adopt.bytes = 8192;
  ASSERT_EQ(ask(one), CUDA_SUCCESS);  // so that what follows is not aligned by chance
  adopt.alignment = kSharedHostAlignMax;
  ASSERT_EQ(ask(one), CUDA_SUCCESS);
  const uint64_t address = reply.address;
  EXPECT_EQ(address % kSharedHostAlignMax, 0u);
  EXPECT_EQ(seen(address), 11u);
  adopt.replaces = address;
  ASSERT_EQ(ask(two), CUDA_SUCCESS);
  EXPECT_EQ(reply.address, address);
  EXPECT_EQ(seen(address), 22u);
  // Not as long, nothing there, no power of two, more than the bound.
  adopt.bytes = 12288;
  EXPECT_EQ(ask(longer), CUDA_ERROR_INVALID_VALUE);
  adopt.bytes = 8192;
  adopt.replaces = address + 4096;
  EXPECT_EQ(ask(one), CUDA_ERROR_INVALID_VALUE);
  adopt.replaces = 0;
  adopt.alignment = 12288;
  EXPECT_EQ(ask(one), CUDA_ERROR_INVALID_VALUE);
  adopt.alignment = 2 * kSharedHostAlignMax;
  EXPECT_EQ(ask(one), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(seen(address), 22u);
  wire::HostFreeRequest free;
  free.address = address;
  peer.Post(free);
  EXPECT_EQ(peer.Synchronize(), CUDA_SUCCESS);
}

TEST_P(SessionTest, SaysOnceThatTheDeviceIsBrokenBeforeAnyReplyDoes) {
  SessionPeer peer(Options());
  ASSERT_EQ(peer.Synchronize(), CUDA_SUCCESS);
  peer.health().Poison(CUDA_ERROR_ILLEGAL_ADDRESS, "a kernel of another session");
  wire::StreamSynchronizeRequest synchronize;
  synchronize.stream = kLegacy;
  const uint32_t waiting = peer.Start(synchronize);
  const std::vector<SessionPeer::Failure> said = peer.AwaitFailure();
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0].result, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(said[0].replies_before, 0u);
  EXPECT_EQ(peer.Await(waiting), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(peer.Synchronize(kLegacy, 2), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(peer.AwaitFailure().size(), 1u);
  peer.Close();
  SessionEnded ended;
  EXPECT_FALSE(peer.AwaitEnd(&ended));
}

TEST_P(SessionTest, ContextDestroyFreesWhatTheContextHad) {
  SessionPeer peer(Options());
  constexpr Bytes kHuge = 3 * kGiB;
  Allocate(peer, kHuge);
  EXPECT_EQ(peer.Ask(wire::ContextDestroyRequest()), CUDA_SUCCESS);
  wire::MemAllocRequest again;
  again.bytes = kHuge;
  EXPECT_EQ(peer.Ask(again, nullptr, 2), CUDA_SUCCESS);
}

TEST_P(SessionTest, AnOverfullReplyDirectionStopsAtTheGuestsPace) {
  SessionPeer peer(Options());
  constexpr Bytes kBytes = 32 * kMiB;  // four times what a ring takes
  const uint64_t address = Allocate(peer, kBytes);
  const std::vector<std::byte> data = RandomBytes(kBytes);
  CopyIn(peer, address, data);
  for (uint64_t transfer = 1; transfer <= 3; ++transfer) {
    CopyOut(peer, address, kBytes, transfer);
  }
  // Nothing has been read so far but what SendRaw had to.
  ASSERT_EQ(peer.Synchronize(), CUDA_SUCCESS);
  for (uint64_t transfer = 1; transfer <= 3; ++transfer) {
    EXPECT_TRUE(peer.Transfer(transfer) == data) << transfer;
  }
}

// --- Hostile guests: each ends its own session, with the device let go, and poisons nothing.

class HostileGuestTest : public SessionTest {
 protected:
  void ExpectEnds(SessionPeer& peer, const char* reason) {
    // The host closes; nothing more comes.
    EXPECT_EQ(peer.Await(0xffffffff), std::nullopt);
    SessionEnded ended;
    EXPECT_TRUE(peer.AwaitEnd(&ended));
    EXPECT_THAT(ended.reason, ::testing::HasSubstr(reason));
    EXPECT_EQ(peer.retired_count(), 0);
  }
};

INSTANTIATE_TEST_SUITE_P(Channels, HostileGuestTest, ::testing::Bool(), ChannelKind);

TEST_P(HostileGuestTest, UnknownOpcode) {
  SessionPeer peer(Options());
  peer.SendRaw(9999, 0, 1, {});
  ExpectEnds(peer, "malformed request 9999");
}

TEST_P(HostileGuestTest, TruncatedBody) {
  SessionPeer peer(Options());
  const std::byte body[8] = {};
  peer.SendRaw(static_cast<uint16_t>(wire::Opcode::kLaunch), 0, 1, body);
  ExpectEnds(peer, "Launch");
}

TEST_P(HostileGuestTest, CopyThatClaimsMoreThanItsData) {
  SessionPeer peer(Options());
  const std::vector<std::byte> data(64);
  wire::CopyToDeviceRequest request;
  request.stream = kLegacy;
  request.dst = Allocate(peer, 64);
  request.dst_pitch = request.width = uint64_t{1} << 40;
  request.rows = uint64_t{1} << 30;
  request.data = data;
  peer.Post(request);
  ExpectEnds(peer, "CopyToDevice");
}

TEST_P(HostileGuestTest, ImagePieceOutOfOrder) {
  SessionPeer peer(Options());
  const std::vector<std::byte> data(64);
  wire::ImageDataRequest image;
  image.image = 1;
  image.total = 1000;
  image.offset = 64;
  image.data = data;
  peer.Post(image);
  ExpectEnds(peer, "image 1");
}

// The image `text`, whole, as image 1.
void SendImage(SessionPeer& peer, const std::string& text) {
  wire::ImageDataRequest image;
  image.image = 1;
  image.total = text.size();
  image.data = std::as_bytes(std::span(text.data(), text.size()));
  peer.Post(image);
}

std::optional<CUresult> AddToLink(SessionPeer& peer, uint64_t link, CUjitInputType type) {
  wire::LinkAddRequest add;
  wire::LinkAddReply reply;
  add.link = link;
  add.image = 1;
  add.type = type;
  return peer.Ask(add, &reply);
}

TEST_P(HostileGuestTest, InputsOfALinkThatLieAboutTheirLength) {
  SessionPeer peer(Options());
  wire::LinkCreateRequest create;
  wire::EmptyReply made;
  create.link = 7;
  ASSERT_EQ(peer.Ask(create, &made), CUDA_SUCCESS);
  EXPECT_EQ(peer.Ask(create, &made), CUDA_ERROR_INVALID_HANDLE);
  // PTX without its NUL; a fat binary, and an ELF file, that go on past the end; what a driver
  // would take for a pointer to one.
  SendImage(peer, ".version 7.0\n.target sm_75\n");
  EXPECT_EQ(AddToLink(peer, 7, CU_JIT_INPUT_PTX), CUDA_ERROR_INVALID_IMAGE);
  SendImage(peer, std::string("\x50\xed\x55\xba\x01\0\x10\0\xff\xff\xff\0\0\0\0\0", 16));
  EXPECT_EQ(AddToLink(peer, 7, CU_JIT_INPUT_FATBINARY), CUDA_ERROR_INVALID_IMAGE);
  SendImage(peer, "\x7f" + std::string("ELF") + std::string(60, '\xff'));
  EXPECT_EQ(AddToLink(peer, 7, CU_JIT_INPUT_CUBIN), CUDA_ERROR_INVALID_IMAGE);
  SendImage(peer, std::string("\xb1\x43\x62\x46\x01\0\0\0", 8) + std::string(16, 'x'));
  EXPECT_EQ(AddToLink(peer, 7, CU_JIT_INPUT_OBJECT), CUDA_ERROR_INVALID_IMAGE);
  // Taken, and gone.
  EXPECT_EQ(AddToLink(peer, 7, CU_JIT_INPUT_PTX), CUDA_ERROR_INVALID_VALUE);
  SendImage(peer, std::string(".version 7.0\n.target sm_75\n\0", 29));
  EXPECT_EQ(AddToLink(peer, 8, CU_JIT_INPUT_PTX), CUDA_ERROR_INVALID_HANDLE);
  wire::LinkReadRequest read;
  wire::LinkReadReply data;
  read.link = 7;
  EXPECT_EQ(peer.Ask(read, &data), CUDA_ERROR_INVALID_VALUE) << "nothing was linked yet";
  EXPECT_EQ(peer.Synchronize(), CUDA_SUCCESS) << "the session goes on";
}

TEST_P(HostileGuestTest, LinksHaveABound) {
  SessionPeer peer(Options());
  wire::LinkCreateRequest create;
  wire::EmptyReply made;
  for (create.link = 1; create.link <= kLinksPerSession; ++create.link) {
    ASSERT_EQ(peer.Ask(create, &made), CUDA_SUCCESS) << create.link;
  }
  EXPECT_EQ(peer.Ask(create, &made), CUDA_ERROR_OUT_OF_MEMORY);
  wire::LinkDestroyRequest destroy;
  destroy.link = 5;
  peer.Post(destroy);
  EXPECT_EQ(peer.Ask(create, &made), CUDA_SUCCESS);
}

TEST_P(HostileGuestTest, HostFunctionDoneThatNeverRan) {
  SessionPeer peer(Options());
  wire::HostFunctionDoneRequest done;
  done.callback = 5;
  peer.Post(done);
  ExpectEnds(peer, "host function 5");
}

TEST_P(HostileGuestTest, NamesOfUnsupportedFunctionsThatAreNone) {
  for (const std::string& name : {std::string("cuFoo\n"), std::string("system"), std::string(),
                                  "cu" + std::string(94, 'x')}) {
    SessionPeer peer(Options());
    wire::UnsupportedCallsRequest request;
    request.calls = 1;
    request.name = std::as_bytes(std::span(name.data(), name.size()));
    peer.Post(request);
    ExpectEnds(peer, "unsupported function");
  }
}

TEST_P(HostileGuestTest, AddressesOutsideTheWindowAreRefused) {
  SessionPeer peer(Options());
  static uint64_t secret = 0x1234;  // in the worker's memory
  CopyOut(peer, reinterpret_cast<uint64_t>(&secret), 8, 1);
  EXPECT_EQ(peer.Synchronize(), CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(peer.Transfer(1).empty());
  CopyIn(peer, reinterpret_cast<uint64_t>(&secret), RandomBytes(8));
  EXPECT_EQ(peer.Synchronize(), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(secret, 0x1234u);
  // Wrapping around the end of the window.
  CopyOut(peer, peer.welcome().window_base + kWindowSlotBytes - 4, 8, 2);
  EXPECT_EQ(peer.Synchronize(), CUDA_ERROR_INVALID_VALUE);
}

// A recorded copy would read or write, at each launch, memory of the worker that is long gone.
TEST_P(HostileGuestTest, WhatIsRecordedIsOnlyWorkOfTheDevice) {
  SessionPeer peer(Options());
  const uint64_t stream = GuestId(kStreamKind, 1);
  const uint64_t address = Allocate(peer, 64);
  wire::StreamCreateRequest create;
  create.stream = stream;
  create.flags = CU_STREAM_NON_BLOCKING;
  peer.Post(create);
  wire::GraphRecordRequest record;
  record.graph = 1;
  record.stream = stream;
  peer.Post(record);
  EXPECT_EQ(peer.Synchronize(), CUDA_ERROR_INVALID_HANDLE);  // no such graph
  wire::GraphHandleCreateRequest handle;
  handle.graph = 1;
  wire::GraphHandleCreateReply made;
  ASSERT_EQ(peer.Ask(handle, &made), CUDA_SUCCESS);
  wire::GraphConditionRequest condition;
  condition.graph = 1;
  condition.stream = stream;
  condition.handle = made.handle;
  condition.size = 1;
  condition.first_part = 1;
  peer.Post(condition);
  EXPECT_EQ(peer.Synchronize(), CUDA_ERROR_INVALID_VALUE);  // nothing is recorded
  record.part = 1;
  peer.Post(record);
  EXPECT_EQ(peer.Synchronize(), CUDA_ERROR_INVALID_VALUE);  // no such part
  record.part = 0;
  peer.Post(record);
  condition.first_part = UINT32_MAX;
  peer.Post(condition);
  EXPECT_EQ(peer.Synchronize(), CUDA_ERROR_INVALID_VALUE);
  condition.first_part = 1;
  condition.handle += 8;
  peer.Post(condition);
  EXPECT_EQ(peer.Synchronize(), CUDA_ERROR_INVALID_VALUE);  // a handle of nothing

  CopyIn(peer, address, RandomBytes(64), stream);
  EXPECT_EQ(peer.Synchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CopyOut(peer, address, 64, 1, stream);
  EXPECT_EQ(peer.Synchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(peer.Synchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  wire::HostFunctionRequest function;
  function.stream = stream;
  function.callback = 1;
  peer.Post(function);
  EXPECT_EQ(peer.Synchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  // The stream and its capture go with the session.
  EXPECT_EQ(peer.retired_count(), 0);
}

// Windows of one worker lie beside each other, so an address of a neighbour is a valid one of the
// device.
TEST_P(HostileGuestTest, NeighboursMemoryIsRefusedByForwardedCalls) {
  SessionPeer neighbour(Options());
  SessionPeer peer(Options());
  const uint64_t address = Allocate(neighbour, 4096);
  const std::vector<std::byte> data = RandomBytes(4096);
  CopyIn(neighbour, address, data);
  ASSERT_EQ(neighbour.Synchronize(), CUDA_SUCCESS);

  wire::cuMemsetD8AsyncRequest bytes;
  bytes.dstDevice = address;
  bytes.N = 1;
  bytes.hStream = kLegacy;
  peer.Post(bytes);
  EXPECT_EQ(peer.Synchronize(), CUDA_ERROR_INVALID_VALUE);
  wire::cuStreamWriteValue32_v2Request value;
  value.stream = kLegacy;
  value.addr = address;
  peer.Post(value);
  EXPECT_EQ(peer.Synchronize(), CUDA_ERROR_INVALID_VALUE);
  // Sizes whose product wraps to 0, and rows that begin in the own window and end in another one.
  const uint64_t own = Allocate(peer, 4096);
  wire::cuMemsetD32AsyncRequest words;
  words.dstDevice = own;
  words.N = uint64_t{1} << 62;
  words.hStream = kLegacy;
  peer.Post(words);
  EXPECT_EQ(peer.Synchronize(), CUDA_ERROR_INVALID_VALUE);
  wire::cuMemsetD2D8AsyncRequest rows;
  rows.dstDevice = own;
  rows.dstPitch = kWindowSlotBytes;
  rows.Width = 1;
  rows.Height = 2;
  rows.hStream = kLegacy;
  peer.Post(rows);
  EXPECT_EQ(peer.Synchronize(), CUDA_ERROR_INVALID_VALUE);

  // The own memory, to its last byte, may be set.
  bytes.dstDevice = own + 4095;
  peer.Post(bytes);
  EXPECT_EQ(peer.Synchronize(), CUDA_SUCCESS);
  CopyOut(neighbour, address, 4096, 1);
  ASSERT_EQ(neighbour.Synchronize(), CUDA_SUCCESS);
  EXPECT_TRUE(neighbour.Transfer(1) == data);
  EXPECT_EQ(peer.retired_count(), 0);
}

TEST_P(HostileGuestTest, AnotherTenantsTokenOpensNothing) {
  SessionPeer owner(Options());
  PeerOptions options = Options();
  options.tenant = "another";
  SessionPeer other(options);
  const wire::MemoryShareReply token = ShareMemory(owner, Allocate(owner, 4096));
  wire::EventCreateRequest create;
  create.event = GuestId(kEventKind, 1);
  owner.Post(create);
  wire::EventShareRequest share;
  share.event = create.event;
  wire::EventShareReply event;
  ASSERT_EQ(owner.Ask(share, &event), CUDA_SUCCESS);

  wire::SharedMemoryOpenRequest open;
  open.token_high = token.token_high;
  open.token_low = token.token_low;
  EXPECT_EQ(other.Ask(open), CUDA_ERROR_INVALID_HANDLE);
  wire::SharedMemoryImportRequest import;
  import.memory = 1;
  import.token_high = token.token_high;
  import.token_low = token.token_low;
  EXPECT_EQ(other.Ask(import), CUDA_ERROR_INVALID_HANDLE);
  // Nor is an allocation memory without an address, or an event memory.
  EXPECT_EQ(owner.Ask(import), CUDA_ERROR_INVALID_HANDLE);
  wire::SharedEventOpenRequest open_event;
  open_event.event = GuestId(kEventKind, 2);
  open_event.token_high = event.token_high;
  open_event.token_low = event.token_low;
  EXPECT_EQ(other.Ask(open_event), CUDA_ERROR_INVALID_HANDLE);
  open.token_high = event.token_high;
  open.token_low = event.token_low;
  EXPECT_EQ(owner.Ask(open), CUDA_ERROR_INVALID_HANDLE);
  // What is no allocation's beginning cannot be shared.
  wire::MemoryShareRequest inside;
  inside.address = Allocate(owner, 4096) + 512;
  EXPECT_EQ(owner.Ask(inside), CUDA_ERROR_INVALID_VALUE);
}

TEST_P(HostileGuestTest, LeavingWithAHeldStreamLetsTheDeviceGo) {
  SessionPeer peer(Options());
  wire::HostFunctionRequest function;
  function.stream = kLegacy;
  function.callback = 1;
  peer.Post(function);
  ASSERT_EQ(peer.AwaitHostFunction(), 1u);
  peer.Close();
  SessionEnded ended;
  EXPECT_TRUE(peer.AwaitEnd(&ended));
  EXPECT_EQ(peer.retired_count(), 0);
}

}  // namespace
}  // namespace consort::host
