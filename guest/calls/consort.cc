// SPDX-License-Identifier: Apache-2.0
// guest/calls/consort.cc: the functions behind guest/consort.h, which programs find by name.
#include "guest/consort.h"

#include "guest/call.h"
#include "guest/entry.h"

static_assert(CONSORT_HINT_CPU_PHASE == consort::wire::kHintCpuPhase);
static_assert(int{CONSORT_NOT_SUPPORTED} == int{CUDA_ERROR_NOT_SUPPORTED});

namespace consort::guest {
namespace {

template <class Request>
int Tell(const Request& request) {
  if (CUresult result = EnterCall(); result != CUDA_SUCCESS) return result;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  GiveBackFreed(context->device);
  wire::EmptyReply reply;
  return Ask(context, request, &reply);
}

}  // namespace
}  // namespace consort::guest

extern "C" {

CONSORT_EXPORT int consortReserve(size_t bytes, unsigned long long wait_ms) {
  consort::wire::MemoryReserveRequest request;
  request.bytes = bytes;
  request.wait_ms = wait_ms;
  return consort::guest::Tell(request);
}

CONSORT_EXPORT int consortHint(unsigned hint) {
  consort::wire::MemoryHintRequest request;
  request.hint = hint;
  return consort::guest::Tell(request);
}

}  // extern "C"
