// SPDX-License-Identifier: Apache-2.0
// host/daemon/http_server.h: answers GET, and PUT where that is wanted, on one listening socket, on
// consortd's loop.
//
// HTTP itself is libmicrohttpd's, driven by the loop through its epoll descriptor: no thread, and
// no client can hold the loop up. At most kHttpConnectionsMax clients; one that is silent for
// kHttpTimeout is let go. Owned by consortd's loop.
#ifndef CONSORT_HOST_DAEMON_HTTP_SERVER_H_
#define CONSORT_HOST_DAEMON_HTTP_SERVER_H_

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "host/daemon/event_loop.h"

struct MHD_Daemon;

namespace consort::host {

// Whom the other end of a connection was found to be, by means of its own.
struct HttpUser {
  std::string name;         // for the log
  bool may_change = false;  // else PUT is not for them
};

struct HttpRequest {
  bool put = false;  // else GET or HEAD
  std::string path;
  std::string body;              // of PUT
  std::optional<uid_t> uid;      // who asks, on a UNIX socket
  std::optional<HttpUser> user;  // who asks, on a connection that was adopted with one
};

struct HttpResponse {
  unsigned status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

// A request whose handler answers later.
struct HttpWaiting;

class HttpServer {
 public:
  // Called once, on the loop's thread, while the server is there or after it.
  using Later = std::function<void(HttpResponse)>;
  // Answers GET and HEAD, whose body is left out by the server, and PUT with a body of at most
  // kHttpBodyBytesMax. Other methods get 405, and longer bodies 413, without asking. Called on the
  // loop's thread. Nothing: `later` will be called with the answer, or has been.
  using Handler =
      std::function<std::optional<HttpResponse>(const HttpRequest& request, const Later& later)>;
  enum class Access { kRead, kReadAndWrite };

  // Serves `listening`, a stream socket that listens and does not block. kRead: PUT gets 405 too.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(EventLoop* loop, UniqueFd listening,
                                                           Access access, Handler handler);
  // Serves `connection`, a stream socket that is connected and does not block, as if it had been
  // accepted. kResourceExhausted: there are too many.
  absl::Status Adopt(UniqueFd connection, HttpUser user);
  // Closes all connections and the socket.
  ~HttpServer();

  // The answer; nothing: it comes later, and the library is to wait with this connection.
  std::optional<HttpResponse> Ask(const HttpRequest& request,
                                  const std::shared_ptr<HttpWaiting>& waiting);
  bool writable() const { return access_ == Access::kReadAndWrite; }
  // Of a connection that begins, if it was adopted; once.
  std::optional<HttpUser> TakeUser(int fd);

 private:
  HttpServer(EventLoop* loop, Access access, Handler handler)
      : loop_(loop), access_(access), handler_(std::move(handler)) {}
  void Turn();
  void TurnAfter(Nanos delay);
  void Answer(const std::shared_ptr<HttpWaiting>& waiting, HttpResponse response);

  EventLoop* const loop_;
  const Access access_;
  const Handler handler_;
  MHD_Daemon* daemon_ = nullptr;
  // By descriptor, until the library begins with it; then they are the connection's.
  std::map<int, HttpUser> adopted_;
  std::set<std::shared_ptr<HttpWaiting>> waiting_;  // whose connections the library leaves alone
  int poll_fd_ = -1;                                // the library's
  EventLoop::TimerId timer_ = 0;
};

// ADDRESS:PORT that a TCP socket is bound to.
std::string AddressText(int fd);

// A listening TCP socket at `address`: "127.0.0.1:9825", "[::1]:0"; with port 0 the kernel
// chooses one, which AddressText tells. kInvalidArgument: no such address. kAlreadyExists: the port
// is taken. kUnavailable: the kernel's errors.
absl::StatusOr<UniqueFd> ListenTcp(const std::string& address);

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_HTTP_SERVER_H_
