// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/context.h: a CUDA context: its streams, their order, and its first error.
//
// States: inactive (a primary context that nobody retains), active, failed (an operation faulted:
// every later call gives that error until the context goes), destroyed (operations left are
// skipped). Thread safe. Lock order: order_mutex_ before streams_mutex_ before a stream's own.
#ifndef CONSORT_DEVICE_CPU_DRIVER_CONTEXT_H_
#define CONSORT_DEVICE_CPU_DRIVER_CONTEXT_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "device/cpu/driver/cuda_api.h"
#include "device/cpu/driver/device.h"
#include "device/cpu/driver/handle_table.h"
#include "device/cpu/driver/stream.h"

namespace consort::cpu {

struct State;

class Context : public std::enable_shared_from_this<Context> {
 public:
  // `device` outlives the context.
  Context(Device* device, CUcontext handle, unsigned int flags, bool active)
      : device_(device), handle_(handle), id_(NewHandleValue()), flags_(flags), active_(active) {}
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  Device& device() const { return *device_; }
  CUcontext handle() const { return handle_; }
  // Unlike the handle of a primary context, never used twice.
  uint64_t id() const { return id_; }
  unsigned int flags() const { return flags_; }
  bool active() const { return active_; }
  bool destroyed() const { return destroyed_.load(std::memory_order_acquire); }

  // The error that the context has failed with, or CUDA_SUCCESS.
  CUresult error() const { return error_.load(std::memory_order_acquire); }
  // Makes `error` the context's error unless it has one.
  void Fail(CUresult error);

  std::shared_ptr<Stream> LegacyStream();
  std::shared_ptr<Stream> NewStream(unsigned int flags, int priority);
  // Drops the stream, which is closed and has run everything.
  void Forget(const Stream* stream);

  // Puts an operation into `stream`, one of this context's, behind everything that CUDA orders it
  // after. Waits only if the stream is full. Makes it a node if the stream is captured.
  void Submit(const std::shared_ptr<Stream>& stream, Operation operation);
  // Runs an operation on the calling thread at `stream`'s place in the order, thus after waiting
  // for what is ahead of it. Returns the context's error afterwards.
  // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: the stream is captured.
  CUresult RunNow(const std::shared_ptr<Stream>& stream, const Operation& operation);
  // True if RunNow would have to wait.
  bool Pending(const std::shared_ptr<Stream>& stream);
  // Waits for everything submitted to any stream so far; returns the context's error.
  CUresult Synchronize();

  // Makes every operation left be skipped, and waits until the streams are empty.
  void Destroy();

  // Limits and preferences that programs set and read back.
  std::atomic<size_t> stack_bytes{1024};
  std::atomic<size_t> printf_bytes{1 << 20};
  std::atomic<size_t> heap_bytes{8 << 20};
  std::atomic<CUfunc_cache> cache_config{CU_FUNC_CACHE_PREFER_NONE};

 private:
  std::vector<std::shared_ptr<Stream>> Streams();
  // What an operation submitted to `stream` now has to wait for in other streams.
  std::vector<StreamPoint> OrderedAfter(const Stream& stream)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(order_mutex_);

  Device* const device_;
  const CUcontext handle_;
  const uint64_t id_;
  const unsigned int flags_;
  const bool active_;
  // Set once each; read by operations and entry points without a lock (release/acquire pairs).
  std::atomic<bool> destroyed_{false};
  std::atomic<CUresult> error_{CUDA_SUCCESS};

  // Held while an operation of a blocking stream is given its place, so that the legacy stream sees
  // a consistent order.
  absl::Mutex order_mutex_ ABSL_ACQUIRED_BEFORE(streams_mutex_);
  absl::Mutex streams_mutex_;
  std::vector<std::shared_ptr<Stream>> streams_ ABSL_GUARDED_BY(streams_mutex_);
  std::shared_ptr<Stream> legacy_ ABSL_GUARDED_BY(streams_mutex_);
};

// Ends `context`, which no handle names any more: waits for its streams, then takes its streams,
// events, modules and memory away.
void DestroyContext(State& state, const std::shared_ptr<Context>& context);

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_DRIVER_CONTEXT_H_
