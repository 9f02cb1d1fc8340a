// SPDX-License-Identifier: Apache-2.0
// guest/handle_table.h: the objects behind CUDA handles. A handle is an id, not a pointer:
//
//   bits 56..63  kind (HandleKind)      so that a stream is never taken for an event
//   bits 32..55  generation             so that a destroyed handle is not taken for its successor
//   bits  0..31  index
//
// The same number names the object on the wire, which is why creating one needs no round trip.
// Thread safe. Find is lock-free: objects live in slots that are never freed, so even a lookup that
// races with a destroy (a bug of the program) reads valid memory. Bound: kSlotsMax a kind.
#ifndef CONSORT_GUEST_HANDLE_TABLE_H_
#define CONSORT_GUEST_HANDLE_TABLE_H_

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "guest/mutex.h"

namespace consort::guest {

enum class HandleKind : uint8_t {
  kContext = 1,
  kStream = 2,
  kEvent = 3,
  kLibrary = 4,
  kKernel = 5,
  kModule = 6,
  kPool = 7,
  kGraph = 8,
  kGraphNode = 9,
  kGraphExec = 10,
  kUserObject = 11,
  kPhysicalMemory = 12,
  kArray = 13,
  kLink = 14,
  kGreenContext = 15,
  kResourceDescription = 16,
};

// T is default constructible; Create gives a fresh one, Destroy resets the slot's.
template <class T, HandleKind kKind>
class HandleTable {
 public:
  static constexpr uint32_t kChunkSlots = 1024;
  static constexpr uint32_t kChunksMax = 1024;
  static constexpr uint32_t kSlotsMax = kChunkSlots * kChunksMax;

  constexpr HandleTable() = default;

  // A new object, set up by `initialise(T*, id)` before any thread can find it; 0 when the table is
  // full.
  template <class Initialise>
  uint64_t Create(Initialise initialise) {
    MutexLock lock(&mutex_);
    uint32_t index;
    if (free_ != kNone) {
      index = free_;
      free_ = SlotAt(index)->next_free;
    } else {
      if (used_ == kSlotsMax) return 0;
      index = used_;
      if (index % kChunkSlots == 0) {
        Slot* chunk = new Slot[kChunkSlots];
        chunks_[index / kChunkSlots].store(chunk, std::memory_order_release);  // pairs with Find
      }
      ++used_;
    }
    Slot* slot = SlotAt(index);
    const uint32_t generation = (slot->generation & kGenerationMask) == 0 ? 1 : slot->generation;
    const uint64_t id =
        uint64_t{static_cast<uint8_t>(kKind)} << 56 | uint64_t{generation} << 32 | index;
    slot->generation = generation;
    slot->object = T();
    initialise(&slot->object, id);
    slot->live_id.store(id, std::memory_order_release);  // pairs with Find
    return id;
  }

  // The object named `id`, or null.
  T* Find(uint64_t id) const {
    const uint32_t index = static_cast<uint32_t>(id);
    if (index >= kSlotsMax) return nullptr;
    Slot* chunk = chunks_[index / kChunkSlots].load(std::memory_order_acquire);
    if (chunk == nullptr) return nullptr;
    Slot* slot = &chunk[index % kChunkSlots];
    return slot->live_id.load(std::memory_order_acquire) == id && id != 0 ? &slot->object : nullptr;
  }

  // Whether `id` named an object that has been destroyed, as far back as generations tell: until
  // its slot has been used 2^24 times.
  bool WasDestroyed(uint64_t id) const {
    const uint32_t index = static_cast<uint32_t>(id);
    const uint32_t generation = static_cast<uint32_t>(id >> 32) & kGenerationMask;
    MutexLock lock(&mutex_);
    return static_cast<uint8_t>(id >> 56) == static_cast<uint8_t>(kKind) && index < used_ &&
           generation != 0 && generation < SlotAt(index)->generation;
  }

  // Ends `id`, which no call may use any more. Only the first of several calls returns true.
  bool Destroy(uint64_t id) {
    MutexLock lock(&mutex_);
    if (Find(id) == nullptr) return false;
    Slot* slot = SlotAt(static_cast<uint32_t>(id));
    slot->live_id.store(0, std::memory_order_release);
    slot->generation = (slot->generation + 1) & kGenerationMask;
    slot->next_free = free_;
    free_ = static_cast<uint32_t>(id);
    return true;
  }

  // Calls `visit(T*, id)` for each live object; must not create or destroy of this kind meanwhile.
  template <class Visit>
  void ForEach(Visit visit) {
    MutexLock lock(&mutex_);
    for (uint32_t index = 0; index < used_; ++index) {
      Slot* slot = SlotAt(index);
      const uint64_t id = slot->live_id.load(std::memory_order_relaxed);
      if (id != 0) visit(&slot->object, id);
    }
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr uint32_t kGenerationMask = 0xFFFFFF;
  struct Slot {
    std::atomic<uint64_t> live_id{0};
    uint32_t generation = 1;
    uint32_t next_free = kNone;
    T object;
  };
  Slot* SlotAt(uint32_t index) const {
    return &chunks_[index / kChunkSlots].load(std::memory_order_acquire)[index % kChunkSlots];
  }

  mutable Mutex mutex_;
  uint32_t used_ = 0;
  uint32_t free_ = kNone;
  std::atomic<Slot*> chunks_[kChunksMax] = {};
};

}  // namespace consort::guest

#endif  // CONSORT_GUEST_HANDLE_TABLE_H_
