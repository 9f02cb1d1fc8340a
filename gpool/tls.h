// SPDX-License-Identifier: Apache-2.0
// gpool/tls.h: mutual TLS 1.3 between the nodes of a pool, on connected stream sockets.
//
// A pool has an authority of its own. Each node has a certificate of it whose subject alternative
// name (DNS) is the node's name, and each operator one whose (URI) is consort:ROLE:NAME; nobody is
// both. Both sides show theirs: who has none, or one of another authority, is nobody. TlsContext is
// immutable and thread safe; a TlsStream belongs to one thread. Source: OpenSSL 3.0 manual.
#ifndef CONSORT_GPOOL_TLS_H_
#define CONSORT_GPOOL_TLS_H_

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "base/units.h"

struct ssl_ctx_st;
struct ssl_st;

namespace consort::gpool {

enum class Role {
  kNode,
  kAdmin,   // an operator who may change what is administered
  kViewer,  // one who may look at it
};
// "node", "admin", "viewer".
const char* RoleName(Role role);

// Who a certificate is of. No name: of nobody here.
struct Identity {
  std::string name;
  Role role = Role::kNode;
};

// The other end of a connection may be any node of the pool.
inline constexpr char kAnyNode[] = "";

// Files in PEM form.
struct TlsFiles {
  std::string authority;
  std::string certificate;
  std::string key;
};

class TlsStream {
 public:
  enum class Result { kDone, kWantsRead, kWantsWrite, kEnded };

  ~TlsStream();
  TlsStream(const TlsStream&) = delete;
  TlsStream& operator=(const TlsStream&) = delete;

  // Neither blocks. `*count` is set with kDone and is not 0. kWants...: try again with the same
  // bytes when the socket is ready for that. kEnded: the peer has ended the stream, or it broke.
  Result Read(std::span<std::byte> to, size_t* count);
  Result Write(std::span<const std::byte> from, size_t* count);
  // What was written waits in a buffer until that is full, so that the socket takes many records at
  // a time, or until this is called. Not kWantsRead.
  Result Flush();
  // Tells the peer that nothing follows; what was written before still arrives.
  void EndWriting();

  int fd() const { return fd_.get(); }
  const Identity& peer() const { return peer_; }

 private:
  friend class TlsContext;
  TlsStream(UniqueFd fd, ssl_st* ssl) : fd_(std::move(fd)), ssl_(ssl) {}
  Result After(int returned);
  absl::Status Shake(bool connect, const std::string& node, Nanos deadline);

  const UniqueFd fd_;
  ssl_st* const ssl_;
  Identity peer_;
};

class TlsContext {
 public:
  // kInvalidArgument names the file and what is wrong with it.
  static absl::StatusOr<std::unique_ptr<TlsContext>> Load(const TlsFiles& files);
  ~TlsContext();

  // The names in our own certificate.
  bool Names(const std::string& node) const;
  Identity own() const;

  // Does its part on `fd`, connected and non-blocking, until `deadline` on the monotonic clock.
  // Connect: the other end must be the node `node`, or, kAnyNode, some node. kUnavailable: the
  // connection broke. kDeadlineExceeded. kUnauthenticated: the other end is not of this pool, or
  // another node.
  absl::StatusOr<std::unique_ptr<TlsStream>> Connect(UniqueFd fd, const std::string& node,
                                                     Nanos deadline) const;
  absl::StatusOr<std::unique_ptr<TlsStream>> Accept(UniqueFd fd, Nanos deadline) const;

 private:
  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}
  absl::StatusOr<std::unique_ptr<TlsStream>> Start(UniqueFd fd) const;

  ssl_ctx_st* const context_;
};

// Nanoseconds on CLOCK_MONOTONIC.
Nanos MonotonicNow();

}  // namespace consort::gpool

#endif  // CONSORT_GPOOL_TLS_H_
