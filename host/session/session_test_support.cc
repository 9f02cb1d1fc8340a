// SPDX-License-Identifier: Apache-2.0
#include "host/session/session_test_support.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>

#include "base/log.h"
#include "host/control/control_socket.h"
#include "host/limits.h"
#include "vmsock/listen.h"

namespace consort::host {
namespace {

constexpr char kAddPtx[] = R"(
.version 8.0
.target sm_70
.address_size 64
.visible .entry add(.param .u64 words, .param .u32 count, .param .u32 value)
{
  .reg .pred %p;
  .reg .b32 %r<8>;
  .reg .b64 %rd<5>;
  ld.param.u64 %rd1, [words];
  ld.param.u32 %r1, [count];
  ld.param.u32 %r2, [value];
  mov.u32 %r3, %ctaid.x;
  mov.u32 %r4, %ntid.x;
  mov.u32 %r5, %tid.x;
  mad.lo.s32 %r6, %r3, %r4, %r5;
  setp.ge.u32 %p, %r6, %r1;
  @%p bra done;
  cvta.to.global.u64 %rd2, %rd1;
  mul.wide.u32 %rd3, %r6, 4;
  add.s64 %rd4, %rd2, %rd3;
  ld.global.u32 %r7, [%rd4];
  add.u32 %r7, %r7, %r2;
  st.global.u32 [%rd4], %r7;
done:
  ret;
}
)";

// A test that waits so long has failed.
constexpr Nanos kPatience = 60 * kSecond;

uint64_t NextWindow() {
  static std::atomic<uint64_t> next{0};
  return kWindowBase + (next++ % kWindowSlots) * kWindowSlotBytes;
}

}  // namespace

const device::LoadedDriver& CpuDriver() {
  static const auto* const driver = [] {
    const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
    auto loaded = device::LoadDriver(device::DriverKind::kCpu,
                                     (self.parent_path().parent_path() / "lib").string());
    CHECK(loaded.ok()) << loaded.status();
    return new device::LoadedDriver(*std::move(loaded));
  }();
  return *driver;
}

std::unique_ptr<WorkerDevice> OpenDevice(const device::LoadedDriver& driver) {
  auto opened = WorkerDevice::Open(driver, 0);
  CHECK(opened.ok()) << opened.status();
  return *std::move(opened);
}

const WorkerDevice& CpuDevice() {
  static const WorkerDevice* const device = OpenDevice(CpuDriver()).release();
  return *device;
}

Scheduler* NoScheduler() {
  static auto* const scheduler = new Scheduler(nullptr);
  return scheduler;
}

RateLimit* NoRate() {
  static auto* const rate = new RateLimit();
  return rate;
}

MemoryBroker* NoBroker() {
  static auto* const broker = [] {
    MemoryRules rules;
    rules.capacity = CpuDevice().snapshot().total_bytes;
    return new MemoryBroker(CpuDevice().driver(), rules, nullptr, nullptr);
  }();
  return broker;
}

SessionPeer::SessionPeer(const PeerOptions& options) {
  static std::atomic<int> count{0};
  const std::string path = ::testing::TempDir() + "/consort-session-" + std::to_string(getpid()) +
                           "-" + std::to_string(count++) + ".sock";
  auto listener = Listener::ListenUnix({path, 0600});
  CHECK(listener.ok()) << listener.status();
  const std::string endpoint = (*listener)->endpoint();

  DialResult result;
  std::thread guest([&] {
    DialOptions dial;
    dial.endpoint = endpoint.c_str();
    dial.description_hash = wire::kDescriptionHash;
    dial.application = "session_test";
    dial.rings = options.rings ? RingsWish::kOnly : RingsWish::kNever;
    consort::OpenSession(dial, &result, &channel_);
  });
  auto accepted = (*listener)->Accept(kPatience);
  CHECK(accepted.ok()) << accepted.status();
  auto hello = ReadHello(accepted->socket.get(), kPatience);
  CHECK(hello.ok()) << hello.status();
  OpenSession open;
  static std::atomic<uint64_t> next_session{1};
  open.session = next_session++;
  open.hello = *hello;
  SetText(open.tenant, options.tenant);
  open.weight = options.weight;
  open.memory_soft = options.memory_soft;
  open.memory_hard = options.memory_hard;
  open.memory_wait_ms = options.memory_wait_ms;
  open.priority = options.priority;
  open.window_base = NextWindow();
  open.window_bytes = kWindowSlotBytes;
  open.shared_host_bytes = options.shared_host_bytes;
  health_ = std::make_unique<DeviceHealth>([this](const std::string&) { ++retired_; });
  session_ =
      std::make_unique<Session>(*options.device, health_.get(), options.scheduler, options.rate,
                                options.broker, open, std::move(accepted->socket));
  if (options.keeps_by != nullptr) session_->KeepBy(options.keeps_by);
  if (options.chains) session_->ChainLaunches();
  if (options.repeats) session_->RepeatLaunches();
  if (options.binds_by != nullptr) session_->BindBy(options.binds_by);
  thread_ = std::thread([this] {
    clean_ = session_->Run(&ended_);
    if (clean_) {
      session_->Release();
      const std::lock_guard lock(session_ends_);
      session_.reset();
    }
  });
  guest.join();
  CHECK(channel_ != nullptr) << result.text;
  welcome_ = result.welcome;
  unlink((path + ".lock").c_str());
}

SessionPeer::~SessionPeer() {
  channel_->Close();
  if (thread_.joinable()) thread_.join();
  if (session_ == nullptr) return;
  // Has not let go of the device, so it stays; reachable, so that it is no leak.
  static auto* const kept =
      new std::vector<std::pair<std::unique_ptr<DeviceHealth>, std::unique_ptr<Session>>>;
  kept->emplace_back(std::move(health_), std::move(session_));
}

void SessionPeer::SendRaw(uint16_t opcode, uint32_t call, uint32_t context,
                          std::span<const std::byte> body) {
  const wire::FrameHeader header{wire::FrameBytes(static_cast<uint32_t>(body.size())), opcode, 0,
                                 call, context};
  std::byte* at;
  while ((at = channel_->TryReserve(header.bytes)) == nullptr) {
    while (Take()) {
    }
    if (channel_ended_) return;
    channel_->Wait(Channel::kReadable | Channel::kWritable, 0, kPatience);
  }
  std::memcpy(at, &header, sizeof(header));
  if (!body.empty()) std::memcpy(at + sizeof(header), body.data(), body.size());
  channel_->Commit();
  while (channel_->Flush() == ChannelStatus::kAgain && !channel_ended_) {
    while (Take()) {
    }
    channel_->Wait(Channel::kReadable | Channel::kWritable, 0, kPatience);
  }
}

bool SessionPeer::Take() {
  Frame frame;
  const ChannelStatus received = channel_->TryReceive(&frame);
  if (received != ChannelStatus::kOk) {
    channel_ended_ = received != ChannelStatus::kAgain;
    return false;
  }
  wire::Decoder decoder(frame.body);
  if ((frame.header.flags & wire::kFrameReply) != 0) {
    replies_[frame.header.call] = {static_cast<CUresult>(frame.header.value),
                                   {frame.body.begin(), frame.body.end()}};
  } else if (frame.header.opcode == static_cast<uint16_t>(wire::Opcode::kTransferData)) {
    wire::TransferDataEvent event;
    EXPECT_TRUE(event.Decode(decoder));
    transfers_[event.transfer][event.offset].assign(event.data.begin(), event.data.end());
  } else if (frame.header.opcode == static_cast<uint16_t>(wire::Opcode::kRunHostFunction)) {
    wire::RunHostFunctionEvent event;
    EXPECT_TRUE(event.Decode(decoder));
    host_functions_.push_back(event.callback);
  } else if (frame.header.opcode == static_cast<uint16_t>(wire::Opcode::kDeviceOutput)) {
    wire::DeviceOutputEvent event;
    EXPECT_TRUE(event.Decode(decoder));
    EXPECT_EQ(event.descriptor, 1u);
    printed_.append(reinterpret_cast<const char*>(event.text.data()), event.text.size());
  } else if (frame.header.opcode == static_cast<uint16_t>(wire::Opcode::kDeviceFailed)) {
    wire::DeviceFailedEvent event;
    EXPECT_TRUE(event.Decode(decoder));
    failures_.push_back({static_cast<CUresult>(event.result), replies_.size()});
  } else {
    ADD_FAILURE() << "frame " << frame.header.opcode << " from the host";
  }
  channel_->Release(frame);
  return true;
}

std::optional<CUresult> SessionPeer::Await(uint32_t call, std::vector<std::byte>* body) {
  while (!replies_.contains(call)) {
    if (Take()) continue;
    if (channel_ended_) return std::nullopt;
    if (channel_->Wait(Channel::kReadable, 0, kPatience) == ChannelStatus::kAgain) {
      ADD_FAILURE() << "no reply to call " << call;
      return std::nullopt;
    }
  }
  Reply reply = std::move(replies_[call]);
  replies_.erase(call);
  if (body != nullptr) *body = std::move(reply.body);
  return reply.result;
}

bool SessionPeer::Arrived(uint32_t call) {
  while (Take()) {
  }
  return replies_.contains(call);
}

std::optional<CUresult> SessionPeer::Synchronize(uint64_t stream, uint32_t context) {
  wire::StreamSynchronizeRequest request;
  request.stream = stream;
  return Ask(request, nullptr, context);
}

bool SessionPeer::AwaitEnd(SessionEnded* ended) {
  thread_.join();
  *ended = ended_;
  return clean_;
}

std::vector<std::byte> SessionPeer::Transfer(uint64_t transfer) {
  std::vector<std::byte> all;
  for (const auto& [offset, piece] : transfers_[transfer]) {
    EXPECT_EQ(offset, all.size());
    all.insert(all.end(), piece.begin(), piece.end());
  }
  return all;
}

std::optional<uint64_t> SessionPeer::AwaitHostFunction() {
  while (host_functions_.empty()) {
    if (Take()) continue;
    if (channel_ended_) return std::nullopt;
    if (channel_->Wait(Channel::kReadable, 0, kPatience) == ChannelStatus::kAgain) {
      ADD_FAILURE() << "no host function";
      return std::nullopt;
    }
  }
  const uint64_t callback = host_functions_.front();
  host_functions_.erase(host_functions_.begin());
  return callback;
}

std::vector<SessionPeer::Failure> SessionPeer::AwaitFailure() {
  while (failures_.empty()) {
    if (Take()) continue;
    if (channel_ended_) break;
    if (channel_->Wait(Channel::kReadable, 0, kPatience) == ChannelStatus::kAgain) {
      ADD_FAILURE() << "no word of the failure";
      break;
    }
  }
  return failures_;
}

std::optional<CUresult> AskGlobal(SessionPeer* peer, std::string_view name,
                                  wire::GlobalGetReply* reply) {
  wire::GlobalGetRequest get;
  get.library = GuestId(kLibraryKind, 1);
  get.name = TextBytes(name);
  return peer->Ask(get, reply);
}

void LoadLibrary(SessionPeer* peer, const std::string& more,
                 const std::vector<std::string>& kernels, wire::KernelGetReply* reply) {
  const std::string ptx = kAddPtx + more;
  wire::ImageDataRequest image;
  image.image = 5;
  image.total = ptx.size() + 1;
  image.data = std::as_bytes(std::span(ptx.c_str(), ptx.size() + 1));
  peer->Post(image);
  wire::LibraryLoadRequest load;
  load.library = GuestId(kLibraryKind, 1);
  load.image = 5;
  wire::LibraryLoadReply loaded;
  ASSERT_EQ(peer->Ask(load, &loaded, 0), CUDA_SUCCESS);
  wire::KernelGetRequest get;
  get.library = GuestId(kLibraryKind, 1);
  wire::KernelGetReply kernel;
  uint32_t index = 2;
  for (const std::string& name : kernels) {
    get.kernel = GuestId(kKernelKind, index++);
    get.name = std::as_bytes(std::span(name));
    ASSERT_EQ(peer->Ask(get, &kernel, 0), CUDA_SUCCESS);
  }
  const std::string_view add = "add";
  get.kernel = GuestId(kKernelKind, 1);
  get.name = std::as_bytes(std::span(add));
  ASSERT_EQ(peer->Ask(get, reply != nullptr ? reply : &kernel, 0), CUDA_SUCCESS);
}

}  // namespace consort::host
