// SPDX-License-Identifier: Apache-2.0
// host/ctl/libvirt_domains.h: the domains of one libvirt connection. Thread compatible.
#ifndef CONSORT_HOST_CTL_LIBVIRT_DOMAINS_H_
#define CONSORT_HOST_CTL_LIBVIRT_DOMAINS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct _virConnect;

namespace consort::host {

class LibvirtDomains {
 public:
  // `uri` as virsh -c takes it. kUnavailable: no connection; the text is libvirt's.
  static absl::StatusOr<std::unique_ptr<LibvirtDomains>> Connect(const std::string& uri);
  ~LibvirtDomains();
  LibvirtDomains(const LibvirtDomains&) = delete;
  LibvirtDomains& operator=(const LibvirtDomains&) = delete;

  absl::StatusOr<std::vector<std::string>> Names() const;
  // The definition that the domain's next start uses. kNotFound: no such domain.
  absl::StatusOr<std::string> Definition(const std::string& name) const;
  absl::StatusOr<bool> IsRunning(const std::string& name) const;
  // Calls `on_change` now, and again whenever a domain was defined, started, stopped or undefined,
  // until `go_on`, asked once a second at least, says no. Needs EnableEvents before Connect.
  // kUnavailable: the connection was lost.
  absl::Status Watch(const std::function<void()>& on_change,
                     const std::function<bool()>& go_on) const;
  // Once a process: connections made from then on can be watched.
  static void EnableEvents();
  // Makes `xml` the domain's definition. A running domain goes on with its old one.
  absl::Status Define(const std::string& xml) const;

 private:
  explicit LibvirtDomains(_virConnect* connection) : connection_(connection) {}
  _virConnect* const connection_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_CTL_LIBVIRT_DOMAINS_H_
