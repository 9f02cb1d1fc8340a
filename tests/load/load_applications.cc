// SPDX-License-Identifier: Apache-2.0
// tests/load/load_applications.cc: opens sessions as guests' programs do, and keeps them open.
//
//   load_applications COUNT DEVICES SOCKET...
//
// Application I calls itself python3-N, N below kNames, has pid kFirstPid + I, and asks SOCKET
// I % sockets for device I % DEVICES. Says "ready" when all have been welcomed, and ends, and they
// with it, when its input does. Exit status 1: one was refused, with the reason.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "base/unique_fd.h"
#include "gen/wire/opcodes.h"
#include "vmsock/wire/handshake.h"

namespace consort {
namespace {

constexpr uint32_t kFirstPid = 1000;
constexpr uint32_t kNames = 20;

// A connection that was welcomed; none, after saying why, where it was not.
UniqueFd Open(const std::string& path, uint32_t number, uint32_t device) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  snprintf(address.sun_path, sizeof(address.sun_path), "%s", path.c_str());
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  wire::Hello hello;
  hello.description_hash = wire::kDescriptionHash;
  hello.purpose = wire::kPurposeSession;
  hello.device = device;
  hello.pid = kFirstPid + number;
  snprintf(hello.application, sizeof(hello.application), "python3-%u", number % kNames);
  wire::Welcome welcome;
  if (!fd.valid() ||
      connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 ||
      send(fd.get(), &hello, sizeof(hello), MSG_NOSIGNAL) != sizeof(hello) ||
      recv(fd.get(), &welcome, sizeof(welcome), MSG_WAITALL) != sizeof(welcome)) {
    fprintf(stderr, "application %u: %s: %s\n", number, path.c_str(), strerror(errno));
    return UniqueFd();
  }
  if (welcome.status != wire::kWelcomeOk) {
    fprintf(stderr, "application %u was refused: %.*s\n", number,
            static_cast<int>(sizeof(welcome.text)), welcome.text);
    return UniqueFd();
  }
  return fd;
}

int Main(int argc, char** argv) {
  uint32_t count = 0;
  uint32_t devices = 0;
  if (argc < 4 || !absl::SimpleAtoi(argv[1], &count) || !absl::SimpleAtoi(argv[2], &devices) ||
      devices == 0) {
    fputs("usage: load_applications COUNT DEVICES SOCKET...\n", stderr);
    return 2;
  }
  const std::vector<std::string> sockets(argv + 3, argv + argc);
  rlimit descriptors = {};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  descriptors.rlim_cur = descriptors.rlim_max;
  setrlimit(RLIMIT_NOFILE, &descriptors);
  std::vector<UniqueFd> open;
  for (uint32_t number = 0; number < count; ++number) {
    open.push_back(Open(sockets[number % sockets.size()], number, number % devices));
    if (!open.back().valid()) return EXIT_FAILURE;
  }
  puts("ready");
  fflush(stdout);
  for (char ignored; read(STDIN_FILENO, &ignored, 1) > 0;) {
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace consort

int main(int argc, char** argv) { return consort::Main(argc, argv); }
