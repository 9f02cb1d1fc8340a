// SPDX-License-Identifier: Apache-2.0
#include "gpool/link.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "gpool/limits.h"
#include "gpool/relay.h"

namespace consort::gpool {
namespace {

// When no descriptor or thread is left for a link, the queue is looked at again so late.
constexpr int kAcceptRetryMs = 100;

struct Address {
  sockaddr_storage bytes;
  socklen_t size;
};

absl::StatusOr<Address> ParseAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(text, " is no ADDRESS:PORT, such as 10.0.0.1:7010"));
  }
  std::string host = text.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), text.c_str() + colon + 1, &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(text, ": ", gai_strerror(error), "; wanted is a numeric ADDRESS:PORT"));
  }
  Address address;
  memcpy(&address.bytes, found->ai_addr, found->ai_addrlen);
  address.size = found->ai_addrlen;
  freeaddrinfo(found);
  return address;
}

std::string AddressText(const sockaddr_storage& bytes, socklen_t size) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&bytes), size, host, sizeof(host), port,
                  sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "?";
  }
  return bytes.ss_family == AF_INET6 ? absl::StrCat("[", host, "]:", port)
                                     : absl::StrCat(host, ":", port);
}

// No waiting for more bytes, and an end when the peer is silent though it should answer.
void Tune(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kLinkProbeSeconds, sizeof(int));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kLinkProbeSeconds, sizeof(int));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kLinkProbes, sizeof(int));
  const unsigned silence_ms = kLinkSilence / kMillisecond;
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof(silence_ms));
}

// OpenSSL writes with write(2), whose SIGPIPE would end the process; a blocked one stays with the
// thread and goes with it.
void BlockPipeSignal() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

bool AwaitSocket(int fd, TlsStream::Result wants, Nanos deadline) {
  const Nanos left = deadline - MonotonicNow();
  if (left <= 0) return false;
  const bool read = wants == TlsStream::Result::kWantsRead;
  pollfd polled = {fd, static_cast<short>(read ? POLLIN : POLLOUT), 0};
  poll(&polled, 1, static_cast<int>(left / kMillisecond) + 1);
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TlsStream>> DialLink(const TlsContext& tls,
                                                    const std::string& address,
                                                    const std::string& node,
                                                    const LinkHello& hello) {
  BlockPipeSignal();
  ASSIGN_OR_RETURN(const Address to, ParseAddress(address));
  UniqueFd fd(socket(to.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return absl::ResourceExhaustedError(strerror(errno));
  Tune(fd.get());
  const auto unreachable = [&](int error) {
    return absl::UnavailableError(
        absl::StrCat("node ", node, " at ", address, ": ", strerror(error)));
  };
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&to.bytes), to.size) != 0 &&
      errno != EINPROGRESS) {
    return unreachable(errno);
  }
  pollfd polled = {fd.get(), POLLOUT, 0};
  if (poll(&polled, 1, static_cast<int>(kLinkConnectTimeout / kMillisecond)) != 1) {
    return unreachable(ETIMEDOUT);
  }
  int error = 0;
  socklen_t bytes = sizeof(error);
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
  if (error != 0) return unreachable(error);
  const Nanos deadline = MonotonicNow() + kLinkGreetingTimeout;
  auto stream = tls.Connect(std::move(fd), node, deadline);
  if (!stream.ok()) {
    return absl::Status(stream.status().code(), absl::StrCat("node ", node, " at ", address, ": ",
                                                             stream.status().message()));
  }
  std::span<const std::byte> left = std::as_bytes(std::span(&hello, 1));
  while (true) {
    size_t count = 0;
    const TlsStream::Result result =
        left.empty() ? (*stream)->Flush() : (*stream)->Write(left, &count);
    if (result == TlsStream::Result::kDone) {
      if (left.empty()) return stream;
      left = left.subspan(count);
    } else if (result == TlsStream::Result::kEnded ||
               !AwaitSocket((*stream)->fd(), result, deadline)) {
      return unreachable(ECONNRESET);
    }
  }
}

absl::StatusOr<std::unique_ptr<LinkServer>> LinkServer::Listen(const TlsContext* tls,
                                                               const std::string& address,
                                                               OnLink on_link) {
  ASSIGN_OR_RETURN(const Address at, ParseAddress(address));
  std::unique_ptr<LinkServer> server(new LinkServer(tls, std::move(on_link)));
  server->listening_.Reset(
      socket(at.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  server->stop_event_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  server->ended_event_.Reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const int fd = server->listening_.get();
  const int on = 1;
  if (fd < 0 || !server->stop_event_.valid() || !server->ended_event_.valid() ||
      setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(fd, reinterpret_cast<const sockaddr*>(&at.bytes), at.size) != 0 ||
      listen(fd, SOMAXCONN) != 0) {
    const int code = errno;
    const std::string text = absl::StrCat(address, ": ", strerror(code));
    return code == EADDRINUSE ? absl::AlreadyExistsError(text) : absl::UnavailableError(text);
  }
  sockaddr_storage bound;
  socklen_t size = sizeof(bound);
  PCHECK(getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) == 0);
  server->address_ = AddressText(bound, size);
  server->thread_ = std::thread([borrowed = server.get()] { borrowed->Run(); });
  return server;
}

LinkServer::~LinkServer() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  PCHECK(write(stop_event_.get(), &one, sizeof(one)) == sizeof(one));
  thread_.join();
  std::map<uint64_t, Link> links;
  {
    absl::MutexLock lock(&mutex_);
    links.swap(links_);
  }
  for (auto& [id, link] : links) link.thread.join();
}

bool LinkServer::Reap() {
  std::vector<std::thread> ended;
  bool room;
  {
    absl::MutexLock lock(&mutex_);
    uint32_t greeting = 0;
    for (auto it = links_.begin(); it != links_.end();) {
      if (it->second.ended) {
        ended.push_back(std::move(it->second.thread));
        it = links_.erase(it);
      } else {
        if (!it->second.greeted) ++greeting;
        ++it;
      }
    }
    room = greeting < kLinkGreetingsMax && links_.size() < kLinksMax;
  }
  for (std::thread& thread : ended) thread.join();
  return room;
}

void LinkServer::Run() {
  bool retry = false;
  while (true) {
    const bool room = Reap() && !retry;
    pollfd polled[3] = {{stop_event_.get(), POLLIN, 0},
                        {ended_event_.get(), POLLIN, 0},
                        {room ? listening_.get() : -1, POLLIN, 0}};
    poll(polled, 3, retry ? kAcceptRetryMs : -1);
    retry = false;
    if (polled[0].revents != 0) return;
    uint64_t count;
    if (polled[1].revents != 0 && read(ended_event_.get(), &count, sizeof(count)) < 0) continue;
    if (polled[2].revents == 0) continue;
    sockaddr_storage from;
    socklen_t size = sizeof(from);
    UniqueFd fd(accept4(listening_.get(), reinterpret_cast<sockaddr*>(&from), &size,
                        SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      retry = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
      LOG_IF(WARNING, retry) << "links wait: " << strerror(errno);
      continue;
    }
    Tune(fd.get());
    absl::MutexLock lock(&mutex_);
    const uint64_t id = next_link_++;
    Link& link = links_[id];
    // Shared: a function must be copyable, and a descriptor is not.
    auto shared = std::make_shared<UniqueFd>(std::move(fd));
    link.thread = std::thread([this, id, shared, text = AddressText(from, size)] {
      BlockPipeSignal();
      Serve(id, std::move(*shared), text);
      {
        absl::MutexLock ended(&mutex_);
        // Taken over by the destructor otherwise.
        if (const auto it = links_.find(id); it != links_.end()) it->second.ended = true;
      }
      const uint64_t one = 1;
      PCHECK(write(ended_event_.get(), &one, sizeof(one)) == sizeof(one));
    });
  }
}

void LinkServer::Serve(uint64_t id, UniqueFd fd, const std::string& from) {
  const Nanos deadline = MonotonicNow() + kLinkGreetingTimeout;
  const auto stream = tls_->Accept(std::move(fd), deadline);
  if (!stream.ok()) {
    LOG(WARNING) << "link from " << from << " refused: " << stream.status().message();
    return;
  }
  TlsStream* link = stream->get();
  LinkHello hello;
  std::span<std::byte> left = std::as_writable_bytes(std::span(&hello, 1));
  while (!left.empty()) {
    size_t count = 0;
    const TlsStream::Result result = link->Read(left, &count);
    if (result == TlsStream::Result::kDone) {
      left = left.subspan(count);
    } else if (result == TlsStream::Result::kEnded || !AwaitSocket(link->fd(), result, deadline)) {
      LOG(WARNING) << "link from " << link->peer().name << " (" << from << ") said no hello";
      return;
    }
  }
  if (hello.magic != kLinkMagic || hello.version != kLinkVersion) {
    LOG(WARNING) << "link from " << link->peer().name << " (" << from
                 << ") refused: its version is " << hello.version << ", ours " << kLinkVersion;
    return;
  }
  if ((link->peer().role == Role::kNode) == (hello.kind == LinkKind::kAdmin)) {
    LOG(WARNING) << "link from " << RoleName(link->peer().role) << " " << link->peer().name << " ("
                 << from << ") refused: it is not for such a certificate";
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    if (const auto it = links_.find(id); it != links_.end()) it->second.greeted = true;
  }
  const uint64_t one = 1;
  PCHECK(write(ended_event_.get(), &one, sizeof(one)) == sizeof(one));
  absl::StatusOr<UniqueFd> plain = on_link_(link->peer(), hello);
  if (!plain.ok()) {
    LOG(WARNING) << "link from " << link->peer().name << " (" << from
                 << ") refused: " << plain.status().message();
    return;
  }
  Relay(plain->get(), link, {0, nullptr, stop_event_.get()});
}

}  // namespace consort::gpool
