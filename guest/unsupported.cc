// SPDX-License-Identifier: Apache-2.0
#include "guest/unsupported.h"

#include <cuda.h>

#include <atomic>

#include "guest/log.h"
#include "guest/mutex.h"

namespace consort::guest {
namespace {

constexpr uint32_t kCountersMax = 1024;  // the driver exports 707 names
std::atomic<uint32_t> counters[kCountersMax];

constexpr uint32_t kNotedMax = 64;
const char* noted[kNotedMax];
Mutex noted_mutex;

}  // namespace

int Unsupported(uint32_t index) {
  if (counters[index].fetch_add(1, std::memory_order_relaxed) == 0) {
    LogLine("%s is not supported yet: it returns CUDA_ERROR_NOT_SUPPORTED",
            kUnsupportedNames[index]);
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

uint32_t UnsupportedCalls(uint32_t index) {
  return index < kUnsupportedCount ? counters[index].load(std::memory_order_relaxed) : 0;
}

void NoteUnsupported(const char* call, const char* what) {
  {
    MutexLock lock(&noted_mutex);
    uint32_t i = 0;
    while (i < kNotedMax && noted[i] != nullptr && noted[i] != call) ++i;
    if (i == kNotedMax || noted[i] == call) return;
    noted[i] = call;
  }
  LogLine("%s: %s is not supported yet: it returns CUDA_ERROR_NOT_SUPPORTED", call, what);
}

}  // namespace consort::guest
