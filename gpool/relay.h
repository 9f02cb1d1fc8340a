// SPDX-License-Identifier: Apache-2.0
// gpool/relay.h: carries bytes between a socket of this host and a link, both ways, until one ends.
//
//   plain socket ──▶ buffer ──▶ TLS        what one side sent before it ended still arrives at the
//                ◀── buffer ◀──            other; then both are closed
//
// It looks at nothing but, if asked, the first bytes that come from the link. A direction whose
// reader is slow fills its buffer, and then the sender waits; the other direction goes on. Runs in
// the thread that calls it.
#ifndef CONSORT_GPOOL_RELAY_H_
#define CONSORT_GPOOL_RELAY_H_

#include <cstddef>
#include <functional>
#include <span>

#include "gpool/tls.h"

namespace consort::gpool {

struct RelayOptions {
  // If not 0: `on_head` gets the first bytes that come from the link, once there are so many, or
  // fewer if the link ends before; they have not been passed on yet.
  size_t head_bytes = 0;
  std::function<void(std::span<const std::byte>)> on_head;
  // Readable when the relay is to end at once; borrowed. Negative: nobody will ask.
  int stop_fd = -1;
};

// Relays until an end. `plain_fd` is borrowed, non-blocking. It is shut down for both directions
// at the end.
void Relay(int plain_fd, TlsStream* link, const RelayOptions& options);

}  // namespace consort::gpool

#endif  // CONSORT_GPOOL_RELAY_H_
