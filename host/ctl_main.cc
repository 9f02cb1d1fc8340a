// SPDX-License-Identifier: Apache-2.0
// host/ctl_main.cc: consortctl, the operator's tool. Reads the command line and does one thing.
//
// The command line that Main describes is the one source of its help, of shells' completion and of
// the manual page. Exit status: kExitStatus; numbers as in sysexits.h.
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gpool/certificates.h"
#include "host/ctl/admin_client.h"
#include "host/ctl/command_docs.h"
#include "host/ctl/debug_bundle.h"
#include "host/ctl/move_commands.h"
#include "host/ctl/place_command.h"
#include "host/ctl/pool_commands.h"
#include "host/ctl/remote_admin.h"
#include "host/ctl/report.h"
#include "host/ctl/status_table.h"
#include "host/ctl/tables.h"
#include "host/ctl/tenant_commands.h"
#include "host/ctl/upgrade_command.h"
#include "host/ctl/vm_commands.h"
#include "host/ctl/vm_transfer.h"
#include "host/limits.h"
#include "host/memory/size_text.h"

namespace consort::host {
namespace {

constexpr char kExitStatus[] =
    "Exit status: 0 done; 1 failed, or check found something; 64 usage; 69 consortd or libvirt "
    "cannot be reached; 77 not allowed.";

struct Options {
  VmPaths paths;
  std::string output = "table";
  std::string libvirt_uri = "qemu:///system";
  AttachOptions attach;
  std::string certificates = "/etc/consort/pool";
  std::string node;
  std::string role = "viewer";
  std::string connect;
  std::string certificate;
  std::string key;
  std::string authority;
  std::string policy;
  uint32_t device = 0;
  std::string folder;
  std::string show;
  bool leave = false;
  RestoreTarget restore;
  AwaitTarget await;
  QemuMachine machine;
  QemuMachine to;
  std::string plugged = "consort";
  std::string uri;
  std::string tenant;
  std::string application;
  std::string trace_bytes_max = "256MiB";
  TenantOptions set;
  bool once = false;
  std::string account = "/var/log/consort/account.jsonl";
  ReportOptions report;
  std::string since;
  std::string until;
  std::string shell;
  std::string bundle;
  std::string action;
  double interval_seconds = 1;
};

int Fail(const absl::Status& status) {
  std::cerr << "consortctl: " << status.message() << "\n";
  if (absl::IsUnavailable(status)) return EX_UNAVAILABLE;
  if (absl::IsPermissionDenied(status)) return EX_NOPERM;
  if (absl::IsInvalidArgument(status)) return EX_USAGE;
  return EXIT_FAILURE;
}

int Done(const absl::Status& status) { return status.ok() ? EXIT_SUCCESS : Fail(status); }

int ShowStatus(const Options& options) {
  const auto status = AdminStatus(options.paths.admin_socket);
  if (!status.ok()) return Fail(status.status());
  if (options.output == "json") {
    std::cout << status->dump(2) << "\n";
  } else {
    std::cout << StatusTables(*status, static_cast<uint64_t>(time(nullptr)));
  }
  return EXIT_SUCCESS;
}

int ShowPool(const Options& options, const char* part,
             std::string (*table)(const nlohmann::ordered_json&)) {
  const auto status = AdminStatus(options.paths.admin_socket);
  if (!status.ok()) return Fail(status.status());
  const auto pool = PoolOf(*status);
  if (!pool.ok()) return Fail(pool.status());
  if (options.output == "json") {
    std::cout << pool->at(part).dump(2) << "\n";
  } else {
    std::cout << table(*pool);
  }
  return EXIT_SUCCESS;
}

// Of the pool, or of this host where it is in none.
int ShowGpus(const Options& options) {
  const auto status = AdminStatus(options.paths.admin_socket);
  if (!status.ok()) return Fail(status.status());
  const bool pool = status->contains("pool");
  const auto& gpus = pool ? status->at("pool").at("gpus") : status->at("devices");
  std::cout << (options.output == "json" ? gpus.dump(2) + "\n"
                : pool                   ? GpusTable(status->at("pool"))
                                         : DevicesTable(gpus));
  return EXIT_SUCCESS;
}

// For a person until it is interrupted, each time over the last one; for a program a line each
// time.
int Top(const Options& options) {
  const bool json = options.output == "json";
  const bool redraw = !json && !options.once && isatty(STDOUT_FILENO);
  while (true) {
    const auto status = AdminStatus(options.paths.admin_socket);
    if (!status.ok()) return Fail(status.status());
    if (redraw) std::cout << "\033[H\033[2J";  // to the corner, and clear
    std::cout << (json ? TopJson(*status).dump(options.once ? 2 : -1) + "\n" : TopTables(*status))
              << std::flush;
    if (options.once) return EXIT_SUCCESS;
    if (!std::cout) return EXIT_FAILURE;  // nobody reads any more
    poll(nullptr, 0, static_cast<int>(options.interval_seconds * 1000));
  }
}

int Policy(const Options& options) {
  if (options.policy.empty()) {
    const auto status = AdminStatus(options.paths.admin_socket);
    if (!status.ok()) return Fail(status.status());
    const std::string name = status->value("policy", std::string());
    if (options.output == "json") {
      std::cout << nlohmann::ordered_json({{"policy", name}}).dump(2) << "\n";
    } else {
      std::cout << name << "\n";
    }
    return EXIT_SUCCESS;
  }
  nlohmann::ordered_json body;
  body["policy"] = nullptr;
  if (options.policy != "default") body["policy"] = options.policy;
  return Done(AdminPut(options.paths.admin_socket, "/api/v1/scheduler", body));
}

int ListTenants(const Options& options) {
  const auto status = AdminStatus(options.paths.admin_socket);
  if (!status.ok()) return Fail(status.status());
  if (options.output == "json") {
    std::cout << status->value("tenants", nlohmann::ordered_json::array()).dump(2) << "\n";
  } else {
    std::cout << TenantTable(*status);
  }
  return EXIT_SUCCESS;
}

int SetTenant(const Options& options) {
  const auto body = TenantSetBody(options.set);
  if (!body.ok()) return Fail(body.status());
  return Done(AdminPut(options.paths.admin_socket, "/api/v1/tenants", *body));
}

int ResetTenant(const Options& options) {
  return Done(AdminPut(options.paths.admin_socket, "/api/v1/tenants",
                       TenantResetBody(options.set.tenant, options.set.pool)));
}

// A part of consortd's state: as JSON, or as a table.
int Show(const Options& options, const nlohmann::ordered_json& json, const std::string& table) {
  std::cout << (options.output == "json" ? json.dump(2) + "\n" : table);
  return EXIT_SUCCESS;
}

int ShowApplications(const Options& options) {
  const auto status = AdminStatus(options.paths.admin_socket);
  if (!status.ok()) return Fail(status.status());
  const nlohmann::ordered_json applications = ApplicationsOf(*status, options.tenant);
  return Show(options, applications,
              ApplicationTable(applications, static_cast<uint64_t>(time(nullptr))));
}

int ShowPlaces(const Options& options) {
  const auto status = AdminStatus(options.paths.admin_socket);
  if (!status.ok()) return Fail(status.status());
  const auto placements = PlacementsOf(*status, options.application);
  if (!placements.ok()) return Fail(placements.status());
  return Show(options, *placements, PlacementTable(*placements));
}

// Files are on the host of consortd.
int Trace(const Options& options, bool change, bool record) {
  if (change) {
    nlohmann::ordered_json body = {{"record", record}};
    if (record) body["bytes_max"] = options.trace_bytes_max;
    const absl::Status done = AdminPut(options.paths.admin_socket, "/api/v1/trace", body);
    if (!done.ok()) return Fail(done);
  }
  const auto trace = AdminGetJson(options.paths.admin_socket, "/api/v1/trace");
  if (!trace.ok()) return Fail(trace.status());
  return Show(options, *trace, TraceTable(*trace));
}

int ShowMachines(const Options& options) {
  const auto status = AdminStatus(options.paths.admin_socket);
  if (!status.ok()) return Fail(status.status());
  const nlohmann::ordered_json machines = MachinesOf(*status);
  return Show(options, machines, MachineTable(machines));
}

int ShowEvents(const Options& options) {
  const auto page = AdminGetJson(options.paths.admin_socket, "/api/v1/page");
  if (!page.ok()) return Fail(page.status());
  const auto events = page->value("events", nlohmann::ordered_json::array());
  return Show(options, events, EventTable(events));
}

int ShowReport(Options options) {
  for (const auto& [text, to] : {std::pair(&options.since, &options.report.since),
                                 std::pair(&options.until, &options.report.until)}) {
    if (text->empty()) continue;
    const auto time = ParseTime(*text);
    if (!time.ok()) return Fail(time.status());
    *to = *time;
  }
  options.report.tenant = options.tenant;
  std::vector<std::string> left_out;
  const auto files = AccountFiles(options.account, &left_out);
  if (!files.ok()) return Fail(files.status());
  Report report(options.report);
  for (const std::string& path : *files) {
    std::ifstream file(path);
    if (!file) {
      const std::string text = absl::StrCat(path, ": ", strerror(errno));
      return Fail(errno == EACCES ? absl::PermissionDeniedError(text)
                                  : absl::UnavailableError(text));
    }
    report.AddFile(file);
  }
  for (const std::string& path : left_out) {
    std::cerr << "consortctl: " << path << " is compressed and was left out\n";
  }
  if (report.unreadable() != 0) {
    std::cerr << "consortctl: " << report.unreadable()
              << " lines cannot be read and were left out\n";
  }
  return Show(options, report.Json(), report.Table());
}

int Bundle(const Options& options) {
  const time_t now = time(nullptr);
  std::string path = options.bundle;
  if (path.empty()) {
    tm parts = {};
    gmtime_r(&now, &parts);
    char name[64];
    strftime(name, sizeof(name), "consort-debug-%Y%m%dT%H%M%SZ.tar", &parts);
    path = name;
  }
  BundleSources sources;
  sources.admin_socket = options.paths.admin_socket;
  sources.version = CONSORT_VERSION;
  const absl::Status written = WriteDebugBundle(sources, path, static_cast<uint64_t>(now));
  if (written.ok()) std::cout << path << "\n";
  return Done(written);
}

// A folder of consortd's host as consortd knows it: from here it is seen from where we are.
std::string OnHost(const std::string& folder, bool remote) {
  if (folder.empty() || remote) return folder;
  return std::filesystem::absolute(folder).lexically_normal();
}

int Checkpoint(const Options& options, bool remote) {
  if (!options.show.empty()) return Done(ShowCheckpoint(options.show, std::cout));
  if (options.application.empty()) {
    return Fail(absl::InvalidArgumentError("an application and a folder are wanted, or --show"));
  }
  return Done(host::Checkpoint(options.paths.admin_socket, options.application,
                               OnHost(options.folder, remote), options.leave, std::cout));
}

// As a service: what happens goes to its log.
int Watch(const LibvirtDomains& domains, const Options& options) {
  return Done(domains.Watch(
      [&] {
        const absl::Status synced = SyncVms(domains, options.paths, std::cout);
        if (!synced.ok()) std::cerr << "consortctl: " << synced.message() << "\n";
        std::cout << std::flush;
      },
      [] { return true; }));
}

int Hook(const Options& options) {
  const std::string xml{std::istreambuf_iterator<char>(std::cin), {}};
  return Done(HookVm(options.paths, options.attach.domain, options.action, xml, std::cerr));
}

int List(const LibvirtDomains& domains, const Options& options) {
  const auto vms = ListVms(domains);
  if (!vms.ok()) return Fail(vms.status());
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  std::vector<std::vector<std::string>> rows;
  for (const AttachedVm& vm : *vms) {
    const Attachment& attachment = vm.attachment;
    rows.push_back({vm.domain, attachment.tenant, std::to_string(attachment.vgpus),
                    vm.running ? "running" : "off", attachment.socket_path});
    json.push_back({{"domain", vm.domain},
                    {"tenant", attachment.tenant},
                    {"vgpus", attachment.vgpus},
                    {"running", vm.running},
                    {"socket", attachment.socket_path}});
  }
  std::cout << (options.output == "json"
                    ? json.dump(2) + "\n"
                    : Table({"DOMAIN", "TENANT", "VGPUS ", "STATE", "SOCKET"}, rows));
  return EXIT_SUCCESS;
}

int Check(const LibvirtDomains& domains, const Options& options) {
  const auto findings = CheckVm(domains, options.paths, options.attach.domain);
  if (!findings.ok()) return Fail(findings.status());
  if (options.output == "json") {
    nlohmann::ordered_json json = nlohmann::ordered_json::array();
    for (const Finding& finding : *findings) {
      json.push_back({{"problem", finding.problem}, {"remedy", finding.remedy}});
    }
    std::cout << json.dump(2) << "\n";
  } else if (findings->empty()) {
    std::cout << options.attach.domain << ": nothing is missing\n";
  }
  if (options.output != "json") {
    for (const Finding& finding : *findings) {
      std::cout << finding.problem << "\n    " << finding.remedy << "\n";
    }
  }
  return findings->empty() ? EXIT_SUCCESS : EXIT_FAILURE;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("looks at consortd and gives vGPUs to virtual machines", "consortctl");
  app.footer(kExitStatus);
  app.set_version_flag("--version", CONSORT_VERSION);
  app.set_help_all_flag("--help-all", "help of all commands");
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--admin-socket", options.paths.admin_socket, "consortd's admin socket")
      ->capture_default_str();
  CLI::Option* connect =
      app.add_option("--connect", options.connect,
                     "another host's consortd, by its pool's address, such as 10.77.0.1:7010; in "
                     "place of --admin-socket");
  CLI::Option* cert =
      app.add_option("--cert", options.certificate,
                     "with --connect: who asks, a certificate of consortctl pool operator");
  connect->needs(cert);
  cert->needs(connect);
  app.add_option("--key", options.key, "the certificate's key; else the file beside it")
      ->needs(cert);
  app.add_option("--authority", options.authority, "of the pool; else authority.crt beside it")
      ->needs(cert);
  app.add_option("-o,--output", options.output, "for people or for programs")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();

  CLI::App* status = app.add_subcommand("status", "devices, tenants and open sessions");
  CLI::App* apps = app.add_subcommand("apps", "open applications");
  apps->add_option("--tenant", options.tenant, "of this tenant only");
  CLI::App* place = app.add_subcommand("place", "where applications' devices are, and why there");
  place->add_option("application", options.application, "its name or process id; else all");
  CLI::App* vms = app.add_subcommand("vms", "virtual machines that have a socket");
  CLI::App* all_tenants = app.add_subcommand("tenants", "tenants, what they use and their weights");
  CLI::App* events = app.add_subcommand("events", "what happened of late on this host");
  CLI::App* report = app.add_subcommand("report", "who used how much, from consortd's account");
  report
      ->add_option("--account", options.account,
                   "consortd's --account; what was rotated is read too")
      ->capture_default_str();
  report->add_option("--period", options.report.period, "of a row, in UTC")
      ->check(CLI::IsMember({"hour", "day", "month", "all"}))
      ->capture_default_str();
  report->add_option("--by", options.report.by, "whose use a row is")
      ->check(CLI::IsMember({"tenant", "vm", "application", "device"}))
      ->capture_default_str();
  report->add_option("--tenant", options.tenant, "of this tenant only");
  report->add_option("--since", options.since,
                     "a day (2026-03-01) or moment (2026-03-01T12:00:00Z)");
  report->add_option("--until", options.until, "likewise; what was used from then on is left out");
  CLI::App* nodes = app.add_subcommand("nodes", "hosts of the pool");
  CLI::App* gpus = app.add_subcommand("gpus", "GPUs of the pool, or of this host by itself");
  CLI::App* slice = app.add_subcommand("slice", "which GPUs of the pool this host's programs have");
  CLI::App* pool = app.add_subcommand("pool", "certificates of a pool's hosts");
  pool->require_subcommand(1);
  pool->fallthrough();
  CLI::App* init = pool->add_subcommand("init", "makes the authority of a new pool");
  CLI::App* certificate = pool->add_subcommand("certificate", "makes a host's certificate and key");
  certificate->add_option("node", options.node, "the host's name")->required();
  CLI::App* pool_operator = pool->add_subcommand(
      "operator", "makes a person's certificate and key, for consortctl --connect");
  pool_operator->add_option("name", options.node, "the person's")->required();
  pool_operator->add_option("--role", options.role, "admins change things, viewers look")
      ->check(CLI::IsMember({"admin", "viewer"}))
      ->capture_default_str();
  for (CLI::App* make : {init, certificate, pool_operator}) {
    make->add_option("--folder", options.certificates, "where they lie")->capture_default_str();
  }
  CLI::App* top = app.add_subcommand("top", "how devices are shared, as it goes");
  top->add_flag("--once", options.once, "prints once and ends");
  top->add_option("--interval", options.interval_seconds, "seconds between")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  CLI::App* policy = app.add_subcommand("policy", "shows or sets how devices are shared");
  policy->add_option(
      "name", options.policy,
      "a policy (tfs, slowdown, las, ps, fcfs, sjf, credit, idle), none, or default: "
      "as consortd's flags and files say");
  CLI::App* migrate =
      app.add_subcommand("migrate", "moves a running application to another device of this host");
  migrate
      ->add_option("application", options.application,
                   "its session's number, pid:NUMBER, or its name")
      ->required();
  migrate->add_option("--to", options.device, "the device's number")->required();
  CLI::App* checkpoint = app.add_subcommand(
      "checkpoint", "takes a running application off its device and keeps it in a folder");
  CLI::Option* saved = checkpoint->add_option("application", options.application,
                                              "its session's number, pid:NUMBER, or its name");
  CLI::Option* folder = checkpoint->add_option(
      "folder", options.folder, "made if it is not there; consortd must be allowed to write it");
  saved->needs(folder);
  checkpoint
      ->add_option(
          "--show", options.show,
          "instead: says what is in the checkpoint in this folder, and whether it is whole")
      ->excludes(saved);
  checkpoint->add_flag("--leave", options.leave,
                       "its virtual machine leaves this host: consortctl await goes on");
  CLI::App* await = app.add_subcommand(
      "await", "lets an application that left with its virtual machine go on here");
  await->add_option("folder", options.await.folder, "that it was taken into, or a copy")
      ->required();
  await->add_option("--to", options.await.device, "the device's number; else as where it was");
  CLI::App* restore =
      app.add_subcommand("restore", "puts an application from its folder back on a device");
  restore
      ->add_option("application", options.restore.application,
                   "its session's number, pid:NUMBER, or its name")
      ->required();
  restore->add_option("folder", options.restore.folder,
                      "a copy of the one with which it was taken; else that one");
  restore->add_option("--to", options.restore.device,
                      "the device's number; else that which it was on");
  CLI::App* drain =
      app.add_subcommand("drain", "moves all applications off a device, which takes no new ones");
  CLI::App* undrain = app.add_subcommand("undrain", "lets a device take applications again");
  for (CLI::App* command : {drain, undrain}) {
    command->add_option("device", options.device, "its number")->required();
  }
  CLI::App* upgrade = app.add_subcommand(
      "upgrade", "the consortd that is installed now takes over, and applications run on");
  CLI::App* trace = app.add_subcommand(
      "trace", "records what schedulers are told and decide, for consort-sim --replay");
  trace->require_subcommand(1);
  trace->fallthrough();
  CLI::App* trace_start = trace->add_subcommand("start", "a file for each device, and shows them");
  trace_start
      ->add_option("--max-bytes", options.trace_bytes_max, "of a file, which ends when it is full")
      ->capture_default_str();
  CLI::App* trace_stop = trace->add_subcommand("stop", "ends them, and shows them");
  trace->add_subcommand("show", "the files of the latest recording, and how they stand");
  CLI::App* tenant = app.add_subcommand("tenant", "tenants and their weights");
  tenant->require_subcommand(1);
  tenant->fallthrough();
  CLI::App* tenants = tenant->add_subcommand("list", "those that are known");
  CLI::App* set =
      tenant->add_subcommand("set", "changes a tenant on this host; holds after a restart too");
  set->add_option("tenant", options.set.tenant, "its name")->required();
  set->add_option("--weight", options.set.weight,
                  "its part of a device, beside the others' weights")
      ->check(CLI::Range(uint32_t{1}, kTenantWeightMax));
  set->add_option("--gpus", options.set.gpus,
                  "the GPUs that it may use, with commas between: numbers (in a pool gids), UUIDs, "
                  "models; or all")
      ->delimiter(',');
  set->add_option(
      "--placement", options.set.placement,
      "the policy by which it gets its GPUs of a pool, such as mbf; default: the pool's");
  set->add_option("--max-launches-per-second", options.set.launches,
                  "kernels that it may launch on each device, or none");
  set->add_option("--max-copy-bytes-per-second", options.set.copies,
                  "what it may copy between host and each device, such as 2GiB, or none");
  CLI::App* reset = tenant->add_subcommand("reset", "takes back what was set");
  reset->add_option("tenant", options.set.tenant, "its name")->required();
  for (CLI::App* command : {set, reset}) {
    command->add_flag("--pool", options.set.pool,
                      "of all hosts of the pool; what is set on a host, without this, comes first");
  }
  CLI::App* vm = app.add_subcommand("vm", "which virtual machines of libvirt have vGPUs");
  vm->require_subcommand(1);
  vm->fallthrough();
  vm->add_option("-c,--connect", options.libvirt_uri, "libvirt's URI")
      ->envname("LIBVIRT_DEFAULT_URI")
      ->capture_default_str();
  vm->add_option("--vm-files", options.paths.vm_files, "consortd's --vm-files")
      ->capture_default_str();
  vm->add_option("--vm-sockets", options.paths.vm_sockets, "consortd's --vm-sockets")
      ->capture_default_str();

  CLI::App* attach = vm->add_subcommand("attach", "gives vGPUs to a domain");
  attach->add_option("domain", options.attach.domain, "its name")->required();
  attach->add_option("--tenant", options.attach.tenant, "who pays")->required();
  attach->add_option("--vgpus", options.attach.vgpus, "how many of the host's devices it sees")
      ->check(CLI::Range(1, static_cast<int>(kDevicesMax)))
      ->capture_default_str();
  attach
      ->add_option_function<std::string>(
          "--shared-memory",
          [&options](const std::string& value) {
            const std::optional<Bytes> size = ParseSize(value);
            if (value != "0" && (!size.has_value() || !IsVmMemorySize(*size))) {
              throw CLI::ValidationError(
                  "--shared-memory", absl::StrCat("wants ", kVmMemorySizes, ", or 0, not ", value));
            }
            options.attach.shared_memory_mib = size.value_or(0) / kMiB;
          },
          "that it shares with this host, such as 256MiB")
      ->type_name("SIZE");
  CLI::App* detach = vm->add_subcommand("detach", "takes a domain's vGPUs away");
  detach->add_option("domain", options.attach.domain, "its name")->required();
  for (CLI::App* edit : {attach, detach}) {
    edit->add_flag("--print", options.attach.print,
                   "prints the definition that libvirt would get, and changes nothing");
  }
  CLI::App* list = vm->add_subcommand("list", "domains that have vGPUs");
  CLI::App* check = vm->add_subcommand("check", "says what is missing, and how to mend it");
  check->add_option("domain", options.attach.domain, "its name")->required();

  CLI::App* save = vm->add_subcommand(
      "save", "saves a machine of QEMU into a folder, its programs' sessions with it");
  CLI::App* restore_vm =
      vm->add_subcommand("restore", "loads one into a QEMU that waits (-incoming defer)");
  CLI::App* migrate_vm =
      vm->add_subcommand("migrate", "moves a running machine to another QEMU and another consortd");
  for (CLI::App* transfer : {save, restore_vm, migrate_vm}) {
    transfer->add_option("vm", options.machine.name, "its name, as consortctl vms has it")
        ->required();
    transfer
        ->add_option("folder", options.folder,
                     "for sessions and machine; save and migrate make it, and both daemons see it")
        ->required();
    transfer->add_option("--qmp", options.machine.monitor, "the socket of QEMU's monitor (QMP)")
        ->required();
  }
  for (CLI::App* leaves : {save, migrate_vm}) {
    leaves->add_option("--device", options.plugged, "id of the vhost-user-vsock-pci device")
        ->capture_default_str();
  }
  migrate_vm->add_option("--to-qmp", options.to.monitor, "of the QEMU that waits (-incoming defer)")
      ->required();
  migrate_vm
      ->add_option("--to-admin-socket", options.to.admin_socket,
                   "of the consortd that it belongs to")
      ->required();
  migrate_vm
      ->add_option("--uri", options.uri, "between the two, QEMU's way: unix:PATH or tcp:HOST:PORT")
      ->required();
  CLI::App* watch = vm->add_subcommand(
      "watch",
      "makes and removes machines' sockets as libvirt's domains come and go; does not end");
  CLI::App* hook = vm->add_subcommand(
      "hook", "the same for one domain, called by libvirt's hook with the definition as input");
  hook->add_option("domain", options.attach.domain, "its name")->required();
  hook->add_option("action", options.action, "prepare or release; others are passed over")
      ->required();

  CLI::App* debug = app.add_subcommand("debug", "for those who look for a fault");
  debug->require_subcommand(1);
  debug->fallthrough();
  CLI::App* bundle = debug->add_subcommand(
      "bundle", "state, metrics, configuration and log in one archive; names of tenants are in it");
  bundle->add_option("file", options.bundle, "to write; one named by the time if left out");

  CLI::App* completion =
      app.add_subcommand("completion", "prints a script that completes commands");
  completion->add_option("shell", options.shell, "for which shell")
      ->check(CLI::IsMember({"bash", "zsh"}))
      ->required();
  CLI::App* manual = app.add_subcommand("manual", "prints the manual page, for man -l -");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? EXIT_SUCCESS : EX_USAGE;
  }
  std::unique_ptr<RemoteAdmin> remote;
  if (connect->count() != 0) {
    auto started = RemoteAdmin::Start(
        options.connect, OperatorFiles(options.certificate, options.key, options.authority));
    if (!started.ok()) return Fail(started.status());
    remote = *std::move(started);
    options.paths.admin_socket = remote->socket_path();
  }
  if (status->parsed()) return ShowStatus(options);
  if (nodes->parsed()) return ShowPool(options, "nodes", &NodesTable);
  if (gpus->parsed()) return ShowGpus(options);
  if (slice->parsed()) return ShowPool(options, "assemblies", &SlicesTable);
  if (init->parsed()) return Done(gpool::MakeAuthority(options.certificates));
  if (certificate->parsed()) {
    return Done(gpool::MakeNodeCertificate(options.certificates, options.node));
  }
  if (pool_operator->parsed()) {
    return Done(gpool::MakeOperatorCertificate(
        options.certificates, options.node,
        options.role == "admin" ? gpool::Role::kAdmin : gpool::Role::kViewer));
  }
  if (top->parsed()) return Top(options);
  if (policy->parsed()) return Policy(options);
  if (tenants->parsed()) return ListTenants(options);
  if (set->parsed()) return SetTenant(options);
  if (reset->parsed()) return ResetTenant(options);
  if (all_tenants->parsed()) return ListTenants(options);
  if (apps->parsed()) return ShowApplications(options);
  if (trace->parsed()) {
    const bool start = trace_start->parsed();
    return Trace(options, start || trace_stop->parsed(), start);
  }
  if (place->parsed()) return ShowPlaces(options);
  if (vms->parsed()) return ShowMachines(options);
  if (events->parsed()) return ShowEvents(options);
  if (report->parsed()) return ShowReport(options);
  if (migrate->parsed()) {
    return Done(
        Migrate(options.paths.admin_socket, options.application, options.device, std::cout));
  }
  if (checkpoint->parsed()) return Checkpoint(options, connect->count() != 0);
  if (await->parsed()) {
    options.await.folder = OnHost(options.await.folder, connect->count() != 0);
    return Done(Await(options.paths.admin_socket, options.await));
  }
  if (restore->parsed()) {
    options.restore.folder = OnHost(options.restore.folder, connect->count() != 0);
    return Done(Restore(options.paths.admin_socket, options.restore, std::cout));
  }
  if (drain->parsed()) {
    return Done(DrainDevice(options.paths.admin_socket, options.device, std::cout));
  }
  if (undrain->parsed()) return Done(UndrainDevice(options.paths.admin_socket, options.device));
  if (upgrade->parsed()) return Done(UpgradeDaemon(options.paths.admin_socket, std::cout));
  if (bundle->parsed()) return Bundle(options);
  if (completion->parsed()) {
    std::cout << (options.shell == "zsh" ? ZshCompletion(app) : BashCompletion(app));
    return EXIT_SUCCESS;
  }
  if (manual->parsed()) {
    std::cout << ManualPage(
        app, CONSORT_VERSION,
        absl::StrCat(".SH EXIT STATUS\n", kExitStatus, "\n.SH SEE ALSO\n.BR consortd (8)\n"));
    return EXIT_SUCCESS;
  }
  options.machine.admin_socket = options.paths.admin_socket;
  options.to.name = options.machine.name;
  const std::string vm_folder = OnHost(options.folder, /*remote=*/false);
  if (save->parsed()) {
    return Done(SaveVm(options.machine, options.plugged, vm_folder, std::cout));
  }
  if (restore_vm->parsed()) return Done(RestoreVm(options.machine, vm_folder, std::cout));
  if (migrate_vm->parsed()) {
    return Done(
        MigrateVm(options.machine, options.to, options.plugged, options.uri, vm_folder, std::cout));
  }
  if (hook->parsed()) return Hook(options);
  if (watch->parsed()) LibvirtDomains::EnableEvents();
  const auto domains = LibvirtDomains::Connect(options.libvirt_uri);
  if (!domains.ok()) return Fail(domains.status());
  if (attach->parsed()) {
    return Done(AttachVm(**domains, options.paths, options.attach, std::cout));
  }
  if (detach->parsed()) {
    return Done(
        DetachVm(**domains, options.paths, options.attach.domain, options.attach.print, std::cout));
  }
  if (watch->parsed()) return Watch(**domains, options);
  if (check->parsed()) return Check(**domains, options);
  return list->parsed() ? List(**domains, options) : EX_USAGE;
}

}  // namespace
}  // namespace consort::host

int main(int argc, char** argv) { return consort::host::Main(argc, argv); }
