// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/engine/engine.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <cstddef>
#include <system_error>
#include <thread>
#include <utility>

#include "base/log.h"
#include "device/cpu/engine/fault_guard.h"

namespace consort::cpu {

Engine& Engine::Get() {
  static Engine* const engine = [] {
    InstallFaultHandlers();
    return new Engine();
  }();
  return *engine;
}

std::unique_ptr<BlockRunner> Engine::TakeRunner() {
  absl::MutexLock lock(&mutex_);
  if (runners_.empty()) return std::make_unique<BlockRunner>(runners_made_++);
  std::unique_ptr<BlockRunner> runner = std::move(runners_.back());
  runners_.pop_back();
  return runner;
}

void Engine::GiveRunner(std::unique_ptr<BlockRunner> runner) {
  absl::MutexLock lock(&mutex_);
  // Beyond the bound the runner's stacks are freed.
  if (runners_.size() < static_cast<size_t>(kWorkersMax)) runners_.push_back(std::move(runner));
}

void Engine::TakePart(LaunchJob& job) {
  if (job.shape.cooperative) {
    RunTogether(job);
    return;
  }
  std::unique_ptr<BlockRunner> runner = TakeRunner();
  runner->RunBlocks(job);
  GiveRunner(std::move(runner));
}

void Engine::RunTogether(LaunchJob& job) {
  const uint64_t blocks = job.Blocks();
  std::vector<std::unique_ptr<BlockRunner>> waiting;
  bool more = true;
  while (job.fault.load(std::memory_order_relaxed) == LaunchFault::kNone) {
    // All blocks begin before any goes on: what one waits for may come from any other.
    if (more) {
      const uint64_t number = job.next_block.fetch_add(1, std::memory_order_relaxed);
      more = number < blocks;
      if (!more) continue;
      std::unique_ptr<BlockRunner> runner = TakeRunner();
      if (runner->BeginBlock(job, number) == BlockRunner::Progress::kEnded) {
        GiveRunner(std::move(runner));
      } else {
        waiting.push_back(std::move(runner));
      }
      continue;
    }
    if (waiting.empty()) return;
    bool moved = false;
    for (size_t i = 0; i < waiting.size();) {
      const BlockRunner::Progress progress = waiting[i]->ContinueBlock();
      moved |= progress != BlockRunner::Progress::kPolled;
      if (progress == BlockRunner::Progress::kEnded) {
        GiveRunner(std::move(waiting[i]));
        waiting.erase(waiting.begin() + static_cast<ptrdiff_t>(i));
      } else {
        ++i;
      }
    }
    if (!moved) sched_yield();
  }
  // After a fault: what is left on the stacks of these is forgotten when they begin anew.
  for (std::unique_ptr<BlockRunner>& runner : waiting) GiveRunner(std::move(runner));
}

LaunchFault Engine::Run(LaunchJob& job, int worker_count) {
  Launch launch;
  launch.job = &job;
  const uint64_t blocks = job.Blocks();
  job.workers = static_cast<uint32_t>(
      std::min<uint64_t>(static_cast<uint64_t>(std::clamp(worker_count, 1, kWorkersMax)), blocks));
  launch.wanted = static_cast<int>(job.workers) - 1;
  if (launch.wanted > 0) {
    absl::MutexLock lock(&mutex_);
    launches_.push_back(&launch);
    const int missing = std::min(launch.wanted - idle_helpers_, kWorkersMax - 1 - helpers_);
    for (int i = 0; i < missing; ++i) {
      // Helpers take no signal meant for the program; faults are delivered all the same.
      sigset_t all, before;
      sigfillset(&all);
      for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP}) sigdelset(&all, fault);
      pthread_sigmask(SIG_SETMASK, &all, &before);
      try {
        std::thread(&Engine::HelperLoop, this, static_cast<uint32_t>(helpers_)).detach();
        ++helpers_;
      } catch (const std::system_error& error) {
        LOG(WARNING) << "no further thread for kernels: " << error.what();
        i = missing;
      }
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
    }
  }
  {
    const FaultGuard guard;
    TakePart(job);
  }
  absl::MutexLock lock(&mutex_);
  launches_.erase(std::remove(launches_.begin(), launches_.end(), &launch), launches_.end());
  launch.wanted = 0;
  mutex_.Await(absl::Condition(
      +[](Launch* waiting) { return waiting->active == 0; }, &launch));
  return job.fault.load(std::memory_order_relaxed);
}

void Engine::HelperLoop(uint32_t worker) {
  pthread_setname_np(pthread_self(), ("cpu-gpu-" + std::to_string(worker)).c_str());
  const FaultGuard guard;
  while (true) {
    Launch* launch = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      ++idle_helpers_;
      mutex_.Await(absl::Condition(
          +[](std::vector<Launch*>* launches) { return !launches->empty(); }, &launches_));
      --idle_helpers_;
      launch = launches_.front();
      ++launch->active;
      if (--launch->wanted == 0) launches_.erase(launches_.begin());
    }
    TakePart(*launch->job);
    absl::MutexLock lock(&mutex_);
    --launch->active;
  }
}

}  // namespace consort::cpu
