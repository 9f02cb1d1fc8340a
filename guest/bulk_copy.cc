// SPDX-License-Identifier: Apache-2.0
#include "guest/bulk_copy.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "guest/patience.h"
#include "guest/pool.h"
#include "guest/processors.h"
#include "guest/shared_memory.h"

namespace consort::guest {
namespace {

// One thread copies 8 to 12 GB/s on current servers and the bus takes 55, both ways. With many
// processors six are a seventh faster than four, and eight no faster (H200, 16 processors); how
// many are many was chosen.
constexpr int kThreadsMax = 6;
constexpr int kThreadsOfFewProcessors = 4;
constexpr int kManyProcessors = 12;
// What a thread must have to do to be worth starting.
constexpr uint64_t kBytesPerThread = 2 << 20;
constexpr size_t kStackBytes = 256 << 10;

int ThreadsFor(uint64_t bytes) {
  const int processors = ProcessorCount();
  const int count =
      processors >= kManyProcessors ? kThreadsMax : std::min(processors, kThreadsOfFewProcessors);
  const uint64_t useful = (bytes + kBytesPerThread - 1) / kBytesPerThread;
  return useful < static_cast<uint64_t>(count) ? static_cast<int>(useful) : count;
}

struct Errand {
  void (*body)(void*);
  void* argument;
};

void* RunErrand(void* errand) {
  static_cast<Errand*>(errand)->body(static_cast<Errand*>(errand)->argument);
  return nullptr;
}

// Runs body(argument) on `threads` threads, of which this is one; returns when all are done. The
// others take no signals. Fewer threads than asked for do the same work.
void RunTogether(int threads, void (*body)(void*), void* argument) {
  Errand errand{body, argument};
  pthread_t helpers[kThreadsMax];
  int started = 0;
  if (threads > 1) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, kStackBytes);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (started < threads - 1 &&
           pthread_create(&helpers[started], &attributes, RunErrand, &errand) == 0) {
      ++started;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
  }
  body(argument);
  for (int i = 0; i < started; ++i) pthread_join(helpers[i], nullptr);
}

}  // namespace

// Pieces go through the usable slots in turn: piece i through slot i % slots, whose word shows
// `base + i / slots + 1` when the device has copied it.
struct BulkCopy::Job {
  BulkCopy* owner;
  StreamRef stream;
  uint64_t device;
  std::byte* host;
  uint64_t bytes;
  uint64_t piece_bytes;
  uint64_t pieces;
  uint32_t slots;
  std::atomic<uint64_t> next{0};
  std::atomic<CUresult> failure{CUDA_SUCCESS};
  std::atomic<bool> error_seen{false};  // of earlier work, which a synchronisation will tell

  Job(BulkCopy* bulk, const StreamRef& in, uint64_t device_address, std::byte* host_address,
      uint64_t byte_count)
      : owner(bulk),
        stream(in),
        device(device_address),
        host(host_address),
        bytes(byte_count),
        piece_bytes(PieceBytes(byte_count)),
        pieces(Pieces(byte_count)),
        slots(static_cast<uint32_t>(std::min<uint64_t>(bulk->usable_count_, pieces))) {}

  // A few pieces at least, so that the device copies one and this process another.
  static uint64_t PieceBytes(uint64_t bytes) {
    return std::clamp(AlignUp(bytes / 4, kPieceBytesMin), kPieceBytesMin, kSlotBytes);
  }
  static uint64_t Pieces(uint64_t bytes) {
    return (bytes + PieceBytes(bytes) - 1) / PieceBytes(bytes);
  }

  Slot& SlotOf(uint64_t piece) { return owner->slots_[owner->usable_[piece % slots]]; }
  uint64_t ReachedAfter(uint64_t piece) { return SlotOf(piece).submitted + piece / slots + 1; }
  uint64_t BytesOf(uint64_t piece) const {
    return std::min(bytes - piece * piece_bytes, piece_bytes);
  }

  bool Failed(CUresult result) {
    if (result == CUDA_SUCCESS) return false;
    failure.store(result, std::memory_order_relaxed);
    return true;
  }

  // Submits the device's half of a piece.
  bool Submit(uint64_t piece, bool to_device) {
    const Slot& slot = SlotOf(piece);
    const uint64_t memory = reinterpret_cast<uint64_t>(slot.memory);
    const uint64_t remote = device + piece * piece_bytes;
    wire::CopyRowsRequest copy;
    copy.stream = stream.id;
    copy.dst = to_device ? remote : memory;
    copy.src = to_device ? memory : remote;
    copy.width = copy.dst_pitch = copy.src_pitch = BytesOf(piece);
    copy.rows = 1;
    uint64_t number = 0;  // ReachedAfter(piece): a slot's pieces are submitted in turn
    return !Failed(owner->session_->Post(stream.context->wire_id, copy)) &&
           !Failed(owner->completion_->Signal(stream.context, stream.id, slot.word, &number));
  }

  CUresult AskForStream() {
    wire::StreamSynchronizeRequest request;
    request.stream = stream.id;
    wire::EmptyReply reply;
    return owner->session_->Ask(stream.context->wire_id, request, &reply);
  }

  // Waits until the slot's word shows `value`. False: the session has failed.
  bool Await(const Slot& slot, uint64_t value) {
    const auto there = [&] {
      const Completion::State state = owner->completion_->Look(slot.word, value);
      if (state == Completion::State::kReachedAfterError)
        error_seen.store(true, std::memory_order_relaxed);
      return state != Completion::State::kPending;
    };
    for (Patience patience(WaitsAsleep(stream.context)); !there(); patience.Pause()) {
      if (!patience.naps()) continue;
      owner->session_->HelpReceive();
      if (Failed(owner->session_->failure())) return false;
      if (failure.load(std::memory_order_relaxed) != CUDA_SUCCESS) return false;
      // What has broken the device may be known to nobody yet, and then the word never comes.
      if (patience.waited() > kWordWaitNanos && Failed(AskForStream())) return false;
    }
    return true;
  }

  static void PiecesToDevice(void* argument) {
    auto* job = static_cast<Job*>(argument);
    for (uint64_t piece; (piece = job->next.fetch_add(1)) < job->pieces;) {
      const Slot& slot = job->SlotOf(piece);
      if (piece >= job->slots && !job->Await(slot, job->ReachedAfter(piece) - 1)) return;
      std::memcpy(slot.memory, job->host + piece * job->piece_bytes, job->BytesOf(piece));
      if (!job->Submit(piece, true)) return;
    }
  }

  static void PiecesToHost(void* argument) {
    auto* job = static_cast<Job*>(argument);
    for (uint64_t piece; (piece = job->next.fetch_add(1)) < job->pieces;) {
      const Slot& slot = job->SlotOf(piece);
      if (!job->Await(slot, job->ReachedAfter(piece))) return;
      std::memcpy(job->host + piece * job->piece_bytes, slot.memory, job->BytesOf(piece));
      if (piece + job->slots < job->pieces && !job->Submit(piece + job->slots, false)) return;
    }
  }
};

BulkCopy* BulkCopy::Take(const StreamRef& stream, uint64_t pieces) {
  Device* device = stream.context->device;
  Completion* completion = Completion::Of(device);
  if (completion == nullptr) return nullptr;
  BulkCopy* made = device->bulk_copy.load(std::memory_order_acquire);
  if (made == nullptr) {
    auto* fresh = new BulkCopy(device->session, completion);
    if (device->bulk_copy.compare_exchange_strong(made, fresh, std::memory_order_acq_rel)) {
      made = fresh;
    } else {
      delete fresh;
    }
  }
  if (!made->mutex_.TryLock()) return nullptr;
  made->usable_count_ = 0;
  const bool asks = made->asks_after_ == 0;
  if (!asks) --made->asks_after_;
  for (uint32_t i = 0; i < kSlots && made->usable_count_ < pieces; ++i) {
    Slot& slot = made->slots_[i];
    if (slot.memory == nullptr) {
      if (!asks) break;  // nor are there later ones
      uint64_t address = 0;
      if (AllocateOwnMemory(made->session_, kSlotBytes, &address) != CUDA_SUCCESS) {
        made->asks_after_ = kCopiesBetweenAsks;
        break;
      }
      slot.memory = reinterpret_cast<std::byte*>(address);
      slot.word = Completion::WordOfBulk(i);
    }
    if (completion->Look(slot.word, slot.submitted) != Completion::State::kPending)
      made->usable_[made->usable_count_++] = i;
  }
  if (made->usable_count_ >= std::min<uint64_t>(pieces, 2)) return made;
  made->mutex_.Unlock();
  return nullptr;
}

void BulkCopy::Run(Job* job, void (*body)(void*)) {
  RunTogether(ThreadsFor(job->bytes), body, job);
  for (uint32_t i = 0; i < job->slots; ++i) {
    // Pieces i, i + slots, ...; after a failure the words do not matter any more.
    slots_[usable_[i]].submitted += (job->pieces - i + job->slots - 1) / job->slots;
  }
  mutex_.Unlock();
}

bool BulkCopy::ToDevice(const StreamRef& stream, uint64_t to, const std::byte* from, uint64_t bytes,
                        CUresult* result) {
  BulkCopy* bulk = Take(stream, Job::Pieces(bytes));
  if (bulk == nullptr) return false;
  Job job(bulk, stream, to, const_cast<std::byte*>(from), bytes);
  bulk->Run(&job, Job::PiecesToDevice);
  *result = job.failure.load();
  return true;
}

bool BulkCopy::ToHost(const StreamRef& stream, std::byte* to, uint64_t from, uint64_t bytes,
                      CUresult* result) {
  BulkCopy* bulk = Take(stream, Job::Pieces(bytes));
  if (bulk == nullptr) return false;
  Job job(bulk, stream, from, to, bytes);
  bool submitted = true;
  for (uint64_t piece = 0; submitted && piece < job.slots; ++piece) {
    submitted = job.Submit(piece, false);
  }
  // One thread waits for what the stream has to do first.
  if (submitted && job.Await(job.SlotOf(0), job.ReachedAfter(0))) {
    bulk->Run(&job, Job::PiecesToHost);
  } else {
    bulk->mutex_.Unlock();
  }
  *result = job.failure.load();
  if (*result != CUDA_SUCCESS) return true;
  if (!job.error_seen && Completion::TellsAll(stream.context)) {
    PoolsAfterSynchronise(stream.context, stream.id);
    return true;
  }
  wire::StreamSynchronizeRequest request;
  request.stream = stream.id;
  wire::EmptyReply reply;
  *result = Ask(stream.context, request, &reply);
  return true;
}

}  // namespace consort::guest
