// SPDX-License-Identifier: Apache-2.0
// host/ctl_main.cc: consortctl, the operator's tool. Reads the command line and does one thing.
//
// Exit status: 0 done, 1 failed or check found something, 64 usage, 69 consortd or libvirt cannot
// be reached, 77 not allowed. Numbers as in sysexits.h.
#include <poll.h>
#include <stdlib.h>
#include <sysexits.h>
#include <time.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>
#include <vector>

#include "gpool/certificates.h"
#include "host/ctl/admin_client.h"
#include "host/ctl/pool_commands.h"
#include "host/ctl/status_table.h"
#include "host/ctl/vm_commands.h"
#include "host/limits.h"

namespace consort::host {
namespace {

struct Options {
  VmPaths paths;
  std::string output = "table";
  std::string libvirt_uri = "qemu:///system";
  AttachOptions attach;
  std::string certificates = "/etc/consort/pool";
  std::string node;
  std::string policy;
  std::string tenant;
  uint32_t weight = 0;
  bool once = false;
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

// No weight: that of the file.
int SetTenant(const Options& options) {
  nlohmann::ordered_json body = {{"tenant", options.tenant}};
  body["weight"] = nullptr;
  if (options.weight != 0) body["weight"] = options.weight;
  return Done(AdminPut(options.paths.admin_socket, "/api/v1/tenants", body));
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
  CLI::App app("Looks at consortd and gives vGPUs to virtual machines.", "consortctl");
  app.set_version_flag("--version", CONSORT_VERSION);
  app.set_help_all_flag("--help-all", "help of all commands");
  app.require_subcommand(1);
  app.fallthrough();
  app.add_option("--admin-socket", options.paths.admin_socket, "consortd's admin socket")
      ->capture_default_str();
  app.add_option("-o,--output", options.output, "for people or for programs")
      ->check(CLI::IsMember({"table", "json"}))
      ->capture_default_str();

  CLI::App* status = app.add_subcommand("status", "devices, tenants and open sessions");
  CLI::App* nodes = app.add_subcommand("nodes", "hosts of the pool");
  CLI::App* gpus = app.add_subcommand("gpus", "GPUs of the pool");
  CLI::App* slice = app.add_subcommand("slice", "which GPUs of the pool this host's programs have");
  CLI::App* pool = app.add_subcommand("pool", "certificates of a pool's hosts");
  pool->require_subcommand(1);
  pool->fallthrough();
  CLI::App* init = pool->add_subcommand("init", "makes the authority of a new pool");
  CLI::App* certificate = pool->add_subcommand("certificate", "makes a host's certificate and key");
  certificate->add_option("node", options.node, "the host's name")->required();
  for (CLI::App* make : {init, certificate}) {
    make->add_option("--folder", options.certificates, "where they lie")->capture_default_str();
  }
  CLI::App* top = app.add_subcommand("top", "how devices are shared, as it goes");
  top->add_flag("--once", options.once, "prints once and ends");
  top->add_option("--interval", options.interval_seconds, "seconds between")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  CLI::App* policy = app.add_subcommand("policy", "shows or sets how devices are shared");
  policy->add_option("name", options.policy,
                     "a policy (tfs, las, ps, fcfs, sjf, credit, idle), none, or default: as "
                     "consortd's flags and files say");
  CLI::App* tenant = app.add_subcommand("tenant", "tenants and their weights");
  tenant->require_subcommand(1);
  tenant->fallthrough();
  CLI::App* tenants = tenant->add_subcommand("list", "those that are known");
  CLI::App* set = tenant->add_subcommand("set", "changes a tenant; holds after a restart too");
  set->add_option("tenant", options.tenant, "its name")->required();
  set->add_option("--weight", options.weight, "its part of a device, beside the others' weights")
      ->check(CLI::Range(uint32_t{1}, kTenantWeightMax))
      ->required();
  CLI::App* reset = tenant->add_subcommand("reset", "back to what consortd's file says");
  reset->add_option("tenant", options.tenant, "its name")->required();
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
  CLI::App* detach = vm->add_subcommand("detach", "takes a domain's vGPUs away");
  detach->add_option("domain", options.attach.domain, "its name")->required();
  for (CLI::App* edit : {attach, detach}) {
    edit->add_flag("--print", options.attach.print,
                   "prints the definition that libvirt would get, and changes nothing");
  }
  CLI::App* list = vm->add_subcommand("list", "domains that have vGPUs");
  CLI::App* check = vm->add_subcommand("check", "says what is missing, and how to mend it");
  check->add_option("domain", options.attach.domain, "its name")->required();

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? EXIT_SUCCESS : EX_USAGE;
  }
  if (status->parsed()) return ShowStatus(options);
  if (nodes->parsed()) return ShowPool(options, "nodes", &NodesTable);
  if (gpus->parsed()) return ShowPool(options, "gpus", &GpusTable);
  if (slice->parsed()) return ShowPool(options, "assemblies", &SlicesTable);
  if (init->parsed()) return Done(gpool::MakeAuthority(options.certificates));
  if (certificate->parsed()) {
    return Done(gpool::MakeNodeCertificate(options.certificates, options.node));
  }
  if (top->parsed()) return Top(options);
  if (policy->parsed()) return Policy(options);
  if (tenants->parsed()) return ListTenants(options);
  if (set->parsed() || reset->parsed()) return SetTenant(options);
  const auto domains = LibvirtDomains::Connect(options.libvirt_uri);
  if (!domains.ok()) return Fail(domains.status());
  if (attach->parsed()) {
    return Done(AttachVm(**domains, options.paths, options.attach, std::cout));
  }
  if (detach->parsed()) {
    return Done(
        DetachVm(**domains, options.paths, options.attach.domain, options.attach.print, std::cout));
  }
  if (check->parsed()) return Check(**domains, options);
  return list->parsed() ? List(**domains, options) : EX_USAGE;
}

}  // namespace
}  // namespace consort::host

int main(int argc, char** argv) { return consort::host::Main(argc, argv); }
