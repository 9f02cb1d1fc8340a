// SPDX-License-Identifier: Apache-2.0
// host/session/print_turn.h: a session's part in SharedOutput: when it may launch kernels that
// print, and when their text has come.
//
// Does nothing where the driver tells sessions apart. Owned by the session loop; calls need the
// worker's context. None of them waits for work of the device.
#ifndef CONSORT_HOST_SESSION_PRINT_TURN_H_
#define CONSORT_HOST_SESSION_PRINT_TURN_H_

#include <memory>

#include "base/units.h"
#include "gen/device/driver_table.h"
#include "host/session/device_output.h"
#include "host/session/shared_output.h"
#include "host/session/streams.h"

namespace consort::host {

class PrintTurn {
 public:
  // All are borrowed for this object's life. A null `shared`: the driver tells sessions apart.
  PrintTurn(const device::DriverTable& driver, SharedOutput* shared, Streams* streams,
            DeviceOutput* output);
  ~PrintTurn();
  PrintTurn(const PrintTurn&) = delete;
  PrintTurn& operator=(const PrintTurn&) = delete;

  bool needed() const { return shared_ != nullptr; }
  // Whether a kernel that may print can be launched now; if not, ask again for the same one.
  bool MayLaunch();
  // The latest one has to wait.
  bool waiting() const { return waiting_; }
  // Such a kernel was launched.
  void Launched() { fence_ = nullptr; }
  // Has the driver write out what has ended, and takes it.
  void Collect();
  // Likewise, after the device's context broke: what an assert said too.
  void CollectFailure();
  // Gives the turn to others once all that was launched in it has ended.
  void Tend();
  // How long the loop may sleep before it looks at Tend again.
  Nanos sleep_max() const;
  // `ended`: all work of the session has.
  void End(bool ended);

 private:
  const device::DriverTable& driver_;
  SharedOutput* const shared_;
  Streams* const streams_;
  DeviceOutput* const output_;
  // Never has work: synchronising it waits for nothing and makes the driver write.
  CUstream idle_stream_ = nullptr;
  std::shared_ptr<Fence> fence_;  // behind the launches of this turn, once it was looked at
  bool held_ = false;
  bool waiting_ = false;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_PRINT_TURN_H_
