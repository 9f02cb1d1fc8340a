// SPDX-License-Identifier: Apache-2.0
// guest/session.h: this process's conversation with the worker of one device.
//
// Sending: any thread, one frame at a time under a lock, so the order of frames is the order of
// calls. Receiving: leader and followers. Of the threads that wait for a reply one reads the
// channel and hands out what arrives, copy results straight into their destination; the others
// sleep until theirs is there or the leader has left. So no thread of ours runs until a program
// uses host functions, for which there is one service thread (it must run them while no thread of
// the program is in a call). A sender that finds the channel full drains the receiving direction
// before it waits: the host may be unable to read on until it has got rid of copy results. Once the
// channel is lost every call returns CUDA_ERROR_DEVICE_UNAVAILABLE, at once; once the device is
// broken every call returns the error that broke it, and nothing is sent any more. Where the
// session can leave its connection there is a second thread, from the beginning, which does that:
// session_leaving.cc.
#ifndef CONSORT_GUEST_SESSION_H_
#define CONSORT_GUEST_SESSION_H_

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "gen/wire/requests.h"
#include "guest/mutex.h"
#include "vmsock/channel.h"
#include "vmsock/dial.h"
#include "vmsock/wire/handshake.h"

namespace consort::guest {

// What kernels have printed, by descriptor: stdout's, stderr's.
struct PrintedText {
  std::vector<std::byte> out;
  std::vector<std::byte> error;

  bool empty() const { return out.empty() && error.empty(); }
  void Swap(PrintedText* other) {
    out.swap(other->out);
    error.swap(other->error);
  }
  // Writes it where the program's own printf writes, and empties it. Without a lock of ours held:
  // the program may hold stdio's.
  void Show();
};

// A thread's place for the reply it waits for. Reused call after call; owned by the session.
struct ReplySlot {
  bool done = false;  // guarded by Session::receive_mutex_
  CUresult result = CUDA_SUCCESS;
  std::vector<std::byte> body;
  PrintedText printed;  // came before the reply
  bool in_use = false;
};

// Where the packed rows of a copy to the host go.
struct Transfer {
  std::byte* destination = nullptr;
  uint64_t pitch = 0;  // bytes between rows at the destination
  uint64_t width = 0;  // bytes of a row
  uint64_t rows = 0;
  uint64_t received = 0;
};

// Requests after which a stream that had nothing to do still has nothing: waiting, asking, memory
// that comes and goes.
template <class Request>
inline constexpr bool kLeavesIdle = false;
template <>
inline constexpr bool kLeavesIdle<wire::StreamSignalRequest> = true;
template <>
inline constexpr bool kLeavesIdle<wire::ContextSignalRequest> = true;
template <>
inline constexpr bool kLeavesIdle<wire::StreamSynchronizeRequest> = true;
template <>
inline constexpr bool kLeavesIdle<wire::ContextSynchronizeRequest> = true;
template <>
inline constexpr bool kLeavesIdle<wire::cuStreamQueryRequest> = true;
template <>
inline constexpr bool kLeavesIdle<wire::cuEventQueryRequest> = true;
template <>
inline constexpr bool kLeavesIdle<wire::MemAllocRequest> = true;
template <>
inline constexpr bool kLeavesIdle<wire::MemFreeRequest> = true;
template <>
inline constexpr bool kLeavesIdle<wire::MemGetInfoRequest> = true;

// In place of a stream of a context: all that it has.
inline constexpr uint64_t kAllStreams = 0;

class Session {
 public:
  // Takes the channel; `welcome` is what the host agreed to. Reserves the address window in this
  // process. `dial` is how the channel was got, borrowed for good; a session that has left it waits
  // so many seconds for another.
  Session(std::unique_ptr<Channel> channel, const wire::Welcome& welcome, const DialOptions& dial,
          uint32_t resume_seconds);
  // Where the session can leave its connection. False: there is no thread to be had.
  bool StartStandby();

  // False if the address window is taken by something else in this process.
  bool window_reserved() const { return window_reserved_; }
  const wire::Welcome& welcome() const { return welcome_; }
  // Host memory can be at one address here, in the worker and on the device.
  bool shares_memory() const {
    return welcome_.shared_host_bytes != 0 && (channel_->passes_descriptors() || in_vm_memory());
  }
  // That memory lies in what this virtual machine shares with its host, which may be full.
  bool in_vm_memory() const { return (welcome_.features & wire::kFeatureVmMemory) != 0; }
  // Memory of this process's own can be shared.
  bool shares_files() const {
    return welcome_.shared_host_bytes != 0 && channel_->passes_descriptors();
  }
  const char* channel_name() const { return channel_->name(); }

  // Sends a request that nobody waits for.
  template <class Request>
  CUresult Post(uint32_t context, const Request& request) {
    if (CUresult failed = failure(); failed != CUDA_SUCCESS) return failed;
    MutexLock lock(&send_mutex_);
    AwaitMaySend();
    return Send(context, 0, request);
  }

  // Sends a copy that precedes what comes later, if nothing but staged copies was sent since its
  // stream was quiet (SetQuiet), and tells whether it did. What another thread has sent before it
  // is this one's turn counts: it would be waited for by everybody.
  CUresult PostAhead(uint32_t context, const wire::CopyToDeviceRequest& request, bool* sent) {
    if (CUresult failed = failure(); failed != CUDA_SUCCESS) return failed;
    MutexLock lock(&send_mutex_);
    AwaitMaySend();
    *sent = IsQuiet(context, request.stream);
    return *sent ? Send(context, 0, request) : CUDA_SUCCESS;
  }

  // Sends two that belong together, with nothing between them, and tells the host once.
  template <class First, class Second>
  CUresult PostBoth(uint32_t context, const First& first, const Second& second) {
    if (CUresult failed = failure(); failed != CUDA_SUCCESS) return failed;
    MutexLock lock(&send_mutex_);
    AwaitMaySend();
    const CUresult result = Write(context, 0, first);
    return result == CUDA_SUCCESS ? Send(context, 0, second) : result;
  }

  // Sends a request and waits for its reply, whose fields go to `reply`; its spans are valid until
  // this thread's next call. Fields are decoded on success, and on errors that carry them.
  template <class Request>
  CUresult Ask(uint32_t context, const Request& request, typename Request::Reply* reply) {
    if (CUresult failed = failure(); failed != CUDA_SUCCESS) return failed;
    uint32_t call = 0;
    ReplySlot* slot = TakeSlot(&call);
    if (slot == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result;
    {
      MutexLock lock(&send_mutex_);
      AwaitMaySend();
      result = Send(context, call, request);
    }
    if (result == CUDA_SUCCESS) result = WaitFor(slot);
    if (result == CUDA_SUCCESS || !slot->body.empty()) {
      wire::Decoder decoder(slot->body);
      if (!reply->Decode(decoder) && result == CUDA_SUCCESS) result = Broken();
    }
    return result;
  }

  // Registers a destination for a CopyToHost; the id goes into the request. The transfer ends by
  // itself.
  uint64_t BeginTransfer(const Transfer& transfer);
  // Ends a transfer that the host has refused.
  void CancelTransfer(uint64_t id);
  // Whether any transfer has not arrived yet.
  bool TransfersOutstanding();
  // Whether a transfer that has not arrived yet writes into [start, start + bytes).
  bool TransferOverlaps(const void* start, uint64_t bytes);

  // What every call that needs the device answers: CUDA_SUCCESS until an error that lasts has been
  // seen. Source: CUDA driver API, CUresult ("any further CUDA work will return the same error").
  CUresult failure() const { return failure_.load(std::memory_order_relaxed); }

  // What becomes of a host function when its stream never gets to it, because of a failure().
  enum class AfterFailure : uint8_t { kRun, kDrop };
  // Runs `function(argument)` on the service thread when the host says that `callback`, the
  // returned id, is due; then tells the host to go on.
  uint64_t AddHostFunction(void (*function)(void* argument), void* argument, AfterFailure after);
  // Takes back a host function that the host was not told of. False: it has run, or is running,
  // because of a failure.
  bool CancelHostFunction(uint64_t callback);
  // Whether host functions are waiting to run.
  bool HostFunctionsOutstanding();

  // Receives what is there, unless another thread is about to. For threads that wait for something
  // else than a reply, so that failure() comes to be known.
  void HelpReceive();

  // How much was sent that a stream may be busy with, waiting and asking left out.
  struct Sent {
    uint64_t staged = 0;  // copies of data that the frame carries
    uint64_t work = 0;    // everything else
  };
  Sent sent() const {
    return {staged_sent_.load(std::memory_order_relaxed),
            work_sent_.load(std::memory_order_relaxed)};
  }
  // Notes that the stream, or kAllStreams of the context, had nothing left to do at some time after
  // `sent` was read.
  void SetQuiet(uint32_t context, uint64_t stream, const Sent& sent);
  // Whether nothing at all was sent, to any stream, since that stream was quiet.
  bool IsIdle(uint32_t context, uint64_t stream);
  // Whether nothing but staged copies was, and among them some whose calls returned as if they were
  // done (CopyToDevice.precedes).
  bool HasGoneAhead(uint32_t context, uint64_t stream);
  // Whether there have been any such copies, to any stream.
  bool any_gone_ahead() const { return ahead_sent_.load(std::memory_order_relaxed) != 0; }

  // The next descriptor that the host sent beside the frames; -1 if none comes.
  int ReceiveDescriptor();
  // Sends one beside the frames, before the request that it belongs to. False: it cannot be sent.
  bool SendDescriptor(int fd);

  // True on the thread that runs host functions, where CUDA calls are not permitted.
  static bool OnServiceThread();

  // Gives back the slot of a thread that ends.
  void ReturnSlot(ReplySlot* slot) {
    MutexLock lock(&receive_mutex_);
    slot->in_use = false;
  }

 private:
  struct HostFunctionEntry {
    uint64_t id = 0;
    void (*function)(void*) = nullptr;
    void* argument = nullptr;
    AfterFailure after_failure = AfterFailure::kDrop;
    bool due = false;
    bool running = false;
    PrintedText printed;  // came before it was due
  };

  // Whether nothing but staged copies was sent, to any stream, since that stream was quiet.
  bool IsQuiet(uint32_t context, uint64_t stream);
  // quiet_mutex_ held.
  bool IsQuietHeld(uint32_t context, uint64_t stream) const;
  // send_mutex_ held.
  template <class Request>
  CUresult Send(uint32_t context, uint32_t call, const Request& request) {
    if (CUresult result = Write(context, call, request); result != CUDA_SUCCESS) return result;
    return FlushAll() ? CUDA_SUCCESS : CUDA_ERROR_DEVICE_UNAVAILABLE;
  }
  // send_mutex_ held. What is written goes with the next that is sent.
  template <class Request>
  CUresult Write(uint32_t context, uint32_t call, const Request& request) {
    const uint32_t body_bytes = request.BodyBytes();
    const uint32_t frame_bytes = wire::FrameBytes(body_bytes);
    std::byte* at = Reserve(frame_bytes);
    if (at == nullptr) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    const wire::FrameHeader header{frame_bytes, static_cast<uint16_t>(Request::kOpcode), 0, call,
                                   context};
    std::memcpy(at, &header, sizeof header);
    wire::Encoder encoder(at + sizeof header, frame_bytes - sizeof header);
    request.Encode(encoder);
    channel_->Commit();
    // Only changed under the lock.
    if constexpr (!kLeavesIdle<Request>) {
      constexpr bool kStaged = std::is_same_v<Request, wire::CopyToDeviceRequest>;
      std::atomic<uint64_t>& count = kStaged ? staged_sent_ : work_sent_;
      count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
      if constexpr (kStaged) {
        if (request.precedes != 0)
          ahead_sent_.store(count.load(std::memory_order_relaxed), std::memory_order_relaxed);
      }
    }
    return CUDA_SUCCESS;
  }

  std::byte* Reserve(uint32_t frame_bytes);  // waits for room; null: channel lost
  bool FlushAll();
  ReplySlot* TakeSlot(uint32_t* call);
  CUresult WaitFor(ReplySlot* slot);
  CUresult Broken();           // logs once that the host broke the protocol; closes
  void Lost();                 // logs once that the connection is gone
  void Fail(CUresult result);  // sets failure() if nothing has failed before

  // Receives what is there. receive role held by the caller. False: the channel is lost.
  bool DrainReceived();
  void Handle(const Frame& frame);
  void HandleTransferData(const Frame& frame);
  void HandleDeviceOutput(const Frame& frame);
  void RunService();
  // Of this session's own; nobody waits for its end.
  bool StartThread(void* (*main)(void* session));
  static void* ServiceMain(void* session);

  // --- Leaving the connection. session_leaving.cc
  enum class Leaving : uint8_t { kStays, kAsked, kReady, kAway };
  static void* StandbyMain(void* session);
  void RunStandby();
  Leaving leaving();
  void HandleSessionLeaves(uint64_t number);
  void HandleSessionStays();
  // send_mutex_ held, and released meanwhile.
  void AwaitMaySend();
  void LetSend();
  // Whether the host may end the stream without anything being lost.
  bool MayEnd();
  // receive_mutex_ held: nothing more comes on this connection.
  void StreamEnded();
  void Leave();
  void Return();
  bool Reconnect();

  std::unique_ptr<Channel> channel_;
  const wire::Welcome welcome_;
  const DialOptions dial_;
  const uint32_t resume_seconds_;
  bool standby_ = false;  // there is the thread; before the session is used
  bool window_reserved_ = false;
  std::atomic<bool> lost_{false};
  std::atomic<bool> told_{false};
  // Relaxed: the value alone matters.
  std::atomic<CUresult> failure_{CUDA_SUCCESS};

  Mutex send_mutex_;
  Condition sendable_;
  bool may_send_ = true;  // guarded by send_mutex_; false: senders wait
  std::atomic<uint64_t> staged_sent_{0};
  std::atomic<uint64_t> work_sent_{0};
  std::atomic<uint64_t> ahead_sent_{0};  // staged_sent_ with the latest that precedes

  // The stream that was last seen without work, and when.
  Mutex quiet_mutex_;
  uint32_t quiet_context_ = 0;
  uint64_t quiet_stream_ = 0;
  Sent quiet_at_{UINT64_MAX, UINT64_MAX};

  // Leader election and everything that arrives.
  Mutex receive_mutex_;
  Condition received_;
  bool leader_ = false;
  Leaving leaving_ = Leaving::kStays;
  uint64_t leaving_number_ = 0;  // of SessionLeaves
  PrintedText printed_;          // for whom the next frame lets go on
  std::vector<ReplySlot*> slots_;
  std::vector<HostFunctionEntry> host_functions_;
  uint64_t next_host_function_ = 1;
  bool service_started_ = false;
  bool service_waiting_ = false;

  Mutex transfer_mutex_;
  std::vector<Transfer> transfers_;  // a free entry has rows == 0
};

}  // namespace consort::guest

#endif  // CONSORT_GUEST_SESSION_H_
