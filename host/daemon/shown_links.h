// SPDX-License-Identifier: Apache-2.0
// host/daemon/shown_links.h: which of a board's links (NVLink) a tenant is told of.
//
// Those to devices that it has itself and that the device reaches: a program that knows of links,
// such as NCCL, takes them for a promise that it may use them. Pure.
#ifndef CONSORT_HOST_DAEMON_SHOWN_LINKS_H_
#define CONSORT_HOST_DAEMON_SHOWN_LINKS_H_

#include <cstddef>
#include <span>

#include "host/control/messages.h"
#include "vmsock/wire/handshake.h"

namespace consort::host {

// Fills links, link_version and link_speed of `snapshot`, which is of `shown[index]`
// and has its `peers`. `shown` are the devices of one answer, in its order.
void ShowLinks(std::span<const Ready* const> shown, size_t index, wire::DeviceSnapshot* snapshot);

}  // namespace consort::host

#endif  // CONSORT_HOST_DAEMON_SHOWN_LINKS_H_
