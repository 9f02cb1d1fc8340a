// SPDX-License-Identifier: Apache-2.0
#include "host/session/redo_log.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file_io.h"
#include "base/fnv.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "gen/wire/requests.h"
#include "host/limits.h"

namespace consort::host {
namespace {

constexpr uint64_t kRedoMark = 0x31'676f6c'6f646572;  // "redolog1"
constexpr Bytes kEntriesAt = 4 * kKiB;
// Positions are multiples of 8.
constexpr uint64_t kHasAll = 2;
constexpr Bytes kFileBytes = kEntriesAt + kRedoBytesMax;

// Stores of one process are seen in their order by who reads after its death: the compiler's order
// is what is needed.
void Store(uint64_t* field, uint64_t value) {
  std::atomic_ref(*field).store(value, std::memory_order_release);
}

}  // namespace

struct RedoHeader {
  uint64_t mark;
  RedoBase base;
  RedoBase next;
  uint64_t bytes;
  uint64_t received;
  uint64_t phase;
  uint64_t unused[8];
  char why[256];
};

struct RedoLog::EntryHeader {
  uint64_t received;
  uint64_t answered;
  uint64_t print;
  uint32_t frame_bytes;
  uint32_t kind;
  wire::FrameHeader frame;
};

RedoLog::RedoLog(UniqueFd file, std::byte* memory, Phase phase)
    : file_(std::move(file)),
      memory_(memory),
      page_(reinterpret_cast<RedoHeader*>(memory)),
      phase_(phase) {}

RedoLog::~RedoLog() { munmap(memory_, kFileBytes); }

absl::StatusOr<std::unique_ptr<RedoLog>> RedoLog::Map(UniqueFd file) {
  static_assert(offsetof(RedoHeader, base) == 0x008 && offsetof(RedoHeader, bytes) == 0x028 &&
                offsetof(RedoHeader, phase) == 0x038 && offsetof(RedoHeader, why) == 0x080 &&
                sizeof(RedoHeader) <= kEntriesAt && offsetof(EntryHeader, frame) == 32);
  void* mapped = mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("mapping a log: ", strerror(errno)));
  }
  return std::unique_ptr<RedoLog>(
      new RedoLog(std::move(file), static_cast<std::byte*>(mapped), kSpoiled));
}

absl::StatusOr<std::unique_ptr<RedoLog>> RedoLog::Create() {
  UniqueFd file(memfd_create("consort-redo", MFD_CLOEXEC));
  if (!file.valid() || ftruncate(file.get(), kFileBytes) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("making a log: ", strerror(errno)));
  }
  ASSIGN_OR_RETURN(auto made, Map(std::move(file)));
  made->Explain("there is no checkpoint of it yet");
  made->page_->phase = kSpoiled;
  made->page_->mark = kRedoMark;
  return made;
}

absl::StatusOr<std::unique_ptr<RedoLog>> RedoLog::TakeUp(UniqueFd file) {
  if (lseek(file.get(), 0, SEEK_END) != static_cast<off_t>(kFileBytes)) {
    return absl::InvalidArgumentError("its log is not whole");
  }
  ASSIGN_OR_RETURN(auto taken, Map(std::move(file)));
  if (taken->page_->mark != kRedoMark || taken->page_->phase != kWhole ||
      taken->page_->bytes > kRedoBytesMax) {
    return absl::FailedPreconditionError("its log cannot be gone on with");
  }
  taken->phase_ = kWhole;
  // Whoever was writing a checkpoint writes it for a session that is over.
  taken->page_->next = {};
  const uint64_t bytes = taken->page_->bytes;
  while (taken->end_ < bytes) {
    const EntryHeader& entry = *taken->HeaderAt(static_cast<uint32_t>(taken->end_));
    const uint64_t left = bytes - taken->end_;
    if (left < sizeof(EntryHeader) || !wire::FrameHeaderValid(entry.frame) ||
        entry.frame.bytes != entry.frame_bytes ||
        offsetof(EntryHeader, frame) + entry.frame_bytes > left) {
      return absl::InvalidArgumentError("its log is not whole");
    }
    taken->offsets_.push_back(static_cast<uint32_t>(taken->end_));
    taken->end_ += offsetof(EntryHeader, frame) + entry.frame_bytes;
  }
  return taken;
}

RedoLog::EntryHeader* RedoLog::HeaderAt(uint32_t offset) const {
  return reinterpret_cast<EntryHeader*>(memory_ + kEntriesAt + offset);
}

void RedoLog::Explain(const std::string& why) {
  const size_t bytes = std::min(why.size(), sizeof(page_->why) - 1);
  memcpy(page_->why, why.data(), bytes);
  memset(page_->why + bytes, 0, sizeof(page_->why) - bytes);
}

void RedoLog::SetPhase(Phase phase) {
  phase_ = phase;
  // An exchange, so that neither compiler nor processor lets anything that follows come before it.
  std::atomic_ref(page_->phase).exchange(phase, std::memory_order_seq_cst);
}

void RedoLog::Clear() {
  // The memory of a long log goes back.
  if (end_ > kEntriesAt) madvise(memory_ + kEntriesAt, kRedoBytesMax, MADV_REMOVE);
  end_ = 0;
  offsets_.clear();
  rested_ = 0;
  calls_.clear();
  transfers_.clear();
}

void RedoLog::Announce(const RedoBase& next) { page_->next = next; }

void RedoLog::Begin(const RedoBase& base, uint64_t received) {
  // Until the phase is stored, who reads it finds `next`, which is the same checkpoint.
  CHECK(page_->next == base);
  Clear();
  Store(&page_->bytes, 0);
  Store(&page_->received, received);
  page_->base = base;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  SetPhase(kWhole);
  page_->next = {};
}

void RedoLog::Spoil(const std::string& why) {
  if (phase_ == kSpoiled) return;
  Explain(why);
  SetPhase(kSpoiled);
  Clear();
}

void RedoLog::Loosen(const std::string& why) {
  if (phase_ != kWhole) return;
  Explain(why);
  SetPhase(kLoose);
}

void RedoLog::Rest() {
  if (phase_ == kSpoiled) return;
  // All that was asked is answered, by data or a word that the device has written, if not by a
  // reply.
  calls_.clear();
  transfers_.clear();
  for (; rested_ < offsets_.size(); ++rested_) {
    EntryHeader* const entry = HeaderAt(offsets_[rested_]);
    if (entry->kind == static_cast<uint32_t>(RequestRedo::kAsks)) Store(&entry->answered, kHasAll);
  }
  DropAnswered();
  if (phase_ == kLoose) SetPhase(kWhole);
}

void RedoLog::Expect(const EntryHeader& entry, uint32_t offset) {
  if (entry.frame.call != 0) calls_[entry.frame.call] = offset;
  if (entry.frame.opcode != static_cast<uint16_t>(wire::Opcode::kCopyToHost)) return;
  wire::CopyToHostRequest request;
  wire::Decoder decoder({reinterpret_cast<const std::byte*>(&entry.frame) + sizeof(entry.frame),
                         entry.frame.bytes - sizeof(entry.frame)});
  if (request.Decode(decoder)) {
    transfers_[request.transfer] = {offset, request.width * request.rows};
  }
}

void RedoLog::Append(const Frame& frame, RequestRedo kind, uint64_t received) {
  if (phase_ == kSpoiled) return;
  const uint64_t bytes = offsetof(EntryHeader, frame) + frame.header.bytes;
  if (bytes > kRedoBytesMax - end_) {
    return Spoil(absl::StrCat("it did too much since its checkpoint: more than ",
                              kRedoBytesMax / kMiB, " MiB of requests"));
  }
  const auto offset = static_cast<uint32_t>(end_);
  EntryHeader* const entry = HeaderAt(offset);
  entry->received = received;
  entry->answered = 0;
  entry->print = 0;
  entry->frame_bytes = frame.header.bytes;
  entry->kind = static_cast<uint32_t>(kind);
  entry->frame = frame.header;
  memcpy(reinterpret_cast<std::byte*>(&entry->frame) + sizeof(entry->frame), frame.body.data(),
         frame.body.size());
  offsets_.push_back(offset);
  end_ += bytes;
  // The entry is there, and with it the position after it: who reads `bytes` first takes that of
  // the last entry.
  std::atomic_ref(page_->bytes).exchange(end_, std::memory_order_seq_cst);
  Expect(*entry, offset);
}

void RedoLog::Pass(uint64_t received) { Store(&page_->received, received); }

void RedoLog::Answer(uint32_t call, uint64_t print, uint64_t position) {
  const auto asked = calls_.find(call);
  if (asked == calls_.end()) return;
  EntryHeader* const entry = HeaderAt(asked->second);
  entry->print = print;
  std::atomic_ref(entry->answered).exchange(position + 1, std::memory_order_seq_cst);
  calls_.erase(asked);
}

void RedoLog::AnswerTransfer(uint64_t transfer, uint64_t offset, uint64_t bytes,
                             uint64_t position) {
  const auto asked = transfers_.find(transfer);
  if (asked == transfers_.end()) return;
  if (offset != 0 || bytes != asked->second.bytes) {
    return Loosen("it had a part of the data of a copy to the host");
  }
  EntryHeader* const entry = HeaderAt(asked->second.offset);
  std::atomic_ref(entry->answered).exchange(position + 1, std::memory_order_seq_cst);
  transfers_.erase(asked);
}

void RedoLog::DropAnswered() {
  while (!offsets_.empty()) {
    const EntryHeader& last = *HeaderAt(offsets_.back());
    if (last.kind != static_cast<uint32_t>(RequestRedo::kAsks) || last.answered == 0) break;
    // Whoever dies between the two has an entry too many, which was answered.
    Store(&page_->received, std::max(page_->received, last.received));
    end_ = offsets_.back();
    offsets_.pop_back();
    Store(&page_->bytes, end_);
  }
  rested_ = std::min(rested_, offsets_.size());
}

RedoLog::Entry RedoLog::At(size_t index) const {
  const EntryHeader& header = *HeaderAt(offsets_[index]);
  Entry entry;
  entry.answered = header.answered;
  entry.print = header.print;
  entry.kind = static_cast<RequestRedo>(header.kind);
  entry.frame.header = header.frame;
  entry.frame.body = {reinterpret_cast<const std::byte*>(&header.frame) + sizeof(header.frame),
                      header.frame.bytes - sizeof(header.frame)};
  return entry;
}

uint64_t RedoLog::received() const {
  return offsets_.empty() ? page_->received
                          : std::max(page_->received, HeaderAt(offsets_.back())->received);
}

const RedoBase& RedoLog::base() const { return page_->base; }

void RedoLog::ForgetAnswersFrom(uint64_t head) {
  for (const uint32_t offset : offsets_) {
    EntryHeader* const entry = HeaderAt(offset);
    // The answer is there if the head is beyond its beginning.
    if (entry->answered != kHasAll && entry->answered > head) entry->answered = 0;
    if (entry->answered == 0) Expect(*entry, offset);
  }
}

uint64_t PrintOf(uint32_t result, std::span<const std::byte> body) {
  uint64_t print = FnvStep(kFnvBasis, result);
  for (const std::byte byte : body) print = FnvStep(print, static_cast<uint64_t>(byte));
  return print;
}

namespace {

absl::StatusOr<RedoHeader> ReadRedoHeader(int file) {
  RedoHeader header;
  if (ReadAt(file, std::as_writable_bytes(std::span(&header, 1)), 0) != sizeof(header) ||
      header.mark != kRedoMark || header.bytes > kRedoBytesMax) {
    return absl::InvalidArgumentError("it has no log");
  }
  return header;
}

}  // namespace

absl::Status CheckRedo(int file) {
  ASSIGN_OR_RETURN(const RedoHeader header, ReadRedoHeader(file));
  if (header.phase == RedoLog::kWhole || header.next != RedoBase()) return absl::OkStatus();
  return absl::FailedPreconditionError(std::string(header.why, strnlen(header.why, 256)));
}

absl::Status SettleRedo(int file, const RedoBase& checkpoint) {
  RETURN_IF_ERROR(CheckRedo(file));
  ASSIGN_OR_RETURN(RedoHeader header, ReadRedoHeader(file));
  if (header.next == checkpoint) {
    header.base = checkpoint;
    header.next = {};
    header.bytes = 0;
    header.phase = RedoLog::kWhole;
    if (WriteAt(file, std::as_bytes(std::span(&header, 1)), 0)) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("writing a log: ", strerror(errno)));
  }
  if (header.base != checkpoint) {
    return absl::FailedPreconditionError("its checkpoint is not the one that its log goes on from");
  }
  if (header.phase == RedoLog::kWhole) return absl::OkStatus();
  return absl::FailedPreconditionError(std::string(header.why, strnlen(header.why, 256)));
}

}  // namespace consort::host
