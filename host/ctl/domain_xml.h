// SPDX-License-Identifier: Apache-2.0
// host/ctl/domain_xml.h: a libvirt domain's definition, with and without Consort's device.
//
// What an attached domain has, and one without the device has not:
//   <memoryBacking>             guest memory that consortd can map: memfd, shared
//   <shmem name='consort-...'>  memory that the machine shares with the host, if it is to have some
//   <qemu:commandline>          -chardev socket,id=consort,... -device vhost-user-vsock-pci,...
//   <metadata> <consort:vm>     tenant, number of vGPUs, and which of the above we added
// Editing is idempotent; what else the definition says stays. Pure functions on text.
#ifndef CONSORT_HOST_CTL_DOMAIN_XML_H_
#define CONSORT_HOST_CTL_DOMAIN_XML_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace consort::host {

struct Attachment {
  std::string tenant;
  int vgpus = 1;
  std::string socket_path;
  // Of the memory that it shares with the host; 0: none. libvirt takes the file of that name in
  // /dev/shm.
  uint64_t shared_memory_mib = 0;
  std::string memory_name = {};
};

// The definition with the device. kFailedPrecondition: something in it does not go together with
// the device; the text says what to do. kInvalidArgument: no definition of a domain.
absl::StatusOr<std::string> AttachToDomain(const std::string& xml, const Attachment& attachment);

// The definition without the device and what came with it. One that has none comes back as it is,
// but for its spacing.
absl::StatusOr<std::string> DetachFromDomain(const std::string& xml);

// What Attach has written into the definition, if it has.
std::optional<Attachment> FindAttachment(const std::string& xml);

struct Finding {
  std::string problem;
  std::string remedy;
};

// What keeps an attached domain from working, as far as its definition tells.
std::vector<Finding> CheckDomain(const std::string& xml);

// Whether the domain is of type kvm: its machine runs on the processor itself.
bool WantsKvm(const std::string& xml);

}  // namespace consort::host

#endif  // CONSORT_HOST_CTL_DOMAIN_XML_H_
