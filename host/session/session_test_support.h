// SPDX-License-Identifier: Apache-2.0
// host/session/session_test_support.h: a session over the CPU device and a guest's end of its
// channel, for tests that speak frames.
#ifndef CONSORT_HOST_SESSION_SESSION_TEST_SUPPORT_H_
#define CONSORT_HOST_SESSION_SESSION_TEST_SUPPORT_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "gen/wire/requests.h"
#include "host/control/messages.h"
#include "host/session/session.h"
#include "host/session/worker_device.h"
#include "vmsock/channel.h"
#include "vmsock/dial.h"

namespace consort::host {

// The process's CPU driver, loaded when first asked for.
const device::LoadedDriver& CpuDriver();
// The first device of it, or of it with some functions replaced.
std::unique_ptr<WorkerDevice> OpenDevice(const device::LoadedDriver& driver);

// The process's CPU device, opened when first asked for and kept: a driver is never unloaded.
const WorkerDevice& CpuDevice();

// Lets everybody go; kept.
Scheduler* NoScheduler();

// Likewise.
RateLimit* NoRate();

// Limits nobody; kept.
MemoryBroker* NoBroker();

// A guest id as the guest library makes it.
constexpr uint64_t GuestId(uint8_t kind, uint32_t index) {
  return uint64_t{kind} << 56 | uint64_t{1} << 32 | index;
}

// A context's default stream.
inline constexpr uint64_t kLegacy = 1;

// The first bytes of guest ids.
inline constexpr uint8_t kStreamKind = 2;
inline constexpr uint8_t kEventKind = 3;
inline constexpr uint8_t kLibraryKind = 4;
inline constexpr uint8_t kKernelKind = 5;

struct PeerOptions {
  bool rings = true;
  Bytes shared_host_bytes = 64 * kMiB;
  Scheduler* scheduler = NoScheduler();  // borrowed for the peer's life
  RateLimit* rate = NoRate();            // likewise
  MemoryBroker* broker = NoBroker();     // likewise
  Bytes memory_soft = 0;
  Bytes memory_hard = 0;
  uint64_t memory_wait_ms = 0;
  uint32_t priority = 0;
  const WorkerDevice* device = &CpuDevice();  // likewise
  std::string tenant = "test";
  uint32_t weight = 1;
  bool chains = false;                // of launches
  bool repeats = false;               // launches that come again and again have graphs
  ControlSocket* binds_by = nullptr;  // borrowed; null: the device is known
  ControlSocket* keeps_by = nullptr;  // likewise; null: it ends with its worker
};

// A test over a channel of each kind; the parameter: whether it has rings. To be instantiated with
// ::testing::Bool() and ChannelKind.
class ChannelsTest : public ::testing::TestWithParam<bool> {
 protected:
  PeerOptions Options() const {
    PeerOptions options;
    options.rings = GetParam();
    return options;
  }
};
inline std::string ChannelKind(const ::testing::TestParamInfo<bool>& info) {
  return info.param ? "Rings" : "Stream";
}

// One running session and its guest.
class SessionPeer {
 public:
  explicit SessionPeer(const PeerOptions& options = {});
  // Closes the channel and waits for the session.
  ~SessionPeer();

  Channel* channel() { return channel_.get(); }
  const wire::Welcome& welcome() const { return welcome_; }
  DeviceHealth& health() { return *health_; }
  int retired_count() const { return retired_; }

  // Sends a frame with any body; waits for room.
  void SendRaw(uint16_t opcode, uint32_t call, uint32_t context, std::span<const std::byte> body);
  // Sends a request that nobody waits for.
  template <class Request>
  void Post(const Request& request, uint32_t context = 1) {
    Send(request, 0, context);
  }
  // Sends a request and gives the call's number to Await.
  template <class Request>
  uint32_t Start(const Request& request, uint32_t context = 1) {
    const uint32_t call = next_call_++;
    Send(request, call, context);
    return call;
  }
  // Waits for the reply to `call`; nothing if the channel ends first. Other frames are kept.
  std::optional<CUresult> Await(uint32_t call, std::vector<std::byte>* body = nullptr);
  // Whether the reply has come, after taking in what is there.
  bool Arrived(uint32_t call);

  template <class Request>
  std::optional<CUresult> Ask(const Request& request, typename Request::Reply* reply = nullptr,
                              uint32_t context = 1) {
    const std::optional<CUresult> result = Await(Start(request, context), &last_body_);
    if (result == CUDA_SUCCESS && reply != nullptr) {
      wire::Decoder decoder(last_body_);
      if (!reply->Decode(decoder)) return std::nullopt;
    }
    return result;
  }
  std::optional<CUresult> Synchronize(uint64_t stream = 1, uint32_t context = 1);

  // Waits until the session has ended, whoever began; its account and whether it let go.
  bool AwaitEnd(SessionEnded* ended);
  // consortd's answer to a session that asks for its device.
  void Bind() {
    const std::lock_guard lock(session_ends_);
    if (session_ != nullptr) session_->TakeBound();
  }
  // consortd's wish that it goes to whoever has the other end of `link`, or is saved there; how
  // that ends is told on the session's thread.
  void MoveOut(UniqueFd link, const host::MoveOut& how,
               std::function<void(const MoveEnded&)> on_end) {
    const std::lock_guard lock(session_ends_);
    if (session_ != nullptr) session_->MoveOut(std::move(link), how, std::move(on_end));
  }
  // Closes the guest's end.
  void Close() { channel_->Close(); }

  // Bytes of a transfer, in the order of their offsets; those of later frames are there after
  // Await.
  std::vector<std::byte> Transfer(uint64_t transfer);
  // What kernels have printed on stdout, as far as frames were taken in.
  const std::string& printed() const { return printed_; }
  // Takes the number of a host function that is to run; waits for it.
  std::optional<uint64_t> AwaitHostFunction();
  struct Failure {
    CUresult result;
    size_t replies_before;  // that had come and were not awaited yet
  };
  // Waits until the session says that the device is broken; every time it has said so.
  std::vector<Failure> AwaitFailure();

 private:
  template <class Request>
  void Send(const Request& request, uint32_t call, uint32_t context) {
    std::vector<std::byte> body(request.BodyBytes());
    wire::Encoder encoder(body.data(), body.size());
    request.Encode(encoder);
    SendRaw(static_cast<uint16_t>(Request::kOpcode), call, context, body);
  }
  // Takes in one frame; false: none there, or the channel has ended.
  bool Take();

  int retired_ = 0;
  std::unique_ptr<DeviceHealth> health_;
  // ThreadSanitizer does not see that the rings, mapped twice, order what both threads do.
  std::mutex session_ends_;
  std::unique_ptr<Session> session_;
  std::thread thread_;
  SessionEnded ended_;
  bool clean_ = false;
  std::unique_ptr<Channel> channel_;
  bool channel_ended_ = false;
  wire::Welcome welcome_;
  uint32_t next_call_ = 1;
  std::vector<std::byte> last_body_;
  struct Reply {
    CUresult result;
    std::vector<std::byte> body;
  };
  std::map<uint32_t, Reply> replies_;
  std::map<uint64_t, std::map<uint64_t, std::vector<std::byte>>> transfers_;
  std::vector<uint64_t> host_functions_;
  std::string printed_;
  std::vector<Failure> failures_;
};

// `text` must outlive the span.
inline std::span<const std::byte> TextBytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// Asks where variable `name` of library 1 lies.
std::optional<CUresult> AskGlobal(SessionPeer* peer, std::string_view name,
                                  wire::GlobalGetReply* reply);

// Loads library 1: kernel `add`, which adds `value` to each of `count` words, with id 1, and what
// the PTX `more` has, whose `kernels` get the ids from 2 on. What was told of `add` goes to *reply
// if wanted; its views hold until the peer's next Ask.
void LoadLibrary(SessionPeer* peer, const std::string& more,
                 const std::vector<std::string>& kernels = {},
                 wire::KernelGetReply* reply = nullptr);

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_SESSION_TEST_SUPPORT_H_
