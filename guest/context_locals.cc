// SPDX-License-Identifier: Apache-2.0
#include "guest/context_locals.h"

namespace consort::guest {

ContextLocals::~ContextLocals() {
  for (Entry* entry = first_.load(std::memory_order_relaxed); entry != nullptr;) {
    Entry* const next = entry->next.load(std::memory_order_relaxed);
    delete entry;
    entry = next;
  }
}

ContextLocals::Entry* ContextLocals::Find(void* key) const {
  Entry* entry = first_.load(std::memory_order_relaxed);
  while (entry != nullptr && entry->key != key) entry = entry->next.load(std::memory_order_relaxed);
  return entry;
}

void ContextLocals::Put(const ContextLocal& local) {
  MutexLock lock(&mutex_);
  if (Entry* const entry = Find(local.key); entry != nullptr) {
    entry->destructor = local.destructor;
    entry->value.store(local.value, std::memory_order_relaxed);
    entry->there.store(true, std::memory_order_release);  // pairs with Get
    return;
  }
  std::atomic<Entry*>* end = &first_;
  while (Entry* const entry = end->load(std::memory_order_relaxed)) end = &entry->next;
  end->store(new Entry{local.key, local.value, true, local.destructor},
             std::memory_order_release);  // pairs with Get
}

bool ContextLocals::Remove(void* key) {
  MutexLock lock(&mutex_);
  Entry* const entry = Find(key);
  return entry != nullptr && entry->there.exchange(false, std::memory_order_relaxed);
}

std::vector<ContextLocal> ContextLocals::TakeAll() {
  MutexLock lock(&mutex_);
  std::vector<ContextLocal> taken;
  for (Entry* entry = first_.load(std::memory_order_relaxed); entry != nullptr;
       entry = entry->next.load(std::memory_order_relaxed)) {
    if (!entry->there.exchange(false, std::memory_order_relaxed)) continue;
    taken.push_back({entry->key, entry->value.load(std::memory_order_relaxed), entry->destructor});
  }
  return taken;
}

}  // namespace consort::guest
