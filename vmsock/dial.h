// SPDX-License-Identifier: Apache-2.0
// vmsock/dial.h: the guest's way to a host: connect to an endpoint, greet, get a channel.
//
// Endpoints are text, as an operator writes them into a guest's configuration:
//
//   unix:/path/of/socket     a daemon on the same machine (containers, tests); rings where both
//   agree vsock:CID:PORT           the host of a VM is CID 2 tcp:A.B.C.D:PORT         another node;
//   no names, so that nothing is looked up
//
// What fails is told in two forms: an enum to decide by, and one line for a person that says what
// to do. Every step is bounded in time and memory. Stateless; any thread. Compiled into the guest
// library: no exceptions, no libstdc++, nothing printed, no environment read.
#ifndef CONSORT_VMSOCK_DIAL_H_
#define CONSORT_VMSOCK_DIAL_H_

#include <cstdint>
#include <memory>
#include <span>

#include "base/unique_fd.h"
#include "base/units.h"
#include "vmsock/channel.h"
#include "vmsock/limits.h"
#include "vmsock/vm_memory.h"
#include "vmsock/wire/handshake.h"

namespace consort {

enum class DialError : uint8_t {
  kNone,
  kBadEndpoint,      // the text is not an endpoint
  kUnreachable,      // nothing listens there, or this machine has no such transport
  kTimeout,          // no connection or no answer in time
  kVersionMismatch,  // guest library and daemon do not fit together
  kNoDevice,         // the daemon has no device of that index for us
  kRefused,          // the daemon refused, for instance because of a limit
  kNotHere,          // ResumeSession only: the daemon has not got the session, or not yet
  kProtocol,         // what answers is not consortd, or the connection broke during the greeting
  kNoResources,      // this process has no memory, addresses or descriptors left
};

// Whether a session's channel is rings in shared memory or the stream itself.
enum class RingsWish : uint8_t {
  kWherePossible,  // on a UNIX socket, or in the machine's shared memory, if the daemon agrees
  kNever,
  kOnly,  // else no session
};

struct DialOptions {
  const char* endpoint = nullptr;  // borrowed for the call
  uint64_t description_hash = 0;   // see wire::Hello
  uint32_t device = 0;             // OpenSession only
  uint64_t assembly = 0;           // likewise: of the Welcome of QueryDevices
  const char* application = "";    // for people; cut to 127 bytes; borrowed for the call
  RingsWish rings = RingsWish::kWherePossible;
  // What this machine shares with its host; null: nothing. Borrowed for the call.
  const VmMemory* vm_memory = nullptr;
  Nanos connect_timeout = kConnectTimeout;      // 0 or less: the default
  Nanos handshake_timeout = kHandshakeTimeout;  // likewise
};

struct DialResult {
  DialError error = DialError::kNone;
  char text[256] = {};    // empty on success
  wire::Welcome welcome;  // valid on success; texts are terminated
};

// Connects and opens the session of this process on `options.device`. On success `channel` is open.
void OpenSession(const DialOptions& options, DialResult* result, std::unique_ptr<Channel>* channel);

// Connects and asks to go on with the session of `token`. Invalid: `result` says why, kNotHere if
// another attempt may succeed. The socket is for Channel::Rejoin.
UniqueFd ResumeSession(const DialOptions& options, const wire::ResumeToken& token,
                       DialResult* result);

// Connects and asks which devices there are. `devices` takes the first of them; their number is in
// result->welcome.device_count, which is at most kDeviceSnapshotsMax. Texts in them are terminated.
void QueryDevices(const DialOptions& options, DialResult* result,
                  std::span<wire::DeviceSnapshot> devices);

// What QueryStatus fills, in memory of the caller. `uses` has the length of `devices`.
struct StatusAnswer {
  std::span<wire::DeviceSnapshot> devices;
  std::span<wire::DeviceUse> uses;
  std::span<wire::ProcessUse> processes;
  size_t process_count = 0;  // of `processes`, that were filled
};

// Connects and says nothing: for a proxy, whose clients greet for themselves. Invalid: `result`
// says why.
UniqueFd ConnectTo(const DialOptions& options, DialResult* result);

// As QueryDevices, and asks what is in use.
void QueryStatus(const DialOptions& options, DialResult* result, StatusAnswer* answer);

}  // namespace consort

#endif  // CONSORT_VMSOCK_DIAL_H_
