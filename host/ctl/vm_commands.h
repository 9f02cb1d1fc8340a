// SPDX-License-Identifier: Apache-2.0
// host/ctl/vm_commands.h: consortctl vm: which virtual machines have vGPUs.
//
// A machine is a domain of libvirt, a file that consortd reads (host/daemon/vm_files.h) and, from
// these, a socket. Attach and detach keep the three together; each can be repeated.
#ifndef CONSORT_HOST_CTL_VM_COMMANDS_H_
#define CONSORT_HOST_CTL_VM_COMMANDS_H_

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/ctl/domain_xml.h"
#include "host/ctl/libvirt_domains.h"

namespace consort::host {

struct VmPaths {
  std::string admin_socket = "/run/consort/consortd.admin.sock";
  std::string vm_files = "/etc/consort/vms.d";
  std::string vm_sockets = "/run/consort/vms";
  std::string apparmor_folder = "/etc/apparmor.d";
  std::string kvm = "/dev/kvm";
};

struct AttachOptions {
  std::string domain;
  std::string tenant;
  int vgpus = 1;
  bool print = false;              // the new definition goes to `out`, and nothing is changed
  uint64_t shared_memory_mib = 0;  // that it shares with the host; 0: none
};

// What was done goes to `out`, in sentences.
absl::Status AttachVm(const LibvirtDomains& domains, const VmPaths& paths,
                      const AttachOptions& options, std::ostream& out);
absl::Status DetachVm(const LibvirtDomains& domains, const VmPaths& paths,
                      const std::string& domain, bool print, std::ostream& out);

// Makes the files of machines those of libvirt's domains: one for each attached domain, and none
// that consortctl wrote for a domain that is gone. A running consortd takes them. Says only what
// changed.
absl::Status SyncVms(const LibvirtDomains& domains, const VmPaths& paths, std::ostream& out);

// What libvirt's hook for QEMU tells of a domain, with its definition: "prepare" makes the file and
// the socket of an attached domain, before QEMU connects to it; "release" takes them away. Asks
// libvirt nothing, as hooks must not. Other actions, and domains that are not attached, are passed
// over.
absl::Status HookVm(const VmPaths& paths, const std::string& domain, const std::string& action,
                    const std::string& xml, std::ostream& out);

struct AttachedVm {
  std::string domain;
  bool running = false;
  Attachment attachment;
};
absl::StatusOr<std::vector<AttachedVm>> ListVms(const LibvirtDomains& domains);

// What a domain of type kvm lacks on a host whose device of KVM is `kvm`; none: nothing, or it is
// of another type.
std::optional<Finding> CheckKvm(const std::string& xml, const std::string& kvm);

// What is missing in this domain or on this host; empty: nothing was found.
absl::StatusOr<std::vector<Finding>> CheckVm(const LibvirtDomains& domains, const VmPaths& paths,
                                             const std::string& domain);

}  // namespace consort::host

#endif  // CONSORT_HOST_CTL_VM_COMMANDS_H_
