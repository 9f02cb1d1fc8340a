// SPDX-License-Identifier: Apache-2.0
// host/session/partition.h: a part of the device's multiprocessors for one session's streams.
//
// The device is cut into groups of as few multiprocessors as it allows (8 on an H200), always in
// the same way, so that sessions which are given different ranges run their kernels on different
// multiprocessors. Memory, modules and events are those of the worker's context as before. Copies
// are not partitioned. Owned by one session. Source: CUDA driver API, green contexts.
#ifndef CONSORT_HOST_SESSION_PARTITION_H_
#define CONSORT_HOST_SESSION_PARTITION_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "gen/device/driver_table.h"
#include "host/control/messages.h"

namespace consort::host {

class Partition {
 public:
  // The groups of `range`, at least one. `driver` is borrowed. kUnimplemented: the driver has no
  // green contexts; others are its errors.
  static absl::StatusOr<std::unique_ptr<Partition>> Create(const device::DriverTable& driver,
                                                           CUdevice device, PartitionRange range);
  // After all its streams.
  ~Partition();
  Partition(const Partition&) = delete;
  Partition& operator=(const Partition&) = delete;

  // A non-blocking stream whose kernels run here.
  CUresult CreateStream(int priority, CUstream* stream) {
    return driver_.cuGreenCtxStreamCreate(stream, context_, CU_STREAM_NON_BLOCKING, priority);
  }
  uint32_t multiprocessors() const { return multiprocessors_; }

 private:
  Partition(const device::DriverTable& driver, CUgreenCtx context, uint32_t multiprocessors)
      : driver_(driver), context_(context), multiprocessors_(multiprocessors) {}

  const device::DriverTable& driver_;
  const CUgreenCtx context_;
  const uint32_t multiprocessors_;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_PARTITION_H_
