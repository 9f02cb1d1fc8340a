// SPDX-License-Identifier: Apache-2.0
// memmgr/mover.h: copies chunks between the device and a swap store.
//
// Copies of pinned slots are all submitted at once and finish one after the other; others go
// through two pinned buffers, so that the device copies one while the processor works on the other.
//
// They go through a context of the mover's own, where the driver makes one. In the context that the
// applications share, a copy may wait for another stream's that waits for its kernels, as the
// driver has few queues; and calls such as unloading code hold all others up until the device has
// done what it was given (measured: docs/PERFORMANCE.md). Clearing memory is a kernel's work, and
// kernels of two contexts take turns: that stays in the shared one.
// Thread compatible; blocks its thread until the copies are done; that thread has the worker's
// context current.
#ifndef CONSORT_MEMMGR_MOVER_H_
#define CONSORT_MEMMGR_MOVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "gen/device/driver_table.h"
#include "memmgr/swap_store.h"

namespace consort::memmgr {

class Mover {
 public:
  static CUresult Create(const device::DriverTable& driver, std::unique_ptr<Mover>* mover);
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // One chunk: memory that is mapped, and its slot, of the same bytes.
  struct Piece {
    uint64_t address = 0;
    SwapStore::Slot* slot = nullptr;
  };
  // Copies the piece out of the device. `done`, if all went well, is called when the contents are
  // in the slot, in this call or a later one.
  CUresult Out(const Piece& piece, std::function<CUresult()> done);
  // Copies the piece into the device; done after Finish.
  CUresult In(const Piece& piece);
  // Sets memory to 0; done after Finish.
  CUresult Clear(uint64_t address, Bytes bytes);
  // Waits for everything. The first failure, of a `done` too. CUDA_ERROR_UNKNOWN: the store gave
  // not what it got.
  CUresult Finish();

 private:
  explicit Mover(const device::DriverTable& driver) : driver_(driver) {}
  // Makes the copies' context current while it lives.
  class InOwnContext;
  static constexpr size_t kBuffers = 2;
  static constexpr Bytes kBufferBytes = 32 * kMiB;
  // Copies in flight; each takes an event.
  static constexpr size_t kInFlightMax = 64;

  struct Pending {
    CUevent event = nullptr;
    std::function<CUresult()> done;
  };
  CUresult MakeContext();
  CUresult Record(std::function<CUresult()> done);
  CUresult RecordEvent(CUevent event);
  CUresult CopyOut(std::byte* to, uint64_t from, Bytes bytes);
  CUresult CopyIn(uint64_t to, const std::byte* from, Bytes bytes);
  CUresult CompleteFirst();
  CUresult Await(CUevent event);
  CUresult MakeBuffers();
  CUresult StagedOut(const Piece& piece);
  CUresult StagedIn(const Piece& piece);

  const device::DriverTable& driver_;
  CUcontext worker_ = nullptr;
  CUcontext own_ = nullptr;  // of the copies; worker_ where there is no other
  CUstream stream_ = nullptr;
  CUstream clearing_ = nullptr;  // in worker_
  bool clears_ = false;          // since the last Finish
  std::byte* buffers_[kBuffers] = {};
  CUevent buffer_events_[kBuffers] = {};
  std::vector<CUevent> events_;  // unused
  std::vector<Pending> pending_;
  size_t first_ = 0;  // of pending_ that is not done
};

}  // namespace consort::memmgr

#endif  // CONSORT_MEMMGR_MOVER_H_
