// SPDX-License-Identifier: Apache-2.0
// consortd and its workers as processes, over the CPU device.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "base/units.h"
#include "gen/wire/requests.h"
#include "host/daemon/event_loop.h"
#include "host/daemon/front_doors.h"
#include "vmsock/dial.h"

extern char** environ;

namespace consort::host {
namespace {

using ::testing::HasSubstr;

// A test that waits so long has failed. A worker starts within a second on an idle machine.
constexpr Nanos kPatience = 60 * kSecond;

// Kernels without parameters: one that writes where nothing is, one that never ends.
constexpr char kPtx[] = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry fault()
{
  .reg .b64 %rd1;
  mov.u64 %rd1, 64;
  st.global.u32 [%rd1], 1;
  ret;
}
.visible .entry endless()
{
again:
  bra again;
}
)";

std::string ReadAll(const std::string& path) {
  std::ifstream in(path);
  return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

class ProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/consortd-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    endpoint_ = "unix:" + socket_path();
  }
  void TearDown() override {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    std::filesystem::remove_all(folder_);
  }

  std::string socket_path() const { return folder_ + "/consortd.sock"; }

  void Spawn(std::vector<std::string> more) {
    const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
    std::vector<std::string> arguments = {(self.parent_path() / "consortd").string(),
                                          "--socket=" + socket_path(), "--vsock-port=off",
                                          "--metrics=off"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    output_.Reset(ends[0]);
    UniqueFd write_end(ends[1]);
    const std::string log = folder_ + "/log";
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0600);
    ASSERT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
  }

  // Starts consortd over CPU devices and waits for its ready line.
  void Start(std::vector<std::string> more = {}) {
    more.push_back("--device=cpu");
    Spawn(more);
    std::string line;
    const Nanos deadline = MonotonicNow() + kPatience;
    while (line.find('\n') == std::string::npos) {
      pollfd polled = {output_.get(), POLLIN, 0};
      const Nanos left = deadline - MonotonicNow();
      ASSERT_GT(left, 0) << Log();
      poll(&polled, 1, static_cast<int>(left / kMillisecond) + 1);
      char bytes[256];
      const ssize_t got = read(output_.get(), bytes, sizeof(bytes));
      ASSERT_GT(got, 0) << Log();
      line.append(bytes, static_cast<size_t>(got));
    }
    EXPECT_EQ(line, "consortd: ready\n");
  }

  // The exit status, once it has ended.
  int AwaitExit() {
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status) << "\n" << Log();
    return WEXITSTATUS(status);
  }

  std::string Log() const { return ReadAll(folder_ + "/log"); }

  DialOptions Options() const {
    DialOptions options;
    options.endpoint = endpoint_.c_str();
    options.description_hash = wire::kDescriptionHash;
    options.application = "process_test";
    return options;
  }

  std::unique_ptr<Channel> Open(uint32_t device, DialResult* result) {
    DialOptions options = Options();
    options.device = device;
    options.handshake_timeout = kPatience;
    std::unique_ptr<Channel> channel;
    consort::OpenSession(options, result, &channel);
    return channel;
  }

  // Sends a request and waits for its reply's result; nothing if the channel ends.
  template <class Request>
  static std::optional<uint32_t> Ask(Channel* channel, const Request& request) {
    const uint32_t bytes = wire::FrameBytes(request.BodyBytes());
    std::byte* at = channel->TryReserve(bytes);
    if (at == nullptr) return std::nullopt;
    const wire::FrameHeader header{bytes, static_cast<uint16_t>(request.kOpcode), 0, 1, 1};
    std::memcpy(at, &header, sizeof(header));
    wire::Encoder encoder(at + sizeof(header), bytes - sizeof(header));
    request.Encode(encoder);
    channel->Commit();
    channel->Flush();
    while (true) {
      Frame frame;
      const ChannelStatus status = channel->TryReceive(&frame);
      if (status == ChannelStatus::kAgain) {
        if (channel->Wait(Channel::kReadable, 0, kPatience) == ChannelStatus::kAgain) {
          return std::nullopt;
        }
        continue;
      }
      if (status != ChannelStatus::kOk) return std::nullopt;
      const wire::FrameHeader received = frame.header;
      channel->Release(frame);
      if ((received.flags & wire::kFrameReply) != 0) return received.value;  // else an event
    }
  }

  static std::optional<uint32_t> Synchronize(Channel* channel) {
    wire::StreamSynchronizeRequest request;
    request.stream = 1;
    return Ask(channel, request);
  }
  static bool Works(Channel* channel) { return Synchronize(channel) == 0u; }

  // Loads kPtx and launches its kernel `name` on the default stream.
  static void Launch(Channel* channel, const std::string& name) {
    const std::string ptx(kPtx, sizeof(kPtx));
    wire::ImageDataRequest image;
    image.image = 1;
    image.total = ptx.size();
    image.data = std::as_bytes(std::span(ptx.data(), ptx.size()));
    ASSERT_EQ(Ask(channel, image), 0u);
    wire::LibraryLoadRequest load;
    load.library = 10;
    load.image = 1;
    ASSERT_EQ(Ask(channel, load), 0u);
    wire::KernelGetRequest get;
    get.library = 10;
    get.kernel = 11;
    get.name = std::as_bytes(std::span(name.data(), name.size()));
    ASSERT_EQ(Ask(channel, get), 0u);
    wire::LaunchRequest launch;
    launch.kernel = 11;
    launch.stream = 1;
    launch.grid_x = launch.grid_y = launch.grid_z = 1;
    launch.block_x = launch.block_y = launch.block_z = 1;
    ASSERT_EQ(Ask(channel, launch), 0u);
  }

  // The pids of consortd's children.
  std::vector<pid_t> Workers() const {
    const std::string pid = std::to_string(pid_);
    std::ifstream children("/proc/" + pid + "/task/" + pid + "/children");
    return {std::istream_iterator<pid_t>(children), std::istream_iterator<pid_t>()};
  }

  std::string folder_;
  std::string endpoint_;
  pid_t pid_ = -1;
  UniqueFd output_;
};

TEST_F(ProcessTest, PresentsTheDevicesOfAFile) {
  const std::string file = folder_ + "/devices";
  std::ofstream(file) << "name=Big memory=128MiB\nname=Small memory=32MiB speed=0.5\n";
  Start({"--devices=" + file});
  std::array<wire::DeviceSnapshot, 4> devices;
  DialResult result;
  consort::QueryDevices(Options(), &result, devices);
  ASSERT_EQ(result.error, DialError::kNone) << result.text;
  EXPECT_EQ(result.welcome.device_count, 2u);
  EXPECT_STREQ(devices[0].name, "Big");
  EXPECT_STREQ(devices[1].name, "Small");
  EXPECT_EQ(devices[1].total_bytes, 32 * kMiB);
}

// What PyTorch's expandable segments want: reservations of 9/8 of the device's memory, several.
TEST_F(ProcessTest, GivesAWindowOfSeveralTimesTheDevicesMemory) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer leaves less address space than one window";
#endif
  const std::string file = folder_ + "/devices";
  std::ofstream(file) << "memory=141GiB\n";
  Start({"--devices=" + file});
  DialResult result;
  const auto channel = Open(0, &result);
  ASSERT_NE(channel, nullptr) << result.text;
  EXPECT_GE(result.welcome.window_bytes, 7 * 141 * kGiB);
  wire::VirtualReserveRequest reserve;
  reserve.bytes = 160 * kGiB;
  for (int i = 0; i < 6; ++i) EXPECT_EQ(Ask(channel.get(), reserve), 0u) << i;
}

TEST_F(ProcessTest, StartsServesAndStopsCleanly) {
  Start({"--devices=2", "--account=" + folder_ + "/account"});
  std::array<wire::DeviceSnapshot, 4> devices;
  DialResult result;
  consort::QueryDevices(Options(), &result, devices);
  ASSERT_EQ(result.error, DialError::kNone) << result.text;
  EXPECT_EQ(result.welcome.device_count, 2u);
  EXPECT_STRNE(devices[0].name, "");
  EXPECT_GT(devices[1].total_bytes, 0u);

  const std::vector<pid_t> workers = Workers();
  EXPECT_EQ(workers.size(), 2u);
  {
    auto first = Open(0, &result);
    ASSERT_NE(first, nullptr) << result.text;
    const uint64_t first_window = result.welcome.window_base;
    auto second = Open(1, &result);
    ASSERT_NE(second, nullptr) << result.text;
    EXPECT_NE(result.welcome.window_base, first_window);
    EXPECT_TRUE(Works(first.get()));
    EXPECT_TRUE(Works(second.get()));
    // Sessions that are open do not keep it from stopping.
    kill(pid_, SIGTERM);
    EXPECT_EQ(AwaitExit(), 0) << Log();
  }
  EXPECT_FALSE(std::filesystem::exists(socket_path()));
  for (const pid_t worker : workers) EXPECT_NE(kill(worker, 0), 0) << "worker " << worker;
  const std::string account = ReadAll(folder_ + "/account");
  EXPECT_EQ(std::count(account.begin(), account.end(), '\n'), 2);
  EXPECT_THAT(account, HasSubstr("\"application\":\"process_test\""));
  EXPECT_THAT(account, HasSubstr("\"vm\":\"local\""));
}

// What it calls device 1 stays that, or is refused.
TEST_F(ProcessTest, AProgramsDevicesKeepTheirNumbersWhenItsTenantMayUseFewer) {
  const std::string devices = folder_ + "/devices";
  std::ofstream(devices) << "name=Zero\nname=One\nname=Two memory=32MiB\n";
  const std::string tenants = folder_ + "/tenants.toml";
  const auto allow = [&](const std::string& gpus) {
    std::ofstream(tenants) << "[[tenant]]\nname = \"local\"\ngpus = " << gpus << "\n";
  };
  allow("[1, \"Two\"]");
  Start({"--devices=" + devices, "--tenants=" + tenants});
  std::array<wire::DeviceSnapshot, 4> shown;
  DialResult before;
  consort::QueryDevices(Options(), &before, shown);
  ASSERT_EQ(before.error, DialError::kNone) << before.text;
  ASSERT_EQ(before.welcome.device_count, 2u);
  EXPECT_STREQ(shown[0].name, "One");
  EXPECT_STREQ(shown[1].name, "Two");

  allow("[\"Two\"]");
  kill(pid_, SIGHUP);
  DialResult now;
  const Nanos deadline = MonotonicNow() + kPatience;
  do {
    consort::QueryDevices(Options(), &now, shown);
    ASSERT_LT(MonotonicNow(), deadline) << Log();
  } while (now.welcome.device_count != 1);
  EXPECT_STREQ(shown[0].name, "Two");
  const auto open = [this](uint32_t device, uint64_t assembly, DialResult* result) {
    DialOptions options = Options();
    options.device = device;
    options.assembly = assembly;
    options.handshake_timeout = kPatience;
    std::unique_ptr<Channel> channel;
    consort::OpenSession(options, result, &channel);
    return channel;
  };
  DialResult result;
  EXPECT_EQ(open(0, before.welcome.assembly, &result), nullptr);
  EXPECT_THAT(result.text, HasSubstr("device 0 is not this program's any more"));
  EXPECT_NE(open(1, before.welcome.assembly, &result), nullptr) << result.text;
  EXPECT_NE(open(0, now.welcome.assembly, &result), nullptr) << result.text;
  // Made up: what it was never shown.
  EXPECT_EQ(open(0, 1, &result), nullptr);
  EXPECT_EQ(open(1, 7, &result), nullptr);
  EXPECT_EQ(open(0, uint64_t{1} << 63, &result), nullptr);

  allow("[\"No such\"]");
  kill(pid_, SIGHUP);
  do {
    consort::QueryDevices(Options(), &now, shown);
    ASSERT_LT(MonotonicNow(), deadline) << Log();
  } while (now.error == DialError::kNone);
  EXPECT_EQ(now.error, DialError::kNoDevice);
  EXPECT_THAT(now.text, HasSubstr("tenant local may not use a GPU of this host, only No such"));
}

TEST_F(ProcessTest, ReplacesAWorkerThatWasKilled) {
  Start();
  const std::vector<pid_t> before = Workers();
  ASSERT_EQ(before.size(), 1u);
  DialResult result;
  auto lost = Open(0, &result);
  ASSERT_NE(lost, nullptr) << result.text;
  ASSERT_TRUE(Works(lost.get()));
  kill(before[0], SIGKILL);
  EXPECT_FALSE(Works(lost.get()));
  // A new session waits for the new worker. A query never stopped being answered.
  std::unique_ptr<Channel> channel;
  for (int attempt = 0; attempt < 10 && channel == nullptr; ++attempt) {
    channel = Open(0, &result);  // may still reach the dead worker's socket, and is then cut off
    if (channel != nullptr && !Works(channel.get())) channel.reset();
  }
  ASSERT_NE(channel, nullptr) << result.text << Log();
  const std::vector<pid_t> after = Workers();
  ASSERT_EQ(after.size(), 1u);
  EXPECT_NE(after[0], before[0]);
}

TEST_F(ProcessTest, AFaultIsStickyForItsWorkersSessionsAndNewOnesGetAnotherWorker) {
  constexpr uint32_t kIllegalAddress = 700;
  Start();
  const std::vector<pid_t> before = Workers();
  DialResult result;
  auto bystander = Open(0, &result);
  auto guilty = Open(0, &result);
  ASSERT_NE(bystander, nullptr);
  ASSERT_NE(guilty, nullptr);
  ASSERT_TRUE(Works(bystander.get()));
  Launch(guilty.get(), "fault");
  EXPECT_EQ(Synchronize(guilty.get()), kIllegalAddress);
  EXPECT_EQ(Synchronize(guilty.get()), kIllegalAddress);
  // They share a context, as packed tenants do.
  EXPECT_EQ(Synchronize(bystander.get()), kIllegalAddress);
  auto fresh = Open(0, &result);
  ASSERT_NE(fresh, nullptr) << result.text;
  EXPECT_TRUE(Works(fresh.get()));
  EXPECT_EQ(Synchronize(guilty.get()), kIllegalAddress);
  // The broken worker goes with its last session.
  guilty.reset();
  bystander.reset();
  const Nanos deadline = MonotonicNow() + kPatience;
  while (Workers().size() != 1 && MonotonicNow() < deadline) usleep(10000);
  const std::vector<pid_t> after = Workers();
  ASSERT_EQ(after.size(), 1u);
  EXPECT_NE(after[0], before[0]);
  EXPECT_TRUE(Works(fresh.get()));
}

TEST_F(ProcessTest, AKernelThatNeverEndsCostsItsWorkerAndNobodyElseATurn) {
  Start();
  DialResult result;
  const std::vector<pid_t> before = Workers();
  auto endless = Open(0, &result);
  ASSERT_NE(endless, nullptr);
  auto bystander = Open(0, &result);
  ASSERT_NE(bystander, nullptr) << result.text;
  Launch(endless.get(), "endless");
  endless.reset();  // leaves with the kernel running
  const auto await_workers = [this](size_t count) {
    const Nanos deadline = MonotonicNow() + kPatience;
    while (Workers().size() != count && MonotonicNow() < deadline) usleep(50000);
    return Workers();
  };
  EXPECT_EQ(await_workers(2).size(), 2u) << Log();
  EXPECT_THAT(Log(), HasSubstr("did not end within"));
  auto fresh = Open(0, &result);
  ASSERT_NE(fresh, nullptr) << result.text;
  EXPECT_TRUE(Works(fresh.get()));
  EXPECT_TRUE(Works(bystander.get()));
  bystander.reset();
  const std::vector<pid_t> after = await_workers(1);
  ASSERT_EQ(after.size(), 1u) << Log();
  EXPECT_NE(after, before);
  EXPECT_TRUE(Works(fresh.get()));
}

TEST_F(ProcessTest, ASilentClientHoldsUpNobody) {
  Start();
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 20; ++i) {
    silent.push_back(ConnectUnix(socket_path()));
    ASSERT_TRUE(silent.back().valid());
    // Half of them say the beginning of a Hello.
    const uint32_t magic = wire::kHelloMagic;
    if (i % 2 == 0) {
      ASSERT_EQ(send(silent.back().get(), &magic, sizeof(magic), 0), ssize_t{sizeof(magic)});
    }
  }
  DialResult result;
  auto channel = Open(0, &result);
  ASSERT_NE(channel, nullptr) << result.text;
  EXPECT_TRUE(Works(channel.get()));
}

TEST_F(ProcessTest, ClosesOnGarbageAndLivesOn) {
  Start();
  const UniqueFd garbage = ConnectUnix(socket_path());
  ASSERT_TRUE(garbage.valid());
  const std::string text = "GET / HTTP/1.1\r\n\r\n";
  ASSERT_EQ(send(garbage.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  pollfd polled = {garbage.get(), POLLIN, 0};
  ASSERT_EQ(poll(&polled, 1, static_cast<int>(kPatience / kMillisecond)), 1);
  EXPECT_NE(polled.revents & POLLHUP, 0);
  DialResult result;
  EXPECT_NE(Open(0, &result), nullptr) << result.text;
}

TEST_F(ProcessTest, RefusesWithATextThatSaysWhy) {
  Start();
  DialResult result;
  EXPECT_EQ(Open(7, &result), nullptr);
  EXPECT_EQ(result.error, DialError::kNoDevice);
  EXPECT_THAT(result.text, HasSubstr("no device 7"));
  DialOptions options = Options();
  options.description_hash = 1;
  std::unique_ptr<Channel> channel;
  consort::OpenSession(options, &result, &channel);
  EXPECT_EQ(result.error, DialError::kVersionMismatch);
  EXPECT_STRNE(result.text, "");
}

TEST_F(ProcessTest, ASecondDaemonOnTheSameSocketIsRefused) {
  Start();
  const pid_t first = pid_;
  Spawn({"--device=cpu"});
  EXPECT_EQ(AwaitExit(), EXIT_FAILURE);
  EXPECT_THAT(Log(), HasSubstr("another daemon"));
  pid_ = first;
  DialResult result;
  EXPECT_NE(Open(0, &result), nullptr) << result.text;
}

TEST_F(ProcessTest, SaysWhatIsMissingWhenThereIsNoDriver) {
  if (std::filesystem::exists("/dev/nvidiactl"))
    GTEST_SKIP() << "this machine has an NVIDIA driver";
  Spawn({"--device=nvidia"});
  EXPECT_EQ(AwaitExit(), EXIT_FAILURE);
  EXPECT_THAT(Log(), HasSubstr("libcuda.so.1"));
}

TEST_F(ProcessTest, RefusesFlagsThatItDoesNotKnow) {
  Spawn({"--no-such-flag"});
  EXPECT_EQ(AwaitExit(), 2);
}

}  // namespace
}  // namespace consort::host
