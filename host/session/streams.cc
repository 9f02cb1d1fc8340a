// SPDX-License-Identifier: Apache-2.0
#include "host/session/streams.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "host/limits.h"

namespace consort::host {
namespace {

// The numbers of CU_STREAM_LEGACY and CU_STREAM_PER_THREAD; no guest may use them or 0 as a name.
constexpr uint64_t kLegacyStreamId = 1;
constexpr uint64_t kPerThreadStreamId = 2;

}  // namespace

Fence::~Fence() {
  for (const Point& point : points_) events_->Return(point.event);
}

bool Fence::Reached() {
  while (!points_.empty()) {
    const Point& point = points_.back();
    const bool known = point.stream->work_finished >= point.work;
    const CUresult result = known ? CUDA_SUCCESS : driver_.cuEventQuery(point.event);
    if (result == CUDA_ERROR_NOT_READY) return false;
    if (result == CUDA_SUCCESS) {
      point.stream->work_finished = std::max(point.stream->work_finished, point.work);
    } else {
      result_ = result;
    }
    events_->Return(point.event);
    points_.pop_back();
  }
  return true;
}

Streams::~Streams() {
  if (preceding_.event != nullptr) events_->Return(preceding_.event);
  for (const auto& stream : all_) DropDriverStream(stream.get());
}

void Streams::DropDriverStream(Stream* stream) {
  // Only a broken context makes these fail, and then everything goes with the process.
  if (stream->order_event != nullptr) events_->Return(stream->order_event);
  driver_.cuStreamDestroy_v2(std::exchange(stream->driver, nullptr));
}

std::shared_ptr<Stream> Streams::Find(uint64_t id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : it->second;
}

Streams::Context* Streams::FindContext(uint32_t context) {
  const auto it = contexts_.find(context);
  if (it != contexts_.end()) return &it->second;
  return contexts_.size() < kContextsPerSession ? &contexts_[context] : nullptr;
}

Streams::Context* Streams::GroupOf(const Stream& stream) {
  if (stream.green == 0) return FindContext(stream.context);
  const auto it = greens_.find(stream.green);
  return it == greens_.end() ? nullptr : &it->second.streams;
}

bool Streams::FindGreen(uint64_t green, std::shared_ptr<GreenContext>* found) const {
  const auto it = greens_.find(green);
  if (it == greens_.end()) return false;
  *found = it->second.multiprocessors;
  return true;
}

CUresult Streams::CreateGreen(uint32_t context, uint64_t green, std::shared_ptr<GreenContext> made,
                              uint64_t default_stream) {
  if (green == 0 || greens_.contains(green) || default_stream <= kPerThreadStreamId ||
      by_id_.contains(default_stream)) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  if (greens_.size() >= kGreenContextsPerSession || by_id_.size() >= kHandlesPerKind) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Green& entry = greens_[green];
  entry = {context, std::move(made), {}};
  std::shared_ptr<Stream> stream;
  const CUresult result = NewStream(context, default_stream, {.green = green}, &stream);
  if (result != CUDA_SUCCESS) {
    greens_.erase(green);
    return result;
  }
  stream->blocking = true;
  entry.streams.default_stream = stream;
  by_id_.emplace(default_stream, std::move(stream));
  return CUDA_SUCCESS;
}

std::vector<uint64_t> Streams::StreamsOfGreen(uint64_t green) const {
  std::vector<uint64_t> ids;
  for (const auto& [id, stream] : by_id_) {
    if (stream->green == green) ids.push_back(id);
  }
  return ids;
}

CUresult Streams::DestroyGreen(uint64_t green) {
  const auto it = greens_.find(green);
  if (it == greens_.end()) return CUDA_ERROR_INVALID_CONTEXT;
  latest_ = {};
  for (const uint64_t id : StreamsOfGreen(green)) {
    const auto named = by_id_.find(id);
    nameless_.push_back(std::move(named->second));
    by_id_.erase(named);
  }
  greens_.erase(it);
  return CUDA_SUCCESS;
}

CUresult Streams::NewStream(uint32_t context, uint64_t id, const Wanted& wanted,
                            std::shared_ptr<Stream>* stream) {
  auto made = std::make_shared<Stream>();
  made->id = id;
  made->context = context;
  made->green = wanted.green;
  made->multiprocessors = partition_;
  if (wanted.green != 0) FindGreen(wanted.green, &made->multiprocessors);
  made->asked = wanted.priority;
  made->priority = PriorityOf(*made);
  const CUresult result = MakeDriverStream(*made, &made->driver);
  if (result != CUDA_SUCCESS) return result;
  if (!all_.empty() && made->priority != PriorityAsked(*all_.front())) TellApart();
  all_.push_back(made);
  *stream = std::move(made);
  return CUDA_SUCCESS;
}

int Streams::PriorityOf(const Stream& stream) const {
  return StreamPriority(level_, stream.asked, stream.quick, least_, greatest_);
}

int Streams::PriorityAsked(const Stream& stream) const {
  return StreamPriority(level_, stream.asked, /*quick=*/false, least_, greatest_);
}

CUresult Streams::MakeDriverStream(const Stream& stream, CUstream* made) {
  const CUresult result =
      stream.multiprocessors != nullptr
          ? stream.multiprocessors->CreateStream(stream.priority, made)
          : driver_.cuStreamCreateWithPriority(made, CU_STREAM_NON_BLOCKING, stream.priority);
  if (result == CUDA_SUCCESS && set_output_ != nullptr) {
    set_output_(*made, &DeviceOutput::Write, output_);
  }
  return result;
}

void Streams::Reconsider(bool favours) {
  std::erase_if(used_, [this](Stream* stream) {
    const bool unused = stream->launched + kReconsiderOver <= launches_;
    if (unused) stream->launched = 0;
    return unused;
  });
  constexpr Nanos kMore = kShortKernel / 4;  // or it would go to and fro
  for (Stream* stream : used_) {
    // What the session has at the front of its streams.
    const double front = stream->kernel_nanos * static_cast<double>(used_.size());
    const Nanos most = stream->quick ? kShortKernel + kMore : kShortKernel - kMore;
    const bool quick = favours && !tells_apart_ && front != 0 && front < static_cast<double>(most);
    if (quick != stream->quick) SetQuick(stream, quick);
  }
}

void Streams::TellApart() {
  tells_apart_ = true;
  // Those whose driver stream is another one now are put behind them.
  const std::vector<std::shared_ptr<Stream>> streams = all_;
  for (const auto& stream : streams) {
    if (stream->quick) SetQuick(stream.get(), false);
  }
}

void Streams::SetQuick(Stream* stream, bool quick) {
  if (stream->recording) return;  // it would lose what has been recorded
  // Also where the driver refuses: it would be asked again and again.
  stream->quick = quick;
  if (PriorityOf(*stream) == stream->priority) return;
  auto left = std::make_shared<Stream>(*stream);
  left->id = left->launched = 0;
  left->context = kNoContext;
  left->order_event = nullptr;
  stream->priority = PriorityOf(*stream);
  const CUresult made = MakeDriverStream(*stream, &stream->driver);
  const bool follows =
      made == CUDA_SUCCESS && (!left->busy() || WaitFor(stream, left.get()) == CUDA_SUCCESS);
  if (follows) {
    all_.push_back(left);
    nameless_.push_back(std::move(left));
    return;
  }
  if (made == CUDA_SUCCESS) driver_.cuStreamDestroy_v2(stream->driver);
  stream->driver = left->driver;
  stream->priority = left->priority;
  if (left->order_event != nullptr) events_->Return(left->order_event);
}

CUresult Streams::Create(uint32_t context, uint64_t id, const Wanted& wanted) {
  if (id <= kPerThreadStreamId || by_id_.contains(id)) return CUDA_ERROR_INVALID_HANDLE;
  if ((wanted.flags & ~static_cast<unsigned int>(CU_STREAM_NON_BLOCKING)) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (by_id_.size() >= kHandlesPerKind) return CUDA_ERROR_OUT_OF_MEMORY;
  if (FindContext(context) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (wanted.green != 0) {
    const auto green = greens_.find(wanted.green);
    if (green == greens_.end() || green->second.context != context) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
  }
  std::shared_ptr<Stream> stream;
  const CUresult result = NewStream(context, id, wanted, &stream);
  if (result != CUDA_SUCCESS) return result;
  stream->blocking = (wanted.flags & CU_STREAM_NON_BLOCKING) == 0;
  if (stream->blocking) GroupOf(*stream)->order.Add(id);
  by_id_.emplace(id, std::move(stream));
  return CUDA_SUCCESS;
}

CUresult Streams::Destroy(uint64_t id) {
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return CUDA_ERROR_INVALID_HANDLE;
  Context* context = GroupOf(*it->second);
  if (context->default_stream == it->second) return CUDA_ERROR_INVALID_HANDLE;
  latest_ = {};
  std::shared_ptr<Stream> stream = std::move(it->second);
  by_id_.erase(it);
  CUresult result = CUDA_SUCCESS;
  if (stream->blocking && context->order.Remove(id) && stream->busy()) {
    // The default stream's next work comes after the work that is still in flight.
    if (context->default_stream == nullptr) {
      result = NewStream(stream->context, 0, {}, &context->default_stream);
    }
    if (result == CUDA_SUCCESS) result = WaitFor(context->default_stream.get(), stream.get());
  }
  nameless_.push_back(std::move(stream));
  return result;
}

CUresult Streams::WaitFor(Stream* waiter, Stream* awaited) {
  CUresult result = CUDA_SUCCESS;
  if (awaited->order_event == nullptr) result = events_->Take(&awaited->order_event);
  if (result == CUDA_SUCCESS) result = driver_.cuEventRecord(awaited->order_event, awaited->driver);
  // The wait takes the record that was just made, whatever is recorded later.
  // Source: CUDA driver API, cuStreamWaitEvent.
  if (result == CUDA_SUCCESS) {
    result = driver_.cuStreamWaitEvent(waiter->driver, awaited->order_event, 0);
  }
  if (result == CUDA_SUCCESS) NoteMoreWork(waiter);
  return result;
}

CUresult Streams::UseToPrecede(uint32_t context, uint64_t id, Stream** stream) {
  const Preceding before = std::exchange(preceding_, {});
  CUresult result = Use(context, id, stream);
  // In the same stream it comes behind that anyway, and so does what comes behind it.
  const bool follows = result == CUDA_SUCCESS && before.stream.get() == *stream;
  preceding_ = before;
  if (result == CUDA_SUCCESS && before.stream != nullptr && !follows) {
    result = GoBehindPreceding(*stream);
  }
  if (result != CUDA_SUCCESS || (*stream)->recording) return result;
  if (preceding_.event != nullptr) events_->Return(preceding_.event);
  preceding_ = {(*stream)->shared_from_this(), nullptr};
  latest_ = {};
  return CUDA_SUCCESS;
}

CUresult Streams::MarkPreceding() {
  if (preceding_.stream == nullptr) return CUDA_SUCCESS;
  const bool marked = preceding_.event != nullptr;
  const bool over = marked ? driver_.cuEventQuery(preceding_.event) == CUDA_SUCCESS
                           : !IsUnfinished(preceding_.stream.get());
  if (over) {
    if (marked) events_->Return(preceding_.event);
    preceding_ = {};
    return CUDA_SUCCESS;
  }
  if (marked) return CUDA_SUCCESS;
  CUevent event = nullptr;
  CUresult result = events_->Take(&event);
  if (result != CUDA_SUCCESS) return result;
  result = driver_.cuEventRecord(event, preceding_.stream->driver);
  if (result == CUDA_SUCCESS) {
    preceding_.event = event;
  } else {
    events_->Return(event);
  }
  return result;
}

CUresult Streams::GoBehindPreceding(Stream* stream) {
  CUresult result = MarkPreceding();
  // Its own stream only had to be told where the work ends.
  if (result != CUDA_SUCCESS || preceding_.stream == nullptr || preceding_.stream.get() == stream) {
    return result;
  }
  result = driver_.cuStreamWaitEvent(stream->driver, preceding_.event, 0);
  if (result == CUDA_SUCCESS) NoteMoreWork(stream);
  return result;
}

bool Streams::IsUnfinished(Stream* stream) const {
  if (!stream->busy()) return false;
  if (driver_.cuStreamQuery(stream->driver) != CUDA_SUCCESS) return true;
  stream->work_finished = stream->work;
  return false;
}

CUresult Streams::UseAfterAll(uint32_t context, Stream** stream, std::span<Stream* const>* before) {
  unfinished_.clear();
  for (const auto& each : all_) {
    if (each->context == context && !each->recording && IsUnfinished(each.get())) {
      unfinished_.push_back(each.get());
    }
  }
  Stream* chosen = nullptr;
  // Not before what an earlier call has got.
  if (unfinished_.size() == 1 && (joining_ == nullptr || !IsUnfinished(joining_.get()))) {
    chosen = unfinished_[0];
  } else {
    if (joining_ == nullptr) {
      const CUresult made = NewStream(kNoContext, 0, {}, &joining_);
      if (made != CUDA_SUCCESS) return made;
    }
    chosen = joining_.get();
    for (Stream* awaited : unfinished_) {
      const CUresult waited = WaitFor(chosen, awaited);
      if (waited != CUDA_SUCCESS) return waited;
    }
  }
  NoteWork(chosen);
  *stream = chosen;
  *before = unfinished_;
  return CUDA_SUCCESS;
}

std::optional<HeldWork::StreamName> Streams::NameOf(uint32_t context, uint64_t id) const {
  if (id == 0 || id == kLegacyStreamId) return HeldWork::StreamName{context, 0, true};
  const auto it = by_id_.find(id);
  if (it == by_id_.end()) return std::nullopt;
  const Stream& stream = *it->second;
  // A green context's default stream is named as its context's, which holds more than it would.
  if (stream.green != 0 && greens_.at(stream.green).streams.default_stream == it->second) {
    return HeldWork::StreamName{stream.context, 0, true};
  }
  return HeldWork::StreamName{stream.context, id, stream.blocking};
}

CUresult Streams::Observe(uint32_t context_id, uint64_t id, Stream** stream) {
  if (id != 0 && id != kLegacyStreamId) {
    const auto it = by_id_.find(id);
    if (it == by_id_.end()) return CUDA_ERROR_INVALID_HANDLE;
    *stream = it->second.get();
    return CUDA_SUCCESS;
  }
  Context* context = FindContext(context_id);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (context->default_stream == nullptr) {
    const CUresult made = NewStream(context_id, 0, {}, &context->default_stream);
    if (made != CUDA_SUCCESS) return made;
  }
  *stream = context->default_stream.get();
  return CUDA_SUCCESS;
}

CUresult Streams::UseAnother(uint32_t context_id, uint64_t id, Stream** stream) {
  latest_ = {};
  bool is_default = id == 0 || id == kLegacyStreamId;
  Stream* found = nullptr;
  Context* context = nullptr;
  if (is_default) {
    context = FindContext(context_id);
    if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (context->default_stream == nullptr) {
      const CUresult made = NewStream(context_id, 0, {}, &context->default_stream);
      if (made != CUDA_SUCCESS) return made;
    }
    found = context->default_stream.get();
  } else {
    const auto it = by_id_.find(id);
    if (it == by_id_.end()) return CUDA_ERROR_INVALID_HANDLE;
    found = it->second.get();
    if (found->recording) {
      *stream = found;
      return CUDA_SUCCESS;
    }
    // A stream belongs to the context that it was made in, whichever is current.
    if (found->blocking) {
      context = GroupOf(*found);
      is_default = context->default_stream == it->second;
    }
  }
  if (context != nullptr) {
    wait_for_.clear();
    context->order.BeforeWork(is_default ? StreamOrder::kDefaultStream : id, &wait_for_);
    for (const StreamOrder::Key key : wait_for_) {
      Stream* awaited =
          key == StreamOrder::kDefaultStream ? context->default_stream.get() : Find(key).get();
      if (awaited == nullptr || !awaited->busy()) continue;
      const CUresult waited = WaitFor(found, awaited);
      if (waited != CUDA_SUCCESS) return waited;
    }
  }
  if (preceding_.stream != nullptr) {
    const CUresult waited = GoBehindPreceding(found);
    if (waited != CUDA_SUCCESS) return waited;
  }
  NoteWork(found);
  latest_ = {context_id, id, found};
  *stream = found;
  return CUDA_SUCCESS;
}

CUresult Streams::AddPoint(const std::shared_ptr<Stream>& stream, Fence* fence) {
  CUevent event = nullptr;
  CUresult result = events_->Take(&event);
  if (result != CUDA_SUCCESS) return result;
  result = driver_.cuEventRecord(event, stream->driver);
  if (result != CUDA_SUCCESS) {
    events_->Return(event);
    return result;
  }
  fence->points_.push_back({stream, stream->work, event});
  return CUDA_SUCCESS;
}

CUresult Streams::FenceOn(Stream* stream, std::shared_ptr<Fence>* fence) {
  if (stream->recording) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  std::shared_ptr<Fence> made(new Fence(driver_, events_));
  const CUresult result = AddPoint(stream->shared_from_this(), made.get());
  if (result == CUDA_SUCCESS) *fence = std::move(made);
  return result;
}

CUresult Streams::FenceContext(uint32_t context, std::shared_ptr<Fence>* fence) {
  std::shared_ptr<Fence> made(new Fence(driver_, events_));
  for (const auto& stream : all_) {
    if (stream->context != context || !stream->busy()) continue;
    const CUresult result = AddPoint(stream, made.get());
    if (result != CUDA_SUCCESS) return result;
  }
  *fence = std::move(made);
  return CUDA_SUCCESS;
}

uint32_t Streams::CountAtWork(CUstream next) const {
  uint32_t count = 1;
  ForEachBusy([&](const std::shared_ptr<Stream>& stream) {
    if (stream->driver == next || stream->driver == nullptr) return;
    if (driver_.cuStreamQuery(stream->driver) == CUDA_ERROR_NOT_READY) ++count;
  });
  return count;
}

CUresult Streams::FenceAll(std::shared_ptr<Fence>* fence) {
  if (fence_all_ != nullptr && fence_all_work_ == work_) {
    *fence = fence_all_;
    return CUDA_SUCCESS;
  }
  std::shared_ptr<Fence> made(new Fence(driver_, events_));
  for (const auto& stream : all_) {
    // That a stream is done, as the program may know, the driver says at once; of an event that is
    // recorded now it does so later. A recording would be lost.
    if (stream->recording ? !stream->busy() : !IsUnfinished(stream.get())) continue;
    const CUresult result = AddPoint(stream, made.get());
    if (result != CUDA_SUCCESS) return result;
  }
  fence_all_ = made;
  fence_all_work_ = work_;
  *fence = std::move(made);
  return CUDA_SUCCESS;
}

void Streams::DestroyContext(uint32_t context) {
  latest_ = {};
  std::erase_if(greens_, [&](const auto& green) { return green.second.context == context; });
  for (auto it = by_id_.begin(); it != by_id_.end();) {
    if (it->second->context == context) {
      nameless_.push_back(std::move(it->second));
      by_id_.erase(it++);
    } else {
      ++it;
    }
  }
  const auto it = contexts_.find(context);
  if (it == contexts_.end()) return;
  if (it->second.default_stream != nullptr) {
    nameless_.push_back(std::move(it->second.default_stream));
  }
  contexts_.erase(it);
}

void Streams::CollectDestroyed() {
  for (size_t i = 0; i < nameless_.size();) {
    if (nameless_[i]->busy() &&
        driver_.cuStreamQuery(nameless_[i]->driver) == CUDA_ERROR_NOT_READY) {
      ++i;
      continue;
    }
    nameless_[i]->work_finished = nameless_[i]->work;
    if (observer_ != nullptr) observer_->BeforeEnd(nameless_[i].get());
    DropDriverStream(nameless_[i].get());
    std::erase(used_, nameless_[i].get());
    all_.erase(std::remove(all_.begin(), all_.end(), nameless_[i]), all_.end());
    nameless_[i] = std::move(nameless_.back());
    nameless_.pop_back();
  }
}

}  // namespace consort::host
