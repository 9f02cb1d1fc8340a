// SPDX-License-Identifier: Apache-2.0
// host/daemon/flags.cc: see the header.
#include "host/daemon/flags.h"

#include <grp.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gpool/certificates.h"
#include "host/daemon/vm_files.h"
#include "host/limits.h"
#include "host/memory/size_text.h"
#include "host/scheduler/scheduler.h"
#include "policies/admission/admission.h"
#include "policies/placement/policy.h"
#include "policies/schedule/policy.h"
#include "vmsock/copy_crew.h"

namespace consort::host {
namespace {

constexpr int kExitUsage = 2;
constexpr int kHelpColumn = 34;
constexpr char kMetricsAddress[] = "127.0.0.1:9825";
constexpr char kTenantsPath[] = "/etc/consort/tenants.toml";

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

// What was said, before files are read and what was not said is filled in.
struct Said {
  Flags flags;
  PoolFlags pool;
  std::string admin_socket;  // empty: beside the other one
  std::string tenants_path;
  std::string admission;
  std::string trace;  // --trace
};

std::string DefaultSocketPath() {
  const char* runtime = getenv("XDG_RUNTIME_DIR");
  if (geteuid() != 0 && runtime != nullptr && runtime[0] != '\0') {
    return std::string(runtime) + "/consort/consortd.sock";
  }
  return "/run/consort/consortd.sock";
}

// Takes a value. What is wrong with it; empty: nothing.
using Take = std::function<std::string(const std::string&)>;

// Of an option that is on, off, or what suits the device.
Take OnOffAuto(std::string* option) {
  return [option](const std::string& value) -> std::string {
    if (value != "on" && value != "off" && value != "auto")
      return "wants on, off or auto, not " + value;
    *option = value;
    return "";
  };
}

Take OnOff(bool* option) {
  return [option](const std::string& value) -> std::string {
    if (value != "on" && value != "off") return "wants on or off, not " + value;
    *option = value == "on";
    return "";
  };
}

// Options of one heading of the help. Of an option that is given twice the last one counts.
class Group {
 public:
  Group(CLI::App* app, std::string name) : app_(*app), name_(std::move(name)) {}

  void Text(const std::string& name, const std::string& kind, const std::string& what,
            std::string* value) {
    Finish(app_.add_option(name, *value, what), kind);
  }

  void Checked(const std::string& name, const std::string& kind, const std::string& what,
               const Take& take) {
    const auto call = [name, take](const std::string& value) {
      if (const std::string wrong = take(value); !wrong.empty())
        throw CLI::ValidationError(name, wrong);
    };
    Finish(app_.add_option_function<std::string>(name, call, what), kind);
  }

  void Number(const std::string& name, const std::string& kind, const std::string& what,
              uint32_t largest, const std::function<void(uint32_t)>& take) {
    Checked(name, kind, what, [=](const std::string& value) -> std::string {
      uint32_t number = 0;
      if (!absl::SimpleAtoi(value, &number) || number == 0 || number > largest)
        return absl::StrCat("wants a number from 1 to ", largest, ", not ", value);
      take(number);
      return "";
    });
  }

  void Size(const std::string& name, const std::string& what, Bytes* bytes) {
    Checked(name, "SIZE", what, [=](const std::string& value) -> std::string {
      const std::optional<Bytes> size = ParseSize(value);
      if (!size.has_value()) return "wants a size, such as 40GiB, not " + value;
      *bytes = *size;
      return "";
    });
  }

 private:
  void Finish(CLI::Option* option, const std::string& kind) {
    option->type_name(kind)->take_last()->group(name_);
  }

  CLI::App& app_;
  const std::string name_;
};

std::string TakeVm(const std::string& value, std::vector<VmOptions>* vms) {
  const size_t equals = value.find('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == value.size())
    return "wants NAME=PATH, not " + value;
  if (vms->size() == kVmsMax) return absl::StrCat("at most ", kVmsMax, " VMs");
  VmOptions vm;
  vm.name = value.substr(0, equals);
  vm.socket_path = value.substr(equals + 1);
  vms->push_back(std::move(vm));
  return "";
}

std::string TakeDevices(const std::string& value, std::string* devices) {
  uint32_t number = 0;
  if (absl::SimpleAtoi(value, &number) && number > 0 && number <= kDevicesMax) {
    *devices = value;
  } else if (access(value.c_str(), R_OK) == 0) {
    *devices = std::filesystem::absolute(value);
  } else {
    return absl::StrCat("wants a number from 1 to ", kDevicesMax, " or a file, not ", value);
  }
  return "";
}

std::string TakeSwapFile(const std::string& value, MemoryOptions* memory) {
  const size_t equals = value.rfind('=');
  const std::optional<Bytes> size =
      equals == std::string::npos ? std::nullopt : ParseSize(value.substr(equals + 1));
  if (!size.has_value() || equals == 0) return "wants FOLDER=SIZE, not " + value;
  memory->swap_folder = value.substr(0, equals);
  memory->swap_file = *size;
  return "";
}

void AddDoors(CLI::App* app, Said* said) {
  DaemonOptions* options = &said->flags.daemon;
  Group group(app, "Who connects");
  group.Text("--socket", "PATH",
             "local applications (default /run/consort/consortd.sock,\n"
             "or $XDG_RUNTIME_DIR/consort/consortd.sock)",
             &options->socket_path);
  app->add_option_function<std::vector<std::string>>(
         "--vm",
         [options](const std::vector<std::string>& values) {
           for (const std::string& value : values) {
             if (const std::string wrong = TakeVm(value, &options->vms); !wrong.empty())
               throw CLI::ValidationError("--vm", wrong);
           }
         },
         "a VM, and the socket that its vhost-user-vsock device\n"
         "connects to; may be repeated")
      ->type_name("NAME=PATH")
      ->allow_extra_args(false)
      ->group("Who connects");
  group.Text("--vm-files", "FOLDER", "more VMs, a file NAME.toml each; read again on SIGHUP",
             &options->vm_folder);
  group.Text("--vm-sockets", "FOLDER",
             "where the sockets of those are made (default: vms beside\n--socket)",
             &options->vm_defaults.socket_folder);
  group.Checked("--vm-memory", "SIZE",
                "that each VM shares with this host, where its file says\n"
                "nothing else (default none; docs/howto/qemu.md)",
                [=](const std::string& value) -> std::string {
                  const std::optional<Bytes> size = ParseSize(value);
                  if (value != "0" && (!size.has_value() || !IsVmMemorySize(*size)))
                    return absl::StrCat("wants ", kVmMemorySizes, ", or 0, not ", value);
                  options->vm_defaults.shared_memory = size.value_or(0);
                  return "";
                });
  group.Text("--vm-memory-files", "FOLDER",
             "where the files of that memory are made, in memory\n(default /dev/shm)",
             &options->vm_defaults.memory_folder);
  group.Checked("--vm-group", "GROUP",
                "may connect to the VMs' sockets, beside consortd's own user",
                [=](const std::string& value) -> std::string {
                  const struct group* found = getgrnam(value.c_str());
                  if (found == nullptr) return "there is no group " + value;
                  options->vm_group = found->gr_gid;
                  return "";
                });
  group.Checked("--vm-copy-threads", "N",
                "that copy for all VMs' devices (default: none below 8\n"
                "processors, else half as many, at most 8)",
                [=](const std::string& value) -> std::string {
                  uint32_t number = 0;
                  if (!absl::SimpleAtoi(value, &number) || number > kCopyCrewThreadsMax)
                    return absl::StrCat("wants a number up to ", kCopyCrewThreadsMax, ", not ",
                                        value);
                  options->vm_copy_threads = number;
                  return "";
                });
  group.Checked("--vsock-port", "N|off",
                "port of the kernel's vsock for guests of vhost-vsock\n(default 7000)",
                [=](const std::string& value) -> std::string {
                  uint32_t number = 0;
                  if (value != "off" && !absl::SimpleAtoi(value, &number))
                    return "wants a number or off, not " + value;
                  options->vsock_port.reset();
                  if (value != "off") options->vsock_port = number;
                  return "";
                });
  group.Text("--admin-socket", "PATH|off",
             "consortctl (default: beside --socket, consortd.admin.sock)", &said->admin_socket);
  group.Checked(
      "--metrics", "ADDRESS:PORT|off",
      absl::StrCat("Prometheus, at /metrics, and browsers (default\n", kMetricsAddress, ")"),
      [=](const std::string& value) -> std::string {
        options->admin.metrics_address = value == "off" ? "" : value;
        options->admin.metrics_by_default = false;
        return "";
      });
}

void AddDevices(CLI::App* app, Said* said) {
  DaemonOptions* options = &said->flags.daemon;
  Group group(app, "Devices and how they are shared");
  group.Checked("--device", "KIND",
                "auto, nvidia, cpu or none (default auto: NVIDIA's driver\n"
                "if it has a device; none needs --pool)",
                [=](const std::string& value) -> std::string {
                  for (const char* kind : {"auto", "cpu", "nvidia", "none"}) {
                    if (value == kind) return options->device = value, "";
                  }
                  return "wants auto, cpu, nvidia or none, not " + value;
                });
  group.Checked(
      "--devices", "N|FILE",
      "how many devices the CPU driver presents, or a file that\n"
      "describes them (docs/CPU_DEVICE.md)",
      [=](const std::string& value) { return TakeDevices(value, &options->cpu_devices); });
  group.Checked("--scheduler", "NAME",
                "how tenants share a device: tfs (fair shares by weight, the\n"
                "default), slowdown (all alike), las, ps, fcfs, sjf, credit,\n"
                "idle or none;\n"
                "consortctl policy changes it",
                [=](const std::string& value) -> std::string {
                  if (value != kNoScheduler && schedule::PolicyPromise(value).empty())
                    return "knows no " + value;
                  said->flags.policy = value;
                  return "";
                });
  group.Checked("--bind", "connect|first-launch",
                "when it is decided which device an application uses: when\n"
                "it connects (the default), or when it first uses one, by\n"
                "--pool-policy; until then its memory is not on the device\n"
                "(needs swapping; not in a pool)",
                [=](const std::string& value) -> std::string {
                  if (value != "connect" && value != "first-launch")
                    return "wants connect or first-launch, not " + value;
                  options->bind_at_launch = value == "first-launch";
                  return "";
                });
  group.Checked("--balance", "on|off",
                "whether applications that share a device, or have a slow\n"
                "one, go to another one that has fallen idle, while they\n"
                "run (default off; not in a pool)",
                OnOff(&options->balance));
  group.Text("--tenants", "FILE",
             absl::StrCat("names and weights of tenants (default\n", kTenantsPath,
                          ", if it is there); read again on\nSIGHUP"),
             &said->tenants_path);
}

void AddMemory(CLI::App* app, Said* said) {
  DaemonOptions* options = &said->flags.daemon;
  MemoryOptions* memory = &options->memory;
  Group group(app, "Memory of each device");
  group.Size("--device-memory",
             "for programs (40GiB); the rest is for what drivers take\n(default: all of it)",
             &memory->device_bytes);
  group.Checked("--admission", "NAME",
                "who gets memory first when it is short: fifo (the default),\n"
                "mmu, priority-fifo or priority-mmu",
                [=](const std::string& value) -> std::string {
                  if (!admission::OrderByName(value).has_value()) return "knows no " + value;
                  said->admission = value;
                  return "";
                });
  group.Size("--swap-pinned",
             "what does not fit a device lies in host memory: pinned\n(default: no swapping)",
             &memory->swap_pinned);
  group.Size("--swap-pageable", "then in pageable host memory", &memory->swap_pageable);
  group.Checked("--swap-file", "FOLDER=SIZE", "then in a compressed file",
                [=](const std::string& value) { return TakeSwapFile(value, memory); });
  group.Checked("--keep-memory", "on|off|auto",
                "whether programs go on with their data when a worker\n"
                "dies (default off): not with swapping; auto is on for\n"
                "the CPU device",
                OnOffAuto(&options->keep_memory));
  group.Checked("--standby-workers", "on|off",
                "whether each device has a second worker, which takes the\n"
                "place of one that dies (default off); it has a context,\n"
                "on NVIDIA's some 0.5 GB of the device's memory",
                OnOff(&options->standby_workers));
  group.Number("--checkpoint-after", "SECONDS",
               "of work on its device, since the last time: a checkpoint of\n"
               "each program is written, from which it goes on when device\n"
               "memory is lost (default never; docs/howto/checkpoint.md)",
               kSaveAfterSecondsMax,
               [=](uint32_t seconds) { options->save_after_seconds = seconds; });
  group.Text("--checkpoint-folder", "FOLDER", "where those are, for this consortd alone",
             &options->save_folder);
  group.Checked("--launch-chains", "on|off|auto",
                "whether many launches that wait go to the driver as one,\n"
                "and what is launched again and again as a graph\n"
                "(default auto: on for NVIDIA's devices)",
                OnOffAuto(&options->launch_chains));
  group.Checked("--peer-access", "on|off|auto",
                "whether a program's vGPUs reach each other's memory,\n"
                "where the driver can (default auto: on)",
                OnOffAuto(&options->peer_access));
  group.Checked("--shared-code", "on|off|auto",
                "whether a device has code that several programs use\n"
                "loaded once (default auto: on for the CPU device)",
                OnOffAuto(&options->shared_code));
}

void AddPool(CLI::App* app, Said* said) {
  PoolFlags* pool = &said->pool;
  Group group(app, "A pool of several hosts");
  group.Checked("--pool", "URL[,URL...]",
                "members of the etcd that holds the pool, as\n"
                "http://10.0.0.1:2379; https uses the certificates below",
                [=](const std::string& value) -> std::string {
                  pool->endpoints = absl::StrSplit(value, ',', absl::SkipEmpty());
                  return "";
                });
  group.Text("--pool-name", "NAME", "which of the pools of that etcd (default: default)",
             &pool->name);
  group.Text("--pool-listen", "ADDRESS:PORT",
             absl::StrCat("where other hosts connect (default ", pool->listen, ")"), &pool->listen);
  group.Text("--pool-advertise", "ADDRESS:PORT",
             "the same as others see it; needed if --pool-listen is no\n"
             "address that they can reach",
             &pool->advertise);
  group.Text("--pool-certificates", "FOLDER",
             absl::StrCat("authority.crt, NODE.crt and NODE.key (default\n", pool->certificates,
                          "); consortctl pool makes them"),
             &pool->certificates);
  group.Number("--pool-vgpus", "N",
               "how many GPUs a program sees whose VM's file does not say\n(default: all)",
               kVgpusMax, [=](uint32_t number) { pool->vgpus = number; });
  group.Checked("--pool-policy", "NAME[,NAME]",
                "who chooses GPUs while this host is the pool's mapper, or\n"
                "with --bind first-launch: a\n"
                "policy, and one that decides once there is history (default\n"
                "gwtmin,mbf); in place of the first the path of your own,\n"
                "/PATH.so or /PATH.so=ARGUMENT\n"
                "(docs/howto/add_a_placement_policy.md)",
                [=](const std::string& value) -> std::string {
                  const std::vector<std::string> names = absl::StrSplit(value, ',');
                  for (const std::string& name : names) {
                    const bool own = gpool::IsOwnPolicy(name) && &name == &names[0];
                    if ((!own && placement::PolicyPromise(name).empty()) || names.size() > 2)
                      return "knows no " + value;
                  }
                  pool->mapper = {names[0], names.size() > 1 ? names[1] : ""};
                  return "";
                });
  group.Text("--node", "NAME", "this host's name in the pool (default: its host name)",
             &pool->node);
}

void AddRecords(CLI::App* app, Said* said) {
  DaemonOptions* options = &said->flags.daemon;
  Group group(app, "What is kept and told");
  group.Text("--state", "FILE",
             "what consortctl sets at run time, so that it holds after a\n"
             "restart (default: state.json in $STATE_DIRECTORY, or\nnothing is kept)",
             &said->flags.state_path);
  group.Text("--account", "FILE", "append one line of JSON for each session that ends",
             &options->account_path);
  group.Number("--account-every", "SECONDS",
               "and of open ones that used something, so often (default 600)", UINT32_MAX,
               [=](uint32_t number) { options->account_every = number * kSecond; });
  group.Text("--trace", "FOLDER",
             "a file for each worker with everything that its scheduler is\n"
             "told and decides, for consort-sim --replay",
             &said->trace);
  group.Text("--trace-folder", "FOLDER",
             "where consortctl trace puts such files (default: traces in\n$LOGS_DIRECTORY, or "
             "beside --state)",
             &options->trace_folder);
  app->add_option("--verbose", options->verbosity, "more in the log")
      ->type_name("N")
      ->take_last()
      ->group("What is kept and told");
}

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

// Fills in what was not said, and reads the tenants' file. What is wrong; empty: nothing.
std::string Complete(Said* said) {
  DaemonOptions* options = &said->flags.daemon;
  const std::filesystem::path socket = options->socket_path;
  if (said->admin_socket.empty())
    said->admin_socket = std::filesystem::path(socket).replace_extension(".admin.sock");
  if (said->admin_socket != "off") options->admin.socket_path = said->admin_socket;
  if (options->vm_defaults.socket_folder.empty())
    options->vm_defaults.socket_folder = std::filesystem::path(socket).replace_filename("vms");
  for (VmOptions& vm : options->vms) {
    vm.shared_memory = options->vm_defaults.shared_memory;
    vm.memory_path = VmMemoryPath(options->vm_defaults, vm.name);
    if (vm.shared_memory != 0 && !IsVmName(vm.name)) {
      return absl::StrCat("--vm ", vm.name,
                          ": with --vm-memory a name has letters, digits, . _ - only, at most ",
                          kVmNameBytesMax);
    }
  }
  options->tenants_path = said->tenants_path.empty() ? kTenantsPath : said->tenants_path;
  auto tenants = ReadTenants(options->tenants_path);
  if (tenants.ok()) {
    said->flags.tenants = *std::move(tenants);
  } else if (!said->tenants_path.empty() || !absl::IsNotFound(tenants.status())) {
    return std::string(tenants.status().message());
  }
  options->binding = said->pool.mapper;
  if (options->bind_at_launch && !options->memory.swaps()) {
    return "--bind first-launch needs a place for memory that is on no device yet: "
           "give --swap-pageable or --swap-pinned, too";
  }
  if (!said->pool.endpoints.empty()) {
    if (const std::string wrong = SetPool(said->pool, options); !wrong.empty()) return wrong;
    if (options->bind_at_launch)
      return "--bind first-launch is not for a host of a pool, which places applications";
    if (options->balance) return "--balance is not for a host of a pool, which places applications";
  } else if (options->device == "none") {
    return "--device none is for a host of a pool: --pool is missing";
  }
  if (options->save_after_seconds != 0) {
    if (options->save_folder.empty() || options->save_folder[0] != '/')
      return "--checkpoint-after wants --checkpoint-folder, a path from the root";
    if (options->memory.swaps()) return "--checkpoint-after is not for devices with swapping";
    if (options->pool.has_value()) return "--checkpoint-after is not for a host of a pool";
  }
  if (!said->flags.tenants.admission.empty())
    options->memory.admission = said->flags.tenants.admission;
  if (!said->admission.empty()) options->memory.admission = said->admission;
  const char* state_folder = getenv("STATE_DIRECTORY");  // of the service manager
  if (said->flags.state_path.empty() && state_folder != nullptr && state_folder[0] == '/')
    said->flags.state_path = std::string(state_folder) + "/state.json";
  const char* logs_folder = getenv("LOGS_DIRECTORY");
  options->traces_first = !said->trace.empty();
  if (options->traces_first) {
    options->trace_folder = said->trace;
  } else if (options->trace_folder.empty() && logs_folder != nullptr && logs_folder[0] == '/') {
    options->trace_folder = std::string(logs_folder) + "/traces";
  } else if (options->trace_folder.empty() && !said->flags.state_path.empty()) {
    options->trace_folder = said->flags.state_path + ".traces";
  }
  return "";
}

}  // namespace

int UsageError(const std::string& what) {
  fprintf(stderr, "consortd: %s\nTry consortd --help.\n", what.c_str());
  return kExitUsage;
}

std::optional<Flags> ReadFlags(int argc, char** argv, int* exit_status) {
  Said said;
  said.flags.daemon.socket_path = DefaultSocketPath();
  said.flags.daemon.admin.metrics_address = kMetricsAddress;
  CLI::App app("serves this host's GPUs to virtual machines and local applications", "consortd");
  app.set_version_flag("--version", CONSORT_VERSION);
  app.get_formatter()->column_width(kHelpColumn);
  AddDoors(&app, &said);
  AddDevices(&app, &said);
  AddMemory(&app, &said);
  AddPool(&app, &said);
  AddRecords(&app, &said);
  // Of a consortd to its next binary; nothing for people.
  app.add_option("--resume", said.flags.resume)->group("");
  app.add_option("--rehearse", said.flags.rehearse)->group("");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {  // help or version
    *exit_status = app.exit(asked);
    return std::nullopt;
  } catch (const CLI::ParseError& wrong) {
    *exit_status = UsageError(wrong.what());
    return std::nullopt;
  }
  if (const std::string wrong = Complete(&said); !wrong.empty()) {
    *exit_status = UsageError(wrong);
    return std::nullopt;
  }
  return std::move(said.flags);
}

}  // namespace consort::host
