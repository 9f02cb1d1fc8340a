// SPDX-License-Identifier: Apache-2.0
// host/daemon/daemon_state.h: all of a consortd that its next binary goes on with, in the same
// process (upgrade.h): what it knows, and by number the descriptors that it holds.
//
//   0   magic      "cnsrtd\0\0"
//   8   version    kDaemonStateVersion of who wrote it
//   16  control    ControlFingerprint of who wrote it: how it talks to the workers that run
//   24  fields     as daemon_state.cc describes them
//
// Written by one build and read by another: who reads another version or fingerprint refuses it,
// while the one that wrote it still serves. Not in it, and lost: the history that plots show, the
// list of moves that have ended, shares of the last second, what --bind has learned of programs.
// Plain values.
#ifndef CONSORT_HOST_DAEMON_DAEMON_STATE_H_
#define CONSORT_HOST_DAEMON_DAEMON_STATE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "host/control/messages.h"
#include "vmsock/vhost_user/device_state.h"

namespace consort::host {

// One more whenever the fields change.
inline constexpr uint64_t kDaemonStateVersion = 6;

struct DaemonState {
  static constexpr int kNone = -1;  // no descriptor

  std::string build;                  // the version of who wrote it
  uint64_t description_hash = 0;      // of the calls that its workers serve
  uint64_t started_unix_seconds = 0;  // the process

  // How the upgrade is told of that this state is for.
  struct Upgrade {
    uint64_t number = 0;
    std::string by;
  };
  Upgrade upgrade;

  struct Listening {
    std::string path;    // or ADDRESS:PORT
    std::string tenant;  // a door's
    int socket = kNone;
    int lock = kNone;  // of the path
  };
  std::vector<Listening> doors;
  int vsock = kNone;
  std::vector<Listening> admin;    // one or none
  std::vector<Listening> metrics;  // likewise

  // What a VM shares with this host.
  struct VmMemory {
    std::string path;
    uint64_t bytes = 0;
    int file = kNone;
  };

  // A VM's vsock device, with the VM on it if one runs.
  struct Vm {
    std::string name;
    std::string socket_path;
    std::string tenant;           // as VmOptions has it
    std::vector<uint32_t> vgpus;  // one or none
    vhost_user::VsockDeviceState device;
    std::vector<VmMemory> memory;  // one or none
  };
  std::vector<Vm> vms;

  // A connection whose first words are under way (greeter.h).
  struct Greeting {
    int socket = kNone;
    std::string tenant;
    std::string vm;
    uint32_t devices_max = 0;
    std::string front_door;
    std::string peer;
    bool shares_memory = false;
    std::string input;   // of its Hello
    std::string output;  // that it has not taken yet
  };
  std::vector<Greeting> greetings;

  struct Device {
    Ready info;
    Calibrated speed;  // all 0: not known
    MemoryReport memory;
    uint64_t worker_starts = 0;
    uint64_t workers_retired = 0;
    bool drained = false;
  };
  std::vector<Device> devices;  // by index

  struct Worker {
    int32_t pid = 0;
    uint32_t device = 0;
    std::string tenant;           // whose own it is; empty: of all that are packed
    uint32_t state = 0;           // WorkerProcess::State
    bool takes_sessions = false;  // it is the one for new ones
    std::string binary;           // WorkerProcess::binary
    int control = kNone;
  };
  std::vector<Worker> workers;

  // Processes that were workers and are not reaped yet, those above included.
  struct Child {
    int32_t pid = 0;
    uint32_t device = 0;
  };
  std::vector<Child> children;

  struct Session {
    OpenSession open;
    std::string tenant;
    std::string vm;
    std::string front_door;
    std::string application;
    uint32_t pid = 0;
    std::string device_name;
    uint32_t device = 0;
    uint64_t assembly = 0;
    uint32_t vgpu = 0;
    std::string why;
    int32_t worker = 0;  // its pid
    uint32_t weight = 1;
    uint64_t started_unix_seconds = 0;
    int64_t started = 0;  // MonotonicNow then
    uint32_t stage = 0;   // Daemon's
    bool bound = true;    // to its device
    SessionEnded told;
    SessionUsage usage;
    // Of its VM's memory.
    struct Part {
      uint64_t offset = 0;
      uint64_t bytes = 0;
    };
    std::vector<Part> parts;
  };
  std::vector<Session> sessions;
  uint64_t next_session = 1;

  struct Totals {
    std::string tenant;
    std::string application;
    uint32_t device = 0;
    uint64_t sessions_begun = 0;
    uint64_t sessions_open = 0;
    SessionUsage used;
  };
  std::vector<Totals> totals;

  struct Event {
    uint64_t number = 0;
    uint64_t unix_seconds = 0;
    uint32_t level = 0;  // EventLevel
    std::string text;
    uint64_t times = 1;
  };
  std::vector<Event> events;
  uint64_t last_event = 0;

  struct Trace {
    bool recording = false;
    std::string folder;
    uint64_t bytes_max = 0;
    std::string by;
    uint64_t since = 0;
    struct File {
      uint32_t device = 0;
      int64_t worker = 0;
      std::string path;
      std::string ended;
    };
    std::vector<File> files;
  };
  Trace trace;

  struct Count {
    std::string name;
    uint64_t count = 0;
  };
  std::vector<Count> refused;
  std::vector<Count> unsupported_calls;
  std::vector<Count> errors;

  // What operators have set, and what workers were told of it last.
  std::string settings;  // Settings::StateText
  std::string policy;
  struct Terms {
    std::string tenant;
    uint32_t weight = 1;
    TenantRates rates;
  };
  std::vector<Terms> terms;
};

std::vector<std::byte> Encode(const DaemonState& state);

// kFailedPrecondition: of a build that this one cannot go on from; the text says what an operator
// can do. kInvalidArgument: it is no such state, or contradicts itself.
absl::StatusOr<DaemonState> DecodeDaemonState(std::span<const std::byte> bytes);

// Every descriptor that it names.
std::vector<int> DescriptorsOf(const DaemonState& state);

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_DAEMON_STATE_H_
