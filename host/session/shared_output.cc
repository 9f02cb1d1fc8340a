// SPDX-License-Identifier: Apache-2.0
#include "host/session/shared_output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace consort::host {

absl::Status SharedOutput::Replace(int descriptor, File* file) {
  const auto failed = [](const char* what) {
    return absl::InternalError(
        absl::StrCat("catching what kernels print: ", what, ": ", strerror(errno)));
  };
  file->memory = UniqueFd(memfd_create("consort-output", MFD_CLOEXEC));
  if (!file->memory.valid()) return failed("memfd_create");
  file->before = UniqueFd(fcntl(descriptor, F_DUPFD_CLOEXEC, 3));
  if (!file->before.valid()) return failed("dup");
  // Another description of the file would have a position of its own.
  if (dup2(file->memory.get(), descriptor) < 0) return failed("dup2");
  file->replaces = descriptor;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SharedOutput>> SharedOutput::Capture() {
  std::unique_ptr<SharedOutput> output(new SharedOutput);
  absl::MutexLock lock(&output->mutex_);
  fflush(stdout);
  output->log_ = UniqueFd(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3));
  if (!output->log_.valid()) {
    return absl::InternalError(absl::StrCat("dup of stderr: ", strerror(errno)));
  }
  RETURN_IF_ERROR(Replace(STDOUT_FILENO, &output->out_));
  RETURN_IF_ERROR(Replace(STDERR_FILENO, &output->error_));
  return output;
}

SharedOutput::~SharedOutput() {
  absl::MutexLock lock(&mutex_);
  for (File* file : {&out_, &error_}) {
    if (file->replaces < 0) continue;
    Log(Read(file));
    dup2(file->before.get(), file->replaces);
  }
}

std::string SharedOutput::Read(File* file) {
  // A driver may write by way of the C library's buffer.
  if (file->replaces == STDOUT_FILENO) fflush(stdout);
  struct stat status;
  std::string text;
  if (fstat(file->memory.get(), &status) != 0 || status.st_size <= file->read) return text;
  text.resize(static_cast<size_t>(status.st_size - file->read));
  const ssize_t got = pread(file->memory.get(), text.data(), text.size(), file->read);
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  // The size stays, since others write at the end meanwhile; the pages behind it go.
  fallocate(file->memory.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
            file->read + static_cast<off_t>(text.size()));
  file->read += static_cast<off_t>(text.size());
  return text;
}

void SharedOutput::Log(const std::string& text) const {
  // What a log cannot take is lost.
  if (text.empty()) return;
  [[maybe_unused]] const ssize_t written = write(log_.get(), text.data(), text.size());
}

void SharedOutput::Join() {
  absl::MutexLock lock(&mutex_);
  ++sessions_;
}

void SharedOutput::Leave(DeviceOutput* session) {
  absl::MutexLock lock(&mutex_);
  --sessions_;
  if (holder_ == session) holder_ = nullptr;
  waiting_.erase(std::remove(waiting_.begin(), waiting_.end(), session), waiting_.end());
  waiting_count_.store(waiting_.size(), std::memory_order_relaxed);
}

bool SharedOutput::Take(DeviceOutput* session) {
  absl::MutexLock lock(&mutex_);
  if (holder_ == session && waiting_.empty()) return true;
  const auto place = std::find(waiting_.begin(), waiting_.end(), session);
  const bool next = waiting_.empty() || place == waiting_.begin();
  if (holder_ == nullptr && next) {
    if (place != waiting_.end()) waiting_.erase(place);
    Log(Read(&out_));
    holder_ = session;
  } else if (place == waiting_.end()) {
    waiting_.push_back(session);
  }
  waiting_count_.store(waiting_.size(), std::memory_order_relaxed);
  return holder_ == session && next;
}

void SharedOutput::Drain(DeviceOutput* session) {
  absl::MutexLock lock(&mutex_);
  if (holder_ != session) return;
  const std::string text = Read(&out_);
  if (!text.empty()) session->Append(STDOUT_FILENO, text);
}

void SharedOutput::Pass(DeviceOutput* session) {
  absl::MutexLock lock(&mutex_);
  if (holder_ == session) holder_ = nullptr;
}

void SharedOutput::DrainErrors(DeviceOutput* session) {
  absl::MutexLock lock(&mutex_);
  const std::string text = Read(&error_);
  if (sessions_ > 1) {
    Log(text);
  } else if (!text.empty()) {
    session->Append(STDERR_FILENO, text);
  }
}

}  // namespace consort::host
