// SPDX-License-Identifier: Apache-2.0
// A virtual machine's shared memory: how its programs find it, and rings in it.
#include "vmsock/vm_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "vmsock/channel_test_support.h"
#include "vmsock/listen.h"
#include "vmsock/socket_io.h"

namespace consort {
namespace {

using ::testing::HasSubstr;

// --- Finding it

class PciDevices : public ::testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/consort-pci-XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    folder_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(folder_ + "/" + path).parent_path());
    std::ofstream(folder_ + "/" + path) << text;
  }
  std::string Read(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(folder_ + "/" + path).rdbuf();
    return text.str();
  }
  // A device of the folder, with memory that begins with `head`.
  void AddDevice(const std::string& name, const wire::VmMemoryHead& head,
                 const std::string& memory = "resource2_wc") {
    Write(name + "/vendor", "0x1af4\n");
    Write(name + "/device", "0x1110\n");
    Write(name + "/enable", "0\n");
    Write(name + "/" + memory, std::string(reinterpret_cast<const char*>(&head), sizeof head));
    std::filesystem::resize_file(folder_ + "/" + name + "/" + memory, 2 * kVmMemoryUnit);
  }
  bool Find() { return FindVmMemory(folder_.c_str(), &found_, why_, sizeof why_); }

  std::string folder_;
  VmMemory found_;
  char why_[200] = {};
};

wire::VmMemoryHead HeadOf(uint8_t number) {
  wire::VmMemoryHead head;
  head.token.bytes[5] = number;
  return head;
}

TEST_F(PciDevices, FindsTheOneThatConsortdHasMarked) {
  Write("0000:00:01.0/vendor", "0x1af4\n");
  Write("0000:00:01.0/device", "0x1005\n");
  wire::VmMemoryHead other = HeadOf(4);
  other.mark = 12;
  AddDevice("0000:00:02.0", other);
  AddDevice("0000:00:03.0", HeadOf(9));
  ASSERT_TRUE(Find()) << why_;
  EXPECT_EQ(found_.token, HeadOf(9).token);
  EXPECT_EQ(found_.bytes, 2 * kVmMemoryUnit);
  EXPECT_TRUE(found_.write_combining);
  EXPECT_EQ(Read("0000:00:03.0/enable").substr(0, 1), "1");
}

TEST_F(PciDevices, TakesUncachedMemoryWhereThereIsNoOther) {
  AddDevice("0000:00:03.0", HeadOf(9), "resource2");
  ASSERT_TRUE(Find()) << why_;
  EXPECT_FALSE(found_.write_combining);
}

TEST_F(PciDevices, SaysWhatIsMissing) {
  EXPECT_FALSE(Find());
  EXPECT_THAT(why_, HasSubstr("no PCI device 1af4:1110 in " + folder_));
  AddDevice("0000:00:03.0", wire::VmMemoryHead());  // nobody has chosen a token
  EXPECT_FALSE(Find());
  EXPECT_THAT(why_, HasSubstr("0000:00:03.0 is not of consortd's making"));
  std::filesystem::resize_file(folder_ + "/0000:00:03.0/resource2_wc", 4096);
  EXPECT_FALSE(Find());
  EXPECT_THAT(why_, HasSubstr("0000:00:03.0 is not of consortd's making"));
  // As for a user who may not open it: an error of open(2).
  std::filesystem::remove(folder_ + "/0000:00:03.0/resource2_wc");
  std::filesystem::create_directory(folder_ + "/0000:00:03.0/resource2_wc");
  EXPECT_FALSE(Find());
  EXPECT_THAT(why_, HasSubstr("0000:00:03.0: Is a directory; may this user open"));
  folder_ += "/none";
  EXPECT_FALSE(Find());
  EXPECT_THAT(why_, HasSubstr("/none"));
  folder_ = std::filesystem::path(folder_).parent_path();
}

// --- Rings in it

class VmRings : public ::testing::Test {
 protected:
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    UniqueFd guest(fds[0]), host(fds[1]);
    guest_stream_.Reset(dup(guest.get()));
    host_stream_.Reset(dup(host.get()));
    memory_.Reset(memfd_create("vm-memory", MFD_CLOEXEC));
    const Bytes bytes = kTestVmRingsOffset + RingMemoryBytes(kTestRingSizes);
    ASSERT_EQ(ftruncate(memory_.get(), static_cast<off_t>(bytes)), 0);
    guest_ = Create(RingChannel::Side::kGuest, std::move(guest));
    host_ = Create(RingChannel::Side::kHost, std::move(host));
    ASSERT_NE(guest_, nullptr);
    ASSERT_NE(host_, nullptr);
  }
  std::unique_ptr<RingChannel> Create(RingChannel::Side side, UniqueFd socket) {
    return RingChannel::CreateInVm(side, kTestRingSizes,
                                   {UniqueFd(dup(memory_.get())), kTestVmRingsOffset, true},
                                   std::move(socket));
  }
  // How many bells lie in a stream that nobody has taken.
  static ssize_t Bells(const UniqueFd& stream) {
    char bells[4096];
    return recv(stream.get(), bells, sizeof bells, MSG_PEEK | MSG_DONTWAIT);
  }
  void Receive(Channel* channel, uint32_t number, uint32_t bytes) {
    Frame frame;
    ASSERT_EQ(channel->TryReceive(&frame), ChannelStatus::kOk);
    ASSERT_TRUE(FrameIs(frame, number, bytes));
    channel->Release(frame);
  }

  UniqueFd memory_;
  UniqueFd guest_stream_, host_stream_;  // second descriptors of the channels'
  std::unique_ptr<RingChannel> guest_, host_;
};

// A byte on the stream is what makes a virtual CPU exit.
TEST_F(VmRings, NothingCrossesTheStreamWhileNobodySleeps) {
  for (uint32_t number = 0; number < 1000; ++number) {
    ASSERT_EQ(SendFrame(guest_.get(), number, 200), ChannelStatus::kOk);
    Receive(host_.get(), number, 200);
    ASSERT_EQ(SendFrame(host_.get(), number, 64), ChannelStatus::kOk);
    Receive(guest_.get(), number, 64);
  }
  EXPECT_EQ(Bells(host_stream_), -1);
  EXPECT_EQ(Bells(guest_stream_), -1);
}

TEST_F(VmRings, WhoHasStoppedWaitingIsNotWoken) {
  for (uint32_t number = 0; number < 10; ++number) {
    EXPECT_EQ(host_->Wait(Channel::kReadable | Channel::kWritable, 0, 0), ChannelStatus::kOk);
    EXPECT_EQ(host_->Wait(Channel::kReadable, 0, 100 * kMicrosecond), ChannelStatus::kAgain);
    ASSERT_EQ(SendFrame(guest_.get(), number, 200), ChannelStatus::kOk);
    EXPECT_EQ(host_->Wait(Channel::kReadable, 0, kPatience), ChannelStatus::kOk);
    Receive(host_.get(), number, 200);
  }
  EXPECT_EQ(Bells(host_stream_), -1);
}

TEST_F(VmRings, ASleeperIsWokenByOneByte) {
  std::thread sleeper(
      [&] { EXPECT_EQ(host_->Wait(Channel::kReadable, 0, kPatience), ChannelStatus::kOk); });
  // The host's bell, by ring_channel.h: it sleeps until readable.
  void* control = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, memory_.get(), kTestVmRingsOffset);
  ASSERT_NE(control, MAP_FAILED);
  const auto* sleeps =
      reinterpret_cast<const std::atomic<uint32_t>*>(static_cast<std::byte*>(control) + 0x284);
  while (sleeps->load() == 0) std::this_thread::yield();
  for (uint32_t number = 0; number < 100; ++number) {
    ASSERT_EQ(SendFrame(guest_.get(), number, 200), ChannelStatus::kOk);
  }
  sleeper.join();
  EXPECT_EQ(sleeps->load(), 0u);
  EXPECT_LE(Bells(host_stream_), 1);
  munmap(control, 4096);
}

// Both ways at once, frames of all sizes, with waiters of both events on each side that sleep
// whenever they can: a lost wake-up shows as a test that takes 80 ms a frame, and ends after its
// time.
TEST_F(VmRings, WakesBothSidesUnderLoad) {
  constexpr uint32_t kCount = 4000;
  const auto bytes_of = [](uint32_t number) { return 16 + 8 * (number * 977 % 20'000); };
  const auto send = [&](Channel* channel) {
    for (uint32_t number = 0; number < kCount; ++number) {
      ASSERT_EQ(SendFrame(channel, number, bytes_of(number)), ChannelStatus::kOk);
    }
  };
  const auto receive = [&](Channel* channel) {
    for (uint32_t number = 0; number < kCount; ++number) {
      Frame frame;
      ChannelStatus status;
      while ((status = channel->TryReceive(&frame)) == ChannelStatus::kAgain) {
        ASSERT_EQ(channel->Wait(Channel::kReadable, 0, kPatience), ChannelStatus::kOk);
      }
      ASSERT_EQ(status, ChannelStatus::kOk);
      ASSERT_TRUE(FrameIs(frame, number, bytes_of(number)));
      channel->Release(frame);
    }
  };
  std::thread threads[] = {
      std::thread([&] { send(guest_.get()); }), std::thread([&] { receive(host_.get()); }),
      std::thread([&] { send(host_.get()); }), std::thread([&] { receive(guest_.get()); })};
  for (std::thread& thread : threads) thread.join();
}

// A guest that rings for nothing, and says of itself and of the host what is not true.
TEST_F(VmRings, NonsenseInBellsCostsTheHostNothing) {
  void* control =
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), kTestVmRingsOffset);
  ASSERT_NE(control, MAP_FAILED);
  auto* const bytes = static_cast<std::byte*>(control);
  std::atomic<bool> stop{false};
  std::thread hostile([&] {
    const std::vector<std::byte> bells(1000, std::byte{0xA5});
    for (uint32_t round = 0; !stop; ++round) {
      SendSome(guest_stream_.get(), bells, {});
      // Both bells, by ring_channel.h and ring_bells.h, but for what says that the host sleeps.
      for (const size_t at : {0x200, 0x204, 0x208, 0x280}) {
        reinterpret_cast<std::atomic<uint32_t>*>(bytes + at)->store(round * 0x9E3779B9u);
      }
    }
  });
  for (uint32_t number = 0; number < 200; ++number) {
    ASSERT_EQ(SendFrame(guest_.get(), number, 5000), ChannelStatus::kOk);
    Frame frame;
    ASSERT_EQ(ReceiveFrame(host_.get(), &frame), ChannelStatus::kOk);
    ASSERT_TRUE(FrameIs(frame, number, 5000));
    host_->Release(frame);
    EXPECT_EQ(host_->Wait(Channel::kReadable, 0, kMicrosecond), ChannelStatus::kAgain);
    // Whoever is said to sleep is rung for; a full stream does not stop the host.
    ASSERT_EQ(SendFrame(host_.get(), number, 64), ChannelStatus::kOk);
    ASSERT_EQ(ReceiveFrame(guest_.get(), &frame), ChannelStatus::kOk);
    guest_->Release(frame);
  }
  stop = true;
  hostile.join();
  // The head of the requests: more than the ring holds.
  reinterpret_cast<std::atomic<uint64_t>*>(bytes)->store(uint64_t{1} << 60);
  Frame frame;
  EXPECT_EQ(host_->TryReceive(&frame), ChannelStatus::kProtocol);
  munmap(control, 4096);
}

TEST_F(VmRings, GoesOnInAnotherProcessOfTheHost) {
  ASSERT_EQ(SendFrame(guest_.get(), 1, 3000), ChannelStatus::kOk);
  Receive(host_.get(), 1, 3000);
  ASSERT_EQ(SendFrame(host_.get(), 2, 64), ChannelStatus::kOk);
  ChannelHandover handover;
  ASSERT_TRUE(host_->Describe(&handover));
  EXPECT_TRUE(handover.in_vm);
  EXPECT_EQ(handover.memory_offset, kTestVmRingsOffset);
  absl::StatusOr<HostChannel> next =
      ResumeHostChannel(UniqueFd(dup(handover.socket)), UniqueFd(dup(handover.memory)), handover);
  ASSERT_TRUE(next.ok()) << next.status();
  host_->Abandon();
  host_.reset();
  ASSERT_EQ(SendFrame(guest_.get(), 3, 3000), ChannelStatus::kOk);
  Receive(next->channel.get(), 3, 3000);
  Receive(guest_.get(), 2, 64);
  EXPECT_STREQ(next->channel->name(), "vsock+rings");
}

TEST(VmRingsMemory, IsTheWholeRings) {
  const auto create = [](Bytes bytes, Bytes offset) {
    const UniqueFd memory(memfd_create("vm-memory", MFD_CLOEXEC));
    EXPECT_EQ(ftruncate(memory.get(), static_cast<off_t>(bytes)), 0);
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    const UniqueFd other(fds[1]);
    return RingChannel::CreateInVm(RingChannel::Side::kGuest, kTestRingSizes,
                                   {UniqueFd(dup(memory.get())), offset, false},
                                   UniqueFd(fds[0])) != nullptr;
  };
  const Bytes bytes = RingMemoryBytes(kTestRingSizes);
  EXPECT_TRUE(create(bytes + kVmMemoryUnit, kVmMemoryUnit));
  EXPECT_FALSE(create(bytes + kVmMemoryUnit - 1, kVmMemoryUnit));
  EXPECT_FALSE(create(bytes - 1, 0));
  EXPECT_FALSE(create(bytes, UINT64_MAX - kVmMemoryUnit + 1));
}

TEST(ClearVmMemory, LeavesZerosAndNothingElse) {
  const UniqueFd memory(memfd_create("vm-memory", MFD_CLOEXEC));
  const std::string dirt(3 * kVmMemoryUnit, 'x');
  ASSERT_EQ(write(memory.get(), dirt.data(), dirt.size()), static_cast<ssize_t>(dirt.size()));
  ASSERT_TRUE(ClearVmMemory(memory.get(), kVmMemoryUnit, kVmMemoryUnit).ok());
  std::string now(dirt.size(), 'y');
  ASSERT_EQ(pread(memory.get(), now.data(), now.size(), 0), static_cast<ssize_t>(now.size()));
  EXPECT_EQ(now, std::string(kVmMemoryUnit, 'x') + std::string(kVmMemoryUnit, '\0') +
                     std::string(kVmMemoryUnit, 'x'));
  EXPECT_FALSE(ClearVmMemory(-1, 0, kVmMemoryUnit).ok());
}

}  // namespace
}  // namespace consort
