// SPDX-License-Identifier: Apache-2.0
// guest/texture_objects.h: the texture and surface objects of this process, by device and the
// driver's number: what they were made of, for programs that ask, and in which context. Thread
// safe.
#ifndef CONSORT_GUEST_TEXTURE_OBJECTS_H_
#define CONSORT_GUEST_TEXTURE_OBJECTS_H_

#include <cuda.h>

#include <algorithm>
#include <compare>
#include <cstdint>
#include <vector>

#include "guest/mutex.h"

namespace consort::guest {

struct TextureRecord {
  uint64_t context_id = 0;
  CUDA_RESOURCE_DESC resource = {};
  CUDA_TEXTURE_DESC texture = {};  // of textures
};

struct TextureName {
  const void* device = nullptr;  // drivers of two devices may choose the same number
  uint64_t object = 0;
  bool is_surface = false;
  auto operator<=>(const TextureName&) const = default;
};

class TextureObjects {
 public:
  void Add(const TextureName& name, const TextureRecord& record) {
    MutexLock lock(&mutex_);
    const auto at = LowerBoundLocked(name);
    if (at != entries_.end() && at->name == name) {
      at->record = record;
    } else {
      entries_.insert(at, {name, record});
    }
  }
  // False: there is no such object.
  bool Find(const TextureName& name, TextureRecord* record) {
    MutexLock lock(&mutex_);
    const auto at = LowerBoundLocked(name);
    if (at == entries_.end() || at->name != name) return false;
    *record = at->record;
    return true;
  }
  // As Find, and removes it.
  bool Take(const TextureName& name, TextureRecord* record) {
    MutexLock lock(&mutex_);
    const auto at = LowerBoundLocked(name);
    if (at == entries_.end() || at->name != name) return false;
    *record = at->record;
    entries_.erase(at);
    return true;
  }
  // Those of a context that was destroyed went with it.
  void Forget(uint64_t context_id) {
    MutexLock lock(&mutex_);
    std::erase_if(entries_,
                  [&](const Entry& entry) { return entry.record.context_id == context_id; });
  }

 private:
  struct Entry {
    TextureName name;
    TextureRecord record;
  };
  std::vector<Entry>::iterator LowerBoundLocked(const TextureName& name) {
    return std::lower_bound(
        entries_.begin(), entries_.end(), name,
        [](const Entry& entry, const TextureName& wanted) { return entry.name < wanted; });
  }

  Mutex mutex_;
  // By name. Not a std::map, which needs the C++ library.
  std::vector<Entry> entries_;
};

}  // namespace consort::guest

#endif  // CONSORT_GUEST_TEXTURE_OBJECTS_H_
