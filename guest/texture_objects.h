// SPDX-License-Identifier: Apache-2.0
// guest/texture_objects.h: the texture and surface objects of this process, by device and the
// driver's number: what they were made of, for programs that ask, and in which context. Thread
// safe.
#ifndef CONSORT_GUEST_TEXTURE_OBJECTS_H_
#define CONSORT_GUEST_TEXTURE_OBJECTS_H_

#include <cuda.h>

#include <compare>
#include <cstdint>
#include <iterator>
#include <map>

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
    records_[name] = record;
  }
  // False: there is no such object.
  bool Find(const TextureName& name, TextureRecord* record) {
    MutexLock lock(&mutex_);
    const auto it = records_.find(name);
    if (it == records_.end()) return false;
    *record = it->second;
    return true;
  }
  // As Find, and removes it.
  bool Take(const TextureName& name, TextureRecord* record) {
    MutexLock lock(&mutex_);
    const auto it = records_.find(name);
    if (it == records_.end()) return false;
    *record = it->second;
    records_.erase(it);
    return true;
  }
  // Those of a context that was destroyed went with it.
  void Forget(uint64_t context_id) {
    MutexLock lock(&mutex_);
    for (auto it = records_.begin(); it != records_.end();) {
      it = it->second.context_id == context_id ? records_.erase(it) : std::next(it);
    }
  }

 private:
  Mutex mutex_;
  std::map<TextureName, TextureRecord> records_;
};

}  // namespace consort::guest

#endif  // CONSORT_GUEST_TEXTURE_OBJECTS_H_
