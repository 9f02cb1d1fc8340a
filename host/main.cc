// SPDX-License-Identifier: Apache-2.0
// host/main.cc: consortd, the daemon of one host. Reads flags, builds everything, runs the loop.
#include <errno.h>
#include <getopt.h>
#include <grp.h>
#include <limits.h>
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
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "gpool/certificates.h"
#include "host/daemon/daemon.h"
#include "host/daemon/event_loop.h"
#include "host/daemon/options.h"
#include "host/daemon/service_notify.h"
#include "host/daemon/settings.h"
#include "host/daemon/tenants.h"
#include "host/limits.h"
#include "host/memory/size_text.h"
#include "host/scheduler/scheduler.h"
#include "policies/admission/admission.h"
#include "policies/placement/policy.h"
#include "policies/schedule/policy.h"

namespace consort::host {
namespace {

constexpr int kExitUsage = 2;
constexpr char kMetricsAddress[] = "127.0.0.1:9825";

constexpr char kTenantsPath[] = "/etc/consort/tenants.toml";

constexpr char kUsage[] =
    R"(consortd: serves this host's GPUs to virtual machines and local applications.

  --socket PATH         where local applications connect (default /run/consort/consortd.sock,
                        or $XDG_RUNTIME_DIR/consort/consortd.sock)
  --vm NAME=PATH        a VM, and the socket its vhost-user-vsock device connects to;
                        may be repeated
  --vm-files FOLDER     more VMs, a file NAME.toml each; read again on SIGHUP
  --vm-sockets FOLDER   where the sockets of those are made (default: vms beside --socket)
  --vm-group GROUP      may connect to the VMs' sockets, beside consortd's own user
  --vsock-port N|off    port of the kernel's vsock for guests of vhost-vsock (default 7000)
  --device KIND         auto, nvidia, cpu or none (default auto: NVIDIA's driver if it has a
                        device; none needs --pool)
  --devices N|FILE      how many devices the CPU driver presents, or a file that describes them
                        (docs/CPU_DEVICE.md)
  --admin-socket PATH|off   where consortctl connects (default: beside --socket,
                        consortd.admin.sock)
  --metrics ADDRESS:PORT|off   where Prometheus reads /metrics, and where the page is
                        (default 127.0.0.1:9825)
  --scheduler NAME      how tenants share a device: tfs (fair shares by weight, the default), las,
                        ps, fcfs, sjf, credit, idle or none; consortctl policy changes it
  --device-memory SIZE  of each device, for programs (40GiB); the rest is for what drivers take
                        (default: all of it)
  --admission NAME      who gets memory first when it is short: fifo (the default), mmu,
                        priority-fifo or priority-mmu
  --swap-pinned SIZE    memory of programs that does not fit a device lies in host memory: pinned,
  --swap-pageable SIZE  then pageable,
  --swap-file FOLDER=SIZE   then in a compressed file; of each device (default: no swapping)
  --tenants FILE        names and weights of tenants (default /etc/consort/tenants.toml, if it
                        is there); read again on SIGHUP
  --state FILE          keeps what consortctl sets at run time, so that it holds after a restart
                        (default: state.json in $STATE_DIRECTORY, or nothing is kept)
  --trace FOLDER        a file for each worker with everything that its scheduler is told and
                        decides, for consort-sim --replay
  --pool URL[,URL...]   members of the etcd that holds a pool of several hosts' GPUs, as
                        http://10.0.0.1:2379; https uses the certificates below
  --pool-name NAME      which of the pools of that etcd (default: default)
  --pool-listen ADDRESS:PORT      where other hosts connect (default 0.0.0.0:7010)
  --pool-advertise ADDRESS:PORT   the same as others see it; needed if --pool-listen is no
                        address that they can reach
  --pool-certificates FOLDER      authority.crt, NODE.crt and NODE.key (default
                        /etc/consort/pool); consortctl pool makes them
  --pool-vgpus N        how many GPUs a program sees whose VM's file does not say (default: all)
  --pool-policy NAME[,NAME]       who chooses GPUs while this host is the pool's mapper: a policy,
                        and one that decides once there is history (default gwtmin,mbf)
  --node NAME           this host's name in the pool (default: its host name)
  --account FILE        append one line of JSON for each session that ends
  --account-every SECONDS   and of open ones that used something, so often (default 600)
  --verbose N           more in the log
  --help
)";

std::string DefaultSocketPath() {
  const char* runtime = getenv("XDG_RUNTIME_DIR");
  if (geteuid() != 0 && runtime != nullptr && runtime[0] != '\0') {
    return std::string(runtime) + "/consort/consortd.sock";
  }
  return "/run/consort/consortd.sock";
}

int UsageError(const std::string& what) {
  fprintf(stderr, "consortd: %s\nTry consortd --help.\n", what.c_str());
  return kExitUsage;
}

struct PoolFlags {
  std::vector<std::string> endpoints;  // empty: no pool
  std::string name = "default";
  std::string listen = "0.0.0.0:7010";
  std::string advertise;
  std::string certificates = "/etc/consort/pool";
  std::string node;
  std::optional<uint32_t> vgpus;
  gpool::MapperOptions mapper;
};

// Sets options->pool. What is wrong with the flags; empty: nothing.
std::string SetPool(const PoolFlags& flags, DaemonOptions* options) {
  std::string node = flags.node;
  if (node.empty()) {
    char name[HOST_NAME_MAX + 1];
    if (gethostname(name, sizeof(name)) == 0) node = name;
  }
  if (!gpool::IsNodeName(node)) {
    return "--node wants a name of letters, digits, '-' and '.', not " + node;
  }
  if (!gpool::IsNodeName(flags.name)) {
    return "--pool-name wants a name of letters, digits, '-' and '.', not " + flags.name;
  }
  bool secure = false;
  for (const std::string& endpoint : flags.endpoints) {
    const bool https = absl::StartsWith(endpoint, "https://");
    if (!https && !absl::StartsWith(endpoint, "http://")) {
      return "--pool wants http://ADDRESS:PORT of etcd's members, not " + endpoint;
    }
    secure = secure || https;
  }
  if (flags.advertise.empty() && absl::StartsWith(flags.listen, "0.0.0.0:")) {
    return "--pool-advertise is missing: others cannot dial 0.0.0.0";
  }
  PoolMemberOptions& member = options->pool.emplace();
  member.vgpus = flags.vgpus;
  member.pool.mapper = flags.mapper;
  member.pool.name = flags.name;
  member.pool.node = node;
  member.pool.listen = flags.listen;
  member.pool.advertise = flags.advertise;
  member.pool.tls = gpool::NodeFiles(flags.certificates, node);
  member.pool.etcd.endpoints = flags.endpoints;
  if (secure) {
    member.pool.etcd.authority_file = member.pool.tls.authority;
    member.pool.etcd.certificate_file = member.pool.tls.certificate;
    member.pool.etcd.key_file = member.pool.tls.key;
  }
  return "";
}

// What Settings::Load wants.
struct SettingsOptions {
  TenantsFile tenants;
  std::string policy;  // of the flags
  std::string state_path;
};

// 0, or the exit status to end with at once (negative: after --help).
int ParseOptions(int argc, char** argv, DaemonOptions* options, SettingsOptions* settings) {
  const option long_options[] = {{"socket", required_argument, nullptr, 's'},
                                 {"vm", required_argument, nullptr, 'm'},
                                 {"vm-files", required_argument, nullptr, 'F'},
                                 {"vm-sockets", required_argument, nullptr, 'S'},
                                 {"vm-group", required_argument, nullptr, 'G'},
                                 {"vsock-port", required_argument, nullptr, 'p'},
                                 {"device", required_argument, nullptr, 'd'},
                                 {"devices", required_argument, nullptr, 'n'},
                                 {"account", required_argument, nullptr, 'a'},
                                 {"account-every", required_argument, nullptr, 'e'},
                                 {"admin-socket", required_argument, nullptr, 'A'},
                                 {"metrics", required_argument, nullptr, 'M'},
                                 {"scheduler", required_argument, nullptr, 'P'},
                                 {"tenants", required_argument, nullptr, 't'},
                                 {"device-memory", required_argument, nullptr, 'D'},
                                 {"admission", required_argument, nullptr, 'Q'},
                                 {"swap-pinned", required_argument, nullptr, 'W'},
                                 {"swap-pageable", required_argument, nullptr, 'X'},
                                 {"swap-file", required_argument, nullptr, 'Y'},
                                 {"pool", required_argument, nullptr, 1},
                                 {"pool-name", required_argument, nullptr, 2},
                                 {"pool-listen", required_argument, nullptr, 3},
                                 {"pool-advertise", required_argument, nullptr, 4},
                                 {"pool-certificates", required_argument, nullptr, 5},
                                 {"pool-vgpus", required_argument, nullptr, 6},
                                 {"node", required_argument, nullptr, 7},
                                 {"state", required_argument, nullptr, 'T'},
                                 {"trace", required_argument, nullptr, 'R'},
                                 {"pool-policy", required_argument, nullptr, 8},
                                 {"verbose", required_argument, nullptr, 'v'},
                                 {"help", no_argument, nullptr, 'h'},
                                 {nullptr, 0, nullptr, 0}};
  std::string admin_socket;  // empty: beside the other one
  options->admin.metrics_address = kMetricsAddress;
  std::string tenants_path;
  std::string admission_name;
  PoolFlags pool;
  int flag;
  while ((flag = getopt_long(argc, argv, "", long_options, nullptr)) != -1) {
    const std::string value = optarg != nullptr ? optarg : "";
    uint32_t number = 0;
    switch (flag) {
      case 's':
        options->socket_path = value;
        break;
      case 'm': {
        const size_t equals = value.find('=');
        if (equals == std::string::npos || equals == 0 || equals + 1 == value.size()) {
          return UsageError("--vm wants NAME=PATH, not " + value);
        }
        if (options->vms.size() == kVmsMax) return UsageError("too many VMs");
        options->vms.push_back({value.substr(0, equals), value.substr(equals + 1), {}, {}});
        break;
      }
      case 'p':
        if (value == "off") {
          options->vsock_port.reset();
        } else if (absl::SimpleAtoi(value, &number)) {
          options->vsock_port = number;
        } else {
          return UsageError("--vsock-port wants a number or off, not " + value);
        }
        break;
      case 'd':
        if (value != "auto" && value != "cpu" && value != "nvidia" && value != "none") {
          return UsageError("--device wants auto, cpu, nvidia or none, not " + value);
        }
        options->device = value;
        break;
      case 'n':
        if (absl::SimpleAtoi(value, &number) && number > 0 && number <= kDevicesMax) {
          options->cpu_devices = value;
        } else if (access(value.c_str(), R_OK) == 0) {
          options->cpu_devices = std::filesystem::absolute(value);
        } else {
          return UsageError("--devices wants a number from 1 to " + std::to_string(kDevicesMax) +
                            " or a file, not " + value);
        }
        break;
      case 'a':
        options->account_path = value;
        break;
      case 'e':
        if (!absl::SimpleAtoi(value, &number) || number == 0) {
          return UsageError("--account-every wants seconds, not " + value);
        }
        options->account_every = number * kSecond;
        break;
      case 'F':
        options->vm_folder = value;
        break;
      case 'S':
        options->vm_socket_folder = value;
        break;
      case 'G': {
        const group* found = getgrnam(value.c_str());
        if (found == nullptr) return UsageError("there is no group " + value);
        options->vm_group = found->gr_gid;
        break;
      }
      case 'A':
        admin_socket = value;
        break;
      case 'M':
        options->admin.metrics_address = value == "off" ? "" : value;
        options->admin.metrics_by_default = false;
        break;
      case 'P':
        if (value != kNoScheduler && schedule::PolicyPromise(value).empty()) {
          return UsageError("--scheduler knows no " + value);
        }
        settings->policy = value;
        break;
      case 't':
        tenants_path = value;
        break;
      case 'D':
      case 'W':
      case 'X': {
        const std::optional<Bytes> size = ParseSize(value);
        if (!size.has_value()) return UsageError("no size, such as 40GiB: " + value);
        Bytes& wanted = flag == 'D'   ? options->memory.device_bytes
                        : flag == 'W' ? options->memory.swap_pinned
                                      : options->memory.swap_pageable;
        wanted = *size;
        break;
      }
      case 'Y': {
        const size_t equals = value.rfind('=');
        const std::optional<Bytes> size =
            equals == std::string::npos ? std::nullopt : ParseSize(value.substr(equals + 1));
        if (!size.has_value() || equals == 0) {
          return UsageError("--swap-file wants FOLDER=SIZE, not " + value);
        }
        options->memory.swap_folder = value.substr(0, equals);
        options->memory.swap_file = *size;
        break;
      }
      case 'Q':
        if (!admission::OrderByName(value).has_value()) {
          return UsageError("--admission knows no " + value);
        }
        admission_name = value;
        break;
      case 1:
        pool.endpoints = absl::StrSplit(value, ',', absl::SkipEmpty());
        break;
      case 2:
        pool.name = value;
        break;
      case 3:
        pool.listen = value;
        break;
      case 4:
        pool.advertise = value;
        break;
      case 5:
        pool.certificates = value;
        break;
      case 6:
        if (!absl::SimpleAtoi(value, &number) || number == 0 || number > kVgpusMax) {
          return UsageError("--pool-vgpus wants a number from 1 to " + std::to_string(kVgpusMax));
        }
        pool.vgpus = number;
        break;
      case 7:
        pool.node = value;
        break;
      case 'T':
        settings->state_path = value;
        break;
      case 'R':
        options->trace_folder = value;
        break;
      case 8: {
        const std::vector<std::string> names = absl::StrSplit(value, ',');
        for (const std::string& name : names) {
          if (placement::PolicyPromise(name).empty() || names.size() > 2) {
            return UsageError("--pool-policy knows no " + value);
          }
        }
        pool.mapper = {names[0], names.size() > 1 ? names[1] : ""};
        break;
      }
      case 'v':
        if (!absl::SimpleAtoi(value, &options->verbosity)) {
          return UsageError("--verbose wants a number, not " + value);
        }
        break;
      case 'h':
        fputs(kUsage, stdout);
        return -1;
      default:
        return UsageError("unknown flag or missing value");
    }
  }
  if (optind != argc) return UsageError(std::string("unexpected argument ") + argv[optind]);
  if (admin_socket.empty()) {
    admin_socket = std::filesystem::path(options->socket_path).replace_extension(".admin.sock");
  }
  if (options->vm_socket_folder.empty()) {
    options->vm_socket_folder = std::filesystem::path(options->socket_path).replace_filename("vms");
  }
  if (admin_socket != "off") options->admin.socket_path = admin_socket;
  options->tenants_path = tenants_path.empty() ? kTenantsPath : tenants_path;
  auto tenants = ReadTenants(options->tenants_path);
  if (tenants.ok()) {
    settings->tenants = *std::move(tenants);
  } else if (!tenants_path.empty() || !absl::IsNotFound(tenants.status())) {
    return UsageError(std::string(tenants.status().message()));
  }
  if (!pool.endpoints.empty()) {
    const std::string wrong = SetPool(pool, options);
    if (!wrong.empty()) return UsageError(wrong);
  } else if (options->device == "none") {
    return UsageError("--device none is for a host of a pool: --pool is missing");
  }
  if (!settings->tenants.admission.empty()) options->memory.admission = settings->tenants.admission;
  if (!admission_name.empty()) options->memory.admission = admission_name;
  const char* state_folder = getenv("STATE_DIRECTORY");  // of the service manager
  if (settings->state_path.empty() && state_folder != nullptr && state_folder[0] == '/') {
    settings->state_path = std::string(state_folder) + "/state.json";
  }
  return 0;
}

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

int Run(DaemonOptions options, Settings settings) {
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
    const absl::Status started = daemon.Start(
        [&] {
          ready = true;
          NotifyServiceManager(notify_socket, "READY=1");
          puts("consortd: ready");
          fflush(stdout);
        },
        [&](absl::Status status) {
          if (!status.ok()) {
            LOG(ERROR) << "consortd cannot run: " << status.message() << Advice(status);
            exit_status = EXIT_FAILURE;
            return;  // the workers end first
          }
          (*loop)->Stop();
        });
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
  consort::host::DaemonOptions options;
  options.socket_path = consort::host::DefaultSocketPath();
  consort::host::SettingsOptions settings_options;
  const int parsed = consort::host::ParseOptions(argc, argv, &options, &settings_options);
  if (parsed != 0) return parsed < 0 ? EXIT_SUCCESS : parsed;
  auto settings = consort::host::Settings::Load(settings_options.tenants, settings_options.policy,
                                                settings_options.state_path);
  if (!settings.ok()) {
    return consort::host::UsageError(std::string(settings.status().message()));
  }
  consort::StartLogging("consortd", options.verbosity);
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    LOG(ERROR) << "/proc/self/exe: " << error.message();
    return EXIT_FAILURE;
  }
  options.worker_path = (self.parent_path() / "consort-worker").string();
  return consort::host::Run(std::move(options), *std::move(settings));
}
