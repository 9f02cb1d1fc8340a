// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/http_server.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "host/limits.h"

namespace consort::host {

struct HttpWaiting {
  MHD_Connection* connection = nullptr;
  std::optional<HttpResponse> response;  // once it is there
};

namespace {

// What a page of ours may load: its own files, from here.
constexpr char kSecurityPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

void LogLibrary(void*, const char* format, va_list arguments) {
  char text[512];
  vsnprintf(text, sizeof(text), format, arguments);
  LOG(WARNING) << "HTTP: " << text;
}

constexpr char kPlainText[] = "text/plain; charset=utf-8";

struct Arriving {
  HttpRequest request;
  bool too_long = false;
  std::shared_ptr<HttpWaiting> waiting;  // once the handler was asked
};

std::optional<uid_t> PeerOf(MHD_Connection* connection) {
  const MHD_ConnectionInfo* info =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
  ucred peer = {};
  socklen_t bytes = sizeof(peer);
  // A TCP socket has no such user, and says so with one that is none.
  if (info == nullptr ||
      getsockopt(info->connect_fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0 || peer.pid == 0) {
    return std::nullopt;
  }
  return peer.uid;
}

// As the connection began with; null: by no means of ours.
const HttpUser* UserOf(MHD_Connection* connection) {
  const MHD_ConnectionInfo* info =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
  return info == nullptr ? nullptr : static_cast<const HttpUser*>(info->socket_context);
}

void OnHttpConnection(void* context, MHD_Connection* connection, void** socket_context,
                      MHD_ConnectionNotificationCode code) {
  if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
    delete static_cast<HttpUser*>(std::exchange(*socket_context, nullptr));
    return;
  }
  const MHD_ConnectionInfo* info =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
  CHECK(info != nullptr);
  auto* server = static_cast<HttpServer*>(context);
  if (std::optional<HttpUser> user = server->TakeUser(info->connect_fd); user.has_value()) {
    *socket_context = new HttpUser(*std::move(user));
  }
}

MHD_Result Queue(MHD_Connection* connection, const HttpServer& server, const HttpResponse& answer) {
  // The library only reads it, with MHD_RESPMEM_MUST_COPY before it returns.
  MHD_Response* response = MHD_create_response_from_buffer(
      answer.body.size(), const_cast<char*>(answer.body.data()), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return MHD_NO;
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, answer.content_type.c_str());
  MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
  MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
  MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
  MHD_add_response_header(response, "Content-Security-Policy", kSecurityPolicy);
  if (answer.status == MHD_HTTP_METHOD_NOT_ALLOWED) {
    MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW,
                            server.writable() ? "GET, HEAD, PUT" : "GET, HEAD");
  }
  const MHD_Result queued = MHD_queue_response(connection, answer.status, response);
  MHD_destroy_response(response);
  return queued;
}

MHD_Result OnRequest(void* context, MHD_Connection* connection, const char* url, const char* method,
                     const char* /*version*/, const char* upload, size_t* upload_bytes,
                     void** state) {
  auto* server = static_cast<HttpServer*>(context);
  // Called first with the headers, then with each piece of the body, then with the whole request.
  // An answer to the headers alone ends the connection, since a body might follow.
  auto* request = static_cast<Arriving*>(*state);
  if (request == nullptr) {
    const std::string verb = method;
    const bool put = verb == MHD_HTTP_METHOD_PUT && server->writable();
    if (!put && verb != MHD_HTTP_METHOD_GET && verb != MHD_HTTP_METHOD_HEAD) {
      return Queue(
          connection, *server,
          {MHD_HTTP_METHOD_NOT_ALLOWED, kPlainText, absl::StrCat(verb, " is not served here\n")});
    }
    auto arriving = std::make_unique<Arriving>();
    arriving->request.put = put;
    arriving->request.path = url;
    if (const HttpUser* user = UserOf(connection); user != nullptr) {
      arriving->request.user = *user;  // the socket is our own relay's
    } else {
      arriving->request.uid = PeerOf(connection);
    }
    *state = arriving.release();  // OnCompleted takes it
    return MHD_YES;
  }
  if (*upload_bytes != 0) {
    std::string& body = request->request.body;
    if (!request->request.put || body.size() + *upload_bytes > kHttpBodyBytesMax) {
      request->too_long = true;
    } else {
      body.append(upload, *upload_bytes);
    }
    *upload_bytes = 0;
    return MHD_YES;
  }
  if (request->too_long) {
    return Queue(connection, *server,
                 {MHD_HTTP_CONTENT_TOO_LARGE, kPlainText, "the body is too long\n"});
  }
  if (request->waiting == nullptr) {
    request->waiting = std::make_shared<HttpWaiting>();
    request->waiting->connection = connection;
    request->waiting->response = server->Ask(request->request, request->waiting);
  }
  // Without an answer it is called again once there is one.
  if (!request->waiting->response.has_value()) return MHD_YES;
  return Queue(connection, *server, *request->waiting->response);
}

void OnCompleted(void*, MHD_Connection*, void** state, MHD_RequestTerminationCode) {
  delete static_cast<Arriving*>(std::exchange(*state, nullptr));
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(EventLoop* loop, UniqueFd listening,
                                                              Access access, Handler handler) {
  std::unique_ptr<HttpServer> server(new HttpServer(loop, access, std::move(handler)));
  server->daemon_ = MHD_start_daemon(
      MHD_USE_EPOLL | MHD_USE_ERROR_LOG | MHD_ALLOW_SUSPEND_RESUME, 0, nullptr, nullptr, &OnRequest,
      server.get(), MHD_OPTION_EXTERNAL_LOGGER, &LogLibrary, nullptr, MHD_OPTION_NOTIFY_COMPLETED,
      &OnCompleted, nullptr, MHD_OPTION_NOTIFY_CONNECTION, &OnHttpConnection, server.get(),
      MHD_OPTION_LISTEN_SOCKET, listening.get(), MHD_OPTION_CONNECTION_LIMIT,
      static_cast<unsigned>(kHttpConnectionsMax), MHD_OPTION_CONNECTION_TIMEOUT,
      static_cast<unsigned>(kHttpTimeout / kSecond), MHD_OPTION_END);
  if (server->daemon_ == nullptr) return absl::UnavailableError("cannot start an HTTP server");
  (void)listening.Release();  // the library closes it
  server->poll_fd_ = MHD_get_daemon_info(server->daemon_, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
  const absl::Status watched = loop->Watch(
      server->poll_fd_, EPOLLIN, [borrowed = server.get()](uint32_t) { borrowed->Turn(); });
  if (!watched.ok()) {
    server->poll_fd_ = -1;
    return watched;
  }
  server->Turn();
  return server;
}

HttpServer::~HttpServer() {
  if (timer_ != 0) loop_->Cancel(timer_);
  if (poll_fd_ >= 0) loop_->Unwatch(poll_fd_);
  // The library wants them back before it stops; it closes them then.
  for (const auto& waiting : waiting_) MHD_resume_connection(waiting->connection);
  waiting_.clear();
  if (daemon_ != nullptr) MHD_stop_daemon(daemon_);
}

std::optional<HttpResponse> HttpServer::Ask(const HttpRequest& request,
                                            const std::shared_ptr<HttpWaiting>& waiting) {
  // The library has it too, for as long as the request lasts.
  std::optional<HttpResponse> answer =
      handler_(request, [this, weak = std::weak_ptr<HttpWaiting>(waiting)](HttpResponse response) {
        if (const auto strong = weak.lock(); strong != nullptr) Answer(strong, std::move(response));
      });
  if (answer.has_value() || waiting->response.has_value()) {
    return answer.has_value() ? std::move(answer) : std::move(waiting->response);
  }
  MHD_suspend_connection(waiting->connection);
  waiting_.insert(waiting);
  return std::nullopt;
}

void HttpServer::Answer(const std::shared_ptr<HttpWaiting>& waiting, HttpResponse response) {
  waiting->response = std::move(response);
  if (waiting_.erase(waiting) == 0) return;  // Ask has not returned
  MHD_resume_connection(waiting->connection);
  // Not now: it may be the library that calls.
  TurnAfter(0);
}

absl::Status HttpServer::Adopt(UniqueFd connection, HttpUser user) {
  const int fd = connection.Release();  // the library closes it, also when it takes it not
  adopted_[fd] = std::move(user);
  sockaddr_un nameless = {};
  nameless.sun_family = AF_UNIX;
  if (MHD_add_connection(daemon_, fd, reinterpret_cast<sockaddr*>(&nameless), sizeof(nameless)) !=
      MHD_YES) {
    adopted_.erase(fd);
    return absl::ResourceExhaustedError("too many connections");
  }
  Turn();
  return absl::OkStatus();
}

std::optional<HttpUser> HttpServer::TakeUser(int fd) {
  const auto it = adopted_.find(fd);
  if (it == adopted_.end()) return std::nullopt;
  std::optional<HttpUser> user = std::move(it->second);
  adopted_.erase(it);
  return user;
}

void HttpServer::Turn() {
  // Twice: at its bound of connections the library accepts again only in the turn after one closed.
  MHD_run(daemon_);
  MHD_run(daemon_);
  // Connections time out without an event of their descriptor.
  MHD_UNSIGNED_LONG_LONG wait_ms = 0;
  if (MHD_get_timeout(daemon_, &wait_ms) == MHD_YES) {
    return TurnAfter(static_cast<Nanos>(wait_ms) * kMillisecond);
  }
  if (timer_ != 0) loop_->Cancel(timer_);
  timer_ = 0;
}

void HttpServer::TurnAfter(Nanos delay) {
  if (timer_ != 0) loop_->Cancel(timer_);
  timer_ = loop_->After(delay, [this] {
    timer_ = 0;
    Turn();
  });
}

std::string AddressText(int fd) {
  sockaddr_storage address = {};
  socklen_t bytes = sizeof(address);
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), bytes, host, sizeof(host), port,
                  sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "?";
  }
  return address.ss_family == AF_INET6 ? absl::StrCat("[", host, "]:", port)
                                       : absl::StrCat(host, ":", port);
}

absl::StatusOr<UniqueFd> ListenTcp(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(address, " is no ADDRESS:PORT, such as 127.0.0.1:9825"));
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(address, ": ", gai_strerror(error), "; wanted is a numeric ADDRESS:PORT"));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, &freeaddrinfo);
  UniqueFd fd(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int one = 1;
  if (!fd.valid() || setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) != 0 ||
      bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 || listen(fd.get(), SOMAXCONN) != 0) {
    const int code = errno;
    const std::string text = absl::StrCat(address, ": ", strerror(code));
    return code == EADDRINUSE ? absl::AlreadyExistsError(text) : absl::UnavailableError(text);
  }
  return fd;
}

}  // namespace consort::host
