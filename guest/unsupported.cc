// SPDX-License-Identifier: Apache-2.0
#include "guest/unsupported.h"

#include <cuda.h>

#include <atomic>
#include <cstring>
#include <span>

#include "gen/wire/requests.h"
#include "guest/log.h"
#include "guest/mutex.h"
#include "guest/runtime.h"
#include "guest/session.h"

namespace consort::guest {
namespace {

constexpr uint32_t kCountersMax = 1024;  // the driver exports 707 names
std::atomic<uint32_t> counters[kCountersMax];

constexpr uint32_t kNotedMax = 64;
const char* noted[kNotedMax];
Mutex noted_mutex;

void Report(Session* session, uint32_t index, uint64_t calls) {
  const char* name = kUnsupportedNames[index];
  wire::UnsupportedCallsRequest request;
  request.calls = calls;
  request.name = std::as_bytes(std::span(name, std::strlen(name)));
  session->Post(0, request);
}

}  // namespace

int Unsupported(uint32_t index) {
  const uint32_t calls = counters[index].fetch_add(1, std::memory_order_relaxed) + 1;
  if (calls == 1) {
    LogLine("%s is not supported yet: it returns CUDA_ERROR_NOT_SUPPORTED",
            kUnsupportedNames[index]);
  }
  Session* session = (calls & (calls - 1)) == 0 ? FirstSession() : nullptr;
  if (session != nullptr) Report(session, index, calls);
  return CUDA_ERROR_NOT_SUPPORTED;
}

uint32_t UnsupportedCalls(uint32_t index) {
  return index < kUnsupportedCount ? counters[index].load(std::memory_order_relaxed) : 0;
}

void ReportUnsupportedSoFar(Session* session) {
  for (uint32_t i = 0; i < kUnsupportedCount; ++i) {
    if (UnsupportedCalls(i) != 0) Report(session, i, UnsupportedCalls(i));
  }
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
