// SPDX-License-Identifier: Apache-2.0
// host/session/session.h: one guest process on one device: its loop and its objects.
//
// One thread, which never waits for the device. It alternates between three things:
//
//   requests  from the channel ─▶ gen/host/dispatch ─▶ a handler here, or the driver
//   pending   what was submitted and is watched (pending.h) ─▶ replies, results of copies, frees
//   outbox    what the guest has not taken yet
//
// While anything is in the outbox, a copy to the host is not wholly submitted, or staging is used
// up, requests are received but kept (backlog), all but one kind: HostFunctionDone, which may be
// what a handler waits for. That cannot deadlock: a guest that is blocked on sending always keeps
// receiving. What comes after a host function that the guest still runs is kept too (held_work.h).
//
// Errors of honest programs are CUresults. Bytes that no honest guest library sends end the session
// with one log line. A device error that breaks the context is told to the worker's DeviceHealth;
// all sessions then answer with it until they close. See docs/ARCHITECTURE.md, sessions.
#ifndef CONSORT_HOST_SESSION_SESSION_H_
#define CONSORT_HOST_SESSION_SESSION_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "gen/host/handlers.h"
#include "host/control/messages.h"
#include "host/memory/memory_broker.h"
#include "host/session/device_output.h"
#include "host/session/device_time.h"
#include "host/session/event_pool.h"
#include "host/session/exports.h"
#include "host/session/graphs.h"
#include "host/session/held_work.h"
#include "host/session/host_work.h"
#include "host/session/image_store.h"
#include "host/session/journal.h"
#include "host/session/keeper_line.h"
#include "host/session/launch_chain.h"
#include "host/session/links.h"
#include "host/session/memory_meter.h"
#include "host/session/modules.h"
#include "host/session/move_link.h"
#include "host/session/move_slots.h"
#include "host/session/outbox.h"
#include "host/session/partition.h"
#include "host/session/peer_lender.h"
#include "host/session/peer_reach.h"
#include "host/session/pending.h"
#include "host/session/print_turn.h"
#include "host/session/redo_channel.h"
#include "host/session/redo_log.h"
#include "host/session/repeated_launches.h"
#include "host/session/residency.h"
#include "host/session/round_trips.h"
#include "host/session/session_record.h"
#include "host/session/session_state.h"
#include "host/session/session_transfer.h"
#include "host/session/shared_host.h"
#include "host/session/staging.h"
#include "host/session/streams.h"
#include "host/session/textures.h"
#include "host/session/variable_copies.h"
#include "host/session/vigil.h"
#include "host/session/virtual_memory.h"
#include "host/session/work_gate.h"
#include "host/session/worker_device.h"
#include "memmgr/address_window.h"
#include "vmsock/channel.h"
#include "vmsock/listen.h"

namespace consort::host {

// Adds to a session's usage what the scheduler knows of it.
void AddScheduling(const ApplicationUsage& scheduled, SessionUsage* usage);

class Session final : private Handlers, private PendingSink {
 public:
  // For the guest behind `connection`, whose Hello was read and accepted by consortd. `device`,
  // `health`, `scheduler`, `rate` (of its tenant) and `broker` are borrowed for the session's life.
  Session(const WorkerDevice& device, DeviceHealth* health, Scheduler* scheduler, RateLimit* rate,
          MemoryBroker* broker, const OpenSession& open, UniqueFd connection);
  ~Session() override;

  // The session is to outlive the worker, by what `consortd` keeps. Borrowed; before Run.
  void KeepBy(ControlSocket* consortd) {
    consortd_ = consortd;
    keeps_memory_ = true;
  }
  // The session is to be saved by `consortd`, borrowed, whenever its work since the last time has
  // taken longer than that. Before Run.
  void SaveBy(ControlSocket* consortd, Nanos after) {
    consortd_ = consortd;
    save_after_ = after;
  }

  // The session's device is chosen by `consortd` when it is first used. Borrowed; before Run.
  // Nothing where no memory is swapped.
  void BindBy(ControlSocket* consortd) {
    if (!residency_->swaps()) return;
    binds_by_ = consortd;
    residency_->Defer();
  }
  // consortd's answer: it stays here. Any thread.
  void TakeBound() { bound_here_.store(true, std::memory_order_relaxed); }

  // Many launches that wait go to the driver as one. Before Run; nothing where the driver cannot.
  void ChainLaunches() {
    if (KernelNode::Available(driver_)) {
      chains_ = std::make_unique<LaunchChains>(driver_, device_.context(), &events_);
    }
  }

  // A launch that comes again and again goes as a graph of its own. As ChainLaunches.
  void RepeatLaunches() {
    if (KernelNode::Available(driver_)) {
      repeated_ = std::make_unique<RepeatedLaunches>(driver_, device_.context());
    }
  }

  // The session may reach memory of others, and lend its own, by links that `consortd` makes.
  // Borrowed; before Run.
  void FindPeersBy(ControlSocket* consortd) { peers_by_ = consortd; }
  // Before Run: of whom the session asks parts of its machine's memory, borrowed; and that memory,
  // if another worker has not had the session before. Without: it has none.
  void LendVmMemoryBy(ControlSocket* consortd) { vm_lender_.set_consortd(consortd); }
  void UseVmMemory(UniqueFd file);
  // consortd's answer. Any thread.
  void TakeVmMemory(const VmMemoryLent& lent) { vm_lender_.Take(lent); }

  // Answers the Hello and serves until the guest leaves or Stop. Fills what was used, all but the
  // session's number. False: its work on the device did not end in time; the object must then not
  // be destroyed, since the device still uses its memory.
  bool Run(SessionEnded* ended);
  // After a Run that gave true, on its thread: lets go of the device. Waits for all work of the
  // context, the neighbours' too.
  void Release();

  // What was used so far, but for what the scheduler knows. Any thread, while Run runs.
  SessionUsage Usage() const;
  // All that was used. After Run, on its thread.
  SessionUsage FinalUsage();
  // Bytes of copies between guest and device that a CPU of this worker has moved, between its
  // channel and memory that the driver reads or writes. After Run, on its thread.
  Bytes copied_bytes() const {
    return copied_bytes_ + (outbox_ != nullptr ? outbox_->copied_bytes() : 0);
  }

  // What the guest has told since the last time of functions that its library lacks. Any thread.
  std::vector<host::UnsupportedCalls> TakeUnsupportedCalls();

  // Makes Run return soon. Any thread.
  void Stop();

  // The session is to go to the worker at the link's other end; with `leaves` once its guest has
  // said its last on this connection. `on_end` is called once, on the session's thread: where it
  // moved, Run returns soon; else it goes on as if nothing had been. Any thread.
  // `stays`: the other end writes a checkpoint of it, and it goes on here.
  void MoveOut(UniqueFd link, const host::MoveOut& how,
               std::function<void(const MoveEnded&)> on_end);

  // What consortd says to PeerWanted, this session's or another one's that wants its memory. Any
  // thread. peers.cc
  void TakePeerLink(const PeerLink& link, UniqueFd socket);
  void TakePeerRefusal(const PeerRefused& refused);
  // Of MemoryWanted. Any thread. sharing.cc
  void TakeFetched(const MemoryFetched& fetched, UniqueFd memory);

 private:
  // --- Life. session.cc
  absl::Status Open();
  std::string ChannelName() const;
  absl::Status OpenChannel();
  void Loop();
  bool Receive();
  void Process(const Frame& frame);
  bool CanProcess() const;
  // Looks once at all that may have come further, and takes what requests have come. False:
  // nothing has.
  bool Turn();
  void Wait();
  // While only the device can bring something new, for so long by now.
  void RestBeforeLook(Nanos waited);
  // What a request whose memory is ready costs the device: nothing, while the session has none.
  RequestCost CostHere(const Frame& frame) const {
    return residency_->deferred() ? RequestCost::kNone : CostOf(frame.header.opcode);
  }
  // Whether the scheduler lets a request of this cost through.
  bool MayGo(RequestCost cost);
  // Whether it launches no kernel that prints, or it is the session's turn to do so.
  bool MayPrint(const Frame& frame);
  // As Dispatch, and tells the gate what work it was; of a copy to the host once all is submitted.
  bool DispatchWork(const Frame& frame);
  // After a request that has written to copies of variables.
  void UpdateVariables(const Frame& frame);
  // Where the guest is to know a variable of which a copy can stand for it; 0: where the driver has
  // it.
  uint64_t CopyOf(const Modules::Variable& variable);
  void EndDeviceWork();
  // Whether a request may be carried out now, and whether one that was held may.
  bool CanReplay() const;
  // True: the request comes after a host function, and was kept or answered.
  bool HoldBack(const Frame& frame);
  // Where a request goes: to its handler, or its memory cannot be on the device, or it is done
  // where its memory is away.
  enum class Fate : uint8_t { kGoes, kRefused, kAway };
  // Ends one that does not go to its handler.
  void EndBy(Fate fate, const Frame& frame);
  // Carries out what is held no more. True: there was something.
  bool ReplayHeld();
  // One turn without taking new requests, for a handler that cannot go on.
  void TurnWhileStalled();
  bool Drain();
  void FillAccount(SessionEnded* ended) const;
  void PublishUsage();
  // Ends the session: what the guest sent is not what an honest guest library sends.
  void Fail(const std::string& what);
  bool failed() const { return !end_reason_.empty(); }
  void NoteResult(CUresult result, const char* where);
  template <class Event>
  void SendEvent(const Event& event) {
    wire::FrameHeader header;
    header.opcode = static_cast<uint16_t>(Event::kOpcode);
    wire::Encoder encoder(outbox_->Begin(header, event.BodyBytes()), event.BodyBytes());
    event.Encode(encoder);
    outbox_->End();
  }
  // Sends what kernels have printed.
  void SendOutput();
  // Tells the guest that the device is broken, once.
  void AnnounceFailure();
  CUresult device_result() const { return health_->result(); }

  // --- Going to another worker. move_out.cc
  struct Departure {
    std::unique_ptr<MoveLink> link;
    std::function<void(const MoveEnded&)> on_end;
    // Until the session stops the other side prepares.
    enum class Stage { kAsked, kOffers, kOffered };
    Stage stage = Stage::kAsked;
    bool described = false;
    Nanos heard_at = 0;  // of the other side, last
    UniqueFd slot_memory;
    std::vector<memmgr::AddressWindow::Piece> offers;  // that were not made yet, in reverse
    std::map<uint64_t, uint64_t> offered;  // which memory (Piece::made) was at which address
    bool direct = false;                   // the other side reads what was offered
    std::unique_ptr<MoveSlots> slots;      // null until the other side has prepared
    Nanos stopped_at = 0;                  // since when no new requests are taken; 0: they are
    Bytes direct_bytes = 0;
    MoveTimes times;
    bool held = false;  // the other side is a checkpoint
    // Its connection is left, too, once the guest was asked to say its last and has.
    bool leaves = false;
    bool stays = false;      // it is saved, and stays where it is
    RedoBase saved_as = {};  // that checkpoint
    uint64_t number = 0;     // of leaves_asked_; 0: it was not asked yet
    Nanos asked_at = 0;
    bool guest_ready = false;
  };
  // True: the session has moved.
  bool TurnDeparture();
  absl::Status AwaitOther();
  absl::Status AwaitGuest();
  absl::Status MakeOffers();
  void EndDeparture(const absl::StatusOr<Bytes>& moved);
  // The session is over: who asks from now on is told so.
  void RefuseDepartures();
  // kFailedPrecondition: something that cannot be made elsewhere, by name.
  absl::Status CheckMovable();
  // Why the session cannot leave at this moment; OK: nothing goes on.
  absl::Status CheckQuiet();
  // Tells the other worker everything and hands the channel over.
  absl::StatusOr<Bytes> Depart();
  absl::StatusOr<Bytes> SendContents();
  absl::Status DescribeTo(SessionState* state, BorrowedDescriptors* descriptors);
  // All but the channel, and the contents of variables, for which there is room.
  absl::Status DescribeObjects(const std::vector<Modules::Variable>& variables,
                               SessionState* state);
  bool stopped_to_move() const { return departure_.has_value() && departure_->stopped_at != 0; }

  // --- Coming from another worker. move_in.cc
  absl::Status Arrive(MoveLink* link);
  // Everything that does not depend on what the session does until it stops.
  absl::Status PrepareArrival(MoveLink* link, MoveSlots* slots, PeerMemory* peer);
  absl::Status RestoreMemory(const SessionState& state, SessionDescriptors* descriptors,
                             MoveLink* link);
  using CopyToVariable = std::function<absl::Status(std::span<const std::byte>, uint64_t)>;
  absl::Status RestoreObjects(const SessionState& state, const SessionDescriptors& descriptors,
                              const CopyToVariable& copy);
  CUresult Replay(const JournalEntry& entry);
  void UseChannel(HostChannel opened);
  // Sees to it that frames are pinned memory, if that can be; whether they are. For rings at the
  // first copy that can use it: not all programs make one, and everybody on the host misses pinned
  // memory.
  bool RegisterRings();

  // --- Outliving the worker. keep.cc
  absl::Status BeginKeeping();
  absl::Status EndKeeping();
  // Before anything of a request is done.
  void BeginKeptWork(const Frame& frame);
  // At work, and may come to rest without the guest. A guest that was asked to leave has more to
  // hear.
  bool AwaitsRest() const {
    const bool leaves = departure_.has_value() && departure_->leaves;
    return line_ != nullptr && !rest_hopeless_ && !leaves &&
           (at_work_ || (record_ != nullptr && !record_->at_rest()));
  }
  // Puts the record to rest if nothing goes on.
  void TendRecord();
  // As the channel's TryReceive.
  ChannelStatus TakeFrame(Frame* frame) {
    return record_ == nullptr || channel_in_memory_ ? channel_->TryReceive(frame)
                                                    : TakeFromStream(frame);
  }
  // What is read of a stream would be gone with the worker, so the record is at work before.
  ChannelStatus TakeFromStream(Frame* frame);
  absl::Status WriteRecord(const ChannelHandover& channel);
  // Tells consortd of the channel, once.
  void AnnounceChannel(const ChannelHandover& channel);
  // The guest is behind a vsock device that makes conduits (vmsock/conduit.h).
  bool ComesThroughConduit() const;
  // Lets the guest see it, with the reply that tells `offset`. False: it cannot.
  bool ShowShare(const SharedHost::Share& share, uint64_t* offset);
  absl::Status ReadVariables(SessionState* state);
  absl::Status CopyVariable(const std::function<CUresult(CUstream)>& copy);
  void KeepSharedHost(const SessionState& state);
  // Goes on where a worker that has died left the session.
  absl::Status GoOn(MoveLink* link);
  absl::Status ReceiveKept(MoveLink* link, UniqueFd* record, SessionDescriptors* descriptors,
                           std::map<uint64_t, UniqueFd>* shared_host);

  // --- Computed again from a checkpoint. redo.cc
  // Before anything of the request is done.
  void NoteRequest(const Frame& frame);
  // What is to become of it; fills in why, if the log cannot go on as it is. Null and kSpoils: it
  // is loose, and the request needs no entry.
  RequestRedo RedoKindOf(const Frame& frame, std::string* why);
  // Of the guest's library.
  bool IsOwnHostMemory(uint64_t address, Bytes bytes) const;
  bool ReachesHostMemory(const wire::LaunchRequest& request, const Kernel& kernel) const;
  void EndAnswer();
  // Of a copy to the host, which is about to be sent.
  void NoteData(const PendingItem& item);
  // Nothing goes on: asks for a checkpoint if it is time for one.
  void RestRedo(const ChannelHandover& channel);
  // All of the session is about to be in that checkpoint. kUnavailable, kFailedPrecondition: it
  // cannot be.
  absl::Status AnnounceSave(const SessionState& state);
  // The checkpoint is on disk.
  void BeginRedo();
  // Carries the log out again, and takes the channel up where it was. False: it could not, and
  // end_reason_ says why.
  bool Redo();
  absl::Status RedoAll();
  // The device is broken, and not by this session; and it can be computed again.
  bool IsInnocent() const {
    return redo_ != nullptr && !at_work_ && !redo_->spoiled() && !redo_->loose();
  }
  void PrepareRedo(HostChannel opened, const ChannelHandover& handover);

  // --- Launches as graphs. launch_graphs.cc
  static PlainLaunch PlainLaunchOf(const Kernel& kernel, const wire::LaunchRequest& request);
  // False: nothing was launched, and it goes as any other does.
  bool LaunchRepeated(const Stream& stream, const Kernel& kernel,
                      const wire::LaunchRequest& request);
  // Kernels go, or what is set for one, or, with null, for the context, changes.
  void ForgetLaunchGraphs(const Kernel* kernel = nullptr);
  bool MayChain() const;
  // Takes in launches that have come, and what comes after them, up to a chain's most.
  void LookAhead();
  // The kernel of a launch that may be part of a chain; null: it goes alone.
  const Kernel* ChainableKernel(const wire::LaunchRequest& request);
  // Carries out the requests that are next, if so many launches wait that they go as a chain. How
  // many; 0: the next one goes alone.
  uint32_t LaunchWaiting();
  // The first of items_, in the header's context. False: nothing was launched.
  bool LaunchChain(const wire::FrameHeader& header, uint64_t stream_id, uint32_t length);

  // --- Memory of other devices. peers.cc
  struct PeerKey {
    uint64_t session = 0;
    PeerUse use = PeerUse::kCopies;

    friend auto operator<=>(const PeerKey&, const PeerKey&) = default;
  };
  struct Reach {
    std::shared_ptr<const PeerAddresses> addresses;  // of PeerUse::kKernels and kAddresses
    std::unique_ptr<PeerReach> memory;               // of PeerUse::kCopies and kKernels
    std::unique_ptr<SharedHost> host;                // of PeerUse::kHost
  };
  struct PeerNews {
    PeerLink link;
    UniqueFd socket;
    std::string refusal;  // then there is no link
  };
  // A PeerOpen that is not answered yet.
  struct PeerWait {
    wire::FrameHeader header;
    Nanos deadline = 0;
  };
  CUresult PeerOffer(const wire::FrameHeader& header, const wire::PeerOfferRequest& request,
                     wire::PeerOfferReply* reply) override;
  void PeerOpen(const wire::FrameHeader& header, const wire::PeerOpenRequest& request) override;
  void PeerClose(const wire::FrameHeader& header, const wire::PeerCloseRequest& request) override;
  // True: something has come, or was answered.
  bool TurnPeers();
  void BeginReach(PeerNews news);
  // Those of a link with the peer, or new ones.
  absl::StatusOr<std::shared_ptr<const PeerAddresses>> AddressesOf(const PeerLink& link) const;
  void Lend(PeerNews news);
  void EndPeerWait(std::map<PeerKey, PeerWait>::iterator wait, CUresult result);
  // Does `kind`, which ends what is had of `peer` and replies, when the device is done with it.
  void EndAfterAllWork(const wire::FrameHeader& header, PendingItem::Kind kind, uint64_t peer,
                       uint64_t what);
  // The device is done with it. Nothing if there is no such.
  void EndReach(const PeerKey& key);
  void TellPeerGone(const PeerKey& key);
  // Whether links may come, without the guest, that somebody waits for.
  bool AwaitsPeers() const;
  // Whether another device has memory of this session, or this one another's, or is about to.
  bool HasPeers();
  std::string PeerName(uint64_t peer) const;
  // Of rows in a peer's memory: makes `address` the one that they have here. False: they are not.
  bool FindPeerRows(uint64_t pitch, uint64_t width, uint64_t rows, uint64_t* address) const;
  bool ReachesPeer(uint64_t address, Bytes bytes) const;
  // Host memory of one session, for others of its program.
  CUresult HostShow(const wire::FrameHeader& header, const wire::HostShowRequest& request,
                    wire::HostShowReply* reply) override;
  CUresult HostReach(const wire::FrameHeader& header,
                     const wire::HostReachRequest& request) override;
  void HostLeave(const wire::FrameHeader& header, const wire::HostLeaveRequest& request) override;
  // The device is done with it.
  CUresult LeaveHost(uint64_t peer, uint64_t address);
  // The host memory that is had of that session; null: none.
  SharedHost* HostOf(uint64_t peer) const;
  // Whether it is host memory's that the device reaches, of this session or another.
  bool InSharedHost(uint64_t address, Bytes bytes) const;

  // --- A device that is chosen when it is first used. binding.cc
  // Instead of BringMemory until then.
  bool DeferMemory(const Frame& frame);
  // Whether the request makes something that belongs to the device, so that it is to be chosen
  // first.
  bool BelongsToDevice(const Frame& frame);
  // Whether the request is a copy or a fill that needs no device, since all that it touches is away
  // or the host's. Sees to the room for what it writes.
  bool CanServeAway(const Frame& frame);
  // As CanServeAway has read it.
  void ServeAway();
  // Whether a variable has a copy there: what is written goes on to the variable, on the device.
  bool MeetsCopy(const memmgr::AddressWindow::Range& range);
  // Asks for the device. False: the session cannot go, or there is nobody to ask.
  bool AskForDevice();
  bool awaits_device() const { return bind_asked_at_ != 0; }
  // The device is this one.
  void StayHere();

  // --- Device memory. memory.cc
  enum class Touches { kNothing, kTable, kContents };
  Touches TouchesOf(const Frame& frame, MemoryNeed* need);
  // Whether what the request needs is on the device. False: it waits.
  bool MemoryReady(const Frame& frame) {
    memory_waiting_ = false;
    fate_ = Fate::kGoes;
    return residency_->at_hand() || BringMemory(frame);
  }
  bool BringMemory(const Frame& frame);
  // Takes up allocations that waited, and lets memory be moved while nothing uses it.
  void TendMemory();
  Nanos MemorySleepMax() const;
  // What a launch with these parameters reaches by them.
  void AddArguments(std::span<const std::byte> params, MemoryNeed* need) const;
  void NoteLaunch(const Kernel& kernel, std::span<const std::byte> params);
  void NoteWrite(uint64_t address, uint64_t bytes) {
    copies_.NoteWrite(address, bytes);
    if (residency_->swaps() && window_->Contains(address, bytes)) {
      window_->NoteWrite({address, bytes});
    }
  }
  // An allocation whose reply is not sent yet.
  struct WaitingAllocation {
    wire::FrameHeader header;
    Bytes bytes = 0;
    uint64_t memory = 0;   // the guest's name of memory without an address; 0: with one
    bool reserve = false;  // room only
    uint64_t number = 0;   // in the broker's queue
    Nanos deadline = 0;
    bool granted = false;
  };
  CUresult TryAllocate(const WaitingAllocation& wanted, uint64_t* address);
  void BeginAllocation(WaitingAllocation wanted);
  bool QueueAllocation(WaitingAllocation* wanted);
  void RetryAllocations(Nanos now);
  bool IsIdle() const;
  void EndAllocation(const WaitingAllocation& wanted, CUresult result, uint64_t address);

  // --- Handlers: streams, events, contexts, launches, memory, modules. handlers.cc
  CUresult FindStream(uint32_t context, uint64_t id, CUstream* stream, bool* idle) override;
  // Whether the device may write that there, later: where memory is, of the guest's own.
  bool MaySignal(uint64_t address, uint64_t number) const;
  // The device writes it when the stream gets there. `alone`: no stream that may be ahead of this
  // one writes the word.
  CUresult Signal(Stream* stream, uint64_t address, uint64_t number, bool alone);
  // Whether it has; false too where the guest could take the memory away.
  bool HasSignalled(uint64_t address, uint64_t number) const;
  // Whether all its work is known to have finished by the word that it was to write last.
  bool HasSignalledLast(const Stream& stream) const;
  // Looks for a moment for what the guest waits for, and for what it sends; false: it may sleep.
  bool KeptVigil(uint32_t events);
  CUresult UseStream(uint32_t context, uint64_t id, CUstream* stream) override;
  CUresult FindEvent(uint64_t id, CUevent* event) override;
  CUresult CheckRange(uint64_t address, uint64_t bytes) override;
  std::byte* BeginReply(const wire::FrameHeader& request, CUresult result,
                        uint32_t body_bytes) override;
  void EndReply() override;
  void Failed(const wire::FrameHeader& request, CUresult result) override;

  void ContextSynchronize(const wire::FrameHeader& header,
                          const wire::ContextSynchronizeRequest& request) override;
  void ContextDestroy(const wire::FrameHeader& header,
                      const wire::ContextDestroyRequest& request) override;
  CUresult ContextGetLimit(const wire::FrameHeader& header,
                           const wire::ContextGetLimitRequest& request,
                           wire::ContextGetLimitReply* reply) override;
  CUresult ContextSetLimit(const wire::FrameHeader& header,
                           const wire::ContextSetLimitRequest& request,
                           wire::ContextSetLimitReply* reply) override;
  CUresult Launch(const wire::FrameHeader& header, const wire::LaunchRequest& request) override;
  CUresult HostFunction(const wire::FrameHeader& header,
                        const wire::HostFunctionRequest& request) override;
  CUresult HostFunctionDone(const wire::FrameHeader& header,
                            const wire::HostFunctionDoneRequest& request) override;
  CUresult ReadyToLeave(const wire::FrameHeader& header,
                        const wire::ReadyToLeaveRequest& request) override;
  CUresult UnsupportedCalls(const wire::FrameHeader& header,
                            const wire::UnsupportedCallsRequest& request) override;
  CUresult Occupancy(const wire::FrameHeader& header, const wire::OccupancyRequest& request,
                     wire::OccupancyReply* reply) override;
  CUresult OccupancyDynamicShared(const wire::FrameHeader& header,
                                  const wire::OccupancyDynamicSharedRequest& request,
                                  wire::OccupancyDynamicSharedReply* reply) override;
  CUresult OccupancyClusters(const wire::FrameHeader& header,
                             const wire::OccupancyClustersRequest& request,
                             wire::OccupancyClustersReply* reply) override;
  void MemAlloc(const wire::FrameHeader& header, const wire::MemAllocRequest& request) override;
  CUresult MemGetInfo(const wire::FrameHeader& header, const wire::MemGetInfoRequest& request,
                      wire::MemGetInfoReply* reply) override;
  CUresult MemFree(const wire::FrameHeader& header, const wire::MemFreeRequest& request) override;
  CUresult HostAlloc(const wire::FrameHeader& header, const wire::HostAllocRequest& request,
                     wire::HostAllocReply* reply) override;
  CUresult HostAdopt(const wire::FrameHeader& header, const wire::HostAdoptRequest& request,
                     wire::HostAdoptReply* reply) override;
  CUresult HostFree(const wire::FrameHeader& header, const wire::HostFreeRequest& request) override;
  CUresult ImageData(const wire::FrameHeader& header,
                     const wire::ImageDataRequest& request) override;
  CUresult LibraryLoad(const wire::FrameHeader& header, const wire::LibraryLoadRequest& request,
                       wire::LibraryLoadReply* reply) override;
  CUresult LibraryUnload(const wire::FrameHeader& header,
                         const wire::LibraryUnloadRequest& request) override;
  CUresult KernelGet(const wire::FrameHeader& header, const wire::KernelGetRequest& request,
                     wire::KernelGetReply* reply) override;
  CUresult KernelNames(const wire::FrameHeader& header, const wire::KernelNamesRequest& request,
                       wire::KernelNamesReply* reply) override;
  CUresult GlobalGet(const wire::FrameHeader& header, const wire::GlobalGetRequest& request,
                     wire::GlobalGetReply* reply) override;
  CUresult ManagedShare(const wire::FrameHeader& header, const wire::ManagedShareRequest& request,
                        wire::ManagedShareReply* reply) override;
  CUresult FunctionSetAttribute(const wire::FrameHeader& header,
                                const wire::FunctionSetAttributeRequest& request,
                                wire::FunctionSetAttributeReply* reply) override;
  CUresult LinkCreate(const wire::FrameHeader& header,
                      const wire::LinkCreateRequest& request) override;
  CUresult LinkAdd(const wire::FrameHeader& header, const wire::LinkAddRequest& request,
                   wire::LinkAddReply* reply) override;
  CUresult LinkComplete(const wire::FrameHeader& header, const wire::LinkCompleteRequest& request,
                        wire::LinkCompleteReply* reply) override;
  CUresult LinkRead(const wire::FrameHeader& header, const wire::LinkReadRequest& request,
                    wire::LinkReadReply* reply) override;
  CUresult LinkDestroy(const wire::FrameHeader& header,
                       const wire::LinkDestroyRequest& request) override;
  CUresult StreamCreate(const wire::FrameHeader& header,
                        const wire::StreamCreateRequest& request) override;
  CUresult StreamDestroy(const wire::FrameHeader& header,
                         const wire::StreamDestroyRequest& request) override;
  void StreamSynchronize(const wire::FrameHeader& header,
                         const wire::StreamSynchronizeRequest& request) override;
  CUresult StreamSignal(const wire::FrameHeader& header,
                        const wire::StreamSignalRequest& request) override;
  CUresult ContextSignal(const wire::FrameHeader& header,
                         const wire::ContextSignalRequest& request) override;
  CUresult EventCreate(const wire::FrameHeader& header,
                       const wire::EventCreateRequest& request) override;
  CUresult EventDestroy(const wire::FrameHeader& header,
                        const wire::EventDestroyRequest& request) override;
  void EventSynchronize(const wire::FrameHeader& header,
                        const wire::EventSynchronizeRequest& request) override;

  CUresult GraphHandleCreate(const wire::FrameHeader& header,
                             const wire::GraphHandleCreateRequest& request,
                             wire::GraphHandleCreateReply* reply) override;
  CUresult GraphRecord(const wire::FrameHeader& header,
                       const wire::GraphRecordRequest& request) override;
  CUresult GraphCondition(const wire::FrameHeader& header,
                          const wire::GraphConditionRequest& request) override;
  CUresult GraphInstantiate(const wire::FrameHeader& header,
                            const wire::GraphInstantiateRequest& request) override;
  CUresult GraphLaunch(const wire::FrameHeader& header,
                       const wire::GraphLaunchRequest& request) override;
  CUresult GraphExecDestroy(const wire::FrameHeader& header,
                            const wire::GraphExecDestroyRequest& request) override;
  CUresult GraphDestroy(const wire::FrameHeader& header,
                        const wire::GraphDestroyRequest& request) override;

  // --- Handlers: parts of the multiprocessors. green_contexts.cc
  CUresult DeviceResource(const wire::FrameHeader& header,
                          const wire::DeviceResourceRequest& request,
                          wire::DeviceResourceReply* reply) override;
  CUresult DeviceResourceSplit(const wire::FrameHeader& header,
                               const wire::DeviceResourceSplitRequest& request,
                               wire::DeviceResourceSplitReply* reply) override;
  CUresult GreenContextCreate(const wire::FrameHeader& header,
                              const wire::GreenContextCreateRequest& request) override;
  CUresult GreenContextDestroy(const wire::FrameHeader& header,
                               const wire::GreenContextDestroyRequest& request) override;
  // What the guest calls `source` in these. CUDA_ERROR_NOT_SUPPORTED: the driver has none.
  CUresult SourceResource(uint64_t source, CUdevResource* resource);

  // --- Handlers: arrays, textures and surfaces. textures.cc
  CUresult ArrayCreate(const wire::FrameHeader& header,
                       const wire::ArrayCreateRequest& request) override;
  CUresult ArrayDestroy(const wire::FrameHeader& header,
                        const wire::ArrayDestroyRequest& request) override;
  CUresult ArrayCopy(const wire::FrameHeader& header,
                     const wire::ArrayCopyRequest& request) override;
  CUresult TextureCreate(const wire::FrameHeader& header, const wire::TextureCreateRequest& request,
                         wire::TextureCreateReply* reply) override;
  CUresult SurfaceCreate(const wire::FrameHeader& header, const wire::SurfaceCreateRequest& request,
                         wire::SurfaceCreateReply* reply) override;
  CUresult TextureDestroy(const wire::FrameHeader& header,
                          const wire::TextureDestroyRequest& request) override;

  // --- Handlers: memory that the guest maps itself. virtual_memory.cc
  CUresult VirtualReserve(const wire::FrameHeader& header,
                          const wire::VirtualReserveRequest& request,
                          wire::VirtualReserveReply* reply) override;
  CUresult VirtualFree(const wire::FrameHeader& header,
                       const wire::VirtualFreeRequest& request) override;
  void MemoryCreate(const wire::FrameHeader& header,
                    const wire::MemoryCreateRequest& request) override;
  void MemoryReserve(const wire::FrameHeader& header,
                     const wire::MemoryReserveRequest& request) override;
  CUresult MemoryHint(const wire::FrameHeader& header,
                      const wire::MemoryHintRequest& request) override;
  CUresult MemoryRelease(const wire::FrameHeader& header,
                         const wire::MemoryReleaseRequest& request) override;
  CUresult VirtualMap(const wire::FrameHeader& header,
                      const wire::VirtualMapRequest& request) override;
  CUresult VirtualUnmap(const wire::FrameHeader& header,
                        const wire::VirtualUnmapRequest& request) override;
  CUresult VirtualSetAccess(const wire::FrameHeader& header,
                            const wire::VirtualSetAccessRequest& request) override;

  // --- Handlers: memory and events that sessions share. sharing.cc
  CUresult MemoryShare(const wire::FrameHeader& header, const wire::MemoryShareRequest& request,
                       wire::MemoryShareReply* reply) override;
  void SharedMemoryOpen(const wire::FrameHeader& header,
                        const wire::SharedMemoryOpenRequest& request) override;
  CUresult SharedMemoryClose(const wire::FrameHeader& header,
                             const wire::SharedMemoryCloseRequest& request) override;
  CUresult EventShare(const wire::FrameHeader& header, const wire::EventShareRequest& request,
                      wire::EventShareReply* reply) override;
  CUresult SharedEventOpen(const wire::FrameHeader& header,
                           const wire::SharedEventOpenRequest& request) override;
  CUresult PhysicalMemoryShare(const wire::FrameHeader& header,
                               const wire::PhysicalMemoryShareRequest& request,
                               wire::PhysicalMemoryShareReply* reply) override;
  void SharedMemoryImport(const wire::FrameHeader& header,
                          const wire::SharedMemoryImportRequest& request) override;
  // Memory that a session of another device has exported is on its way; its reply waits.
  struct SharedFetch {
    wire::FrameHeader header;
    uint64_t memory = 0;  // the name that it is imported under; 0: it is opened
    Nanos deadline = 0;
  };
  struct FetchedMemory {
    MemoryFetched message;
    UniqueFd memory;
  };
  void Fetch(SharedFetch fetch, uint64_t owner, const ExportToken& token);
  bool TurnFetches(std::vector<FetchedMemory> all);
  void EndFetch(const SharedFetch& fetch, Export found);
  enum class ShareKind : uint8_t { kAllocation, kEvent, kMemory };
  // Writes the object's token to `reply`. One that is not shared yet is, as `describe` says: its
  // tenant and session are filled in.
  template <class Reply>
  CUresult Share(ShareKind kind, uint64_t id, const std::function<CUresult(Export*)>& describe,
                 Reply* reply);
  // The object goes: nobody can open it any more. Nothing if it was not shared.
  void Unshare(ShareKind kind, uint64_t id);
  void UnshareAll();
  // Whether another session knows the event too.
  bool IsSharedEvent(uint64_t id) const;

  // --- Handlers: tensor maps. tensor_maps.cc
  CUresult TensorMapEncode(const wire::FrameHeader& header,
                           const wire::TensorMapEncodeRequest& request,
                           wire::TensorMapEncodeReply* reply) override;
  CUresult TensorMapReplaceAddress(const wire::FrameHeader& header,
                                   const wire::TensorMapReplaceAddressRequest& request,
                                   wire::TensorMapReplaceAddressReply* reply) override;

  void ReplyNow(const wire::FrameHeader& request, CUresult result);
  // Replies to `request` when `fence` is reached.
  void ReplyLater(const wire::FrameHeader& request, PendingItem::Kind kind,
                  std::shared_ptr<Fence> fence);
  // Does `kind` with `value` when all work so far has finished: now, if nothing is going on.
  CUresult AfterAllWork(PendingItem::Kind kind, uint64_t value);
  void DestroyContext(uint32_t context);
  void OnReached(PendingItem& item, CUresult result) override;

  // --- Handlers: copies. copies.cc
  CUresult CopyToDevice(const wire::FrameHeader& header,
                        const wire::CopyToDeviceRequest& request) override;
  CUresult CopyToHost(const wire::FrameHeader& header,
                      const wire::CopyToHostRequest& request) override;
  CUresult CopyRows(const wire::FrameHeader& header, const wire::CopyRowsRequest& request) override;
  // Submits as much of the copy to the host as staging takes. True: something was submitted.
  bool ContinueCopyToHost();
  CUresult SubmitPiece();
  // Whether the rows lie in memory of this session.
  bool RowsReachable(uint64_t address, uint64_t pitch, uint64_t width, uint64_t rows) const;
  bool Reachable(uint64_t address, Bytes bytes) const;
  // Bytes from the first row's beginning to the last row's end; 0: there are none, or too many.
  static Bytes RowBytes(uint64_t pitch, uint64_t width, uint64_t rows);

  // A copy to the host whose pieces are not all submitted yet.
  struct CopyToHostState {
    bool active = false;
    wire::FrameHeader header;
    Stream* stream = nullptr;
    uint64_t source = 0;
    uint64_t pitch = 0;
    uint64_t width = 0;
    uint64_t rows = 0;
    uint64_t transfer = 0;
    uint64_t offset = 0;  // of the packed bytes: submitted so far
  };

  const WorkerDevice& device_;
  const device::DriverTable& driver_;
  DeviceHealth* const health_;
  const OpenSession open_;
  UniqueFd connection_;  // until the channel takes it

  absl::Mutex channel_mutex_;  // the channel's making and Stop; the loop itself needs no lock
  std::unique_ptr<Channel> channel_;
  bool stop_ ABSL_GUARDED_BY(channel_mutex_) = false;
  std::optional<Departure> asked_departure_ ABSL_GUARDED_BY(channel_mutex_);
  bool over_ ABSL_GUARDED_BY(channel_mutex_) = false;
  std::vector<PeerNews> peer_news_ ABSL_GUARDED_BY(channel_mutex_);
  std::vector<FetchedMemory> fetched_ ABSL_GUARDED_BY(channel_mutex_);
  std::atomic<bool> any_peer_news_{false};  // relaxed: a hint that there are some, of either
  // Relaxed: a hint that one of the two is there.
  std::atomic<bool> departs_{false};
  uint64_t leaves_asked_ = 0;  // the guest, to say its last: so many times
  std::optional<Departure> departure_;
  std::span<std::byte> ring_memory_;       // that may be registered yet
  std::span<std::byte> registered_rings_;  // frames are pinned memory; empty: they are not

  ControlSocket* binds_by_ = nullptr;  // null: its device is the one that it was opened on
  Nanos bind_asked_at_ = 0;            // 0: it was not asked for, or is known
  // Relaxed: what was told is in the session's own memory.
  std::atomic<bool> bound_here_{false};
  ControlSocket* peers_by_ = nullptr;      // null: it has no peers
  ControlSocket* consortd_ = nullptr;      // null: the session ends with its worker
  std::unique_ptr<KeeperLine> line_;       // null: likewise
  std::unique_ptr<SessionRecord> record_;  // null: nothing is kept yet, or at all
  bool rings_ = false;                     // the channel has them
  bool channel_in_memory_ = false;         // those, or a conduit, which outlive the worker
  bool announced_ = false;                 // consortd has the record
  bool images_told_ = false;
  std::set<uint64_t> shared_host_told_;
  bool keeps_memory_ = false;
  std::unique_ptr<RedoLog> redo_;        // null: nothing is computed again
  RedoChannel* redo_channel_ = nullptr;  // the channel, while that is done; else null
  HostChannel set_aside_;                // the program's, meanwhile
  std::span<std::byte> rings_memory_;    // of the channel, if it has rings
  uint64_t redo_position_ = 0;           // of requests, in their ring
  bool at_work_ = false;                 // since RestRedo
  bool save_asked_ = false;
  Nanos save_after_ = 0;       // 0: it is not saved by itself
  Nanos work_began_ = 0;       // the device's, since RestRedo; 0: none
  Nanos work_since_save_ = 0;  // before that
  // The answer between BeginReply and EndReply.
  struct Answer {
    uint16_t opcode = 0;
    uint32_t call = 0;
    uint32_t result = 0;
    std::span<const std::byte> body;
    bool next = false;  // nothing goes to the ring before it
  };
  Answer answer_;
  bool rest_hopeless_ = false;    // until the next request
  bool objects_changed_ = false;  // since the state was written
  bool device_used_ = false;      // likewise
  bool variables_known_ = false;
  std::vector<Modules::Variable> variables_;

  // Destroyed in reverse: fences return their events to the pool, which goes last.
  EventPool events_;
  VmLender vm_lender_;
  std::unique_ptr<MemoryClient> memory_client_;
  std::unique_ptr<Residency> residency_;
  std::unique_ptr<memmgr::AddressWindow> window_;
  std::unique_ptr<VirtualMemory> virtual_memory_;     // in window_
  std::vector<std::unique_ptr<PeerLender>> lenders_;  // of window_
  std::map<PeerKey, Reach> reaches_;
  bool shows_host_ = false;  // other sessions of the program may have host memory of this one
  std::map<PeerKey, PeerWait> peer_waits_;
  std::optional<ExportToken> peer_token_;
  uint32_t peer_offers_ = 0;                 // that no link has come for
  Nanos peer_offered_until_ = 0;             // nor will after that
  Textures textures_;                        // over memory of the window
  std::unique_ptr<SharedHost> shared_host_;  // null where the channel cannot share memory
  Staging staging_;
  HeldWork held_;
  Journal journal_;
  ImageStore images_;  // of the libraries of modules_
  DeviceOutput output_;
  Modules modules_;
  VariableCopies copies_;  // of variables of modules_, in window_
  Links links_;
  Graphs graphs_;                               // of kernels of modules_
  std::unique_ptr<LaunchChains> chains_;        // likewise; null: launches go one by one
  std::unique_ptr<RepeatedLaunches> repeated_;  // likewise; null: without graphs of their own
  std::shared_ptr<GreenContext> partition_;     // null: its streams run anywhere on the device
  Streams streams_;
  PrintTurn print_turn_;
  WorkGate gate_;
  const Nanos poll_spin_;  // how long it looks for what comes next before it sleeps
  DeviceTime device_time_;
  absl::flat_hash_map<uint64_t, std::shared_ptr<UserEvent>> user_events_;
  absl::flat_hash_map<uint64_t, uint32_t> allocations_;       // address to context
  absl::flat_hash_map<uint64_t, uint32_t> host_allocations_;  // likewise
  std::set<uint64_t> own_host_;  // of these, those of the guest's library
  std::map<std::pair<ShareKind, uint64_t>, ExportToken> shared_;
  std::map<uint64_t, SharedFetch> fetches_;  // by MemoryWanted::number
  uint64_t last_fetch_ = 0;
  std::map<uint64_t, uint64_t> opened_;  // by the address that the guest has: where its memory is
  std::unique_ptr<Outbox> outbox_;
  PendingList pending_;
  CopyToHostState copy_to_host_;
  CUtensorMap tensor_map_ = {};       // of the reply that is made at present
  std::vector<std::byte> resources_;  // likewise

  std::deque<Frame> backlog_;
  // Launches at the backlog's front: what LaunchWaiting made of them.
  std::array<PlainLaunch, LaunchChains::kLengthMost> items_;
  std::array<const Kernel*, LaunchChains::kLengthMost> items_kernels_ = {};
  uint32_t unchained_ = 0;  // so many requests go alone before it looks again
  uint64_t chained_ = 0;    // launches, in all
  std::vector<WaitingAllocation> waiting_allocations_;
  bool memory_waiting_ = false;        // the next request's memory is not on the device
  bool cpu_phase_ = false;             // the guest has said so, and asked for nothing since
  Fate fate_ = Fate::kGoes;            // of the next request
  std::optional<HostWork> host_work_;  // of one of kAway
  // Of held_, taken out and not carried out: its memory was not on the device.
  std::optional<HeldWork::Request> held_next_;
  RequestCost in_work_ = RequestCost::kNone;  // of the request that is being submitted
  uint64_t work_bytes_ = 0;                   // that it copies between host and device
  uint64_t untracked_kernel_nanos_ = 0;       // by samples, while nobody else was active
  uint64_t timed_bytes_to_device_ = 0;        // copied while the gate measured
  uint64_t timed_bytes_to_host_ = 0;          // likewise
  int stalled_ = 0;                           // depth of TurnWhileStalled
  bool replaying_ = false;                  // the present frame was held, and is not the channel's
  bool keep_frame_ = false;                 // the handler of the present frame releases it itself
  const Frame* frame_ = nullptr;            // the present one
  uint32_t frees_pending_ = 0;              // of device memory
  uint32_t frees_held_ = 0;                 // likewise, requests among held_
  CUresult deferred_error_ = CUDA_SUCCESS;  // of a request that nobody waited for
  bool device_failure_seen_ = false;
  bool signalled_ = false;  // the guest watches for the end of what it submitted
  bool failure_announced_ = false;
  std::string end_reason_;
  Nanos started_ = 0;
  Nanos last_progress_ = 0;
  Vigil vigil_;
  SessionEnded account_;
  Bytes copied_bytes_ = 0;  // to the device
  RoundTrips round_trips_;

  // Copies of account_ and device_time_ for Usage(): written by the loop, read by the worker's main
  // thread. Relaxed: each number stands for itself.
  struct Published {
    std::atomic<uint64_t> calls = 0;
    std::atomic<uint64_t> round_trips = 0;
    std::atomic<uint64_t> bytes_to_device = 0;
    std::atomic<uint64_t> bytes_to_host = 0;
    std::atomic<uint64_t> kernel_launches = 0;
    std::atomic<uint64_t> kernel_nanos = 0;
    std::atomic<uint64_t> untracked_kernel_nanos = 0;
    std::atomic<uint64_t> timed_bytes_to_device = 0;
    std::atomic<uint64_t> timed_bytes_to_host = 0;
    std::atomic<uint64_t> rate_waited_nanos = 0;
    std::atomic<uint32_t> phase = 0;
  } published_;
  Bytes memory_held_ = 0;  // as the meter was told
  MemoryMeter memory_meter_;

  struct UnsupportedCount {
    uint64_t calls = 0;
    uint64_t taken = 0;  // of them, by TakeUnsupportedCalls
  };
  absl::Mutex unsupported_mutex_;
  std::map<std::string, UnsupportedCount> unsupported_ ABSL_GUARDED_BY(unsupported_mutex_);
};

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_SESSION_H_
