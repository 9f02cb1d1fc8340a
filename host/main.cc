// SPDX-License-Identifier: Apache-2.0
// host/main.cc: consortd, the daemon of one host. Builds everything, runs the loop.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "host/daemon/daemon.h"
#include "host/daemon/daemon_state.h"
#include "host/daemon/event_loop.h"
#include "host/daemon/flags.h"
#include "host/daemon/service_notify.h"
#include "host/daemon/settings.h"
#include "host/daemon/upgrade.h"

namespace consort::host {
namespace {

// How often the service manager wants to hear that the loop turns; 0: it does not. Half of what it
// allows, as sd_watchdog_enabled(3) advises.
Nanos WatchdogPeriod() {
  const char* micros = getenv("WATCHDOG_USEC");
  const char* pid = getenv("WATCHDOG_PID");
  int64_t number = 0;
  if (micros == nullptr || !absl::SimpleAtoi(micros, &number) || number <= 0) return 0;
  int64_t meant = 0;
  if (pid != nullptr && (!absl::SimpleAtoi(pid, &meant) || meant != getpid())) return 0;
  return number * kMicrosecond / 2;
}

// What a person can do about an error that keeps consortd from running, beside what it says itself.
const char* Advice(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kAlreadyExists:
      return "; does another consortd run (systemctl status consortd)? Stop it, or choose other "
             "places with --socket, --admin-socket and --metrics";
    case absl::StatusCode::kPermissionDenied:
      return "; this user may not: start it as the package's unit does (systemctl start consortd), "
             "or choose a folder of this user's with --socket";
    case absl::StatusCode::kNotFound:
      return "; make what is missing, or choose another place";
    default:
      return "";
  }
}

// `state`: of the last binary of this process; none: a new start.
int Run(DaemonOptions options, Settings settings, const std::optional<DaemonState>& state) {
  // Signals come through a descriptor, to the loop; blocked before any thread is started.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGCHLD, SIGHUP}) sigaddset(&signals, signal);
  PCHECK(sigprocmask(SIG_BLOCK, &signals, nullptr) == 0);
  const UniqueFd signal_fd(signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  PCHECK(signal_fd.valid());

  const char* notify = getenv("NOTIFY_SOCKET");
  const std::string notify_socket = notify != nullptr ? notify : "";

  auto loop = EventLoop::Create();
  if (!loop.ok()) {
    LOG(ERROR) << loop.status();
    return EXIT_FAILURE;
  }
  int exit_status = EXIT_SUCCESS;
  bool ready = false;
  {
    Daemon daemon(loop->get(), std::move(options), std::move(settings));
    const absl::Status watched = (*loop)->Watch(signal_fd.get(), EPOLLIN, [&](uint32_t) {
      signalfd_siginfo info;
      while (read(signal_fd.get(), &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo == SIGCHLD) {
          daemon.OnChildSignal();
        } else if (info.ssi_signo == SIGHUP) {
          if (!ready) continue;  // everything is read when the doors open
          NotifyServiceManager(notify_socket, absl::StrCat("RELOADING=1\nMONOTONIC_USEC=",
                                                           MonotonicNow() / kMicrosecond));
          daemon.Reload();
          NotifyServiceManager(notify_socket, "READY=1");
        } else {
          LOG(INFO) << strsignal(static_cast<int>(info.ssi_signo)) << ": stopping";
          NotifyServiceManager(notify_socket, "STOPPING=1");
          daemon.Stop();
        }
      }
    });
    CHECK(watched.ok()) << watched;
    const Nanos feed_every = WatchdogPeriod();
    std::function<void()> feed = [&] {
      NotifyServiceManager(notify_socket, "WATCHDOG=1");
      (*loop)->After(feed_every, feed);
    };
    if (feed_every > 0) feed();
    const auto on_ready = [&] {
      ready = true;
      NotifyServiceManager(notify_socket, "READY=1");
      puts("consortd: ready");
      fflush(stdout);
    };
    const auto on_end = [&](absl::Status status) {
      if (!status.ok()) {
        LOG(ERROR) << "consortd cannot run: " << status.message() << Advice(status);
        exit_status = EXIT_FAILURE;
        return;  // the workers end first
      }
      (*loop)->Stop();
    };
    const absl::Status started = state.has_value() ? daemon.Resume(*state, on_ready, on_end)
                                                   : daemon.Start(on_ready, on_end);
    if (!started.ok()) {
      LOG(ERROR) << "consortd cannot start: " << started.message() << Advice(started);
      return EXIT_FAILURE;
    }
    (*loop)->Run();
  }
  return exit_status;
}

}  // namespace
}  // namespace consort::host

int main(int argc, char** argv) {
  int exit_status = EXIT_SUCCESS;
  auto flags = consort::host::ReadFlags(argc, argv, &exit_status);
  if (!flags.has_value()) return exit_status;
  auto settings = consort::host::Settings::Load(flags->tenants, flags->policy, flags->state_path);
  if (!settings.ok()) {
    return consort::host::UsageError(std::string(settings.status().message()));
  }
  consort::host::DaemonOptions& options = flags->daemon;
  if (flags->rehearse < 0) consort::StartLogging("consortd", options.verbosity);
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    LOG(ERROR) << "/proc/self/exe: " << error.message();
    return EXIT_FAILURE;
  }
  options.worker_path = (self.parent_path() / "consort-worker").string();
  options.command.binary = self.string();
  for (int i = 0; i < argc; ++i) {
    if (!absl::StartsWith(argv[i], "--resume=")) options.command.arguments.emplace_back(argv[i]);
  }
  if (flags->rehearse >= 0) {
    return consort::host::Rehearse(flags->rehearse, options, *std::move(settings));
  }
  std::optional<consort::host::DaemonState> state;
  if (flags->resume >= 0) {
    auto read = consort::host::ReadState(flags->resume);
    if (!read.ok()) {
      LOG(ERROR) << "consortd cannot go on: " << read.status().message();
      return EXIT_FAILURE;
    }
    state = *std::move(read);
  }
  return consort::host::Run(std::move(options), *std::move(settings), state);
}
