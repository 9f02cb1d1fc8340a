// SPDX-License-Identifier: Apache-2.0
// host/session/partition.h: a part of the device's multiprocessors for one session's streams.
//
// The device is cut into groups of as few multiprocessors as it allows (8 on an H200), always in
// the same way, so that sessions which are given different ranges run their kernels on different
// multiprocessors.
#ifndef CONSORT_HOST_SESSION_PARTITION_H_
#define CONSORT_HOST_SESSION_PARTITION_H_

#include <memory>

#include "absl/status/statusor.h"
#include "gen/device/driver_table.h"
#include "host/control/messages.h"
#include "host/session/green_context.h"

namespace consort::host {

// The groups of `range`, at least one. `driver` is borrowed for the result's life. kUnimplemented:
// the driver has no green contexts; others are its errors.
absl::StatusOr<std::shared_ptr<GreenContext>> CreatePartition(const device::DriverTable& driver,
                                                              CUdevice device,
                                                              PartitionRange range);

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_PARTITION_H_
