// SPDX-License-Identifier: Apache-2.0
// gpool/link.h: links between nodes: who listens, who dials, what is said first.
//
//   dialling node                               listening node
//   TCP, TLS 1.3 with both certificates   ◀─▶
//   LinkHello (1024 bytes)                ──▶   decided by `on_link`, which gives a socket
//   bytes                                 ◀─▶   bytes of that socket
//
// A link carries one session of an application, one conversation of two nodes' pools, or requests
// of an operator; which, LinkHello tells. Operators have links of the last kind only, nodes of the
// others. Who is at the other end is what its certificate says. A listener has one thread
// that accepts, and one a link.
#ifndef CONSORT_GPOOL_LINK_H_
#define CONSORT_GPOOL_LINK_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "gpool/tls.h"

namespace consort::gpool {

inline constexpr uint32_t kLinkMagic = 0x4C534E43;  // "CNSL"
// Raised when the hello, a request of gpool.capnp or the meaning of either changes.
inline constexpr uint32_t kLinkVersion = 2;

enum class LinkKind : uint32_t { kSession = 1, kPool = 2, kAdmin = 3 };

// Plain values of fixed layout, little endian.
struct LinkHello {
  uint32_t magic = kLinkMagic;
  uint32_t version = kLinkVersion;
  LinkKind kind = LinkKind::kSession;
  uint32_t reserved = 0;
  std::byte payload[1008] = {};  // kSession: the sessions' owner knows it; else nothing
};
static_assert(sizeof(LinkHello) == 1024);

// Connects to `address` (numeric ADDRESS:PORT), which must be node `node` (or some node: kAnyNode),
// and says `hello`. Blocks for at most kLinkConnectTimeout and kLinkGreetingTimeout. Errors of
// TlsContext::Connect; kInvalidArgument: no address.
absl::StatusOr<std::unique_ptr<TlsStream>> DialLink(const TlsContext& tls,
                                                    const std::string& address,
                                                    const std::string& node,
                                                    const LinkHello& hello);

class LinkServer {
 public:
  // Gives the socket that a link of `peer` is joined to. Called on the link's thread.
  using OnLink =
      std::function<absl::StatusOr<UniqueFd>(const Identity& peer, const LinkHello& hello)>;

  // Listens on `address`, numeric; port 0 lets the kernel choose. `tls` is borrowed.
  // kInvalidArgument: no address. kAlreadyExists: the port is taken. kUnavailable: the kernel's
  // errors.
  static absl::StatusOr<std::unique_ptr<LinkServer>> Listen(const TlsContext* tls,
                                                            const std::string& address,
                                                            OnLink on_link);
  // Ends all links.
  ~LinkServer();

  const std::string& address() const { return address_; }  // with its port

 private:
  struct Link {
    std::thread thread;
    bool greeted = false;
    bool ended = false;
  };

  LinkServer(const TlsContext* tls, OnLink on_link) : tls_(tls), on_link_(std::move(on_link)) {}
  void Run();
  void Serve(uint64_t id, UniqueFd fd, const std::string& from);
  // Joins the threads of links that have ended; true: one more may come.
  bool Reap();

  const TlsContext* const tls_;
  const OnLink on_link_;
  UniqueFd listening_;
  UniqueFd stop_event_;   // readable when all is to end
  UniqueFd ended_event_;  // readable when a link has ended or greeted
  std::string address_;
  absl::Mutex mutex_;
  uint64_t next_link_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Link> links_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace consort::gpool

#endif  // CONSORT_GPOOL_LINK_H_
