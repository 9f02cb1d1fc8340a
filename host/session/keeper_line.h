// SPDX-License-Identifier: Apache-2.0
// host/session/keeper_line.h: one session's line to consortd, which keeps copies of descriptors of
// what is to outlive the worker: device memory, the channel, shared host memory, images, the
// record.
//
//   new session     Make ─▶ memory is created so that it can be exported, and exported
//   one that goes on    Bring ─▶ what was kept;  Make ─▶ imported, at the address that it had
//
// What is to be told waits here until Flush; in its order, so that of what is made and gone again
// meanwhile nobody hears. Owned by the session loop; calls need the worker's context.
#ifndef CONSORT_HOST_SESSION_KEEPER_LINE_H_
#define CONSORT_HOST_SESSION_KEEPER_LINE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>

#include "base/unique_fd.h"
#include "gen/device/driver_table.h"
#include "host/control/control_socket.h"
#include "memmgr/chunk_maker.h"

namespace consort::host {

class KeeperLine final : public memmgr::ChunkMaker {
 public:
  // Both are borrowed for this object's life. `goes_on`: memory is what was kept, until Restored.
  KeeperLine(const device::DriverTable& driver, ControlSocket* consortd, uint64_t session,
             bool goes_on)
      : driver_(driver), consortd_(consortd), session_(session), goes_on_(goes_on) {}

  CUresult Make(uint64_t address, Bytes bytes, const CUmemAllocationProp& properties,
                CUmemGenericAllocationHandle* memory) override;
  void Gone(uint64_t address) override;

  // A copy of `descriptor` is kept from the next Flush on.
  void Keep(KeptRole role, uint64_t key, int descriptor);
  void LetGo(KeptRole role, uint64_t key);

  // Device memory that was kept and is to be at `address`.
  void Bring(uint64_t address, UniqueFd memory) { brought_[address] = std::move(memory); }
  // Everything is where it was: what was brought and not needed is let go.
  void Restored();

  // Tells what waits. False: not everything went; again later.
  bool Flush();
  // That the session serves again.
  void TellGoesOn();
  // That the session is to be saved. False: not now.
  bool TellWantsSave();
  // Why the session cannot be kept; empty: it can.
  const std::string& why_not() const { return why_not_; }

 private:
  struct Waiting {
    KeptRole role;
    uint64_t key;
    UniqueFd descriptor;  // empty: it is let go
  };

  const device::DriverTable& driver_;
  ControlSocket* const consortd_;
  const uint64_t session_;
  bool goes_on_;
  std::map<uint64_t, UniqueFd> brought_;  // by address
  std::deque<Waiting> waiting_;
  std::string why_not_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_KEEPER_LINE_H_
