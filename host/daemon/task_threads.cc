// SPDX-License-Identifier: Apache-2.0
#include "host/daemon/task_threads.h"

namespace consort::host {

TaskThreads::~TaskThreads() {
  *self_ = nullptr;
  for (auto& [id, thread] : threads_) thread.join();
}

void TaskThreads::StartThread(std::function<void()> work, std::function<void()> done) {
  const uint64_t id = next_++;
  threads_[id] = std::thread([this, id, work = std::move(work), done = std::move(done)] {
    work();
    loop_->Post([self = self_, id, done] {
      if (*self == nullptr) return;
      (*self)->threads_.at(id).join();
      (*self)->threads_.erase(id);
      done();
    });
  });
}

}  // namespace consort::host
