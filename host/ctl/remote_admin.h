// SPDX-License-Identifier: Apache-2.0
// host/ctl/remote_admin.h: another host's consortd, over its pool's TLS, as if its admin socket
// were here.
//
//   admin_client ── UNIX socket in a folder of ours ── relay ── TLS ── consortd's link
//
// One connection at a time, as admin_client makes them. Who asks is what the certificate says
// (consortctl pool operator). Thread compatible.
#ifndef CONSORT_HOST_CTL_REMOTE_ADMIN_H_
#define CONSORT_HOST_CTL_REMOTE_ADMIN_H_

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "gpool/tls.h"

namespace consort::host {

class RemoteAdmin {
 public:
  // Looks once whether the host is there and takes the certificate. `address`: numeric
  // ADDRESS:PORT. kInvalidArgument: no address, or files that are no operator's. kUnavailable:
  // nobody answers there. kPermissionDenied: it is no host of the certificate's pool.
  static absl::StatusOr<std::unique_ptr<RemoteAdmin>> Start(const std::string& address,
                                                            const gpool::TlsFiles& files);
  // Ends all connections and takes the socket away.
  ~RemoteAdmin();

  const std::string& socket_path() const { return socket_path_; }

 private:
  RemoteAdmin() = default;
  void Run();
  void RemoveFolder();

  std::string address_;
  std::string folder_;
  std::string socket_path_;
  std::unique_ptr<gpool::TlsContext> tls_;
  std::unique_ptr<gpool::TlsStream> first_;  // for the first connection
  UniqueFd listening_;
  UniqueFd stop_event_;  // readable when all is to end
  UniqueFd signals_;     // that end the process, of the thread from Start on
  std::thread thread_;
};

// The files of a certificate whose key and authority lie beside it: alice.crt, alice.key,
// authority.crt. What is said is not looked for.
gpool::TlsFiles OperatorFiles(const std::string& certificate, const std::string& key,
                              const std::string& authority);

}  // namespace consort::host

#endif  // CONSORT_HOST_CTL_REMOTE_ADMIN_H_
