// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/worker_process.h"

#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"

extern char** environ;

namespace consort::host {
namespace {

// The descriptor's number in the worker: the first after the standard ones.
constexpr int kControlDescriptor = 3;

}  // namespace

absl::StatusOr<std::unique_ptr<WorkerProcess>> WorkerProcess::Start(
    EventLoop* loop, const WorkerOptions& options,
    std::function<void(WorkerProcess*, ControlPacket&)> on_packet,
    std::function<void(WorkerProcess*)> on_gone) {
  ASSIGN_OR_RETURN(auto pair, ControlSocket::MakePair());
  const std::string binary = FileIdentity(options.binary);

  std::vector<std::string> arguments = {
      options.binary,
      absl::StrCat("--control=", kControlDescriptor),
      absl::StrCat("--device=", options.device),
      absl::StrCat("--index=", options.index),
      absl::StrCat("--scheduler=", options.scheduler),
      absl::StrCat("--memory=", options.memory.device_bytes),
      absl::StrCat("--swap-pinned=", options.memory.swap_pinned),
      absl::StrCat("--swap-pageable=", options.memory.swap_pageable),
      absl::StrCat("--swap-file=", options.memory.swap_file),
      absl::StrCat("--swap-folder=", options.memory.swap_folder),
      absl::StrCat("--admission=", options.memory.admission),
      absl::StrCat("--keep-memory=", options.keep_memory),
      absl::StrCat("--checkpoint-after=", options.save_after_seconds),
      absl::StrCat("--launch-chains=", options.launch_chains),
      absl::StrCat("--peer-access=", options.peer_access),
      absl::StrCat("--shared-code=", options.shared_code),
      absl::StrCat("--verbose=", options.verbosity)};
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);

  // The CPU driver reads what devices it has from the environment, like a vendor's driver.
  std::string cpu_devices = absl::StrCat("CONSORT_CPU_DEVICES=", options.cpu_devices);
  std::vector<char*> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!options.cpu_devices.empty() && strncmp(*variable, "CONSORT_CPU_DEVICES=", 20) == 0)
      continue;
    environment.push_back(*variable);
  }
  if (!options.cpu_devices.empty()) environment.push_back(cpu_devices.data());
  environment.push_back(nullptr);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // dup2 onto the same number clears close-on-exec too (POSIX.1-2024, and glibc since 2.29).
  posix_spawn_file_actions_adddup2(&actions, pair.second.get(), kControlDescriptor);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t no_signals;
  sigemptyset(&no_signals);
  posix_spawnattr_setsigmask(&attributes, &no_signals);
  // Its own process group: a terminal's Ctrl-C reaches consortd only, which then ends its workers.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, options.binary.c_str(), &actions, &attributes, argv.data(),
                                environment.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat("starting ", options.binary, ": ", strerror(error)));
  }
  std::unique_ptr<WorkerProcess> worker(new WorkerProcess(
      loop, options, std::move(pair.first), pid, binary, std::move(on_packet), std::move(on_gone)));
  RETURN_IF_ERROR(worker->Watch());
  return worker;
}

absl::StatusOr<std::unique_ptr<WorkerProcess>> WorkerProcess::Adopt(
    EventLoop* loop, const WorkerOptions& options, UniqueFd control, pid_t pid,
    const std::string& binary, State state,
    std::function<void(WorkerProcess*, ControlPacket&)> on_packet,
    std::function<void(WorkerProcess*)> on_gone) {
  std::unique_ptr<WorkerProcess> worker(new WorkerProcess(
      loop, options, std::move(control), pid, binary, std::move(on_packet), std::move(on_gone)));
  worker->state = state;
  RETURN_IF_ERROR(worker->Watch());
  return worker;
}

absl::Status WorkerProcess::Watch() {
  return loop_->Watch(control_.fd(), EPOLLIN, [this](uint32_t) { OnReadable(); });
}

std::string FileIdentity(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return "";
  return absl::StrCat(info.st_dev, ":", info.st_ino, ":", info.st_mtim.tv_sec, ".",
                      info.st_mtim.tv_nsec);
}

WorkerProcess::WorkerProcess(EventLoop* loop, const WorkerOptions& options, UniqueFd control,
                             pid_t pid, const std::string& binary,
                             std::function<void(WorkerProcess*, ControlPacket&)> on_packet,
                             std::function<void(WorkerProcess*)> on_gone)
    : loop_(loop),
      options_(options),
      control_(std::move(control)),
      pid_(pid),
      binary_(binary),
      on_packet_(std::move(on_packet)),
      on_gone_(std::move(on_gone)) {}

WorkerProcess::~WorkerProcess() { loop_->Unwatch(control_.fd()); }

void WorkerProcess::Kill() { kill(pid_, SIGKILL); }

void WorkerProcess::OnReadable() {
  ControlPacket packet;
  const absl::Status received = control_.Receive(/*wait=*/false, &packet);
  if (received.ok()) {
    on_packet_(this, packet);
  } else if (received.code() != absl::StatusCode::kDeadlineExceeded) {
    on_gone_(this);
  }
}

}  // namespace consort::host
