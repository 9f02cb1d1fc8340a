// SPDX-License-Identifier: Apache-2.0
#include "host/session/print_turn.h"

#include <limits>

#include "host/limits.h"

namespace consort::host {

PrintTurn::PrintTurn(const device::DriverTable& driver, SharedOutput* shared, Streams* streams,
                     DeviceOutput* output)
    : driver_(driver), shared_(shared), streams_(streams), output_(output) {
  if (shared_ != nullptr) shared_->Join();
}

PrintTurn::~PrintTurn() {
  if (idle_stream_ != nullptr) driver_.cuStreamDestroy_v2(idle_stream_);
}

bool PrintTurn::MayLaunch() {
  if (shared_ == nullptr) return true;
  if (idle_stream_ == nullptr) {
    // Without one the text comes with somebody's next synchronisation.
    driver_.cuStreamCreateWithPriority(&idle_stream_, CU_STREAM_NON_BLOCKING, 0);
  }
  const bool taken = shared_->Take(output_);
  if (taken) held_ = true;
  waiting_ = !taken;
  return taken;
}

void PrintTurn::Collect() {
  if (!held_) return;
  // Failures are seen by whoever asks for the work.
  if (idle_stream_ != nullptr) driver_.cuStreamSynchronize(idle_stream_);
  shared_->Drain(output_);
}

void PrintTurn::CollectFailure() {
  if (shared_ == nullptr) return;
  driver_.cuCtxSynchronize();  // of a broken context: waits for nothing
  Collect();
  shared_->DrainErrors(output_);
}

void PrintTurn::Tend() {
  if (!held_) return;
  if (fence_ == nullptr && streams_->FenceAll(&fence_) != CUDA_SUCCESS) return;
  if (!fence_->Reached()) return;
  Collect();
  held_ = false;
  fence_ = nullptr;
  shared_->Pass(output_);
}

Nanos PrintTurn::sleep_max() const {
  return held_ ? kPollSleepMost : std::numeric_limits<Nanos>::max();
}

void PrintTurn::End(bool ended) {
  if (shared_ == nullptr) return;
  if (ended) Collect();
  held_ = waiting_ = false;
  fence_ = nullptr;
  shared_->Leave(output_);
}

}  // namespace consort::host
