// SPDX-License-Identifier: Apache-2.0
// guest/proxy/main.cc: consort-guest-proxy, for containers in a virtual machine.
//
// The seccomp profiles of container runtimes refuse vsock sockets. This listens on a UNIX socket,
// which is mounted into containers as the one at which the guest library looks first, and joins
// each connection with one to consortd over vsock. A connection is a thread (kProxyConnectionsMax);
// nothing is kept between them. Needs no rights.
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <span>
#include <utility>

#include "base/unique_fd.h"
#include "guest/config.h"
#include "guest/proxy/relay.h"
#include "vmsock/deadline.h"
#include "vmsock/dial.h"
#include "vmsock/socket_io.h"
#include "vmsock/wire/handshake.h"

namespace consort::guest {
namespace {

constexpr char kUsage[] =
    "consort-guest-proxy [--socket PATH] [--endpoint ENDPOINT]\n"
    "\n"
    "Joins programs in containers of this virtual machine, which may not open vsock sockets, with\n"
    "consortd on the host. Listens at PATH, or on the socket that systemd passes.\n"
    "\n"
    "  --socket PATH        where to listen; default /run/consort-guest/consortd.sock\n"
    "  --endpoint ENDPOINT  where consortd is; default: as /etc/consort/guest.toml says, else "
    "vsock:2:7000\n"
    "  --help               this text\n";

constexpr char kDefaultSocket[] = "/run/consort-guest/consortd.sock";
constexpr int kUsageStatus = 2;
// sd_listen_fds(3): passed descriptors begin here.
constexpr int kFirstPassedFd = 3;
// As many as a host has address windows for sessions: more cannot all be served.
constexpr int kProxyConnectionsMax = 208;
// Connections that wait until the loop takes them.
constexpr int kBacklog = 64;
constexpr int kAcceptRetryMs = 200;
// The relay's buffers are on the heap; dialling keeps texts and a greeting on the stack.
constexpr size_t kStackBytes = 128 * 1024;

const char* endpoint;
std::atomic<int> connections{0};

void Say(const char* format, ...) __attribute__((format(printf, 1, 2)));
void Say(const char* format, ...) {
  char line[512];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  fprintf(stderr, "consort-guest-proxy: %s\n", line);
}

// Answers a greeting in consortd's place, so that the program tells its user why it has no device.
void Refuse(const UniqueFd& program, const char* text) {
  const Deadline deadline(kHandshakeTimeout);
  wire::Hello hello;
  if (ReceiveAll(program.get(), std::as_writable_bytes(std::span(&hello, 1)), nullptr, deadline) !=
      0) {
    return;
  }
  wire::Welcome welcome;
  welcome.status = wire::kWelcomeRefused;
  snprintf(welcome.text, sizeof welcome.text, "%s", text);
  SendAll(program.get(), std::as_bytes(std::span(&welcome, 1)), {}, deadline);
}

void Serve(UniqueFd program) {
  if (PrepareSocket(program.get()) != 0) return;
  DialOptions options;
  options.endpoint = endpoint;
  options.connect_timeout = GetConfig().connect_timeout_ms * kMillisecond;
  DialResult result;
  UniqueFd host = ConnectTo(options, &result);
  if (!host.valid()) {
    Say("%s", result.text);
    return Refuse(program, result.text);
  }
  if (!RelayStreams(std::move(program), std::move(host))) Say("no memory for a connection");
}

void* RunConnection(void* argument) {
  Serve(UniqueFd(static_cast<int>(reinterpret_cast<intptr_t>(argument))));
  connections.fetch_sub(1);
  return nullptr;
}

void Start(const pthread_attr_t& attributes, UniqueFd program) {
  // The count may fall meanwhile and rises nowhere else.
  if (connections.load() >= kProxyConnectionsMax) {
    Say("a program was turned away: %d connections are open", kProxyConnectionsMax);
    return;
  }
  connections.fetch_add(1);
  pthread_t thread;
  const intptr_t fd = program.get();
  if (pthread_create(&thread, &attributes, RunConnection, reinterpret_cast<void*>(fd)) == 0) {
    program.Release();
    return;
  }
  connections.fetch_sub(1);
  Say("a program was turned away: no thread can be started");
}

// The socket that systemd passed, or one of our own; invalid: it was said why.
UniqueFd Listen(const char* path) {
  const char* passed = getenv("LISTEN_FDS");
  const char* passed_to = getenv("LISTEN_PID");
  if (path == nullptr && passed != nullptr && passed_to != nullptr &&
      strtol(passed_to, nullptr, 10) == getpid()) {
    if (strcmp(passed, "1") == 0) return UniqueFd(kFirstPassedFd);
    Say("one socket is wanted, and %s were passed", passed);
    return UniqueFd();
  }
  if (path == nullptr) path = kDefaultSocket;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (strlen(path) >= sizeof address.sun_path) {
    Say("%s: longer than an address of a socket can be", path);
    return UniqueFd();
  }
  strcpy(address.sun_path, path);
  // Left by one that was killed. Anything else at that path stays, and bind(2) fails.
  struct stat status;
  if (lstat(path, &status) == 0 && S_ISSOCK(status.st_mode)) unlink(path);
  UniqueFd listener(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr* any = reinterpret_cast<const sockaddr*>(&address);
  // Everybody may connect, as everybody may open vsock sockets.
  if (!listener.valid() || bind(listener.get(), any, sizeof address) != 0 ||
      chmod(path, 0666) != 0 || listen(listener.get(), kBacklog) != 0) {
    Say("cannot listen at %s: %s", path, strerror(errno));
    return UniqueFd();
  }
  return listener;
}

int Run(int argc, char** argv) {
  const char* path = nullptr;
  endpoint = GetConfig().endpoint;
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--help") == 0) {
      fputs(kUsage, stdout);
      return 0;
    }
    if (strcmp(argv[i], "--socket") == 0 && i + 1 < argc) {
      path = argv[++i];
    } else if (strcmp(argv[i], "--endpoint") == 0 && i + 1 < argc) {
      endpoint = argv[++i];
    } else {
      Say("unknown or incomplete option %s; see --help", argv[i]);
      return kUsageStatus;
    }
  }
  if (GetConfig().problem[0] != '\0') Say("%s", GetConfig().problem);
  if (strncmp(endpoint, "unix:", 5) == 0) {
    Say("consortd is on this machine (%s): mount the folder of that socket into containers instead",
        endpoint);
    return kUsageStatus;
  }
  const UniqueFd listener = Listen(path);
  if (!listener.valid()) return 1;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  Say("ready; consortd is at %s", endpoint);
  for (;;) {
    UniqueFd program(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (program.valid()) {
      Start(attributes, std::move(program));
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      // Those who are connected go on, and those who wait go on waiting.
      Say("cannot take a connection now: %s", strerror(errno));
      poll(nullptr, 0, kAcceptRetryMs);
    } else if (errno != EINTR && errno != ECONNABORTED) {
      Say("cannot take connections: %s", strerror(errno));
      return 1;
    }
  }
}

}  // namespace
}  // namespace consort::guest

int main(int argc, char** argv) { return consort::guest::Run(argc, argv); }
