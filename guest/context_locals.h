// SPDX-License-Identifier: Apache-2.0
// guest/context_locals.h: what runtimes and libraries keep in a context, each under a key of its
// own (guest/export_tables.cc).
//
// Every call of a runtime reads its value, from any thread, so reading takes no lock. Entries are
// only ever added, to a list: of a key that is removed the entry stays for when it comes again.
// Thread safe.
#ifndef CONSORT_GUEST_CONTEXT_LOCALS_H_
#define CONSORT_GUEST_CONTEXT_LOCALS_H_

#include <cuda.h>

#include <atomic>
#include <vector>

#include "guest/mutex.h"

namespace consort::guest {

struct ContextLocal {
  void* key;
  void* value;
  void (*destructor)(CUcontext, void* key, void* value);
};

class ContextLocals {
 public:
  constexpr ContextLocals() = default;
  // What is left has no destructor called.
  ~ContextLocals();
  ContextLocals(const ContextLocals&) = delete;
  ContextLocals& operator=(const ContextLocals&) = delete;

  // Takes the place of one of the same key.
  void Put(const ContextLocal& local);
  // False: there is none.
  bool Remove(void* key);
  bool Get(void* key, void** value) const {
    for (const Entry* entry = first_.load(std::memory_order_acquire); entry != nullptr;
         entry = entry->next.load(std::memory_order_acquire)) {
      if (entry->key != key) continue;
      // Acquire: the value belongs to it.
      if (!entry->there.load(std::memory_order_acquire)) return false;
      *value = entry->value.load(std::memory_order_relaxed);
      return true;
    }
    return false;
  }
  // Removes all. In the order in which their keys first came.
  std::vector<ContextLocal> TakeAll();

 private:
  struct Entry {
    void* const key;
    std::atomic<void*> value;
    std::atomic<bool> there;
    void (*destructor)(CUcontext, void*, void*);  // guarded by mutex_
    std::atomic<Entry*> next{nullptr};
  };

  // Null: there is none. mutex_ held.
  Entry* Find(void* key) const;

  Mutex mutex_;  // of whoever changes it
  std::atomic<Entry*> first_{nullptr};
};

}  // namespace consort::guest

#endif  // CONSORT_GUEST_CONTEXT_LOCALS_H_
