// SPDX-License-Identifier: Apache-2.0
// How many bytes a second go from a socket of one node over a link to a socket of another, both
// nodes in this process, over TCP on loopback; and what the two threads that relay them cost.
#include <benchmark/benchmark.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "gpool/certificates.h"
#include "gpool/link.h"
#include "gpool/relay.h"

namespace consort::gpool {
namespace {

std::pair<UniqueFd, UniqueFd> Pair() {
  int ends[2];
  CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

std::unique_ptr<TlsContext> Context(const std::string& folder, const std::string& node) {
  CHECK(MakeNodeCertificate(folder, node).ok());
  auto context = TlsContext::Load(NodeFiles(folder, node));
  CHECK(context.ok()) << context.status();
  return *std::move(context);
}

double ProcessSeconds() {
  timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

double ThreadSeconds() {
  timespec used;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

void BM_BytesOverALink(benchmark::State& state) {
  constexpr size_t kBytes = 64 * kMiB;
  std::string folder = std::filesystem::temp_directory_path() / "link-bench-XXXXXX";
  CHECK(mkdtemp(folder.data()) != nullptr);
  CHECK(MakeAuthority(folder).ok());
  const std::unique_ptr<TlsContext> a = Context(folder, "a");
  const std::unique_ptr<TlsContext> b = Context(folder, "b");
  auto [far, far_relayed] = Pair();
  auto server = LinkServer::Listen(
      b.get(), "127.0.0.1:0",
      [&, end = &far_relayed](const Identity&, const LinkHello&) -> absl::StatusOr<UniqueFd> {
        return std::move(*end);
      });
  CHECK(server.ok()) << server.status();
  auto link = DialLink(*a, (*server)->address(), "b", LinkHello());
  CHECK(link.ok()) << link.status();
  auto [near, near_relayed] = Pair();
  std::thread relay([&link, &near_relayed = near_relayed] {
    Relay(near_relayed.get(), link->get(), RelayOptions());
  });

  std::vector<std::byte> data(kMiB, std::byte{0x5A});
  std::vector<std::byte> room(kMiB);
  double reader_seconds = 0;
  double writer_seconds = 0;
  const double before = ProcessSeconds();
  for (auto _ : state) {
    std::thread reader([&, &far = far] {
      for (size_t got = 0; got < kBytes;) {
        const ssize_t count = recv(far.get(), room.data(), room.size(), 0);
        CHECK_GT(count, 0);
        got += static_cast<size_t>(count);
      }
      reader_seconds += ThreadSeconds();
    });
    const double began = ThreadSeconds();
    for (size_t sent = 0; sent < kBytes;) {
      const ssize_t count =
          send(near.get(), data.data(), std::min(data.size(), kBytes - sent), MSG_NOSIGNAL);
      CHECK_GT(count, 0);
      sent += static_cast<size_t>(count);
    }
    writer_seconds += ThreadSeconds() - began;
    reader.join();
  }
  const double relays = ProcessSeconds() - before - reader_seconds - writer_seconds;
  const auto bytes = static_cast<double>(state.iterations()) * static_cast<double>(kBytes);
  state.SetBytesProcessed(static_cast<int64_t>(bytes));
  state.counters["relays_s_per_GiB"] = relays / (bytes / static_cast<double>(kGiB));
  near.Reset();
  relay.join();
  server->reset();
  std::filesystem::remove_all(folder);
}
BENCHMARK(BM_BytesOverALink)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace consort::gpool
