// SPDX-License-Identifier: Apache-2.0
// host/daemon/binder.h: which of this host's devices an application is bound to, when it is about
// to use one for the first time (--bind first-launch).
//
//   devices, who is bound to them, and what was promised there ─▶ ┌────────┐
//   what applications took that have ended                     ─▶ │ Binder │ ─▶ a device, and why
//   one that is to be bound, and its memory                    ─▶ └────────┘
//
// It drives a placement::Mapper, as a pool's mapper does, with the same policies, for the devices
// of one host; beside that it knows how much memory the application has, which nobody does when
// that asks for its devices. No clock, lock or thread. Owned by consortd's loop.
#ifndef CONSORT_HOST_DAEMON_BINDER_H_
#define CONSORT_HOST_DAEMON_BINDER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "gpool/mapper_state.h"
#include "policies/placement/mapper.h"

namespace consort::host {

class Binder {
 public:
  // kInvalidArgument: no such policy; errors of gpool::LoadPolicy.
  static absl::StatusOr<std::unique_ptr<Binder>> Make(gpool::MapperOptions options);

  struct Device {
    std::string model;  // gpool::ModelKey; never another for an index
    Bytes memory_total = 0;
    Bytes memory_used = 0;           // of those that are bound there
    placement::Ppm utilisation = 0;  // of the last second
  };
  struct Application {
    uint64_t session = 0;
    std::string program;
    uint32_t device = 0;
  };
  struct Wanted {
    Application application;  // where it is now: it stays there unless another device is better
    Bytes memory = 0;         // that it was promised
    std::string policy;       // that its tenant is placed by; empty: the host's
    std::vector<uint32_t> others;  // where else it may go, ascending
  };
  struct Choice {
    uint32_t device = 0;
    std::string why;
  };
  // `devices` by index, as many each time or more; `bound` without the one that is wanted.
  Choice Choose(std::span<const Device> devices, std::span<const Application> bound,
                const Wanted& wanted, Nanos now);

  struct Measured {
    Nanos runtime = 0;
    Nanos kernels = 0;  // of it
    Bytes copied = 0;   // between host and device
  };
  // Of an application that has ended. Nothing that makes sense: it is passed over.
  void Record(const std::string& program, const std::string& model, const Measured& measured,
              Nanos now);

 private:
  Binder() = default;
  placement::ModelId ModelOf(const std::string& model);
  placement::Application Describe(const Application& application);
  // Makes the mapper know these, and no others.
  void Know(std::span<const Device> devices, std::span<const Application> bound, Nanos now);

  std::unique_ptr<placement::Mapper> mapper_;
  std::map<std::string, placement::ModelId> models_;
  std::map<uint64_t, uint32_t> bound_;  // session to device, as the mapper has them
};

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_BINDER_H_
