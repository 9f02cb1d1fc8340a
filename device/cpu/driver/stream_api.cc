// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/stream_api.cc: streams, host functions, and memory operations in streams.
#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/units.h"
#include "device/cpu/driver/limits.h"
#include "device/cpu/driver/state.h"
#include "device/cpu/driver/thread_state.h"

namespace consort::cpu {
namespace {

// A wait for a value looks this often without sleeping, then sleeps between looks, longer and
// longer: the word may be written by another process, so nobody can wake us.
constexpr int kWaitSpins = 1000;
constexpr Nanos kWaitSleepFirst = 5 * kMicrosecond;
constexpr Nanos kWaitSleepLast = 500 * kMicrosecond;
// How often a wait for an event looks whether its context has gone.
constexpr Nanos kWaitDestroyedPeriod = 100 * kMillisecond;

// Marks the thread as inside a host function for the time of one.
class HostFunctionScope {
 public:
  HostFunctionScope() { ThisThread().in_host_function = true; }
  ~HostFunctionScope() { ThisThread().in_host_function = false; }
};

CUresult CreateStream(CUstream* out, unsigned int flags, int priority) {
  return WithContext([&](State& state, const std::shared_ptr<Context>& context) {
    if (out == nullptr || (flags & ~CU_STREAM_NON_BLOCKING) != 0) return CUDA_ERROR_INVALID_VALUE;
    const int clamped = std::clamp(priority, kStreamPriorityGreatest, kStreamPriorityLeast);
    *out = state.streams.Insert(context->NewStream(flags, clamped));
    return CUDA_SUCCESS;
  });
}

bool IsDefaultStream(CUstream stream) {
  return stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

template <typename Word>
bool Holds(Word current, Word value, unsigned int condition) {
  using Signed = std::make_signed_t<Word>;
  switch (condition) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return static_cast<Signed>(current - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return current == value;
    case CU_STREAM_WAIT_VALUE_AND:
      return (current & value) != 0;
    default:  // CU_STREAM_WAIT_VALUE_NOR
      return static_cast<Word>(~(current | value)) != 0;
  }
}

template <typename Word>
CUresult WaitValue(CUstream handle, CUdeviceptr address, Word value, unsigned int flags) {
  return WithStream(handle, [&](State& state, const std::shared_ptr<Stream>& stream) {
    const unsigned int condition = flags & 3;
    // CU_STREAM_WAIT_VALUE_FLUSH is about writes of remote devices, which a CPU sees in order.
    if ((flags & ~(3u | CU_STREAM_WAIT_VALUE_FLUSH)) != 0 || address % sizeof(Word) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const Extent word = {address, sizeof(Word), /*write=*/false, /*known=*/true};
    if (!state.address_space.Check({&word, 1})) return CUDA_ERROR_INVALID_VALUE;
    Context* context = stream->context().get();
    context->Submit(stream, [&state, context, word, value, condition](CUresult status) {
      if (status != CUDA_SUCCESS) return;
      Nanos sleep = kWaitSleepFirst;
      for (int spin = 0; !context->destroyed() && context->error() == CUDA_SUCCESS; ++spin) {
        bool holds = false;
        const bool there = state.address_space.RunChecked({&word, 1}, [&] {
          // Pairs with the release store of whoever writes the word.
          holds = Holds(__atomic_load_n(reinterpret_cast<const Word*>(word.base), __ATOMIC_ACQUIRE),
                        value, condition);
        });
        if (!there) context->Fail(CUDA_ERROR_ILLEGAL_ADDRESS);
        if (holds) return;
        if (spin < kWaitSpins) continue;
        std::this_thread::sleep_for(std::chrono::nanoseconds(sleep));
        sleep = std::min(2 * sleep, kWaitSleepLast);
      }
    });
    return CUDA_SUCCESS;
  });
}

template <typename Word>
CUresult WriteValue(CUstream handle, CUdeviceptr address, Word value, unsigned int flags) {
  return WithStream(handle, [&](State& state, const std::shared_ptr<Stream>& stream) {
    // The second version of this function has no flags.
    if (flags != CU_STREAM_WRITE_VALUE_DEFAULT || address % sizeof(Word) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const Extent word = {address, sizeof(Word), /*write=*/true, /*known=*/true};
    if (!state.address_space.Check({&word, 1})) return CUDA_ERROR_INVALID_VALUE;
    Context* context = stream->context().get();
    context->Submit(stream, [&state, context, word, value](CUresult status) {
      if (status != CUDA_SUCCESS) return;
      const bool there = state.address_space.RunChecked({&word, 1}, [&] {
        __atomic_store_n(reinterpret_cast<Word*>(word.base), value, __ATOMIC_RELEASE);
      });
      if (!there) context->Fail(CUDA_ERROR_ILLEGAL_ADDRESS);
    });
    return CUDA_SUCCESS;
  });
}

}  // namespace

}  // namespace consort::cpu

using namespace consort::cpu;  // the entry points are global: their prototypes are cuda.h's

extern "C" {

CUresult CUDAAPI cuStreamCreate(CUstream* phStream, unsigned int Flags) {
  return CreateStream(phStream, Flags, kStreamPriorityLeast);
}

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* phStream, unsigned int flags, int priority) {
  return CreateStream(phStream, flags, priority);
}

CUresult CUDAAPI cuStreamDestroy_v2(CUstream hStream) {
  return WithState([&](State& state) {
    if (IsDefaultStream(hStream)) return CUDA_ERROR_INVALID_HANDLE;
    const std::shared_ptr<Stream> stream = state.streams.Remove(hStream);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    stream->Close();
    return stream->context()->error();
  });
}

CUresult CUDAAPI cuStreamSynchronize(CUstream hStream) {
  return WithStream(hStream, [](State&, const std::shared_ptr<Stream>& stream) {
    // In its place in the order: the legacy stream waits for the blocking streams too.
    return stream->context()->RunNow(stream, [](CUresult) {});
  });
}

CUresult CUDAAPI cuStreamQuery(CUstream hStream) {
  return WithStream(hStream, [](State&, const std::shared_ptr<Stream>& stream) {
    if (stream->context()->Pending(stream)) return CUDA_ERROR_NOT_READY;
    return stream->context()->error();
  });
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream hStream, CUevent hEvent, unsigned int Flags) {
  return WithStream(hStream, [&](State& state, const std::shared_ptr<Stream>& stream) {
    const std::shared_ptr<Event> event = state.events.Find(hEvent);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (Flags != CU_EVENT_WAIT_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<EventRecord> record = event->record();
    if (record == nullptr || record->reached.HasBeenNotified()) return CUDA_SUCCESS;
    Context* context = stream->context().get();
    context->Submit(stream, [context, record = std::move(record)](CUresult status) {
      if (status != CUDA_SUCCESS) return;
      // The event may be of another context, whose stream may be stuck when ours is destroyed.
      while (!record->reached.WaitForNotificationWithTimeout(
          absl::Nanoseconds(kWaitDestroyedPeriod))) {
        if (context->destroyed()) return;
      }
    });
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuStreamGetPriority(CUstream hStream, int* priority) {
  return WithStream(hStream, [&](State&, const std::shared_ptr<Stream>& stream) {
    if (priority == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *priority = stream->priority();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuStreamGetFlags(CUstream hStream, unsigned int* flags) {
  return WithStream(hStream, [&](State&, const std::shared_ptr<Stream>& stream) {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = stream->flags();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuStreamGetCtx(CUstream hStream, CUcontext* pctx) {
  return WithStream(hStream, [&](State&, const std::shared_ptr<Stream>& stream) {
    if (pctx == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *pctx = stream->context()->handle();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuStreamGetId(CUstream hStream, unsigned long long* streamId) {
  return WithStream(hStream, [&](State&, const std::shared_ptr<Stream>& stream) {
    if (streamId == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *streamId = stream->id();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void* userData) {
  return WithStream(hStream, [&](State&, const std::shared_ptr<Stream>& stream) {
    if (fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
    stream->context()->Submit(stream, [fn, userData](CUresult status) {
      if (status != CUDA_SUCCESS) return;
      HostFunctionScope scope;
      fn(userData);
    });
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuStreamAddCallback(CUstream hStream, CUstreamCallback callback, void* userData,
                                     unsigned int flags) {
  return WithStream(hStream, [&](State&, const std::shared_ptr<Stream>& stream) {
    if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    // Unlike a host function, a callback is also called after an error, to be told of it.
    stream->context()->Submit(stream, [hStream, callback, userData](CUresult status) {
      HostFunctionScope scope;
      callback(hStream, status, userData);
    });
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                        unsigned int flags) {
  return WaitValue<uint32_t>(stream, addr, value, flags);
}

CUresult CUDAAPI cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                        unsigned int flags) {
  return WaitValue<uint64_t>(stream, addr, value, flags);
}

CUresult CUDAAPI cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value,
                                         unsigned int flags) {
  return WriteValue<uint32_t>(stream, addr, value, flags);
}

CUresult CUDAAPI cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value,
                                         unsigned int flags) {
  return WriteValue<uint64_t>(stream, addr, value, flags);
}

}  // extern "C"
