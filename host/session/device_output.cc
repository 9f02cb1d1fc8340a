// SPDX-License-Identifier: Apache-2.0
#include "host/session/device_output.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "host/limits.h"

namespace consort::host {

void DeviceOutput::Append(int descriptor, absl::string_view text) {
  absl::MutexLock lock(&mutex_);
  std::string& to = descriptor == STDERR_FILENO ? error_ : out_;
  to.append(text.data(), text.size());
  if (to.size() > kDeviceOutputBytesMax) {
    // A quarter at once, so that a program which prints on and on does not move all of it each
    // time; and whole lines.
    const size_t least = std::max(to.size() - kDeviceOutputBytesMax, kDeviceOutputBytesMax / 4);
    const size_t line_end = to.find('\n', least - 1);
    to.erase(0, line_end == std::string::npos ? least : line_end + 1);
  }
  any_.store(true, std::memory_order_relaxed);
}

std::vector<DeviceOutput::Text> DeviceOutput::Take() {
  std::vector<Text> taken;
  if (!any_.load(std::memory_order_relaxed)) return taken;
  absl::MutexLock lock(&mutex_);
  if (!out_.empty()) taken.push_back({STDOUT_FILENO, std::exchange(out_, {})});
  if (!error_.empty()) taken.push_back({STDERR_FILENO, std::exchange(error_, {})});
  any_.store(false, std::memory_order_relaxed);
  return taken;
}

}  // namespace consort::host
