// SPDX-License-Identifier: Apache-2.0
#include "vmsock/conduit.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace consort {
namespace {

// Positions of the ring in which a byte is free, less the window that the guest was promised.
uint64_t CreditBeyondTail(uint64_t window_bytes) { return kConduitRequestBytes - window_bytes; }

}  // namespace

ConduitDeviceEnd::ConduitDeviceEnd(UniqueFd memory, std::byte* base)
    : memory_(std::move(memory)), base_(base), control_(reinterpret_cast<ConduitControl*>(base)) {}

ConduitDeviceEnd::~ConduitDeviceEnd() { munmap(base_, kConduitBytes); }

absl::StatusOr<std::unique_ptr<ConduitDeviceEnd>> ConduitDeviceEnd::Create(UniqueFd memory) {
  const int seals = fcntl(memory.get(), F_GET_SEALS);
  struct stat file {};
  // What could still shrink would be a SIGBUS later.
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(memory.get(), &file) != 0 ||
      static_cast<Bytes>(file.st_size) != kConduitBytes) {
    return absl::InvalidArgumentError("no memory of a conduit");
  }
  void* base = mmap(nullptr, kConduitBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("mapping a conduit: ", strerror(errno)));
  }
  std::unique_ptr<ConduitDeviceEnd> end(
      new ConduitDeviceEnd(std::move(memory), static_cast<std::byte*>(base)));
  if (end->control_->mark.load(std::memory_order_acquire) != ConduitControl::kMark) {
    return absl::InvalidArgumentError("no memory of a conduit, or of another version");
  }
  return end;
}

absl::StatusOr<std::unique_ptr<ConduitDeviceEnd>> ConduitDeviceEnd::Restore(UniqueFd memory,
                                                                            const State& state) {
  ASSIGN_OR_RETURN(std::unique_ptr<ConduitDeviceEnd> end, Create(std::move(memory)));
  if (state.begin > state.head || state.tail > state.head ||
      state.head - state.tail > kConduitRequestBytes || state.credited > state.head - state.begin ||
      state.piece_offset > kConduitBytes) {
    return absl::InvalidArgumentError("positions that a conduit cannot have");
  }
  end->begun_ = state.begun;
  end->begin_ = state.begin;
  end->head_ = end->shown_ = state.head;
  end->tail_ = state.tail;
  end->credited_ = state.credited;
  end->next_piece_ = end->pieces_head_ = state.next_piece;
  end->piece_offset_ = state.piece_offset;
  end->taken_ = state.taken;
  return end;
}

ConduitDeviceEnd::State ConduitDeviceEnd::Save() const {
  CHECK_EQ(shown_, head_);
  return {.memory = memory_.get(),
          .begun = begun_,
          .begin = begin_,
          .head = head_,
          .tail = tail_,
          .credited = credited_,
          .next_piece = next_piece_,
          .piece_offset = piece_offset_,
          .taken = taken_};
}

// ---- guest to worker ----

void ConduitDeviceEnd::PrepareBegin(uint64_t went_before) {
  // Frames are multiples of 8 bytes, as are greetings: they stay aligned.
  begin_ = head_ = shown_ = kConduitBeginBytes + went_before % 8;
  control_->requests_head.store(head_, std::memory_order_relaxed);
  // Partner: the worker's load, after it has the descriptor that is sent after this.
  control_->requests_begin.store(begin_, std::memory_order_release);
}

uint64_t ConduitDeviceEnd::LoadTail() {
  // Partner: the worker's store when it releases. Sequentially consistent for AwaitCredit, which
  // has set its alarm.
  const uint64_t tail = control_->requests_tail.load(std::memory_order_seq_cst);
  if (tail < tail_ || tail > shown_) {
    corrupt_ = true;
  } else {
    tail_ = tail;
  }
  return tail_;
}

bool ConduitDeviceEnd::Write(std::span<const iovec> pieces, uint64_t bytes,
                             std::vector<CopyPart>* copies) {
  if (bytes > kConduitRequestBytes - (head_ - tail_) &&
      bytes > kConduitRequestBytes - (head_ - LoadTail())) {
    return false;
  }
  std::byte* const ring = base_ + kConduitRequestsOffset;
  for (const iovec& piece : pieces) {
    const std::byte* from = static_cast<const std::byte*>(piece.iov_base);
    for (uint64_t left = piece.iov_len; left > 0;) {
      const uint64_t at = head_ & (kConduitRequestBytes - 1);
      const uint64_t count = std::min(left, kConduitRequestBytes - at);
      copies->push_back({ring + at, from, count});
      head_ += count;
      from += count;
      left -= count;
    }
  }
  return true;
}

bool ConduitDeviceEnd::Show(uint64_t bytes) {
  CHECK_LE(bytes, head_ - shown_);
  shown_ += bytes;
  // Partner: the worker's loads. Sequentially consistent: before the look at its alarm.
  control_->requests_head.store(shown_, std::memory_order_seq_cst);
  return control_->worker_awaits_head.Rings(shown_);
}

uint64_t ConduitDeviceEnd::TakeCredit(uint64_t window_bytes) {
  if (!begun_ || credited_ == head_ - begin_) return 0;
  const uint64_t end = std::min(head_, LoadTail() + CreditBeyondTail(window_bytes));
  const uint64_t credited = std::max(end, begin_ + credited_) - begin_;
  return credited - std::exchange(credited_, credited);
}

bool ConduitDeviceEnd::AwaitCredit(uint64_t more, uint64_t window_bytes) {
  if (!begun_ || more > head_ - begin_ - credited_) return false;
  const uint64_t wanted = begin_ + credited_ + more;
  const uint64_t beyond = CreditBeyondTail(window_bytes);
  if (wanted <= beyond) return true;
  control_->device_awaits_tail.Set(wanted - beyond);
  return LoadTail() >= wanted - beyond;
}

// ---- worker to guest ----

bool ConduitDeviceEnd::LoadPieces() {
  if (corrupt_) return false;
  // Partner: the worker's store in Flush: pieces, and what they name, come first. Sequentially
  // consistent for AwaitPieces, which has set its alarm.
  const uint64_t head = control_->pieces_head.load(std::memory_order_seq_cst);
  if (head < pieces_head_ || head - next_piece_ > kConduitPieces) {
    corrupt_ = true;
    return false;
  }
  pieces_head_ = head;
  return head != next_piece_;
}

std::span<const std::byte> ConduitDeviceEnd::Read() {
  if (next_piece_ == pieces_head_ && !LoadPieces()) return {};
  ConduitPiece piece;
  std::memcpy(&piece,
              base_ + kConduitPiecesOffset + next_piece_ % kConduitPieces * sizeof(ConduitPiece),
              sizeof(piece));
  if (piece.offset < kConduitRepliesOffset || piece.offset > kConduitBytes ||
      piece.bytes > kConduitBytes - piece.offset || piece.bytes <= piece_offset_) {
    corrupt_ = true;
    return {};
  }
  ++next_piece_;
  last_bytes_ = piece.bytes;
  const uint64_t offset = std::exchange(piece_offset_, 0);
  return {base_ + piece.offset + offset, piece.bytes - offset};
}

void ConduitDeviceEnd::Unread(uint64_t bytes) {
  if (bytes == 0) return;
  CHECK_EQ(piece_offset_, 0u);
  CHECK_LE(bytes, last_bytes_);
  --next_piece_;
  piece_offset_ = last_bytes_ - bytes;
}

bool ConduitDeviceEnd::Return(uint64_t bytes) {
  taken_ += bytes;
  // Partner: the worker's loads: it may write again where was read. Sequentially consistent: before
  // the look at its alarm.
  control_->taken.store(taken_, std::memory_order_seq_cst);
  return control_->worker_awaits_taken.Rings(taken_);
}

bool ConduitDeviceEnd::AwaitPieces() {
  control_->device_awaits_pieces.Set(next_piece_ + 1);
  return LoadPieces() || corrupt_;
}

}  // namespace consort
