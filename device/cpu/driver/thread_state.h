// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/thread_state.h: what belongs to one calling thread: its stack of current
// contexts and its per-thread default streams. Owned by that thread.
#ifndef CONSORT_DEVICE_CPU_DRIVER_THREAD_STATE_H_
#define CONSORT_DEVICE_CPU_DRIVER_THREAD_STATE_H_

#include <memory>
#include <vector>

#include "device/cpu/driver/context.h"
#include "device/cpu/driver/cuda_api.h"
#include "device/cpu/driver/stream.h"
#include "device/cpu/program.h"

namespace consort::cpu {

class ThreadState {
 public:
  ThreadState() = default;
  ~ThreadState();
  ThreadState(const ThreadState&) = delete;
  ThreadState& operator=(const ThreadState&) = delete;

  CUcontext current() const { return stack_.empty() ? nullptr : stack_.back(); }
  // Replaces the top of the stack; null takes it away.
  void SetCurrent(CUcontext context);
  void Push(CUcontext context) { stack_.push_back(context); }
  // The context that was on top, or null if the stack is empty.
  CUcontext Pop();

  // This thread's stream CU_STREAM_PER_THREAD in `context`.
  std::shared_ptr<Stream> DefaultStream(const std::shared_ptr<Context>& context);

  bool in_host_function = false;
  // For what this thread loads from now on.
  ManagedMemory managed;

 private:
  std::vector<CUcontext> stack_;
  std::vector<std::shared_ptr<Stream>> default_streams_;  // one a context
};

ThreadState& ThisThread();

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_DRIVER_THREAD_STATE_H_
