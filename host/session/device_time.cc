// SPDX-License-Identifier: Apache-2.0
#include "host/session/device_time.h"

#include <utility>

namespace consort::host {

uint64_t DeviceTime::Kernel::AloneNanos(uint64_t threads) const {
  for (const Alone& known : alone) {
    if (known.threads == threads) return known.nanos;
  }
  return 0;
}

void DeviceTime::Kernel::LearnAlone(uint64_t threads, uint64_t nanos) {
  for (Alone& known : alone) {
    if (known.threads != threads) continue;
    known.nanos = (3 * known.nanos + nanos) / 4;
    return;
  }
  alone[alone_next++ % alone.size()] = {threads, nanos};
}

DeviceTime::~DeviceTime() {
  if (current_begin_ != nullptr) events_.Return(current_begin_);
  for (const Sample& sample : in_flight_) ReturnEvents(sample);
}

void DeviceTime::ReturnEvents(const Sample& sample) {
  events_.Return(sample.begin);
  events_.Return(sample.end);
}

void DeviceTime::BeginLaunch(const std::shared_ptr<Kernel>& kernel, CUstream stream,
                             uint64_t threads, bool may_sample, uint32_t beside) {
  current_ = kernel;
  current_threads_ = threads;
  current_beside_ = beside;
  if (!may_sample || !SamplesNext(*kernel) || in_flight_.size() >= kSamplesInFlightMax) return;
  CUevent begin = current_begin_;
  current_begin_ = nullptr;
  if (begin == nullptr && events_.Take(&begin) != CUDA_SUCCESS) return;
  if (driver_.cuEventRecord(begin, stream) == CUDA_SUCCESS) {
    current_begin_ = begin;
  } else {
    events_.Return(begin);
  }
}

void DeviceTime::EndLaunch(CUstream stream) {
  ++launches_;
  ++current_->launches;
  alone_nanos_ = current_->AloneNanos(current_threads_);
  const CUevent begin = std::exchange(current_begin_, nullptr);
  if (begin == nullptr) {
    nanos_ += current_->latest_nanos;
    return;
  }
  CUevent end = nullptr;
  if (events_.Take(&end) != CUDA_SUCCESS) {
    events_.Return(begin);
    return;
  }
  const Sample sample{current_, begin, end, current_threads_, current_beside_};
  if (driver_.cuEventRecord(end, stream) == CUDA_SUCCESS) {
    in_flight_.push_back(sample);
  } else {
    ReturnEvents(sample);
  }
}

void DeviceTime::Poll(bool alone) {
  while (!in_flight_.empty()) {
    const Sample& sample = in_flight_.front();
    const CUresult state = driver_.cuEventQuery(sample.end);
    if (state == CUDA_ERROR_NOT_READY) return;
    float milliseconds = 0;
    if (state == CUDA_SUCCESS &&
        driver_.cuEventElapsedTime(&milliseconds, sample.begin, sample.end) == CUDA_SUCCESS) {
      sample.kernel->latest_nanos = static_cast<uint64_t>(milliseconds * 1e6);
      nanos_ += sample.kernel->latest_nanos;
      if (alone && sample.beside != 0) {
        sample.kernel->LearnAlone(sample.threads, sample.kernel->latest_nanos / sample.beside);
      }
    }
    ReturnEvents(sample);
    in_flight_.pop_front();
  }
}

}  // namespace consort::host
