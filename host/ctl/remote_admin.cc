// SPDX-License-Identifier: Apache-2.0
#include "host/ctl/remote_admin.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "gpool/link.h"
#include "gpool/relay.h"
#include "host/ctl/admin_client.h"

namespace consort::host {
namespace {

absl::StatusOr<std::unique_ptr<gpool::TlsStream>> Dial(const gpool::TlsContext& tls,
                                                       const std::string& address) {
  gpool::LinkHello hello;
  hello.kind = gpool::LinkKind::kAdmin;
  auto dialled = gpool::DialLink(tls, address, gpool::kAnyNode, hello);
  if (absl::IsUnauthenticated(dialled.status())) {
    return absl::PermissionDeniedError(absl::StrCat(
        address, " is no host of this certificate's pool: ", dialled.status().message()));
  }
  if (absl::IsInvalidArgument(dialled.status())) return dialled.status();
  if (!dialled.ok()) {
    return absl::UnavailableError(absl::StrCat("no consortd of a pool answers at ", address,
                                               " (--pool-listen): ", dialled.status().message()));
  }
  return dialled;
}

// As the signal would have ended this process.
void EndBy(int number) {
  signal(number, SIG_DFL);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, number);
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  raise(number);
}

}  // namespace

gpool::TlsFiles OperatorFiles(const std::string& certificate, const std::string& key,
                              const std::string& authority) {
  const std::filesystem::path path(certificate);
  return {authority.empty() ? (path.parent_path() / "authority.crt").string() : authority,
          certificate,
          key.empty() ? std::filesystem::path(path).replace_extension(".key").string() : key};
}

absl::StatusOr<std::unique_ptr<RemoteAdmin>> RemoteAdmin::Start(const std::string& address,
                                                                const gpool::TlsFiles& files) {
  std::unique_ptr<RemoteAdmin> admin(new RemoteAdmin());
  admin->address_ = address;
  ASSIGN_OR_RETURN(admin->tls_, gpool::TlsContext::Load(files));
  if (admin->tls_->own().role == gpool::Role::kNode) {
    return absl::InvalidArgumentError(absl::StrCat(
        files.certificate, " is a host's certificate; consortctl pool operator makes a person's"));
  }
  ASSIGN_OR_RETURN(admin->first_, Dial(*admin->tls_, address));
  std::string folder = (std::filesystem::temp_directory_path() / "consortctl-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) {
    return absl::InternalError(absl::StrCat(folder, ": ", strerror(errno)));
  }
  admin->folder_ = folder;
  admin->socket_path_ = folder + "/admin.sock";
  sockaddr_un name = {};
  name.sun_family = AF_UNIX;
  if (admin->socket_path_.size() >= sizeof(name.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("TMPDIR is too long: ", folder));
  }
  memcpy(name.sun_path, admin->socket_path_.data(), admin->socket_path_.size());
  admin->listening_.Reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  admin->stop_event_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  // Ctrl-C ends a command such as `top`: the folder must go then too.
  sigset_t ends;
  sigemptyset(&ends);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&ends, number);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  admin->signals_.Reset(signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!admin->listening_.valid() || !admin->stop_event_.valid() || !admin->signals_.valid() ||
      bind(admin->listening_.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)) != 0 ||
      listen(admin->listening_.get(), SOMAXCONN) != 0) {
    return absl::InternalError(absl::StrCat(admin->socket_path_, ": ", strerror(errno)));
  }
  admin->thread_ = std::thread([raw = admin.get()] { raw->Run(); });
  // TLS 1.3 lets a client believe that it is connected before the other end has looked at its
  // certificate.
  const auto answer = AdminGet(admin->socket_path_, "/healthz");
  if (!answer.ok()) {
    return absl::PermissionDeniedError(
        absl::StrCat(address, " does not take ", files.certificate,
                     ": of another pool, out of date, or of another version; its log says which"));
  }
  return admin;
}

RemoteAdmin::~RemoteAdmin() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    PCHECK(write(stop_event_.get(), &one, sizeof(one)) == sizeof(one));
    thread_.join();
  }
  RemoveFolder();
}

void RemoteAdmin::RemoveFolder() {
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

void RemoteAdmin::Run() {
  while (true) {
    pollfd polled[3] = {
        {stop_event_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}, {listening_.get(), POLLIN, 0}};
    poll(polled, 3, -1);
    if (polled[0].revents != 0) return;
    signalfd_siginfo signal;
    if (read(signals_.get(), &signal, sizeof(signal)) == sizeof(signal)) {
      RemoveFolder();
      EndBy(static_cast<int>(signal.ssi_signo));
    }
    const UniqueFd plain(accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!plain.valid()) continue;
    std::unique_ptr<gpool::TlsStream> link = std::move(first_);
    if (link == nullptr) {
      auto dialled = Dial(*tls_, address_);
      if (!dialled.ok()) continue;  // the client sees that nobody answers
      link = *std::move(dialled);
    }
    gpool::RelayOptions options;
    options.stop_fd = stop_event_.get();
    gpool::Relay(plain.get(), link.get(), options);
  }
}

}  // namespace consort::host
