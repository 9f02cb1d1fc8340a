// SPDX-License-Identifier: Apache-2.0
// host/worker/calibration.h: how fast a device is, measured: copies each way, memory, arithmetic.
//
// Short kernels of our own and copies, each several times; the fastest counts, as whatever else
// happens only makes them slower. A fraction of a second. For a device that nobody uses yet.
#ifndef CONSORT_HOST_WORKER_CALIBRATION_H_
#define CONSORT_HOST_WORKER_CALIBRATION_H_

#include "absl/status/statusor.h"
#include "host/control/messages.h"
#include "host/session/worker_device.h"

namespace consort::host {

// On the calling thread, which has the device's context from then on. kResourceExhausted: no
// memory; kUnavailable: the driver refused something else.
absl::StatusOr<Calibrated> CalibrateDevice(const WorkerDevice& device);

}  // namespace consort::host

#endif  // CONSORT_HOST_WORKER_CALIBRATION_H_
