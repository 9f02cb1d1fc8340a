// SPDX-License-Identifier: Apache-2.0
#include "host/session/pending.h"

#include <iterator>
#include <utility>

namespace consort::host {
namespace {

// Whether the guest may look at copied data once it hears of this.
bool WaitsForCopies(PendingItem::Kind kind) {
  return kind == PendingItem::Kind::kReply || kind == PendingItem::Kind::kContextDestroyed ||
         kind == PendingItem::Kind::kRunHostFunction;
}

}  // namespace

void PendingList::Add(PendingItem item) {
  if (item.kind == PendingItem::Kind::kCopyOut) ++copies_out_;
  if (unused_.empty()) {
    items_.push_back(std::move(item));
    return;
  }
  items_.splice(items_.end(), unused_, unused_.begin());
  items_.back() = std::move(item);
}

// `ask`: also where an earlier item of this pass has found the same stream unfinished.
bool PendingList::Reached(PendingItem& item, bool ask, CUresult* result) {
  *result = CUDA_SUCCESS;
  if (item.event != nullptr) {
    *result = driver_.cuEventQuery(item.event->handle);
    return *result != CUDA_ERROR_NOT_READY;
  }
  if (!item.fence->reached()) {
    Stream* stream = item.fence->single_stream();
    if (!ask && stream != nullptr && stream->unfinished_in_pass == pass_) return false;
    if (!item.fence->Reached()) {
      if (stream != nullptr) stream->unfinished_in_pass = pass_;
      return false;
    }
  }
  *result = item.fence->result();
  return true;
}

void PendingList::HandUp(Items::iterator item, CUresult result) {
  if (item == next_) ++next_;
  if (item->kind == PendingItem::Kind::kCopyOut) --copies_out_;
  Items taken;
  taken.splice(taken.end(), items_, item);
  sink_->OnReached(taken.front(), result);
  taken.front() = PendingItem{};
  unused_.splice(unused_.end(), taken);
}

void PendingList::PollCopiesBefore(Items::iterator end) {
  if (copies_out_ == 0) return;
  for (auto it = items_.begin(); it != end;) {
    const auto here = it++;
    CUresult result;
    if (here->kind == PendingItem::Kind::kCopyOut && Reached(*here, /*ask=*/true, &result)) {
      HandUp(here, result);
    }
  }
}

void PendingList::PollCopiesOut() { PollCopiesBefore(items_.end()); }

bool PendingList::Poll() {
  ++pass_;
  bool any = false;
  for (auto it = items_.begin(); it != items_.end(); it = next_) {
    next_ = std::next(it);
    CUresult result;
    if (!Reached(*it, /*ask=*/false, &result)) continue;
    if (WaitsForCopies(it->kind)) PollCopiesBefore(it);
    HandUp(it, result);
    any = true;
  }
  next_ = items_.end();
  return any;
}

void PendingList::FailAll(CUresult result) {
  while (!items_.empty()) HandUp(items_.begin(), result);
}

}  // namespace consort::host
