// SPDX-License-Identifier: Apache-2.0
// host/session/redo_channel.h: what a session has in its channel's place while it carries out a log
// (redo_log.h) again: its requests come from the log, and of its answers those are kept that the
// program was not given.
//
//   RedoLog ──requests──▶ session ──answers──▶ given: compared, where they must be the same again
//                                              not given: kept, for the channel
//
// Owned by the session loop.
#ifndef CONSORT_HOST_SESSION_REDO_CHANNEL_H_
#define CONSORT_HOST_SESSION_REDO_CHANNEL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "host/session/redo_log.h"
#include "vmsock/channel.h"

namespace consort::host {

class RedoChannel final : public Channel {
 public:
  // `log` is borrowed, and unchanged, for this object's life. `signalled` says whether the device
  // has written that number there, `frees` whether memory is still to be freed, which allocations
  // wait for.
  RedoChannel(const RedoLog* log, std::function<bool(uint64_t address, uint64_t number)> signalled,
              std::function<bool()> frees)
      : log_(*log), signalled_(std::move(signalled)), frees_(std::move(frees)) {}

  // What was told to this call, as a print; nothing: the program does not know.
  std::optional<uint64_t> GivenTo(uint32_t call) const;
  // All requests were taken.
  bool done() const { return next_ == log_.size(); }
  // kAborted: an answer is another one than the program was given, and which. kInternal: what
  // cannot be.
  const absl::Status& status() const { return status_; }
  // Frames, in their order.
  std::vector<std::vector<std::byte>> TakeKept() { return std::move(kept_); }

  // Of the answer that is committed next: PrintOf.
  void set_print(uint64_t print) { print_ = print; }

  std::byte* TryReserve(uint32_t bytes) override;
  void Commit() override;
  ChannelStatus Flush() override { return ChannelStatus::kOk; }
  ChannelStatus TryReceive(Frame* frame) override;
  void Release(const Frame&) override { --held_; }
  // What is carried out again has its device.
  bool PutBack() override { return false; }
  ChannelStatus Wait(uint32_t events, Nanos spin, Nanos timeout) override;
  bool passes_descriptors() const override { return false; }
  bool SendDescriptor(int) override { return false; }
  int ReceiveDescriptor(Nanos) override { return -1; }
  bool Describe(ChannelHandover* handover) const override;
  void Abandon() override { closed_ = true; }
  bool Part() override { return false; }
  bool Rejoin(UniqueFd) override { return false; }
  void Close() override { closed_ = true; }
  const char* name() const override { return "redo"; }

 private:
  void Take(const wire::FrameHeader& header, std::span<const std::byte> body);
  void Keep();
  // Whether the program has waited for something before it sent this.
  bool MustWait(const Frame& frame) const;
  // Whether the program has what an entry asks for.
  bool Given(size_t index) const;

  const RedoLog& log_;
  const std::function<bool(uint64_t, uint64_t)> signalled_;
  const std::function<bool()> frees_;
  size_t next_ = 0;
  uint64_t print_ = 0;
  std::atomic<bool> closed_{
      false};                     // by Session::Stop, of any thread; relaxed: it is looked at again
  std::vector<std::byte> frame_;  // that is being sent
  absl::flat_hash_map<uint32_t, size_t> calls_;  // open ones: to the entry
  struct Transfer {
    size_t entry = 0;
    uint64_t left = 0;  // bytes that have not come
  };
  absl::flat_hash_map<uint64_t, Transfer> transfers_;  // likewise
  uint64_t held_ = 0;                                  // requests that were not released
  std::vector<std::vector<std::byte>> kept_;
  Bytes kept_bytes_ = 0;
  absl::Status status_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_REDO_CHANNEL_H_
