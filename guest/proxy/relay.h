// SPDX-License-Identifier: Apache-2.0
// guest/proxy/relay.h: carries bytes both ways between two connected stream sockets, until both
// have said everything or one has gone.
//
// Knows nothing of what it carries. Descriptors that come with the bytes are not passed on: vsock
// has none, and the host agrees to nothing that needs them at a virtual machine's door. Any thread;
// blocks it.
#ifndef CONSORT_GUEST_PROXY_RELAY_H_
#define CONSORT_GUEST_PROXY_RELAY_H_

#include "base/unique_fd.h"
#include "base/units.h"

namespace consort::guest {

// A direction's buffer: half of the largest frame's piece of a copy (512 KiB), so that one half
// arrives while the other leaves.
inline constexpr Bytes kRelayBufferBytes = 256 * kKiB;

// Closes both before it returns. The end of one side's bytes is passed on as such (shutdown(2)), so
// that the other's may still come. False: there was no memory for the buffers.
bool RelayStreams(UniqueFd one, UniqueFd other);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_PROXY_RELAY_H_
