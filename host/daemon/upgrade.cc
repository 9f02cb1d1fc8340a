// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/upgrade.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <span>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/file_io.h"
#include "base/status_macros.h"
#include "host/daemon/account.h"
#include "host/limits.h"

extern char** environ;

namespace consort::host {
namespace {

// The last line of a rehearsal that went well begins so; the version follows.
constexpr char kGoesOn[] = "consortd goes on as ";
// Of what a rehearsal says.
constexpr size_t kSaidBytesMax = 4096;
constexpr int kFirstDescriptor = 3;

absl::Status ErrnoStatus(const std::string& what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

// A file in memory.
absl::StatusOr<UniqueFd> FileOf(const DaemonState& state) {
  const std::vector<std::byte> bytes = Encode(state);
  if (bytes.size() > kDaemonStateBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "consortd's state has ", bytes.size(), " bytes and may have ", kDaemonStateBytesMax,
        ": virtual machines have sent what programs do not ", "read; try again later"));
  }
  UniqueFd file(memfd_create("consortd-state", MFD_CLOEXEC));
  if (!file.valid() || !WriteAt(file.get(), bytes, 0)) {
    return ErrnoStatus("writing consortd's state");
  }
  return file;
}

class ArgumentVector {
 public:
  ArgumentVector(const DaemonCommand& command, const std::string& more)
      : arguments_(command.arguments) {
    arguments_.push_back(more);
    for (std::string& argument : arguments_) pointers_.push_back(argument.data());
    pointers_.push_back(nullptr);
  }
  char** get() { return pointers_.data(); }

 private:
  std::vector<std::string> arguments_;
  std::vector<char*> pointers_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Rehearsal>> Rehearsal::Start(const DaemonCommand& command,
                                                            const DaemonState& state) {
  ASSIGN_OR_RETURN(const UniqueFd file, FileOf(state));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus("pipe");
  UniqueFd said(ends[0]);
  const UniqueFd says(ends[1]);
  ArgumentVector arguments(command, absl::StrCat("--rehearse=", kFirstDescriptor));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, says.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, says.get(), STDERR_FILENO);
  posix_spawn_file_actions_adddup2(&actions, file.get(), kFirstDescriptor);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t no_signals;
  sigemptyset(&no_signals);
  posix_spawnattr_setsigmask(&attributes, &no_signals);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, command.binary.c_str(), &actions, &attributes, arguments.get(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("starting ", command.binary, ": ", strerror(error)));
  }
  return std::unique_ptr<Rehearsal>(new Rehearsal(pid, std::move(said)));
}

Rehearsal::~Rehearsal() { Kill(); }

void Rehearsal::Kill() {
  if (pid_ > 0) kill(pid_, SIGKILL);
}

absl::StatusOr<std::string> Rehearsal::Result(int wait_status) {
  pid_ = 0;
  // Never waited for: somebody else may have the other end still.
  fcntl(said_.get(), F_SETFL, O_NONBLOCK);
  std::string said(kSaidBytesMax, '\0');
  said.resize(
      static_cast<size_t>(std::max<ssize_t>(0, read(said_.get(), said.data(), said.size()))));
  absl::string_view line = absl::StripAsciiWhitespace(said);
  if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == EXIT_SUCCESS &&
      absl::ConsumePrefix(&line, kGoesOn)) {
    return std::string(line);
  }
  std::string why = absl::StrReplaceAll(line, {{"\n", "; "}});
  if (WIFSIGNALED(wait_status)) {
    absl::StrAppend(&why, why.empty() ? "" : "; ", "it ended by signal ", WTERMSIG(wait_status));
  } else if (why.empty()) {
    why = absl::StrCat("it ended with status ", WEXITSTATUS(wait_status), " and said nothing");
  }
  return absl::FailedPreconditionError(absl::StrCat("the next consortd cannot go on: ", why));
}

absl::Status BecomeNext(const DaemonCommand& command, const DaemonState& state) {
  ASSIGN_OR_RETURN(const UniqueFd file, FileOf(state));
  ArgumentVector arguments(command, absl::StrCat("--resume=", file.get()));
  // Libraries may have opened some without close-on-exec.
  const auto close_all_on_exec = [] {
    return close_range(kFirstDescriptor, ~0U, CLOSE_RANGE_CLOEXEC) == 0;
  };
  if (!close_all_on_exec()) return ErrnoStatus("close_range");
  std::vector<int> kept = DescriptorsOf(state);
  kept.push_back(file.get());
  bool open = true;
  for (const int descriptor : kept) open &= fcntl(descriptor, F_SETFD, 0) == 0;
  if (open) execve(command.binary.c_str(), arguments.get(), environ);
  const absl::Status failed = ErrnoStatus(absl::StrCat("running ", command.binary));
  close_all_on_exec();
  return failed;
}

absl::StatusOr<DaemonState> ReadState(int descriptor) {
  const UniqueFd file(descriptor);
  struct stat info;
  if (fstat(file.get(), &info) != 0) return ErrnoStatus("consortd's state");
  if (info.st_size > static_cast<off_t>(kDaemonStateBytesMax)) {
    return absl::InvalidArgumentError("a consortd's state that is too long");
  }
  std::vector<std::byte> bytes(static_cast<size_t>(info.st_size));
  const ssize_t got = ReadAt(file.get(), bytes, 0);
  if (got < 0) return ErrnoStatus("reading consortd's state");
  bytes.resize(static_cast<size_t>(got));
  return DecodeDaemonState(bytes);
}

int Rehearse(int descriptor, const DaemonOptions& options, Settings settings) {
  const auto look = [&]() -> absl::Status {
    ASSIGN_OR_RETURN(const DaemonState state, ReadState(descriptor));
    for (const DaemonState::Vm& vm : state.vms) {
      const absl::Status device = vhost_user::Check(vm.device);
      if (!device.ok()) {
        return absl::Status(device.code(), absl::StrCat("VM ", vm.name, ": ", device.message()));
      }
    }
    RETURN_IF_ERROR(settings.Restore(state.settings));
    if (!options.account_path.empty()) {
      RETURN_IF_ERROR(AccountFile::Open(options.account_path).status());
    }
    if (access(options.worker_path.c_str(), X_OK) != 0) return ErrnoStatus(options.worker_path);
    return absl::OkStatus();
  };
  const absl::Status looked = look();
  if (!looked.ok()) {
    fprintf(stderr, "%s\n", std::string(looked.message()).c_str());
    return EXIT_FAILURE;
  }
  printf("%s%s\n", kGoesOn, CONSORT_VERSION);
  return EXIT_SUCCESS;
}

}  // namespace consort::host
