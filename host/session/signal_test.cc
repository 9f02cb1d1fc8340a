// SPDX-License-Identifier: Apache-2.0
// Words that the device writes when streams get there (StreamSignal, ContextSignal), and what a
// session takes from them.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "base/unique_fd.h"
#include "host/session/session_test_support.h"
#include "vmsock/deadline.h"

namespace consort::host {
namespace {

// A page of shared host memory as the guest has it, all 0.
class SharedWords {
 public:
  explicit SharedWords(SessionPeer* peer) {
    wire::HostAllocRequest allocate;
    allocate.bytes = kBytes;
    wire::HostAllocReply reply;
    EXPECT_EQ(peer->Ask(allocate, &reply), CUDA_SUCCESS);
    address_ = reply.address;
    const UniqueFd memory(peer->channel()->ReceiveDescriptor(kSecond));
    void* mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
    CHECK(mapped != MAP_FAILED);
    words_ = static_cast<uint64_t*>(mapped);
  }
  ~SharedWords() { munmap(words_, kBytes); }
  SharedWords(const SharedWords&) = delete;
  SharedWords& operator=(const SharedWords&) = delete;

  uint64_t At(uint64_t index) const { return address_ + 8 * index; }
  uint64_t Get(uint64_t index) const { return __atomic_load_n(&words_[index], __ATOMIC_ACQUIRE); }
  void Set(uint64_t index, uint64_t value) {
    __atomic_store_n(&words_[index], value, __ATOMIC_RELEASE);
  }

 private:
  static constexpr Bytes kBytes = 4096;
  uint64_t address_ = 0;
  uint64_t* words_ = nullptr;
};

// The device writes it there when the stream gets there.
void PostSignal(SessionPeer* peer, uint64_t stream, uint64_t address, uint64_t number,
                bool of_event = false) {
  wire::StreamSignalRequest signal;
  signal.of_event = of_event ? 1 : 0;
  signal.stream = stream;
  signal.address = address;
  signal.number = number;
  peer->Post(signal);
}

class SignalTest : public ChannelsTest {};
INSTANTIATE_TEST_SUITE_P(Channels, SignalTest, ::testing::Bool(), ChannelKind);

TEST_P(SignalTest, IsWrittenInStreamOrderAndTellsOfErrors) {
  SessionPeer peer(Options());
  SharedWords words(&peer);

  wire::HostFunctionRequest function;
  function.stream = kLegacy;
  function.callback = 1;
  peer.Post(function);
  PostSignal(&peer, kLegacy, words.At(1), 5);
  ASSERT_EQ(peer.AwaitHostFunction(), 1u);
  EXPECT_EQ(words.Get(1), 0u);
  wire::HostFunctionDoneRequest done;
  done.callback = 1;
  peer.Post(done);
  ASSERT_EQ(peer.Synchronize(), CUDA_SUCCESS);
  EXPECT_EQ(words.Get(1), 5u);
  EXPECT_EQ(words.Get(0), 0u);

  // Refused, and noted for the next reply: where no memory is, across its end, unaligned, numbers
  // with the error's bit.
  const auto refused = [&](uint64_t address, uint64_t number) {
    PostSignal(&peer, kLegacy, address, number);
    PostSignal(&peer, kLegacy, words.At(1), 5);
    EXPECT_EQ(peer.Synchronize(), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(words.Get(1), 5 | wire::kSignalError);
    PostSignal(&peer, kLegacy, words.At(1), 5);
    EXPECT_EQ(peer.Synchronize(), CUDA_SUCCESS);
    EXPECT_EQ(words.Get(1), 5u);
  };
  refused(words.At(0) + 4096, 1);
  refused(words.At(0) + 4, 1);
  refused(peer.welcome().shared_host_base + peer.welcome().shared_host_bytes - 8, 1);
  wire::MemAllocRequest allocate;
  allocate.bytes = 4096;
  wire::MemAllocReply device;
  ASSERT_EQ(peer.Ask(allocate, &device), CUDA_SUCCESS);
  refused(device.address, 1);
  refused(words.At(0), wire::kSignalError | 1);
}

// A driver may notice a moment later than the guest that the work before a word has finished.
TEST_P(SignalTest, AStreamThatHasWrittenItsLastSignalIsReady) {
  SessionPeer peer(Options());
  SharedWords words(&peer);
  const UniqueFd file(memfd_create("guest", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(file.get(), 4096), 0);
  wire::HostAdoptRequest adopt;
  adopt.bytes = 4096;
  wire::HostAdoptReply adopted;
  ASSERT_TRUE(peer.channel()->SendDescriptor(file.get()));
  ASSERT_EQ(peer.Ask(adopt, &adopted), CUDA_SUCCESS);
  wire::StreamCreateRequest create;
  create.stream = GuestId(kStreamKind, 1);
  peer.Post(create);

  // The stream stays at word 0, then at word 2.
  wire::cuStreamWaitValue64_v2Request wait;
  wait.stream = create.stream;
  wait.addr = words.At(0);
  wait.value = 1;
  peer.Post(wait);
  PostSignal(&peer, create.stream, words.At(1), 5);
  wire::cuStreamQueryRequest query;
  query.hStream = create.stream;
  EXPECT_EQ(peer.Ask(query), CUDA_ERROR_NOT_READY);
  words.Set(1, 5);
  EXPECT_EQ(peer.Ask(query), CUDA_SUCCESS);
  wait.addr = words.At(2);
  peer.Post(wait);
  EXPECT_EQ(peer.Ask(query), CUDA_ERROR_NOT_READY);
  // Memory that the guest could take away is not looked at.
  PostSignal(&peer, create.stream, adopted.address, 5);
  const uint64_t number = 5;
  ASSERT_EQ(pwrite(file.get(), &number, sizeof(number), 0), ssize_t{sizeof(number)});
  EXPECT_EQ(peer.Ask(query), CUDA_ERROR_NOT_READY);
  // Nor does an event's word tell of the stream: another one may have written it.
  PostSignal(&peer, create.stream, words.At(1), 5, /*of_event=*/true);
  EXPECT_EQ(peer.Ask(query), CUDA_ERROR_NOT_READY);
  words.Set(0, 1);
  words.Set(2, 1);
  EXPECT_EQ(peer.Synchronize(create.stream), CUDA_SUCCESS);
  EXPECT_EQ(peer.Ask(query), CUDA_SUCCESS);
}

TEST_P(SignalTest, AContextsSignalComesAfterAllItsStreamsAndNoOthers) {
  SessionPeer peer(Options());
  SharedWords words(&peer);
  constexpr int kSignal = 10;
  const auto signalled = [&] { return words.Get(kSignal); };
  const auto signal = [&](uint64_t number) {
    wire::ContextSignalRequest request;
    request.address = words.At(kSignal);
    request.number = number;
    peer.Post(request);
  };
  const auto reaches = [&](uint64_t number) {
    const Nanos deadline = MonotonicNow() + 60 * kSecond;
    while (signalled() != number && MonotonicNow() < deadline) usleep(100);
    return signalled() == number;
  };
  const auto stream = [](uint32_t index) { return GuestId(kStreamKind, index); };
  // That stream stays until its word is 1.
  const auto hold = [&](uint32_t index, uint32_t context) {
    wire::cuStreamWaitValue64_v2Request wait;
    wait.stream = stream(index);
    wait.addr = words.At(index);
    wait.value = 1;
    words.Set(index, 0);
    peer.Post(wait, context);
  };
  const auto let_go = [&](uint32_t index) { words.Set(index, 1); };
  for (const uint32_t index : {1u, 2u, 3u}) {
    wire::StreamCreateRequest create;
    create.stream = stream(index);
    create.flags = index == 2 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
    peer.Post(create, index == 3 ? 2 : 1);
  }
  hold(3, 2);
  signal(1);  // nothing to wait for
  EXPECT_TRUE(reaches(1));
  hold(1, 1);
  hold(2, 1);
  signal(2);
  let_go(2);
  EXPECT_EQ(peer.Synchronize(stream(2)), CUDA_SUCCESS);
  EXPECT_EQ(signalled(), 1u);
  let_go(1);
  EXPECT_TRUE(reaches(2));
  // Its word says of all of them that they are ready, whatever the driver says still.
  hold(1, 1);
  hold(2, 1);
  signal(3);
  const auto query = [&](uint32_t index) {
    wire::cuStreamQueryRequest request;
    request.hStream = stream(index);
    return peer.Ask(request);
  };
  EXPECT_EQ(query(1), CUDA_ERROR_NOT_READY);
  words.Set(kSignal, 3);
  EXPECT_EQ(query(1), CUDA_SUCCESS);
  EXPECT_EQ(query(2), CUDA_SUCCESS);
  hold(1, 1);
  EXPECT_EQ(query(1), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(query(2), CUDA_SUCCESS);
  words.Set(kSignal, 2);
  let_go(1);
  let_go(2);
  EXPECT_TRUE(reaches(3));
  EXPECT_EQ(peer.Synchronize(stream(1)), CUDA_SUCCESS);
  hold(2, 1);
  signal(4);
  EXPECT_EQ(peer.Synchronize(stream(1)), CUDA_SUCCESS);
  EXPECT_EQ(signalled(), 3u);
  let_go(2);
  EXPECT_TRUE(reaches(4));
  let_go(3);
  EXPECT_EQ(peer.Synchronize(stream(3), 2), CUDA_SUCCESS);
  // As a stream's: only where memory is.
  wire::ContextSignalRequest wrong;
  wrong.address = words.At(0) + 4096;
  wrong.number = 1;
  peer.Post(wrong);
  EXPECT_EQ(peer.Synchronize(), CUDA_ERROR_INVALID_VALUE);
}

// While a guest waits for a word its session stays awake, if it may.
TEST(Vigil, IsKeptForAWord) {
  auto device = WorkerDevice::Open(CpuDriver(), 0);
  ASSERT_TRUE(device.ok()) << device.status();
  VigilRoom* const vigils = (*device)->vigils();
  vigils->Allow(1);
  PeerOptions options;
  options.device = device->get();
  SessionPeer peer(options);
  SharedWords words(&peer);
  wire::cuStreamWaitValue64_v2Request wait;
  wait.stream = kLegacy;
  wait.addr = words.At(0);
  wait.value = 1;
  peer.Post(wait);
  PostSignal(&peer, kLegacy, words.At(1), 1);
  const Nanos late = MonotonicNow() + 10 * kSecond;
  while (vigils->entered() == 0 && MonotonicNow() < late) usleep(100);
  EXPECT_GT(vigils->entered(), 0u);
  words.Set(0, 1);
  EXPECT_EQ(peer.Synchronize(), CUDA_SUCCESS);
  EXPECT_EQ(words.Get(1), 1u);
}

}  // namespace
}  // namespace consort::host
