// SPDX-License-Identifier: Apache-2.0
// memmgr/mover.h: copies chunks between the device and a swap store.
//
// Copies of pinned slots are all submitted at once and finish one after the other; others go
// through two pinned buffers, so that the device copies one while the processor works on the other.
// Thread compatible; blocks its thread until the copies are done; needs the worker's context.
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
  static constexpr size_t kBuffers = 2;
  static constexpr Bytes kBufferBytes = 32 * kMiB;
  // Copies in flight; each takes an event.
  static constexpr size_t kInFlightMax = 64;

  struct Pending {
    CUevent event = nullptr;
    std::function<CUresult()> done;
  };
  CUresult Record(std::function<CUresult()> done);
  CUresult CompleteFirst();
  CUresult Await(CUevent event);
  CUresult MakeBuffers();
  CUresult StagedOut(const Piece& piece);
  CUresult StagedIn(const Piece& piece);

  const device::DriverTable& driver_;
  CUstream stream_ = nullptr;
  std::byte* buffers_[kBuffers] = {};
  CUevent buffer_events_[kBuffers] = {};
  std::vector<CUevent> events_;  // unused
  std::vector<Pending> pending_;
  size_t first_ = 0;  // of pending_ that is not done
};

}  // namespace consort::memmgr

#endif  // CONSORT_MEMMGR_MOVER_H_
