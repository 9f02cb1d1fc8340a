// SPDX-License-Identifier: Apache-2.0
#include "gpool/etcd_test_support.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/unique_fd.h"
#include "gpool/etcd_store.h"

namespace consort::gpool {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr int kTryEveryMs = 20;

// A port that nobody had a moment ago: etcd does not say which one the kernel chose for 0.
int FreePort() {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof(address);
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), bytes) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &bytes) != 0) {
    return 0;
  }
  return ntohs(address.sin_port);
}

}  // namespace

std::unique_ptr<EtcdServer> EtcdServer::Start() {
  std::unique_ptr<EtcdServer> server(new EtcdServer());
  std::string pattern = (std::filesystem::temp_directory_path() / "etcd-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) return nullptr;
  server->folder_ = pattern;
  server->endpoint_ = absl::StrCat("http://127.0.0.1:", FreePort());
  server->peer_ = absl::StrCat("http://127.0.0.1:", FreePort());
  return server->Spawn() ? std::move(server) : nullptr;
}

bool EtcdServer::Spawn() {
  const std::string log = folder_ + "/log";
  const std::string data = folder_ + "/data";
  const std::string cluster = "test=" + peer_;
  const std::vector<const char*> arguments = {"etcd",
                                              "--name=test",
                                              "--data-dir",
                                              data.c_str(),
                                              "--listen-client-urls",
                                              endpoint_.c_str(),
                                              "--advertise-client-urls",
                                              endpoint_.c_str(),
                                              "--listen-peer-urls",
                                              peer_.c_str(),
                                              "--initial-advertise-peer-urls",
                                              peer_.c_str(),
                                              "--initial-cluster",
                                              cluster.c_str(),
                                              "--logger=zap",
                                              nullptr};
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    // It must not outlive the test, however that ends.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(out, STDOUT_FILENO);
    dup2(out, STDERR_FILENO);
    execvp(arguments[0], const_cast<char**>(arguments.data()));
    _exit(127);
  }
  const absl::Time deadline = absl::Now() + kPatience;
  while (absl::Now() < deadline) {
    if (EtcdStore::Connect({{endpoint_}, {}, {}, {}}).ok()) return true;
    // Between two tries: until it has ended, which it should not.
    const UniqueFd process(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
    pollfd polled = {process.get(), POLLIN, 0};
    if (poll(&polled, 1, kTryEveryMs) > 0) {
      Kill();
      break;
    }
  }
  std::ifstream in(log);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  fprintf(stderr, "etcd does not come up (is etcd-server installed?)\n%s\n", text.c_str());
  return false;
}

void EtcdServer::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

bool EtcdServer::Restart() {
  Kill();
  return Spawn();
}

EtcdServer::~EtcdServer() {
  Kill();
  std::filesystem::remove_all(folder_);
}

}  // namespace consort::gpool
