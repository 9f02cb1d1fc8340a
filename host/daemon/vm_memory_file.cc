// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/vm_memory_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "host/limits.h"

namespace consort::host {
namespace {

constexpr mode_t kOwnMode = 0600;
constexpr mode_t kGroupMode = 0660;

uint64_t UnitsOf(Bytes bytes) { return AlignUp(bytes, kVmMemoryUnit) / kVmMemoryUnit; }

absl::Status Failed(const std::string& path, const char* what) {
  return absl::UnavailableError(absl::StrCat(path, ": ", what, ": ", strerror(errno)));
}

// OK when nothing is at the path any more.
absl::Status RemoveLeftOver(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  struct stat info;
  if (!file.valid() && errno == ENOENT) return absl::OkStatus();
  if (!file.valid() || fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode) ||
      info.st_uid != geteuid()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path,
                     " exists and is no file of consortd's user; remove it when no machine "
                     "has it (libvirt leaves what it made behind)"));
  }
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::AlreadyExistsError(
        absl::StrCat(path, " is another consortd's, which has a machine of that name"));
  }
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return Failed(path, "removing what was left");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<VmMemoryFile>> VmMemoryFile::Create(const Options& options) {
  CHECK(IsVmMemorySize(options.bytes));
  const std::string& path = options.path;
  RETURN_IF_ERROR(RemoveLeftOver(path));
  UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, kOwnMode));
  if (!file.valid()) return Failed(path, "making a machine's shared memory");
  if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) return Failed(path, "locking it");
  std::unique_ptr<VmMemoryFile> made(new VmMemoryFile(path, options.bytes, std::move(file)));
  wire::VmMemoryHead head;
  // Up to 256 bytes come whole or not at all. Source: getrandom(2).
  CHECK(getrandom(&head.token, sizeof(head.token), 0) == sizeof(head.token));
  made->token_ = head.token;
  if (ftruncate(made->fd(), static_cast<off_t>(options.bytes)) != 0 ||
      pwrite(made->fd(), &head, sizeof(head), 0) != sizeof(head)) {
    return Failed(path, "writing its beginning");
  }
  if (options.group.has_value() &&
      (fchown(made->fd(), static_cast<uid_t>(-1), *options.group) != 0 ||
       fchmod(made->fd(), kGroupMode) != 0)) {
    return Failed(path, "giving it to the group of --vm-group");
  }
  return made;
}

absl::StatusOr<std::unique_ptr<VmMemoryFile>> VmMemoryFile::Adopt(const std::string& path,
                                                                  Bytes bytes, UniqueFd file) {
  struct stat info;
  if (!IsVmMemorySize(bytes) || !file.valid() || fstat(file.get(), &info) != 0 ||
      !S_ISREG(info.st_mode) || static_cast<Bytes>(info.st_size) != bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": no machine's shared memory"));
  }
  std::unique_ptr<VmMemoryFile> made(new VmMemoryFile(path, bytes, std::move(file)));
  wire::VmMemoryHead head;
  if (pread(made->fd(), &head, sizeof(head), 0) != sizeof(head)) return Failed(path, "reading it");
  made->token_ = head.token;
  return made;
}

VmMemoryFile::VmMemoryFile(const std::string& path, Bytes bytes, UniqueFd file)
    : path_(path), bytes_(bytes), file_(std::move(file)), units_(UnitsOf(bytes)) {
  CHECK(units_.TakeAt(0, 1));  // the head's
}

void VmMemoryFile::Unlink() {
  struct stat at_path, ours;
  if (lstat(path_.c_str(), &at_path) == 0 && fstat(fd(), &ours) == 0 &&
      at_path.st_dev == ours.st_dev && at_path.st_ino == ours.st_ino) {
    unlink(path_.c_str());
  }
}

VmLoan::~VmLoan() {
  for (const auto& [offset, bytes] : parts_) {
    file_->units_.Return(offset / kVmMemoryUnit, UnitsOf(bytes));
  }
}

std::optional<Bytes> VmLoan::Take(Bytes bytes) {
  if (bytes > file_->bytes()) return std::nullopt;
  const std::optional<uint64_t> first = file_->units_.Take(UnitsOf(bytes));
  if (!first.has_value()) return std::nullopt;
  parts_[*first * kVmMemoryUnit] = bytes;
  return *first * kVmMemoryUnit;
}

bool VmLoan::TakeAt(Bytes offset, Bytes bytes) {
  if (offset % kVmMemoryUnit != 0 || bytes == 0 || bytes > file_->bytes() ||
      !file_->units_.TakeAt(offset / kVmMemoryUnit, UnitsOf(bytes))) {
    return false;
  }
  parts_[offset] = bytes;
  return true;
}

bool VmLoan::Return(Bytes offset) {
  const auto part = parts_.find(offset);
  if (part == parts_.end()) return false;
  file_->units_.Return(offset / kVmMemoryUnit, UnitsOf(part->second));
  parts_.erase(part);
  return true;
}

}  // namespace consort::host
