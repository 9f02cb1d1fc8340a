// SPDX-License-Identifier: Apache-2.0
// vmsock/vhost_user/virtqueue.h: the device's side of one split virtqueue.
//
// Owned by the device's thread. The rings lie in guest memory: all that is read there is copied
// once, then checked, and no value is read twice for a chain that is taken. A ring that breaks the
// rules (index jump, loop, address outside memory, nested indirect table, readable after writable)
// yields kDataLoss; the queue is then useless until it is attached again. Chains are returned to
// the guest in the order in which they were taken.
//
//   descriptors:    {u64 addr, u32 len, u16 flags (1 next, 2 write, 4 indirect), u16 next}[num]
//   available ring: u16 flags, u16 idx, u16 ring[num], u16 used_event
//   used ring:      u16 flags, u16 idx, {u32 id, u32 len} ring[num], u16 avail_event
//
// Source: virtio 1.2, section 2.7 (Split Virtqueues).
#ifndef CONSORT_VMSOCK_VHOST_USER_VIRTQUEUE_H_
#define CONSORT_VMSOCK_VHOST_USER_VIRTQUEUE_H_

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "vmsock/vhost_user/memory_map.h"

namespace consort::vhost_user {

// One buffer of the guest. The pieces point into guest memory and are valid until the memory map
// changes. Reused from one Pop to the next, so that the vectors keep their storage.
struct Chain {
  uint16_t head = 0;
  std::vector<iovec> readable;  // the device reads
  std::vector<iovec> writable;  // the device writes
  uint64_t readable_bytes = 0;
  uint64_t writable_bytes = 0;
};

// A buffer that is one piece which the device writes. Valid as a Chain's.
struct WritableBuffer {
  uint16_t head = 0;
  iovec place = {};
};

// A chain that goes back to the guest, and how much of it was written: an element of the used ring
// (virtio 1.2, section 2.7.8).
struct UsedChain {
  uint32_t head = 0;
  uint32_t written_bytes = 0;
};

// Where the rings are; addresses of the frontend's address space.
struct VirtqueueLayout {
  uint32_t entries = 0;  // a power of two, at most kRingEntriesMax
  uint64_t descriptors_user_addr = 0;
  uint64_t available_user_addr = 0;
  uint64_t used_user_addr = 0;
  bool operator==(const VirtqueueLayout&) const = default;
};

class Virtqueue {
 public:
  struct Options {
    VirtqueueLayout layout;
    uint16_t next_available = 0;  // first entry of the available ring that was not taken yet
    bool event_idx = false;       // VIRTIO_F_EVENT_IDX was negotiated
    bool indirect = false;        // VIRTIO_F_INDIRECT_DESC was negotiated
  };

  // Begins at options.next_available, continuing with the guest's own used index. `memory` must
  // outlive the queue. kInvalidArgument: the rings are not all inside memory, misaligned, or of a
  // size that is no ring's.
  static absl::StatusOr<Virtqueue> Attach(const MemoryMap* memory, const Options& options);

  // Looks the rings up again after the memory map has changed. Errors as Attach; the queue is then
  // unusable.
  absl::Status Translate();

  // Takes the next chain: true and `chain` set, or false if there is none. kDataLoss: the ring is
  // broken.
  absl::StatusOr<bool> Pop(Chain& chain);
  // The same for less, of chains as Linux posts them for packets to come: one descriptor that the
  // device writes, `bytes_min` or more, in one region. Takes the next ones up to the first that is
  // none of these, at most as many as `buffers`, and says how many. Of others nothing is believed:
  // Pop reads them anew and tells.
  size_t PopWritable(uint32_t bytes_min, std::span<WritableBuffer> buffers);
  // The guest has made chains available since that was looked at last, or says so wrongly.
  bool HasNews() const { return AvailableIndex() != available_seen_; }
  // Un-takes the last `count` chains, none of which was returned. The next Pop reads them again.
  void Rewind(uint16_t count);
  // Returns a chain of which the device wrote the first `written_bytes`, or several. The guest sees
  // them after Publish.
  void Push(uint16_t head, uint32_t written_bytes) {
    const UsedChain chain{head, written_bytes};
    Push({&chain, 1});
  }
  void Push(std::span<const UsedChain> chains);
  // Makes pushed chains visible. True if the guest wants an interrupt for them.
  bool Publish();

  // Asks the guest for no kicks, while the queue is being looked at anyway.
  void DisableKicks();
  // Asks for a kick at the next chain. True if there already is one, so that no kick may come: look
  // again.
  bool EnableKicks();

  uint16_t next_available() const { return next_available_; }
  uint16_t used_index() const { return used_index_; }
  const VirtqueueLayout& layout() const { return options_.layout; }

 private:
  // As it lies in guest memory.
  struct Descriptor {
    uint64_t addr = 0;
    uint32_t len = 0;
    uint16_t flags = 0;
    uint16_t next = 0;
  };

  Virtqueue(const MemoryMap* memory, const Options& options)
      : memory_(memory),
        options_(options),
        next_available_(options.next_available),
        available_seen_(options.next_available) {}

  uint16_t AvailableIndex() const;
  // Entry `next_available_` + `ahead` of the available ring, copied.
  uint16_t ReadHead(uint16_t ahead) const;
  // The same for as many entries as `heads`, from that one on; at most as many as the ring has.
  void ReadHeads(uint16_t ahead, std::span<uint16_t> heads) const;
  absl::Status Walk(uint16_t head, Chain& chain) const;
  // Ask for what the next chains will read, of those that are `waiting`. What is found there is
  // believed no further.
  void PrefetchDescriptor(uint16_t waiting) const;
  void PrefetchTable(uint16_t waiting) const;
  // Entry `index` of the table at `table`, copied.
  static Descriptor ReadDescriptor(const std::byte* table, uint32_t index);

  const MemoryMap* memory_;
  Options options_;
  const std::byte* descriptors_ = nullptr;
  std::byte* available_ = nullptr;
  std::byte* used_ = nullptr;
  uint16_t next_available_ = 0;
  // The guest's own index when it was last looked at, which is once all before it are taken: a
  // guest that adds chains meanwhile keeps taking its cache line away.
  uint16_t available_seen_ = 0;
  uint16_t asked_ = 0;            // PopWritable has asked for descriptors of entries before it
  uint16_t used_index_ = 0;       // the next to be written
  uint16_t published_index_ = 0;  // what the guest sees
  // The first Publish interrupts whatever used_event says: it may date from before a stop.
  bool interrupt_owed_ = true;
};

}  // namespace consort::vhost_user

#endif  // CONSORT_VMSOCK_VHOST_USER_VIRTQUEUE_H_
