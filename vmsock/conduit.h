// SPDX-License-Identifier: Apache-2.0
// vmsock/conduit.h: memory through which the bytes of one stream of a virtual machine go between
// the vsock device in consortd and a worker, so that a CPU copies them once each way.
//
//   guest RAM ──copy──► requests: a ring of bytes, in which the worker finds frames and from which
//                       a driver's copy engine reads their payloads
//   guest RAM ◄──copy── pieces: a ring of {offset, bytes}, in the order of the stream: frames that
//                       lie in `replies`, payloads where a copy engine has put them, in `bulk`
//
// The worker makes it (conduit_channel.h), once the stream has turned out to be a session. Both
// ends have the stream's socket besides, on which a descriptor of the memory says where it begins:
//
//   worker ── bytes of the stream ── 1 byte and the descriptor ── bells ...                ──►
//   device worker ◄─ bytes of the stream ── 1 byte and the descriptor ── bells ... ── device
//
// What comes after that byte goes through the memory. A bell is one byte of any value, sent only to
// an end that sleeps; the end of the socket is the end of the stream, behind what is in the memory.
// Memory by offset, each field with 128 bytes to itself:
//
//   offset  bytes  field                                                      stored by
//    0x000      8  mark: what this is, and its version                        worker, once
//    0x080      8  requests: position of the first byte                       device, once
//    0x100      8  requests: head, all before it was written                  device
//    0x180      8  requests: tail, all before it was released                 worker
//    0x200      8  pieces: head, their count so far                           worker
//    0x280      8  taken: bytes of pieces so far                              device
//    0x300      8  the worker sleeps until the head is here (all ones: no)    both
//    0x380      8  the worker sleeps until so much was taken                  both
//    0x400      8  the device sleeps until so many pieces are there           both
//    0x480      8  the device sleeps until the tail is here                   both
//   0x1000      .  pieces: u64 offset in this memory, u64 bytes, each
//        .      .  requests, then replies, then bulk
//
// Positions never wrap (2^64 bytes take centuries). The tail begins at 0 and the first byte at
// kConduitBeginBytes or a little after it: before it the worker puts what came through the socket,
// so that frames are whole there.
//
// Sleeping: an end stores what it waits for, looks once more, and sleeps. The other stores its
// index, then looks at what is waited for. All sequentially consistent: one of the two sees the
// other.
//
// The guest never sees this memory. Ends check each other's indexes and pieces all the same: what
// goes wrong in a worker that tenants share must not reach consortd, which ends that stream alone.
#ifndef CONSORT_VMSOCK_CONDUIT_H_
#define CONSORT_VMSOCK_CONDUIT_H_

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "vmsock/copy_crew.h"

namespace consort {

// As much as rings have (vmsock/limits.h): 14 pieces of bulk data, behind a device that is busy.
inline constexpr Bytes kConduitRequestBytes = 8 * kMiB;
// Before the first byte: at most as much has come through the socket, which is the guest's window
// and a socket's buffer.
inline constexpr Bytes kConduitBeginBytes = 2 * kMiB;
// Connections with more get no conduit.
inline constexpr Bytes kConduitWindowBytesMax = kConduitBeginBytes / 2;
// Frames on their way to the guest, as in a stream channel (kStreamSendBytes).
inline constexpr Bytes kConduitReplyBytes = 2 * kMiB;
// 16 pieces of bulk data and 512 small ones: all of a session's staging (host/limits.h).
inline constexpr Bytes kConduitBulkBytes = 10 * kMiB;
// On their way at once: each frame of bulk data takes three at most, and there are 16 of those;
// the rest is for frames between them.
inline constexpr uint32_t kConduitPieces = 256;

struct ConduitPiece {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

inline constexpr Bytes kConduitPiecesOffset = 0x1000;
inline constexpr Bytes kConduitRequestsOffset = 0x2000;
inline constexpr Bytes kConduitRepliesOffset = kConduitRequestsOffset + kConduitRequestBytes;
inline constexpr Bytes kConduitBulkOffset = kConduitRepliesOffset + kConduitReplyBytes;
inline constexpr Bytes kConduitBytes = kConduitBulkOffset + kConduitBulkBytes;
static_assert(kConduitPiecesOffset + kConduitPieces * sizeof(ConduitPiece) <=
              kConduitRequestsOffset);

// The position for which an end sleeps, if it does.
class ConduitAlarm {
 public:
  // Before the last look and the sleep.
  void Set(uint64_t position) { position_.store(position, std::memory_order_seq_cst); }
  void Clear() { Set(kNobody); }
  // After the index has become `position`: whether to send a bell. Says so once.
  bool Rings(uint64_t position) {
    const uint64_t awaited = position_.load(std::memory_order_seq_cst);
    return awaited <= position && awaited != kNobody &&
           position_.exchange(kNobody, std::memory_order_seq_cst) != kNobody;
  }

 private:
  static constexpr uint64_t kNobody = UINT64_MAX;
  std::atomic<uint64_t> position_;
};

struct ConduitControl {
  static constexpr uint64_t kMark = 0x31'54'49'55'44'4e'4f'43;  // "CONDUIT1"
  alignas(128) std::atomic<uint64_t> mark;
  alignas(128) std::atomic<uint64_t> requests_begin;
  alignas(128) std::atomic<uint64_t> requests_head;
  alignas(128) std::atomic<uint64_t> requests_tail;
  alignas(128) std::atomic<uint64_t> pieces_head;
  alignas(128) std::atomic<uint64_t> taken;
  alignas(128) ConduitAlarm worker_awaits_head;
  alignas(128) ConduitAlarm worker_awaits_taken;
  alignas(128) ConduitAlarm device_awaits_pieces;
  alignas(128) ConduitAlarm device_awaits_tail;
};
static_assert(sizeof(ConduitControl) <= kConduitPiecesOffset);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Bells, and the byte that a descriptor comes with.
inline constexpr std::byte kConduitBell{0};

// The device's end, without the socket. Owned by the device's thread; not thread safe. It copies
// nothing: it says what is to be copied, and shows what its owner has copied. Copies that it named
// are over before it goes.
class ConduitDeviceEnd {
 public:
  // For another image of the process.
  struct State {
    int memory = -1;
    bool begun = false;
    uint64_t begin = 0;
    uint64_t head = 0;
    uint64_t tail = 0;
    uint64_t credited = 0;
    uint64_t next_piece = 0;
    uint64_t piece_offset = 0;
    uint64_t taken = 0;
    bool operator==(const State&) const = default;
  };

  // Maps what a worker has made. kInvalidArgument: it is no such memory. kResourceExhausted: mmap.
  static absl::StatusOr<std::unique_ptr<ConduitDeviceEnd>> Create(UniqueFd memory);
  // Goes on with what Save told. Errors also where the numbers cannot be.
  static absl::StatusOr<std::unique_ptr<ConduitDeviceEnd>> Restore(UniqueFd memory,
                                                                   const State& state);
  // While nothing is being copied: all that was written is shown, all that was read is returned.
  State Save() const;
  ~ConduitDeviceEnd();
  ConduitDeviceEnd(const ConduitDeviceEnd&) = delete;
  ConduitDeviceEnd& operator=(const ConduitDeviceEnd&) = delete;

  int memory() const { return memory_.get(); }
  // The worker did what it must not; final.
  bool corrupt() const { return corrupt_; }

  // --- guest to worker ---

  // The next byte of the guest is the first of the ring; `went_before` came through the socket.
  // Before the descriptor is sent; Begun after it.
  void PrepareBegin(uint64_t went_before);
  void Begun() { begun_ = true; }
  bool begun() const { return begun_; }
  // Appends to `copies` those of `bytes` from `pieces`, which have as many, into room behind all
  // that was written before. False: no room.
  bool Write(std::span<const iovec> pieces, uint64_t bytes, std::vector<CopyPart>* copies);
  // The next `bytes` of what was written are copied: the worker sees them. True: it sleeps and
  // wants a bell.
  bool Show(uint64_t bytes);
  // Bytes that the guest may be told of as taken, beyond those of earlier calls: all that have a
  // place in the ring while a whole window of `window_bytes` fits behind them.
  uint64_t TakeCredit(uint64_t window_bytes);
  // Asks for a bell when TakeCredit will have given `more` bytes, if so many are in the ring. True:
  // it would already.
  bool AwaitCredit(uint64_t more, uint64_t window_bytes);

  // --- worker to guest ---

  // Whether Read would give a byte, or find the worker corrupt.
  bool HasPieces() { return next_piece_ != pieces_head_ || LoadPieces() || corrupt_; }
  // What lies in one place behind all that was read before. Empty: there is none now, or the worker
  // is corrupt.
  std::span<const std::byte> Read();
  // The last `bytes` of what Read gave last were not wanted: it gives them again.
  void Unread(uint64_t bytes);
  // The next `bytes` of what was read are copied: their memory is the worker's again. True: it
  // waits for that and wants a bell.
  bool Return(uint64_t bytes);
  // Asks for a bell at the next piece. True: there is one.
  bool AwaitPieces();

 private:
  ConduitDeviceEnd(UniqueFd memory, std::byte* base);
  uint64_t LoadTail();
  // Takes what the worker says of pieces. False: there is none that was not read.
  bool LoadPieces();

  const UniqueFd memory_;
  std::byte* const base_;
  ConduitControl* const control_;
  bool corrupt_ = false;

  bool begun_ = false;
  uint64_t begin_ = 0;
  uint64_t head_ = 0;      // all before it has its place
  uint64_t shown_ = 0;     // all before it is copied
  uint64_t tail_ = 0;      // the worker's claim, as checked last
  uint64_t credited_ = 0;  // of the bytes behind begin_

  uint64_t pieces_head_ = 0;  // the worker's claim, as checked last
  uint64_t next_piece_ = 0;
  uint64_t piece_offset_ = 0;  // in that piece
  uint64_t last_bytes_ = 0;    // of the piece before it, as it was when Read gave it
  uint64_t taken_ = 0;         // all before it is copied
};

}  // namespace consort

#endif  // CONSORT_VMSOCK_CONDUIT_H_
