// SPDX-License-Identifier: Apache-2.0
#include "base/log_descriptor.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "base/log.h"

namespace consort {
namespace {

// Relaxed: set before anything writes to it.
std::atomic<int> log_descriptor{-1};

void WriteToLog(const char* text, size_t bytes) {
  // What a log cannot take is lost.
  [[maybe_unused]] const ssize_t written =
      write(log_descriptor.load(std::memory_order_relaxed), text, bytes);
}

class DescriptorSink final : public google::LogSink {
 public:
  using google::LogSink::send;
  void send(google::LogSeverity severity, const char*, const char* base_filename, int line,
            const google::LogMessageTime& time, const char* message, size_t bytes) override {
    const std::string text = ToString(severity, base_filename, line, time, message, bytes) + "\n";
    WriteToLog(text.data(), text.size());
  }
};

}  // namespace

void SendLogTo(int descriptor) {
  log_descriptor.store(fcntl(descriptor, F_DUPFD_CLOEXEC, 3), std::memory_order_relaxed);
  google::AddLogSink(new DescriptorSink);  // kept by the log
  FLAGS_logtostderr = false;
  FLAGS_stderrthreshold = google::NUM_SEVERITIES;
  for (int severity = 0; severity < google::NUM_SEVERITIES; ++severity) {
    google::SetLogDestination(severity, "");  // no files
  }
  google::InstallFailureWriter(&WriteToLog);
}

}  // namespace consort
