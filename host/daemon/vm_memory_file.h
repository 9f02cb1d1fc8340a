// SPDX-License-Identifier: Apache-2.0
// host/daemon/vm_memory_file.h: the memory that one virtual machine shares with its host, as a file
// that QEMU gives the machine, and who has which part of it.
//
// consortd makes the file, and removes its path when the machine's socket goes. Whoever may open it
// is that machine's QEMU, which can take pages away from under workers as it can its machine's own
// memory: members of the group are trusted. Owned by the loop.
#ifndef CONSORT_HOST_DAEMON_VM_MEMORY_FILE_H_
#define CONSORT_HOST_DAEMON_VM_MEMORY_FILE_H_

#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "memmgr/range_allocator.h"
#include "vmsock/vm_memory.h"

namespace consort::host {

class VmMemoryFile {
 public:
  struct Options {
    std::string path;
    Bytes bytes = 0;             // IsVmMemorySize
    std::optional<gid_t> group;  // that may open it too
  };
  // Makes the file, all zero but for its head, with a token that nobody knew. One that a consortd
  // that has ended left at the path is replaced. kAlreadyExists: another consortd has it.
  // kFailedPrecondition: it is not one of this user's. Else the kernel's errors, with the path.
  static absl::StatusOr<std::unique_ptr<VmMemoryFile>> Create(const Options& options);
  // Goes on with one of an earlier image of this process. kInvalidArgument: it is no such file.
  static absl::StatusOr<std::unique_ptr<VmMemoryFile>> Adopt(const std::string& path, Bytes bytes,
                                                             UniqueFd file);
  ~VmMemoryFile() { Unlink(); }
  VmMemoryFile(const VmMemoryFile&) = delete;
  VmMemoryFile& operator=(const VmMemoryFile&) = delete;

  // Removes the path, if it leads to this file. Machines that have it open keep it.
  void Unlink();

  int fd() const { return file_.get(); }
  const std::string& path() const { return path_; }
  Bytes bytes() const { return bytes_; }
  Bytes lent_bytes() const { return bytes_ - kVmMemoryUnit - units_.free_total() * kVmMemoryUnit; }
  const wire::Token& token() const { return token_; }

 private:
  friend class VmLoan;
  VmMemoryFile(const std::string& path, Bytes bytes, UniqueFd file);

  const std::string path_;
  const Bytes bytes_;
  const UniqueFd file_;  // locked
  wire::Token token_;
  memmgr::RangeAllocator units_;
};

// What one program's session has of a machine's memory. Copies of a session that goes from place to
// place share it (std::shared_ptr): all goes back with the last of them.
class VmLoan {
 public:
  explicit VmLoan(std::shared_ptr<VmMemoryFile> file) : file_(std::move(file)) {}
  ~VmLoan();
  VmLoan(const VmLoan&) = delete;
  VmLoan& operator=(const VmLoan&) = delete;

  // `bytes` > 0 in a row, from a multiple of kVmMemoryUnit on; what lies there is whatever the last
  // one left. Nothing: there are not so many.
  std::optional<Bytes> Take(Bytes bytes);
  // A part of another image of this process. False: it is somebody's.
  bool TakeAt(Bytes offset, Bytes bytes);
  // False: no part begins there.
  bool Return(Bytes offset);

  // Bytes by offset.
  const std::map<Bytes, Bytes>& parts() const { return parts_; }
  const VmMemoryFile& file() const { return *file_; }

 private:
  // Shared with the machine's door: sessions may outlive it.
  const std::shared_ptr<VmMemoryFile> file_;
  std::map<Bytes, Bytes> parts_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_VM_MEMORY_FILE_H_
