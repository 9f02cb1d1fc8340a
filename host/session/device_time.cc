// SPDX-License-Identifier: Apache-2.0
#include "host/session/device_time.h"

#include <algorithm>
#include <utility>

namespace consort::host {

uint64_t DeviceTime::Kernel::AloneNanos(uint64_t threads) const {
  for (const Alone& known : alone) {
    if (known.threads == threads) return known.nanos;
  }
  return 0;
}

bool DeviceTime::Kernel::AloneKnown(uint64_t threads) const {
  return std::any_of(alone.begin(), alone.end(), [threads](const Alone& known) {
    return known.threads == threads && known.samples == kAloneSamples;
  });
}

void DeviceTime::Kernel::LearnAlone(uint64_t threads, uint64_t nanos) {
  for (Alone& known : alone) {
    if (known.threads != threads) continue;
    known.samples = std::min(known.samples + 1, kAloneSamples);
    known.nanos = (known.nanos * (known.samples - 1) + nanos) / known.samples;
    return;
  }
  alone[alone_next++ % alone.size()] = {threads, nanos, 1};
}

DeviceTime::~DeviceTime() {
  Interrupt();
  for (Sample& sample : in_flight_) ReturnEvents(&sample);
}

CUevent DeviceTime::Record(CUstream stream) {
  CUevent event = nullptr;
  if (events_.Take(&event) != CUDA_SUCCESS) return nullptr;
  if (driver_.cuEventRecord(event, stream) != CUDA_SUCCESS) {
    events_.Return(std::exchange(event, nullptr));
  }
  return event;
}

void DeviceTime::ReturnEvents(Sample* sample) {
  for (CUevent* event : {&sample->before, &sample->begin, &sample->end}) {
    if (*event != nullptr) events_.Return(std::exchange(*event, nullptr));
  }
}

void DeviceTime::Interrupt() {
  if (!taken_.has_value()) return;
  nanos_ += taken_->launches * taken_->kernel->latest_nanos;
  taken_->kernel->singles_left = kSingleSamples;
  ReturnEvents(&*taken_);
  taken_.reset();
}

std::optional<uint64_t> DeviceTime::NanosBetween(CUevent begin, CUevent end) {
  float milliseconds = 0;
  if (driver_.cuEventElapsedTime(&milliseconds, begin, end) != CUDA_SUCCESS) return std::nullopt;
  return static_cast<uint64_t>(milliseconds * 1e6);
}

void DeviceTime::BeginLaunch(const std::shared_ptr<Kernel>& kernel, CUstream stream,
                             uint64_t threads, bool may_sample, uint32_t beside) {
  const bool follows = taken_.has_value() && taken_->launches != 0 && taken_->kernel == kernel &&
                       taken_->stream == stream && taken_->threads == threads && may_sample;
  current_ = kernel;
  current_threads_ = threads;
  if (follows) return;
  Interrupt();
  const bool due = SamplesNext(*kernel, threads);
  if (due) kernel->chained = 0;
  if (!may_sample || !due || in_flight_.size() >= kSamplesInFlightMax) return;
  const bool single = kernel->singles_left != 0;
  if (single) --kernel->singles_left;
  Sample sample = {kernel, nullptr, nullptr, nullptr,
                   stream, threads, beside,  single ? 1 : kSampleLaunches};
  if (gaps_ < kGapSamples) sample.before = Record(stream);
  sample.begin = Record(stream);
  if (sample.begin == nullptr) {
    ReturnEvents(&sample);
    return;
  }
  kernel->sampled = MonotonicNow();
  taken_ = std::move(sample);
}

DeviceTime::Launched DeviceTime::EndLaunch(CUstream stream) {
  ++launches_;
  ++current_->launches;
  launched_ = WhatIsKnown(*current_, current_threads_);
  if (!taken_.has_value()) {
    nanos_ += current_->latest_nanos;
    return launched_;
  }
  if (++taken_->launches < taken_->launches_most) return launched_;
  taken_->end = Record(stream);
  if (taken_->end == nullptr) {
    Interrupt();
    return launched_;
  }
  in_flight_.push_back(*std::exchange(taken_, std::nullopt));
  return launched_;
}

DeviceTime::Launched DeviceTime::CountChained(Kernel* kernel, uint64_t threads) {
  ++launches_;
  ++kernel->launches;
  ++kernel->chained;
  nanos_ += kernel->latest_nanos;
  return WhatIsKnown(*kernel, threads);
}

void DeviceTime::Poll(bool alone) {
  Interrupt();
  while (!in_flight_.empty()) {
    Sample& sample = in_flight_.front();
    const CUresult state = driver_.cuEventQuery(sample.end);
    if (state == CUDA_ERROR_NOT_READY) return;
    const auto took = state == CUDA_SUCCESS ? NanosBetween(sample.begin, sample.end) : std::nullopt;
    if (took.has_value()) {
      const auto gap =
          sample.before != nullptr ? NanosBetween(sample.before, sample.begin) : std::nullopt;
      if (gap.has_value()) gap_nanos_ = gaps_++ == 0 ? *gap : std::min(gap_nanos_, *gap);
      // With launches between them events are farther apart than with nothing. Where they are not,
      // the device stood still in every gap so far, and none of them tells anything.
      const uint64_t added = gap_nanos_ < *took ? gap_nanos_ : 0;
      const uint64_t nanos = (*took - added) / sample.launches;
      sample.kernel->latest_nanos = nanos;
      nanos_ += nanos * sample.launches;
      if (alone && sample.beside != 0) {
        sample.kernel->LearnAlone(sample.threads, nanos / sample.beside);
      }
    }
    ReturnEvents(&sample);
    in_flight_.pop_front();
  }
}

}  // namespace consort::host
