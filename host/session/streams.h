// SPDX-License-Identifier: Apache-2.0
// host/session/streams.h: the streams of one session, and fences over them.
//
// Guests name streams; each is a driver stream of its own, made non-blocking, and stream_order.h
// says what waits for what. A fence is a point in the work of some streams: it is reached when
// everything submitted to them before has finished. Owned by the session loop; calls need the
// worker's context.
#ifndef CONSORT_HOST_SESSION_STREAMS_H_
#define CONSORT_HOST_SESSION_STREAMS_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/units.h"
#include "device/driver/driver_loader.h"
#include "gen/device/driver_table.h"
#include "host/limits.h"
#include "host/session/device_output.h"
#include "host/session/event_pool.h"
#include "host/session/green_context.h"
#include "host/session/held_work.h"
#include "host/session/stream_order.h"
#include "host/session/stream_priority.h"

namespace consort::host {

// Of a stream that belongs to no context of the guest's.
inline constexpr uint32_t kNoContext = UINT32_MAX;

// Launches of a session after which it is looked at which of its streams should come first, and so
// many before are looked at.
inline constexpr uint64_t kReconsiderEvery = 16;
inline constexpr uint64_t kReconsiderOver = 64;

// A driver stream. Shared by the table of names and by fences that outlast the name.
struct Stream : std::enable_shared_from_this<Stream> {
  uint64_t id = 0;       // the guest's; 0 for a context's default stream
  uint32_t context = 0;  // the guest's
  uint64_t green = 0;    // the guest's green context; 0: none
  // Where its kernels run, and lives as long; null: anywhere.
  std::shared_ptr<GreenContext> multiprocessors;
  int asked = 0;            // the priority that its program wants
  int priority = 0;         // as the driver has it
  bool quick = false;       // what its kernels take makes it come before others
  double kernel_nanos = 0;  // of late, alone: see NoteKernel; 0: not known
  uint64_t launched = 0;    // the number of its latest launch among its session's; 0: long ago
  bool blocking = false;
  CUstream driver = nullptr;        // null: destroyed, after all its work
  bool recording = false;           // its work becomes part of a graph (graphs.h)
  CUevent order_event = nullptr;    // what others wait for; recorded anew each time
  uint64_t work = 0;                // pieces of work submitted
  uint64_t work_finished = 0;       // at least so many of them have finished
  uint64_t unfinished_in_pass = 0;  // PendingList's: the last pass that found it unfinished
  // The latest word that tells the guest of the end of its work: the last piece, where, what. Not
  // an event's, which another stream may write before.
  struct Signal {
    uint64_t work = 0;
    uint64_t address = 0;
    uint64_t number = 0;
  };
  Signal signal;
  // WorkGate's: its parts of batches, which end one after the other.
  struct Parts {
    uint64_t work = 0;   // so many pieces are before the last one's end
    uint64_t begun = 0;  // parts that there have been
    uint64_t ended = 0;  // so many of them have ended
    Nanos last_end = 0;  // when the latest of those did
  };
  Parts parts;

  bool busy() const { return work != work_finished; }
  // The mean of what its kernels of late take alone, each as often as it takes: how long whoever
  // comes to it would have to wait for.
  void NoteKernel(double nanos) {
    if (nanos == 0) return;
    const double part = kernel_nanos == 0 ? 1 : std::min(1.0, nanos / kKernelsOfLate);
    kernel_nanos += (nanos - kernel_nanos) * part;
  }
};

// Is told of each piece of work just before it goes to its stream, and of a stream's end just
// before its driver stream goes: no call may name that afterwards.
class WorkObserver {
 public:
  virtual ~WorkObserver() = default;
  virtual void BeforeWork(Stream* stream) = 0;
  virtual void BeforeEnd(Stream* stream) = 0;
};

class Fence {
 public:
  ~Fence();
  Fence(const Fence&) = delete;
  Fence& operator=(const Fence&) = delete;

  // Whether the fence is reached, asking the driver if need be. A driver error other than "not
  // ready" counts as reached and is kept in result().
  bool Reached();
  bool reached() const { return points_.empty(); }
  CUresult result() const { return result_; }
  // The stream of a fence over one stream, else null.
  Stream* single_stream() const { return points_.size() == 1 ? points_[0].stream.get() : nullptr; }

 private:
  friend class Streams;
  struct Point {
    std::shared_ptr<Stream> stream;
    uint64_t work;  // of the stream, that the event covers
    CUevent event;
  };
  Fence(const device::DriverTable& driver, EventPool* events) : driver_(driver), events_(events) {}

  const device::DriverTable& driver_;
  EventPool* const events_;
  std::vector<Point> points_;  // not reached yet
  CUresult result_ = CUDA_SUCCESS;
};

class Streams {
 public:
  // `driver` and `events` (made without timing) are borrowed for this object's life.
  // Streams get priorities of the tenant's `level` out of the driver's range.
  Streams(const device::DriverTable& driver, EventPool* events, PriorityLevel level, int least,
          int greatest)
      : driver_(driver), events_(events), level_(level), least_(least), greatest_(greatest) {}
  // Destroys all driver streams: their work must have finished.
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  struct Wanted {
    unsigned int flags = 0;
    int priority = 0;
    uint64_t green = 0;  // 0: of no green context
  };
  // Makes a stream of `context`. CUDA_ERROR_INVALID_HANDLE: `id` is taken or reserved.
  // CUDA_ERROR_INVALID_CONTEXT: no such green context of `context`.
  // CUDA_ERROR_OUT_OF_MEMORY: kHandlesPerKind are there.
  CUresult Create(uint32_t context, uint64_t id, const Wanted& wanted);
  // Takes the name away; the driver stream goes when its work has finished (CollectDestroyed).
  // CUDA_ERROR_INVALID_HANDLE.
  CUresult Destroy(uint64_t id);

  // Makes a green context of `context`, with its default stream. CUDA_ERROR_INVALID_HANDLE: a name
  // is taken or reserved. CUDA_ERROR_OUT_OF_MEMORY: kGreenContextsPerSession are there.
  CUresult CreateGreen(uint32_t context, uint64_t green, std::shared_ptr<GreenContext> made,
                       uint64_t default_stream);
  // Takes its name and those of its streams away. CUDA_ERROR_INVALID_CONTEXT.
  CUresult DestroyGreen(uint64_t green);
  bool FindGreen(uint64_t green, std::shared_ptr<GreenContext>* found) const;
  std::vector<uint64_t> StreamsOfGreen(uint64_t green) const;

  // The stream for a piece of work that is submitted next, after what it must wait for by the rules
  // of the default stream. CU_STREAM_LEGACY (and 0) is the context's default stream, made when
  // first used. CUDA_ERROR_INVALID_HANDLE: no such stream. CUDA_ERROR_INVALID_CONTEXT:
  // kContextsPerSession are there. What is recorded is not submitted.
  CUresult Use(uint32_t context, uint64_t id, Stream** stream) {
    Stream* const same = latest_.stream;
    if (same == nullptr || latest_.id != id || latest_.context != context || same->recording) {
      return UseAnother(context, id, stream);
    }
    // Between two pieces of one stream's work there is nothing to order.
    NoteWork(same);
    *stream = same;
    return CUDA_SUCCESS;
  }
  // As Use, for work that comes before all that is asked for from now on, whatever its stream. The
  // errors of Use, and the driver's.
  CUresult UseToPrecede(uint32_t context, uint64_t id, Stream** stream);
  // Before a stream is recorded: nobody asks afterwards how far it had come. The driver's errors.
  CUresult MarkPreceding();
  // A stream for work that is to begin after all work so far of the context, and that nothing waits
  // for: its only busy one, or one beside them. Orders nothing else. As Use, and the driver's.
  // `*before`: the streams whose work that is, until the next call.
  CUresult UseAfterAll(uint32_t context, Stream** stream, std::span<Stream* const>* before);
  // The same stream, for a question about it: orders nothing and counts as no work.
  CUresult Observe(uint32_t context, uint64_t id, Stream** stream);

  // What the stream is called where order matters; nothing if there is none.
  std::optional<HeldWork::StreamName> NameOf(uint32_t context, uint64_t id) const;

  // The latest work on `stream` is a kernel that takes so long alone (0: not known). With `favours`
  // a stream of short kernels comes before others of its tenant's level (stream_priority.h), unless
  // its program tells its streams apart itself. A stream's driver stream may be another one after
  // this, which begins where the one before ends.
  void NoteKernel(Stream* stream, uint64_t nanos, bool favours) {
    stream->NoteKernel(static_cast<double>(nanos));
    if (stream->launched == 0) used_.push_back(stream);
    stream->launched = ++launches_;
    if (launches_ % kReconsiderEvery == 0) Reconsider(favours);
  }

  // What `stream` was last used for is more than one piece of work: this is one more. Fences that
  // are made from now on cover it.
  void NoteMoreWork(Stream* stream) {
    ++stream->work;
    ++work_;
  }

  // A fence over one stream's work so far. CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED: it is being
  // recorded.
  CUresult FenceOn(Stream* stream, std::shared_ptr<Fence>* fence);
  // A fence over all work so far of a context, or of the session. Reached at once if nothing is
  // busy.
  CUresult FenceContext(uint32_t context, std::shared_ptr<Fence>* fence);
  CUresult FenceAll(std::shared_ptr<Fence>* fence);

  // Streams whose work may not have finished.
  template <class Visitor>
  void ForEachBusy(Visitor visit) const {
    for (const auto& stream : all_) {
      if (stream->busy()) visit(stream);
    }
  }
  // How many have work now, `next`, which gets some, included. Asks the driver of each.
  uint32_t CountAtWork(CUstream next) const;
  // Where kernels of streams made from now on run that have no green context; null: anywhere.
  void set_partition(std::shared_ptr<GreenContext> partition) { partition_ = std::move(partition); }
  // Who gets what kernels of streams made from now on print; borrowed for this object's life. A
  // null `set`: the driver cannot tell streams apart.
  void set_output(device::SetStreamOutput* set, DeviceOutput* output) {
    set_output_ = set;
    output_ = output;
  }
  // Borrowed until it is set anew; null: nobody is told.
  void set_observer(WorkObserver* observer) { observer_ = observer; }

  // Destroys the context's streams, its default stream included.
  void DestroyContext(uint32_t context);
  // Destroys driver streams whose names are gone and whose work has finished.
  void CollectDestroyed();

 private:
  struct Context {
    StreamOrder order;
    std::shared_ptr<Stream> default_stream;  // null until used
  };
  // Streams of a green context are ordered among each other, with the green one's default stream.
  struct Green {
    uint32_t context = 0;
    std::shared_ptr<GreenContext> multiprocessors;
    Context streams;
  };
  // The context's entry, made when first used; null beyond kContextsPerSession.
  Context* FindContext(uint32_t context);
  // Of the context, or of its green one: where its default stream is.
  Context* GroupOf(const Stream& stream);
  CUresult NewStream(uint32_t context, uint64_t id, const Wanted& wanted,
                     std::shared_ptr<Stream>* stream);
  int PriorityOf(const Stream& stream) const;
  int PriorityAsked(const Stream& stream) const;
  // With the stream's priority, on its multiprocessors.
  CUresult MakeDriverStream(const Stream& stream, CUstream* made);
  // The program wants its streams to differ: none comes before others for another reason.
  void TellApart();
  // Which of the streams that kernels are launched on of late should come first.
  void Reconsider(bool favours);
  // Gives it a driver stream of another priority.
  void SetQuick(Stream* stream, bool quick);
  CUresult UseAnother(uint32_t context, uint64_t id, Stream** stream);
  void NoteWork(Stream* stream) {
    NoteMoreWork(stream);
    if (observer_ != nullptr) observer_->BeforeWork(stream);
  }
  CUresult WaitFor(Stream* waiter, Stream* awaited);
  // Before work on `stream`, if something precedes.
  CUresult GoBehindPreceding(Stream* stream);
  // Whether it may have work, as the driver says. For streams that do not record.
  bool IsUnfinished(Stream* stream) const;
  CUresult AddPoint(const std::shared_ptr<Stream>& stream, Fence* fence);
  void DropDriverStream(Stream* stream);
  std::shared_ptr<Stream> Find(uint64_t id) const;

  const device::DriverTable& driver_;
  EventPool* const events_;
  const PriorityLevel level_;
  const int least_;     // priorities of the driver
  const int greatest_;  // a lower number
  std::shared_ptr<GreenContext> partition_;
  device::SetStreamOutput* set_output_ = nullptr;
  DeviceOutput* output_ = nullptr;
  WorkObserver* observer_ = nullptr;
  uint64_t launches_ = 0;     // that NoteKernel was told of
  bool tells_apart_ = false;  // the program asked for more than one priority
  // Shared: a fence keeps its streams' counters alive after the names are gone.
  absl::flat_hash_map<uint64_t, std::shared_ptr<Stream>> by_id_;
  std::map<uint32_t, Context> contexts_;
  std::map<uint64_t, Green> greens_;
  std::vector<std::shared_ptr<Stream>> all_;  // with default streams and those without a name
  std::shared_ptr<Stream> joining_;           // UseAfterAll's, of no context; null until used
  std::vector<std::shared_ptr<Stream>> nameless_;
  // What Use was last asked for; a null stream: names have gone since.
  struct Latest {
    uint32_t context = 0;
    uint64_t id = 0;
    Stream* stream = nullptr;
  };
  Latest latest_;
  // The latest work that precedes all others; no stream: that is known to be over.
  struct Preceding {
    std::shared_ptr<Stream> stream;
    CUevent event = nullptr;  // right behind it; null: nothing else has come to its stream
  };
  Preceding preceding_;
  std::vector<StreamOrder::Key> wait_for_;  // scratch of Use
  std::vector<Stream*> unfinished_;         // scratch of UseAfterAll
  std::vector<Stream*> used_;               // with `launched`
  uint64_t work_ = 0;                       // submitted to any stream
  // The latest fence over all, given again while no work has been added.
  std::shared_ptr<Fence> fence_all_;
  uint64_t fence_all_work_ = 0;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_STREAMS_H_
