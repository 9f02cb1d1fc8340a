// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/vm_commands.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "host/ctl/admin_client.h"
#include "host/daemon/vm_files.h"

namespace consort::host {
namespace {

// consortd reads a handful of small files.
constexpr auto kReloadPatience = std::chrono::seconds(10);
constexpr timespec kReloadLook = {0, 20'000'000};

std::string FileOf(const VmPaths& paths, const std::string& domain) {
  return absl::StrCat(paths.vm_files, "/", domain, ".toml");
}

absl::Status CheckName(const std::string& what, const std::string& name) {
  if (IsVmName(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " ", name, ": a name here has letters, digits, '.', '_' and '-', at most ",
                   kVmNameBytesMax, ", and begins with a letter or digit"));
}

// Whole or not at all: consortd may read the folder meanwhile.
absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  const std::string scratch = path + ".new";
  std::ofstream file(scratch, std::ios::trunc);
  file << text;
  file.close();
  if (!file)
    return absl::UnavailableError(absl::StrCat("writing ", scratch, ": ", strerror(errno)));
  std::filesystem::rename(scratch, path, error);
  if (error) return absl::UnavailableError(absl::StrCat(path, ": ", error.message()));
  return absl::OkStatus();
}

const nlohmann::ordered_json* FindVm(const nlohmann::ordered_json& status,
                                     const std::string& name) {
  const auto vms = status.find("vms");
  if (vms == status.end()) return nullptr;
  for (const auto& vm : *vms) {
    if (vm.value("name", std::string()) == name) return &vm;
  }
  return nullptr;
}

// Whether consortd's VM is what we wrote: nothing for a VM that must not be there.
bool Took(const nlohmann::ordered_json& status, const std::string& name,
          const std::optional<Attachment>& wanted) {
  const nlohmann::ordered_json* vm = FindVm(status, name);
  if (vm == nullptr || !wanted.has_value()) return vm == nullptr && !wanted.has_value();
  return vm->value("tenant", std::string()) == wanted->tenant &&
         vm->value("vgpus", 0) == wanted->vgpus;
}

// Lets a running consortd read the files, and waits until it has the VM as `wanted`.
absl::Status Reload(const VmPaths& paths, const std::string& name,
                    const std::optional<Attachment>& wanted, std::ostream& out) {
  auto status = AdminStatus(paths.admin_socket);
  if (absl::IsUnavailable(status.status())) {
    out << "consortd does not run: it reads " << paths.vm_files << " when it starts\n";
    return absl::OkStatus();
  }
  if (!status.ok()) return status.status();
  const pid_t pid = status->value("pid", 0);
  if (pid <= 0 || kill(pid, SIGHUP) != 0) {
    return absl::PermissionDeniedError(absl::StrCat("telling consortd (pid ", pid, ") to read ",
                                                    paths.vm_files, ": ", strerror(errno)));
  }
  const auto deadline = std::chrono::steady_clock::now() + kReloadPatience;
  while (true) {
    ASSIGN_OR_RETURN(const nlohmann::ordered_json now, AdminStatus(paths.admin_socket));
    if (Took(now, name, wanted)) return absl::OkStatus();
    if (std::chrono::steady_clock::now() > deadline) {
      return absl::UnavailableError(
          absl::StrCat("consortd did not take VM ", name,
                       ": it says why in journalctl -u consortd. It must read ", paths.vm_files,
                       " (--vm-files)"));
    }
    nanosleep(&kReloadLook, nullptr);
  }
}

constexpr char kOurFile[] = "# Written by consortctl vm attach.\n";

std::string FileText(const Attachment& attachment) {
  std::string text = absl::StrFormat("%stenant = \"%s\"\nvgpus = %d\n", kOurFile, attachment.tenant,
                                     attachment.vgpus);
  if (attachment.shared_memory_mib != 0) {
    absl::StrAppendFormat(&text, "shared_memory = \"%dMiB\"\n", attachment.shared_memory_mib);
  }
  return text;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Makes the machine's file say this, if it does not; true: it did not.
absl::StatusOr<bool> Place(const VmPaths& paths, const std::string& name,
                           const Attachment& attachment, std::ostream& out) {
  RETURN_IF_ERROR(CheckName("domain", name));
  RETURN_IF_ERROR(CheckName("tenant", attachment.tenant));
  if (ReadFile(FileOf(paths, name)) == FileText(attachment)) return false;
  RETURN_IF_ERROR(WriteFile(FileOf(paths, name), FileText(attachment)));
  RETURN_IF_ERROR(Reload(paths, name, attachment, out));
  return true;
}

// Removes the machine's file, if consortctl wrote it; true: it had.
absl::StatusOr<bool> Displace(const VmPaths& paths, const std::string& name, std::ostream& out) {
  if (!ReadFile(FileOf(paths, name)).starts_with(kOurFile)) return false;
  std::error_code error;
  std::filesystem::remove(FileOf(paths, name), error);
  if (error) {
    return absl::UnavailableError(absl::StrCat(FileOf(paths, name), ": ", error.message()));
  }
  RETURN_IF_ERROR(Reload(paths, name, std::nullopt, out));
  return true;
}

absl::Status SayIfRunning(const LibvirtDomains& domains, const std::string& domain,
                          std::ostream& out) {
  ASSIGN_OR_RETURN(const bool running, domains.IsRunning(domain));
  if (running) {
    out << domain << " is running: the change takes effect when it has been shut down and started "
        << "again (a reboot inside the guest is not enough)\n";
  }
  return absl::OkStatus();
}

void CheckSocket(const std::string& path, std::vector<Finding>* findings) {
  struct stat file;
  if (stat(path.c_str(), &file) != 0) {
    findings->push_back({absl::StrCat(path, ": ", strerror(errno)),
                         "start consortd, or see its log: journalctl -u consortd"});
  } else if ((file.st_mode & S_IWGRP) == 0) {
    findings->push_back(
        {absl::StrCat(path, " is for consortd's own user only; QEMU runs as another"),
         "start consortd with --vm-group and a group that QEMU's user is in (Debian: kvm)"});
  }
}

void CheckAppArmor(const VmPaths& paths, std::vector<Finding>* findings) {
  if (!std::filesystem::exists(paths.apparmor_folder + "/libvirt/TEMPLATE.qemu")) return;
  const std::string local = paths.apparmor_folder + "/local/abstractions/libvirt-qemu";
  std::ifstream file(local);
  const std::string rules{std::istreambuf_iterator<char>(file), {}};
  if (rules.find(paths.vm_sockets) != std::string::npos) return;
  findings->push_back({"AppArmor keeps libvirt's QEMU from the sockets in " + paths.vm_sockets,
                       absl::StrCat("add the line '  ", paths.vm_sockets, "/*.sock rw,' to ", local,
                                    ", then start the domain anew")});
}

}  // namespace

absl::Status AttachVm(const LibvirtDomains& domains, const VmPaths& paths,
                      const AttachOptions& options, std::ostream& out) {
  RETURN_IF_ERROR(CheckName("domain", options.domain));
  RETURN_IF_ERROR(CheckName("tenant", options.tenant));
  Attachment attachment;
  attachment.tenant = options.tenant;
  attachment.vgpus = options.vgpus;
  attachment.socket_path = absl::StrCat(paths.vm_sockets, "/", options.domain, ".sock");
  attachment.shared_memory_mib = options.shared_memory_mib;
  // As consortd makes it; libvirt looks for it in /dev/shm, the default of --vm-memory-files.
  attachment.memory_name = "consort-" + options.domain;
  ASSIGN_OR_RETURN(const std::string before, domains.Definition(options.domain));
  ASSIGN_OR_RETURN(const std::string after, AttachToDomain(before, attachment));
  if (options.print) {
    out << after;
    return absl::OkStatus();
  }
  // consortd first: a domain whose socket is not there would not start.
  RETURN_IF_ERROR(WriteFile(FileOf(paths, options.domain), FileText(attachment)));
  RETURN_IF_ERROR(Reload(paths, options.domain, attachment, out));
  const std::optional<Attachment> old = FindAttachment(before);
  // Tenant and number are consortd's business alone: only the device is the domain's.
  const bool same_device = old.has_value() && old->socket_path == attachment.socket_path &&
                           old->shared_memory_mib == attachment.shared_memory_mib &&
                           CheckDomain(before).empty();
  const bool same =
      same_device && old->tenant == attachment.tenant && old->vgpus == attachment.vgpus;
  if (same) {
    out << options.domain << " has " << options.vgpus << " vGPU of tenant " << options.tenant
        << " already\n";
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(domains.Define(after));
  out << options.domain << ": " << options.vgpus << " vGPU of tenant " << options.tenant << "\n";
  return same_device ? absl::OkStatus() : SayIfRunning(domains, options.domain, out);
}

absl::Status DetachVm(const LibvirtDomains& domains, const VmPaths& paths,
                      const std::string& domain, bool print, std::ostream& out) {
  RETURN_IF_ERROR(CheckName("domain", domain));
  ASSIGN_OR_RETURN(const std::string before, domains.Definition(domain));
  ASSIGN_OR_RETURN(const std::string after, DetachFromDomain(before));
  if (print) {
    out << after;
    return absl::OkStatus();
  }
  const bool attached = FindAttachment(before).has_value();
  // The domain first: one that still had the device would not start without the socket.
  if (attached) RETURN_IF_ERROR(domains.Define(after));
  std::error_code error;
  const bool had_file = std::filesystem::remove(FileOf(paths, domain), error);
  if (error) {
    return absl::UnavailableError(absl::StrCat(FileOf(paths, domain), ": ", error.message()));
  }
  if (had_file) RETURN_IF_ERROR(Reload(paths, domain, std::nullopt, out));
  if (!attached) {
    out << domain << " has no vGPU\n";
    return absl::OkStatus();
  }
  out << domain << ": no vGPU any more\n";
  ASSIGN_OR_RETURN(const bool running, domains.IsRunning(domain));
  if (running) out << domain << " is running: its programs have lost their device now\n";
  return absl::OkStatus();
}

absl::Status SyncVms(const LibvirtDomains& domains, const VmPaths& paths, std::ostream& out) {
  ASSIGN_OR_RETURN(const std::vector<AttachedVm> vms, ListVms(domains));
  absl::Status status = absl::OkStatus();  // of the first that failed; the others are served
  std::set<std::string> keep;
  for (const AttachedVm& vm : vms) {
    keep.insert(vm.domain);
    const auto placed = Place(paths, vm.domain, vm.attachment, out);
    status.Update(placed.status());
    if (placed.ok() && *placed) {
      out << vm.domain << ": has a socket, of tenant " << vm.attachment.tenant << "\n";
    }
  }
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(paths.vm_files, error)) {
    const std::string name = entry.path().stem();
    if (entry.path().extension() != ".toml" || keep.contains(name)) continue;
    const auto displaced = Displace(paths, name, out);
    status.Update(displaced.status());
    if (displaced.ok() && *displaced) out << name << ": is gone, and its socket too\n";
  }
  return status;
}

absl::Status HookVm(const VmPaths& paths, const std::string& domain, const std::string& action,
                    const std::string& xml, std::ostream& out) {
  const std::optional<Attachment> attachment = FindAttachment(xml);
  if (!attachment.has_value()) return absl::OkStatus();
  if (action == "prepare") return Place(paths, domain, *attachment, out).status();
  if (action == "release") return Displace(paths, domain, out).status();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<AttachedVm>> ListVms(const LibvirtDomains& domains) {
  std::vector<AttachedVm> vms;
  ASSIGN_OR_RETURN(const std::vector<std::string> names, domains.Names());
  for (const std::string& name : names) {
    const auto xml = domains.Definition(name);
    if (absl::IsNotFound(xml.status())) continue;  // gone since
    if (!xml.ok()) return xml.status();
    const std::optional<Attachment> found = FindAttachment(*xml);
    if (!found.has_value()) continue;
    const auto running = domains.IsRunning(name);
    if (absl::IsNotFound(running.status())) continue;
    if (!running.ok()) return running.status();
    vms.push_back({name, *running, *found});
  }
  return vms;
}

std::optional<Finding> CheckKvm(const std::string& xml, const std::string& kvm) {
  if (!WantsKvm(xml)) return std::nullopt;
  const UniqueFd device(open(kvm.c_str(), O_RDWR | O_CLOEXEC));
  // Who may open it is QEMU's matter, and not of whoever asks here.
  if (device.valid() || errno == EACCES || errno == EPERM) return std::nullopt;
  return Finding{
      absl::StrCat("the domain wants KVM, and this host has none (", kvm, ": ", strerror(errno),
                   ")"),
      "turn virtualisation on in the firmware, or for this machine if it is a virtual one itself, "
      "and modprobe kvm_intel or kvm_amd; without KVM a domain of type qemu runs, slowly"};
}

absl::StatusOr<std::vector<Finding>> CheckVm(const LibvirtDomains& domains, const VmPaths& paths,
                                             const std::string& domain) {
  ASSIGN_OR_RETURN(const std::string xml, domains.Definition(domain));
  std::vector<Finding> findings = CheckDomain(xml);
  const std::optional<Attachment> attachment = FindAttachment(xml);
  if (!attachment.has_value()) return findings;
  const auto status = AdminStatus(paths.admin_socket);
  if (!status.ok()) {
    findings.push_back({"consortd cannot be asked", std::string(status.status().message())});
  } else if (FindVm(*status, domain) == nullptr) {
    findings.push_back(
        {"consortd does not know the VM",
         absl::StrCat("consortctl vm attach writes ", FileOf(paths, domain),
                      " again; consortd must run with --vm-files ", paths.vm_files)});
  } else {
    if (!Took(*status, domain, attachment)) {
      findings.push_back({"consortd has another tenant or number of vGPUs for the VM",
                          "consortctl vm attach, with the right ones"});
    }
    CheckSocket(attachment->socket_path, &findings);
  }
  CheckAppArmor(paths, &findings);
  if (auto lacks = CheckKvm(xml, paths.kvm); lacks.has_value()) findings.push_back(*lacks);
  return findings;
}

}  // namespace consort::host
