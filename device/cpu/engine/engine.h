// SPDX-License-Identifier: Apache-2.0
// device/cpu/engine/engine.h: the threads that run blocks, shared by all programs of the process.
//
// Thread safe. Threads start when a launch first needs them and stay, waiting, until the process
// ends. Bounds: kWorkersMax.
#ifndef CONSORT_DEVICE_CPU_ENGINE_ENGINE_H_
#define CONSORT_DEVICE_CPU_ENGINE_ENGINE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "device/cpu/engine/block_runner.h"

namespace consort::cpu {

// Of all launches together. Each may hold 1024 stacks of two mappings each, and Linux allows a
// process 65530 mappings (vm.max_map_count).
inline constexpr int kWorkersMax = 24;

class Engine {
 public:
  // The one of this process; created on first use, never destroyed, as its threads may outlive
  // main.
  static Engine& Get();

  // Runs all blocks of `job` on the calling thread and up to worker_count - 1 others. Not from
  // inside a kernel.
  LaunchFault Run(LaunchJob& job, int worker_count) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Launch {
    LaunchJob* job = nullptr;
    int wanted = 0;  // helpers that may still join
    int active = 0;  // helpers at work
  };

  Engine() = default;
  // The calling thread's part in a cooperative launch: begins blocks and then goes round among
  // those that it has begun, so that all are under way however few threads there are.
  void RunTogether(LaunchJob& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void TakePart(LaunchJob& job) ABSL_LOCKS_EXCLUDED(mutex_);
  void HelperLoop(uint32_t worker) ABSL_LOCKS_EXCLUDED(mutex_);
  std::unique_ptr<BlockRunner> TakeRunner() ABSL_LOCKS_EXCLUDED(mutex_);
  void GiveRunner(std::unique_ptr<BlockRunner> runner) ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Mutex mutex_;
  std::vector<Launch*> launches_ ABSL_GUARDED_BY(mutex_);  // those with wanted > 0
  int helpers_ ABSL_GUARDED_BY(mutex_) = 0;
  int idle_helpers_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t runners_made_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<BlockRunner>> runners_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_ENGINE_ENGINE_H_
