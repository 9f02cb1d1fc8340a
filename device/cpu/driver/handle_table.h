// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/handle_table.h: opaque handles of the driver API to our objects.
//
// A handle is a number that is never given out twice and never an address, so a stale, foreign or
// made up handle is refused by look-up. Values are non-canonical addresses: a program that
// dereferences one faults at once. Thread safe.
#ifndef CONSORT_DEVICE_CPU_DRIVER_HANDLE_TABLE_H_
#define CONSORT_DEVICE_CPU_DRIVER_HANDLE_TABLE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace consort::cpu {

// A new handle value, different from every other in this process.
inline uint64_t NewHandleValue() {
  constexpr uint64_t kFirst = 0xC500'0000'0000'0000;
  constexpr uint64_t kStep = 16;
  static std::atomic<uint64_t> next{kFirst};
  return next.fetch_add(kStep, std::memory_order_relaxed);
}

// Objects are shared: one that is being used by a call or by work in a stream outlives its handle.
template <typename Handle, typename Object>
class HandleTable {
 public:
  // Adds `object` under a new handle.
  Handle Insert(std::shared_ptr<Object> object) {
    const uint64_t value = NewHandleValue();
    absl::MutexLock lock(&mutex_);
    objects_.emplace(value, std::move(object));
    return FromValue(value);
  }

  // Puts `object` under `handle`, replacing what was there.
  void Replace(Handle handle, std::shared_ptr<Object> object) {
    absl::MutexLock lock(&mutex_);
    objects_[ToValue(handle)] = std::move(object);
  }

  // The object of `handle`, or null.
  std::shared_ptr<Object> Find(Handle handle) const {
    absl::ReaderMutexLock lock(&mutex_);
    const auto it = objects_.find(ToValue(handle));
    return it == objects_.end() ? nullptr : it->second;
  }

  // Takes the object of `handle` out, or gives null.
  std::shared_ptr<Object> Remove(Handle handle) {
    absl::MutexLock lock(&mutex_);
    const auto it = objects_.find(ToValue(handle));
    if (it == objects_.end()) return nullptr;
    std::shared_ptr<Object> object = std::move(it->second);
    objects_.erase(it);
    return object;
  }

  // Takes out every object for which `condition` holds.
  template <typename Condition>
  std::vector<std::shared_ptr<Object>> RemoveIf(Condition condition) {
    std::vector<std::shared_ptr<Object>> removed;
    absl::MutexLock lock(&mutex_);
    for (auto it = objects_.begin(); it != objects_.end();) {
      if (condition(*it->second)) {
        removed.push_back(std::move(it->second));
        objects_.erase(it++);
      } else {
        ++it;
      }
    }
    return removed;
  }

 private:
  // CUdeviceptr-like handles are integers, the others pointers to incomplete types.
  static uint64_t ToValue(Handle handle) { return (uint64_t)handle; }
  static Handle FromValue(uint64_t value) { return (Handle)value; }

  mutable absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Object>> objects_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_DRIVER_HANDLE_TABLE_H_
