// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/stream.h: one CUDA stream: a queue of operations and the thread that runs them.
//
// The thread starts with the first operation and ends when the stream is closed and empty. An
// operation may have to wait for points in other streams first (the legacy default stream's
// ordering); such a point was always submitted earlier, so that waits cannot form a cycle. Thread
// safe. Kept alive by its handle, its context and its thread (shared_ptr: whichever is last).
#ifndef CONSORT_DEVICE_CPU_DRIVER_STREAM_H_
#define CONSORT_DEVICE_CPU_DRIVER_STREAM_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "device/cpu/driver/cuda_api.h"
#include "device/cpu/driver/handle_table.h"
#include "device/cpu/program.h"

namespace consort::cpu {

class Context;
class Graph;
class Stream;
struct GraphNode;

// Work in a stream. `status` is CUDA_SUCCESS, or the error of the context: then the operation must
// not touch memory, and only completes what others wait for.
using Operation = std::function<void(CUresult status)>;

// The point in `stream` after its operation number `sequence`.
struct StreamPoint {
  std::shared_ptr<Stream> stream;
  uint64_t sequence = 0;
};

// What a stream's work becomes part of instead of being done; a null graph: nothing.
struct StreamCapture {
  CUgraph handle = nullptr;
  std::shared_ptr<Graph> graph;
  HandleTable<CUgraphNode, GraphNode>* nodes = nullptr;  // of the driver
};

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(std::shared_ptr<Context> context, unsigned int flags, int priority);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  const std::shared_ptr<Context>& context() const { return context_; }
  unsigned int flags() const { return flags_; }
  int priority() const { return priority_; }
  uint64_t id() const { return id_; }
  // Cores that its kernels may use at a time; 0: all. Set before any work.
  int multiprocessors() const { return multiprocessors_; }
  void set_multiprocessors(int count) { multiprocessors_ = count; }
  // Ordered with the legacy default stream.
  bool blocking() const { return (flags_ & CU_STREAM_NON_BLOCKING) == 0; }

  // Of launches that are submitted from now on.
  void SetOutput(const LaunchOutput& output);
  LaunchOutput output();

  // False: the stream is captured already.
  bool BeginCapture(StreamCapture capture);
  // What ended.
  StreamCapture EndCapture();
  StreamCapture capture();
  // Makes the operation a node if the stream is captured.
  bool Capture(Operation* operation);

  // Waits until fewer than kStreamOperationsMax operations are queued.
  void WaitForRoom();
  // Adds an operation that runs after the stream's earlier ones and after `after`. Never blocks.
  // Only Context calls this: it knows what `after` must hold.
  void Enqueue(Operation operation, std::vector<StreamPoint> after);
  // The point after everything submitted so far.
  StreamPoint Last();
  // True if something submitted has not completed.
  bool Pending();
  // Waits until operation `sequence` has completed.
  void Wait(uint64_t sequence);
  // No more operations will come; those queued still run.
  void Close();

 private:
  struct Item {
    Operation operation;
    std::vector<StreamPoint> after;
  };

  void Run();

  const std::shared_ptr<Context> context_;
  const unsigned int flags_;
  const int priority_;
  const uint64_t id_;
  int multiprocessors_ = 0;

  absl::Mutex mutex_;
  std::deque<Item> queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t submitted_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t completed_ ABSL_GUARDED_BY(mutex_) = 0;
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  StreamCapture capture_ ABSL_GUARDED_BY(mutex_);
  LaunchOutput output_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_DRIVER_STREAM_H_
