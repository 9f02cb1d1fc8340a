// SPDX-License-Identifier: Apache-2.0
#include "host/session/session_record.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "base/file_io.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "host/limits.h"

namespace consort::host {
namespace {

constexpr uint64_t kRecordMark = 0x31'64726f636572'63;  // "crecord1"
constexpr uint64_t kAtRest = 1;
constexpr Bytes kStateAt = 4 * kKiB;

}  // namespace

struct RecordHeader {
  uint64_t mark;
  uint64_t phase;
  uint64_t received;
  uint64_t sent;
  uint64_t deferred_error;
  uint64_t state_bytes;
  uint64_t unused[2];
  char why[256];
};

std::atomic_ref<uint64_t> SessionRecord::Phase() { return std::atomic_ref(page_->phase); }

absl::StatusOr<std::unique_ptr<SessionRecord>> SessionRecord::Map(UniqueFd file, bool at_rest) {
  static_assert(offsetof(RecordHeader, phase) == 0x008 &&
                offsetof(RecordHeader, state_bytes) == 0x028 &&
                offsetof(RecordHeader, why) == 0x040 && sizeof(RecordHeader) <= kStateAt);
  void* mapped = mmap(nullptr, kStateAt, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("mapping a record: ", strerror(errno)));
  }
  return std::unique_ptr<SessionRecord>(
      new SessionRecord(std::move(file), static_cast<RecordHeader*>(mapped), at_rest));
}

absl::StatusOr<std::unique_ptr<SessionRecord>> SessionRecord::Create() {
  UniqueFd file(memfd_create("consort-record", MFD_CLOEXEC));
  if (!file.valid() || ftruncate(file.get(), kStateAt) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("making a record: ", strerror(errno)));
  }
  auto made = Map(std::move(file), /*at_rest=*/false);
  if (made.ok()) (*made)->page_->mark = kRecordMark;
  return made;
}

absl::StatusOr<std::unique_ptr<SessionRecord>> SessionRecord::TakeUp(UniqueFd file) {
  RETURN_IF_ERROR(CheckAtRest(file.get()));
  return Map(std::move(file), /*at_rest=*/true);
}

SessionRecord::~SessionRecord() { munmap(page_, kStateAt); }

void SessionRecord::StoreWork() {
  at_rest_ = false;
  // An exchange, so that neither compiler nor processor lets anything that follows come before it.
  Phase().exchange(0, std::memory_order_seq_cst);
}

absl::Status SessionRecord::Write(std::span<const std::byte> state) {
  CHECK(!at_rest_);
  if (state.size() > kMoveStateBytesMax) {
    return absl::FailedPreconditionError("its objects are too many");
  }
  // A shorter one would keep the memory of what it replaces.
  if (state.size() < page_->state_bytes) {
    PLOG_IF(WARNING, ftruncate(file_.get(), static_cast<off_t>(kStateAt + state.size())) != 0)
        << "giving back the memory of a record";
  }
  if (!WriteAt(file_.get(), state, kStateAt)) {
    return absl::ResourceExhaustedError(absl::StrCat("writing a record: ", strerror(errno)));
  }
  page_->state_bytes = state.size();
  return absl::OkStatus();
}

void SessionRecord::Explain(const std::string& why) {
  if (why == explained_) return;
  explained_ = why;
  const size_t bytes = std::min(why.size(), sizeof(page_->why) - 1);
  memcpy(page_->why, why.data(), bytes);
  memset(page_->why + bytes, 0, sizeof(page_->why) - bytes);
}

void SessionRecord::Rest(const RecordedPosition& position) {
  CHECK(!at_rest_);
  page_->received = position.received;
  page_->sent = position.sent;
  page_->deferred_error = position.deferred_error;
  // Release: what it stands for comes before it.
  Phase().store(kAtRest, std::memory_order_release);
  at_rest_ = true;
}

namespace {

// What another process has left, at rest.
absl::StatusOr<RecordHeader> ReadRecordHeader(int record) {
  RecordHeader header;
  if (ReadAt(record, std::as_writable_bytes(std::span(&header, 1)), 0) != sizeof(header) ||
      header.mark != kRecordMark) {
    return absl::InvalidArgumentError("it has no record");
  }
  if (header.phase != kAtRest) {
    const std::string why(header.why, strnlen(header.why, sizeof(header.why)));
    return absl::FailedPreconditionError(why.empty() ? "it had work in flight" : why);
  }
  return header;
}

}  // namespace

absl::Status CheckAtRest(int record) { return ReadRecordHeader(record).status(); }

absl::StatusOr<RestingSession> ReadRecord(int record) {
  ASSIGN_OR_RETURN(const RecordHeader header, ReadRecordHeader(record));
  const off_t end = lseek(record, 0, SEEK_END);
  if (end < 0 || header.state_bytes > static_cast<uint64_t>(end) ||
      static_cast<uint64_t>(end) < kStateAt + header.state_bytes) {
    return absl::DataLossError("its record is not whole");
  }
  RestingSession session;
  session.position.received = header.received;
  session.position.sent = header.sent;
  session.position.deferred_error = static_cast<uint32_t>(header.deferred_error);
  session.state.resize(header.state_bytes);
  if (ReadAt(record, session.state, kStateAt) != static_cast<ssize_t>(session.state.size())) {
    return absl::DataLossError("its record is not whole");
  }
  return session;
}

}  // namespace consort::host
