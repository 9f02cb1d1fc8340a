// SPDX-License-Identifier: Apache-2.0
// host/session/host_functions.h: host functions of a guest, between two words of pinned memory
// each.
//
//   stream: ... ─▶ write reached = 1 ─▶ wait until go == 1 ─▶ ...
//   session:   sees reached, tells the guest, which runs the function and answers; sets go = 1
//
// So no thread of the driver ever waits for a guest, and a session that dies lets its streams go
// on. A slot is used again when the stream has passed the wait. Owned by the session loop. Source:
// CUDA driver API, "Stream Memory Operations".
#ifndef CONSORT_HOST_SESSION_HOST_FUNCTIONS_H_
#define CONSORT_HOST_SESSION_HOST_FUNCTIONS_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gen/device/driver_table.h"
#include "host/session/hold_gate.h"

namespace consort::host {

class HostFunctions {
 public:
  HostFunctions(const device::DriverTable& driver, HoldGate* gate) : driver_(driver), gate_(gate) {}
  // The device must be done with the words: see ReleaseAll.
  ~HostFunctions();
  HostFunctions(const HostFunctions&) = delete;
  HostFunctions& operator=(const HostFunctions&) = delete;

  // Puts the two operations on `stream`. `reached` is the word to watch, `slot` names the use.
  // CUDA_ERROR_INVALID_VALUE: `callback` is already there. CUDA_ERROR_OUT_OF_MEMORY:
  // kHostFunctionsPerSession are in flight.
  CUresult Enqueue(CUstream stream, uint64_t callback, const uint32_t** reached, uint64_t* slot);

  // The guest was told of the function in `slot`; the result is its callback's number.
  uint64_t Announced(uint64_t slot);

  // The guest has run it: the stream goes on. False: no such function, or it was not announced.
  bool Done(uint64_t callback);

  // The stream has passed the wait of `slot`.
  void Passed(uint64_t slot);

  // Lets every stream go on.
  void ReleaseAll();
  // After ReleaseAll, once the streams have gone on or never will: nothing is held any more.
  void ForgetAll();

 private:
  enum class State : uint8_t { kFree, kQueued, kAnnounced, kDone };
  struct Slot {
    State state = State::kFree;
    uint64_t callback = 0;
  };
  CUresult Make();
  uint32_t* ReachedWord(uint64_t slot) { return words_ + 2 * slot; }
  uint32_t* GoWord(uint64_t slot) { return words_ + 2 * slot + 1; }

  const device::DriverTable& driver_;
  HoldGate* const gate_;  // told of each slot in use
  uint32_t* words_ = nullptr;
  CUdeviceptr device_words_ = 0;
  std::vector<Slot> slots_;
  std::vector<uint64_t> free_;
  absl::flat_hash_map<uint64_t, uint64_t> by_callback_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_HOST_FUNCTIONS_H_
