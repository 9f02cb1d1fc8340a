// SPDX-License-Identifier: Apache-2.0
// tests/load/load_worker.cc: stands for a consort-worker whose device is always busy: consortd gets
// the reports that a worker sends, of device time that nobody used.
//
// Every kUsageReportEvery the time since the last report is split by weight between the sessions
// that are busy, as the scheduler would. Of five sessions one is idle, one copies and three
// compute. A session ends when its connection does.
#include <getopt.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "host/control/control_socket.h"
#include "host/limits.h"
#include "policies/schedule/policy.h"
#include "vmsock/deadline.h"

namespace consort::host {
namespace {

constexpr Bytes kDeviceBytes = 80 * kGiB;
constexpr Nanos kKernelNanos = 100 * kMicrosecond;
constexpr uint64_t kCopiedBytesPerNano = 20;  // GB/s
constexpr uint64_t kKinds = 5;                // of sessions, by number

struct Simulated {
  UniqueFd connection;
  std::string tenant;
  std::string channel;
  uint32_t weight = 1;
  uint64_t started_unix_seconds = 0;
  Nanos started = 0;
  SessionUsage usage;
};

class LoadWorker {
 public:
  LoadWorker(ControlSocket* control, uint32_t index) : control_(control), index_(index) {}

  absl::Status SayReady(uint32_t devices) {
    Ready ready;
    SetText(ready.snapshot.name, "Simulated device");
    ready.snapshot.uuid[0] = 0xC0;
    ready.snapshot.uuid[15] = static_cast<uint8_t>(index_);
    ready.snapshot.total_bytes = kDeviceBytes;
    ready.device_count = devices;
    SetText(ready.driver, "load_worker");
    return control_->Send(ready);
  }

  // Until consortd says so or is gone.
  void Run() {
    Nanos reported = MonotonicNow();
    while (true) {
      std::vector<pollfd> polled = {{control_->fd(), POLLIN, 0}};
      std::vector<uint64_t> ids;
      for (const auto& [id, session] : sessions_) {
        polled.push_back({session.connection.get(), POLLIN, 0});
        ids.push_back(id);
      }
      const Nanos left = reported + kUsageReportEvery - MonotonicNow();
      poll(polled.data(), polled.size(),
           static_cast<int>(std::max<Nanos>(left, 0) / kMillisecond) + 1);
      for (size_t i = 0; i < ids.size(); ++i) {
        if (polled[i + 1].revents != 0) End(ids[i]);
      }
      if (polled[0].revents != 0 && !TakePacket()) return;
      const Nanos now = MonotonicNow();
      if (now - reported < kUsageReportEvery) continue;
      Advance(static_cast<uint64_t>(now - reported));
      reported = now;
      Report();
    }
  }

 private:
  bool TakePacket() {
    ControlPacket packet;
    const absl::Status received = control_->Receive(/*wait=*/false, &packet);
    if (absl::IsDeadlineExceeded(received)) return true;
    if (!received.ok()) return false;
    OpenSession open;
    SetWeight weight;
    SetScheduler policy;
    if (packet.As(&open)) {
      Open(open, std::move(packet.descriptor()));
    } else if (packet.As(&weight)) {
      for (auto& [id, session] : sessions_) {
        if (session.tenant == GetText(weight.tenant)) {
          session.weight = static_cast<uint32_t>(weight.weight);
        }
      }
    } else if (!packet.As(&policy)) {
      return false;  // Shutdown
    }
    return true;
  }

  void Open(const OpenSession& open, UniqueFd connection) {
    wire::Welcome welcome;
    welcome.window_base = open.window_base;
    welcome.window_bytes = open.window_bytes;
    // It has room: nothing was sent before.
    if (send(connection.get(), &welcome, sizeof(welcome), MSG_NOSIGNAL) != sizeof(welcome)) return;
    Simulated& session = sessions_[open.session];
    session.connection = std::move(connection);
    session.tenant = GetText(open.tenant);
    session.channel = GetText(open.channel);
    session.weight = open.weight;
    session.started_unix_seconds = static_cast<uint64_t>(time(nullptr));
    session.started = MonotonicNow();
    session.usage.session = open.session;
    session.usage.memory_bytes = kDeviceBytes / kSessionsPerWorker;
  }

  void End(uint64_t id) {
    const Simulated& session = sessions_.at(id);
    SessionEnded ended;
    ended.session = id;
    ended.started_unix_seconds = session.started_unix_seconds;
    ended.lasted_nanos = static_cast<uint64_t>(MonotonicNow() - session.started);
    ended.calls = session.usage.calls;
    ended.kernel_launches = session.usage.kernel_launches;
    ended.device_nanos = session.usage.device_nanos;
    ended.weight = session.weight;
    SetText(ended.channel, session.channel);
    SetText(ended.reason, "closed");
    sessions_.erase(id);
    Send(ended);
  }

  void Advance(uint64_t nanos) {
    uint64_t weights = 0;
    for (const auto& [id, session] : sessions_) {
      if (id % kKinds != 0) weights += session.weight;
    }
    for (auto& [id, session] : sessions_) {
      SessionUsage& usage = session.usage;
      usage.memory_byte_seconds += usage.memory_bytes * nanos / kSecond;
      if (id % kKinds == 0) continue;
      const uint64_t used = nanos * session.weight / weights;
      const uint64_t batches = used / kMillisecond + 1;
      usage.calls += used / kKernelNanos + 1;
      ++usage.round_trips;
      usage.device_nanos += used;
      usage.queued_nanos += nanos - used;
      usage.batches += batches;
      usage.delays[6] += batches;
      usage.waiting = 1;
      usage.in_flight = 1;
      if (id % kKinds == 1) {
        usage.phase = static_cast<uint32_t>(schedule::Phase::kToDevice);
        usage.to_device_nanos += used;
        usage.timed_bytes_to_device += used * kCopiedBytesPerNano;
        usage.bytes_to_device += used * kCopiedBytesPerNano;
      } else {
        usage.phase = static_cast<uint32_t>(schedule::Phase::kKernel);
        usage.kernel_launches += used / kKernelNanos + 1;
        usage.kernel_nanos += used;
      }
    }
  }

  void Report() {
    MemoryReport memory;
    memory.limit = kDeviceBytes;
    std::vector<SessionUsage> usages;
    for (const auto& [id, session] : sessions_) {
      usages.push_back(session.usage);
      memory.promised += session.usage.memory_bytes;
    }
    memory.on_device = memory.promised;
    for (size_t first = 0; first == 0 || first < usages.size(); first += kUsageEntriesMax) {
      UsageReport report;
      report.count = std::min<size_t>(usages.size() - first, kUsageEntriesMax);
      report.last = first + report.count == usages.size() ? 1 : 0;
      std::copy_n(usages.begin() + static_cast<ptrdiff_t>(first), report.count, report.entries);
      Send(report);
    }
    Send(memory);
  }

  // Totals: what a full queue loses the next report makes up for.
  template <typename T>
  void Send(const T& message) {
    const absl::Status sent = control_->Send(message);
    if (!sent.ok() && !absl::IsUnavailable(sent)) {
      fprintf(stderr, "load_worker %u: %s\n", index_, sent.ToString().c_str());
    }
  }

  ControlSocket* const control_;
  const uint32_t index_;
  std::map<uint64_t, Simulated> sessions_;
};

int Main(int argc, char** argv) {
  int control = -1;
  uint32_t index = 0;
  uint32_t devices = 1;
  opterr = 0;  // a worker has other options too
  const option options[] = {{"control", required_argument, nullptr, 'c'},
                            {"index", required_argument, nullptr, 'i'},
                            {nullptr, 0, nullptr, 0}};
  bool good = true;
  for (int flag; (flag = getopt_long(argc, argv, "", options, nullptr)) != -1;) {
    if (flag == 'c') good &= absl::SimpleAtoi(optarg, &control);
    if (flag == 'i') good &= absl::SimpleAtoi(optarg, &index);
  }
  // As the CPU driver is told.
  const char* count = getenv("CONSORT_CPU_DEVICES");
  if (count != nullptr) good &= absl::SimpleAtoi(count, &devices);
  if (!good || control < 0) {
    fputs("load_worker is started by consortd, with --devices NUMBER\n", stderr);
    return 2;
  }
  ControlSocket socket{UniqueFd(control)};
  LoadWorker worker(&socket, index);
  if (!worker.SayReady(devices).ok()) return EXIT_FAILURE;
  worker.Run();
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace consort::host

int main(int argc, char** argv) { return consort::host::Main(argc, argv); }
