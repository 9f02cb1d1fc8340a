// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/libvirt_domains.h"

#include <libvirt/libvirt.h>
#include <libvirt/virterror.h>
#include <stdlib.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace consort::host {
namespace {

// A libvirtd that says nothing for so long is taken for gone.
constexpr int kKeepAliveSeconds = 5;
constexpr unsigned kKeepAliveCount = 3;
constexpr int kLookMillis = 1000;

struct FreeDomain {
  void operator()(virDomainPtr domain) const { virDomainFree(domain); }
};
using Domain = std::unique_ptr<virDomain, FreeDomain>;

absl::Status LastError(const std::string& what) {
  const virError* error = virGetLastError();
  const std::string text = absl::StrCat(
      what, ": ", error != nullptr && error->message != nullptr ? error->message : "?");
  return error != nullptr && error->code == VIR_ERR_NO_DOMAIN ? absl::NotFoundError(text)
                                                              : absl::UnavailableError(text);
}

absl::StatusOr<Domain> Find(virConnectPtr connection, const std::string& name) {
  Domain domain(virDomainLookupByName(connection, name.c_str()));
  if (domain == nullptr) return LastError(absl::StrCat("domain ", name));
  return domain;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LibvirtDomains>> LibvirtDomains::Connect(const std::string& uri) {
  // Errors are returned, not printed.
  virSetErrorFunc(nullptr, [](void*, virErrorPtr) {});
  const virConnectPtr connection = virConnectOpen(uri.c_str());
  if (connection == nullptr) return LastError(absl::StrCat("libvirt ", uri));
  return std::unique_ptr<LibvirtDomains>(new LibvirtDomains(connection));
}

LibvirtDomains::~LibvirtDomains() { virConnectClose(connection_); }

absl::StatusOr<std::vector<std::string>> LibvirtDomains::Names() const {
  virDomainPtr* domains = nullptr;
  const int count = virConnectListAllDomains(connection_, &domains, 0);
  if (count < 0) return LastError("list of domains");
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) {
    names.emplace_back(virDomainGetName(domains[i]));
    virDomainFree(domains[i]);
  }
  free(domains);
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::string> LibvirtDomains::Definition(const std::string& name) const {
  ASSIGN_OR_RETURN(const Domain domain, Find(connection_, name));
  // With secrets: a definition that is written back without them would lose them.
  char* xml = virDomainGetXMLDesc(domain.get(), VIR_DOMAIN_XML_INACTIVE | VIR_DOMAIN_XML_SECURE);
  if (xml == nullptr) return LastError(absl::StrCat("definition of ", name));
  std::string text = xml;
  free(xml);
  return text;
}

absl::StatusOr<bool> LibvirtDomains::IsRunning(const std::string& name) const {
  ASSIGN_OR_RETURN(const Domain domain, Find(connection_, name));
  const int active = virDomainIsActive(domain.get());
  if (active < 0) return LastError(absl::StrCat("domain ", name));
  return active == 1;
}

void LibvirtDomains::EnableEvents() { virEventRegisterDefaultImpl(); }

absl::Status LibvirtDomains::Watch(const std::function<void()>& on_change,
                                   const std::function<bool()>& go_on) const {
  bool changed = true;
  // The test driver has no keepalive and needs none.
  virConnectSetKeepAlive(connection_, kKeepAliveSeconds, kKeepAliveCount);
  const auto note = [](virConnectPtr, virDomainPtr, int, int, void* to) {
    *static_cast<bool*>(to) = true;
    return 0;
  };
  const int callback = virConnectDomainEventRegisterAny(
      connection_, nullptr, VIR_DOMAIN_EVENT_ID_LIFECYCLE,
      VIR_DOMAIN_EVENT_CALLBACK(
          +static_cast<int (*)(virConnectPtr, virDomainPtr, int, int, void*)>(note)),
      &changed, nullptr);
  if (callback < 0) return LastError("events of domains");
  const int timer = virEventAddTimeout(
      kLookMillis, [](int, void*) {}, nullptr, nullptr);
  absl::Status status = absl::OkStatus();
  while (go_on()) {
    if (changed) {
      changed = false;
      on_change();
    }
    if (virEventRunDefaultImpl() < 0) {
      status = LastError("waiting for libvirt");
      break;
    }
    if (virConnectIsAlive(connection_) != 1) {
      status = absl::UnavailableError("libvirt has gone; is libvirtd running?");
      break;
    }
  }
  virEventRemoveTimeout(timer);
  virConnectDomainEventDeregisterAny(connection_, callback);
  return status;
}

absl::Status LibvirtDomains::Define(const std::string& xml) const {
  const Domain domain(virDomainDefineXMLFlags(connection_, xml.c_str(), 0));
  return domain != nullptr ? absl::OkStatus() : LastError("defining the domain");
}

}  // namespace consort::host
