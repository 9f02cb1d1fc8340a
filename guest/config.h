// SPDX-License-Identifier: Apache-2.0
// guest/config.h: what an administrator of the guest can set. Immutable once read (at the first
// call).
//
// /etc/consort/guest.toml, or the file named by CONSORT_GUEST_CONFIG:
//   endpoint = "vsock:2:7000"       # or "unix:/run/consort/consortd.sock", "tcp:127.0.0.1:7000"
//   connect_timeout_ms = 2000
//   resume_seconds = 300            # how long calls wait while this machine is saved or moved
//   channel = "auto"                # rings in shared memory where possible; "rings": nothing else;
//                                   # "stream": always the stream itself
//   log = true                      # false: nothing; "errors": also each call that fails, and
//                                   # why a virtual machine's shared memory is not used
// Environment variables come after it: CONSORT_ENDPOINT, CONSORT_CONNECT_TIMEOUT_MS,
// CONSORT_RESUME_SECONDS, CONSORT_CHANNEL=auto|rings|stream, CONSORT_LOG=on|off|errors.
#ifndef CONSORT_GUEST_CONFIG_H_
#define CONSORT_GUEST_CONFIG_H_

#include <cstdint>

#include "vmsock/dial.h"

namespace consort::guest {

struct Config {
  // Where consortd is. Default: the UNIX socket of this machine if there is one, else the host's
  // vsock.
  char endpoint[256] = {};
  uint32_t connect_timeout_ms = 2000;
  // What a session waits for a host that goes on with it, after it has left one with its machine.
  uint32_t resume_seconds = 300;
  RingsWish rings = RingsWish::kWherePossible;
  bool log = true;
  bool log_errors = false;
  // CUDA_MODULE_LOADING=EAGER
  bool eager_loading = false;
  // CUDA_LAUNCH_BLOCKING=1: a launch returns when the kernel has ended
  bool launch_blocking = false;
  // CUDA_VISIBLE_DEVICES as given; `visible_set` tells an empty value from none.
  bool visible_set = false;
  char visible[512] = {};
  // A mistake in the file or environment, for a person; empty if none.
  char problem[320] = {};
};

// Any thread; the first call reads file and environment.
const Config& GetConfig();

// Applies the lines of a configuration file, `bytes` of text, to `config`. Sets config->problem on
// the first line that is no `key = value` of a known key.
void ParseConfig(const char* text, uint64_t bytes, Config* config);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_CONFIG_H_
