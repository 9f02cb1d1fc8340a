// SPDX-License-Identifier: Apache-2.0
// vmsock/vhost_user/vsock_device_test_support.h: the whole device through its socket: FakeFrontend
// is QEMU, FakeGuest the guest's driver, socket pairs the host's services. For tests only.
#ifndef CONSORT_VMSOCK_VHOST_USER_VSOCK_DEVICE_TEST_SUPPORT_H_
#define CONSORT_VMSOCK_VHOST_USER_VSOCK_DEVICE_TEST_SUPPORT_H_

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/inherited_fds.h"
#include "base/log.h"
#include "base/units.h"
#include "gtest/gtest.h"
#include "vmsock/vhost_user/device_state.h"
#include "vmsock/vhost_user/fake_frontend.h"
#include "vmsock/vhost_user/fake_guest.h"
#include "vmsock/vhost_user/vsock_device.h"

namespace consort::vhost_user {

inline constexpr uint32_t kRefusedPort = 1;
inline constexpr uint32_t kServicePort = 5000;
inline constexpr uint32_t kNotASocketPort = 2;
inline constexpr uint64_t kCid = 42;

// The same bytes for the same seed.
inline std::vector<std::byte> Pattern(size_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> result(AlignUp(bytes, 8));
  for (size_t i = 0; i < result.size(); i += 8) {
    const uint64_t value = random();
    std::memcpy(result.data() + i, &value, sizeof(value));
  }
  result.resize(bytes);
  return result;
}

// --- host ends: blocking, with a time limit set on the socket ---

inline bool WriteAll(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return true;
}

// Reads `bytes` bytes, or fewer if the stream ends.
inline std::vector<std::byte> ReadUpTo(int fd, size_t bytes) {
  std::vector<std::byte> result(bytes);
  size_t filled = 0;
  while (filled < bytes) {
    const ssize_t count = read(fd, result.data() + filled, bytes - filled);
    if (count <= 0) break;
    filled += static_cast<size_t>(count);
  }
  result.resize(filled);
  return result;
}

// The stream has ended, by end of file or reset; nothing is left in it.
inline bool AtEnd(int fd) {
  char byte = 0;
  const ssize_t count = read(fd, &byte, 1);
  return count == 0 || (count < 0 && errno == ECONNRESET);
}

class VsockDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    char path[] = "/tmp/vsock_device_test.XXXXXX";
    ASSERT_NE(mkdtemp(path), nullptr);
    directory_ = path;
    options_.socket_path = directory_ + "/vm.sock";
    options_.guest_cid = kCid;
  }

  void TearDown() override {
    guest_.reset();
    frontend_.reset();
    StopDevice();
    EXPECT_NE(access(options_.socket_path.c_str(), F_OK), 0) << "socket file left behind";
    rmdir(directory_.c_str());
  }

  void StartDevice() {
    auto device = VsockDevice::Create(options_, Handler());
    ASSERT_TRUE(device.ok()) << device.status();
    Run(*std::move(device));
  }

  void StopDevice() {
    if (device_ == nullptr) return;
    Halt();
    device_.reset();
  }

  void Run(std::unique_ptr<VsockDevice> device) {
    device_ = std::move(device);
    thread_ = std::thread([this] { run_status_ = device_->Run(); });
  }

  // The device is there and does nothing.
  void Halt() {
    device_->Stop();
    thread_.join();
    EXPECT_TRUE(run_status_.ok()) << run_status_;
  }

  // Socket pairs, whose other ends TakeHostEnd gives.
  ConnectHandler Handler() {
    return [this](uint32_t host_port, uint32_t) -> absl::StatusOr<UniqueFd> {
      if (host_port == kRefusedPort) return absl::NotFoundError("refused");
      if (host_port == kNotASocketPort) return UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC));
      int ends[2];
      PCHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
      const timeval limit{.tv_sec = FakeGuest::kTimeoutMs / 1000, .tv_usec = 0};
      setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
      setsockopt(ends[1], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
      std::lock_guard lock(mutex_);
      host_ends_.emplace_back(ends[1]);
      return UniqueFd(ends[0]);
    };
  }

  // Device, frontend and guest, ready to connect.
  void StartAll(uint64_t features = kFeaturesOffered,
                std::vector<Shape> rx_shapes = {{.lengths = {3776}, .indirect = true}}) {
    if (device_ == nullptr) {
      ASSERT_NO_FATAL_FAILURE(StartDevice());
    }
    frontend_ = std::make_unique<FakeFrontend>(options_.socket_path, features);
    ASSERT_EQ(frontend_->Initialise(), kCid);
    guest_ = std::make_unique<FakeGuest>(frontend_.get(), kCid, std::move(rx_shapes));
    frontend_->StartQueues();
  }

  // The host's end of the connection that was opened first of those not taken yet.
  UniqueFd TakeHostEnd() {
    std::lock_guard lock(mutex_);
    CHECK(!host_ends_.empty());
    UniqueFd fd = std::move(host_ends_.front());
    host_ends_.pop_front();
    return fd;
  }

  void CloseHostEnds() {
    std::lock_guard lock(mutex_);
    host_ends_.clear();
  }

  // A connected stream and its host's end.
  std::pair<std::unique_ptr<GuestStream>, UniqueFd> Connect(uint32_t guest_port,
                                                            uint32_t buf_alloc = 262144) {
    auto stream = std::make_unique<GuestStream>(guest_.get(), guest_port, kServicePort, buf_alloc);
    CHECK(stream->Connect());
    return {std::move(stream), TakeHostEnd()};
  }

  // A connection made now works both ways.
  void ExpectWorks(uint32_t guest_port) {
    auto [stream, host] = Connect(guest_port);
    const auto data = Pattern(1000, guest_port);
    EXPECT_TRUE(stream->SendAll(data));
    EXPECT_EQ(ReadUpTo(host.get(), data.size()), data);
    EXPECT_TRUE(WriteAll(host.get(), data));
    std::vector<std::byte> got;
    while (got.size() < data.size()) {
      const auto some = stream->ReceiveSome();
      if (some.empty()) break;
      got.insert(got.end(), some.begin(), some.end());
    }
    EXPECT_EQ(got, data);
    stream->Shutdown(kShutdownBoth);
    EXPECT_TRUE(stream->WaitReset());
    EXPECT_TRUE(AtEnd(host.get()));
  }

  // Writes `data`, and makes the device send a packet a byte until it may send no more unread ones.
  void SendUnreadPackets(GuestStream& stream, int host, std::span<const std::byte> data,
                         size_t limit) {
    // The next byte is written only when this one has come.
    for (size_t i = 0; i < limit; ++i) {
      ASSERT_TRUE(WriteAll(host, data.subspan(i, 1)));
      while (stream.unread_bytes() < i + 1) ASSERT_TRUE(guest_->Step(FakeGuest::kTimeoutMs));
    }
    ASSERT_TRUE(WriteAll(host, data.subspan(limit)));
    // The device may ask how far the guest is, and must not send more.
    while (guest_->Step(100) && stream.unread_packets_max() < limit) {
    }
    EXPECT_EQ(stream.unread_bytes(), limit);
  }

  std::vector<std::byte> ReceiveToEnd(GuestStream& stream) {
    std::vector<std::byte> got;
    while (true) {
      const auto some = stream.ReceiveSome();
      if (some.empty()) return got;
      got.insert(got.end(), some.begin(), some.end());
    }
  }

  // What exec does to a device: its descriptors stay, under their numbers, all else of it is gone.
  InheritedFds PassThroughExec(const VsockDeviceState& state) {
    const std::vector<int> numbers = DescriptorsOf(state);
    std::vector<UniqueFd> kept;
    for (const int number : numbers) kept.emplace_back(fcntl(number, F_DUPFD_CLOEXEC, 3));
    // Nor does a destructor remove the socket's file.
    const std::string aside = options_.socket_path + ".aside";
    std::filesystem::create_hard_link(options_.socket_path, aside);
    device_.reset();
    std::filesystem::rename(aside, options_.socket_path);
    for (size_t i = 0; i < numbers.size(); ++i) {
      PCHECK(dup3(kept[i].get(), numbers[i], 0) == numbers[i]);
    }
    return InheritedFds(numbers);
  }

  void Exchange() {
    Halt();
    const VsockDeviceState state = device_->Save();
    InheritedFds fds = PassThroughExec(state);
    auto restored = VsockDevice::Restore(options_, Handler(), state, &fds);
    ASSERT_TRUE(restored.ok()) << restored.status();
    for (const int number : DescriptorsOf(state)) {
      EXPECT_FALSE(fds.Take(number).valid()) << "nobody took " << number;
    }
    EXPECT_EQ((*restored)->Save(), state);
    Run(*std::move(restored));
  }

  std::vector<std::byte> Receive(GuestStream& stream, size_t bytes) {
    std::vector<std::byte> got;
    while (got.size() < bytes) {
      const auto some = stream.ReceiveSome();
      if (some.empty()) break;
      got.insert(got.end(), some.begin(), some.end());
    }
    return got;
  }

  std::string directory_;
  VsockDeviceOptions options_;
  std::unique_ptr<VsockDevice> device_;
  std::unique_ptr<FakeFrontend> frontend_;
  std::unique_ptr<FakeGuest> guest_;

 private:
  std::thread thread_;
  absl::Status run_status_;
  // Not absl::Mutex: ThreadSanitizer does not see into Debian's build of it. Guards host_ends_.
  std::mutex mutex_;
  std::deque<UniqueFd> host_ends_;
};

}  // namespace consort::vhost_user

#endif  // CONSORT_VMSOCK_VHOST_USER_VSOCK_DEVICE_TEST_SUPPORT_H_
