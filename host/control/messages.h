// SPDX-License-Identifier: Apache-2.0
// host/control/messages.h: what consortd and a consort-worker say to each other.
//
//   worker  -> consortd  StartFailed    no device; the worker exits
//                        Ready          the device is open, sessions may come
//                        SessionEnded   with its account; its window may be used again
//                        UsageReport    what sessions have used so far; every kUsageReportEvery
//                                       while some are open, and only those that did something
//                        MemoryReport   of the device's memory, with UsageReport
//                        Calibrated     how fast the device is
//                        TraceEnded     by itself, or all that SetTrace ends is in its file
//                        UnsupportedCalls   a function that the guest library lacks was called
//                        Retired        no new sessions here: the device context is unusable, or
//                                       work on it never ends; start another worker for them. This
//                                       one stays until its last session leaves
//                        MoveEnded      of MoveOut: the session has gone over, or stays and why
//                        Keep           with a descriptor that is to outlive the worker
//                        LetGo          of one that was kept
//                        WentOn         of a session of a worker that has died: it serves again
//                        SaveWanted     a session's work since its checkpoint has taken long
//                        PeerWanted     a session is to reach device memory of another one
//                        PeerGone       it does not need to any more
//                        MemoryWanted   a session opens memory that one of another device exported
//                        MemoryFetched  of MemoryFetch, with its descriptor
//                        VmMemoryWanted a session is to have more of its machine's memory
//                        VmMemoryBack   it does not need a part of that any more
//                        BindWanted     a session is about to use its device for the first time,
//                                       and may go to another one before that
//   consortd -> worker   GiveVmMemory   of a session that is about to be opened, with the file
//                        VmMemoryLent   of VmMemoryWanted
//                        OpenSession    with the connection's descriptor; or, of a session that
//                                       another worker hands over, with the link to that one; or,
//                                       of one whose worker has died, with a link on which Keep
//                                       brings what was kept, and then KeptEnd
//                        MoveOut        a session is to go to another worker, with the link to it;
//                                       of BindWanted, too
//                        Bound          of BindWanted: it stays where it is
//                        PeerLink       of PeerWanted, to both sessions, with the link of the two
//                        PeerRefused    of PeerWanted
//                        MemoryFetch    of MemoryWanted, to the worker that has it
//                        MemoryFetched  as that worker said it
//                        SetScheduler   another policy from now on
//                        SetWeight      of a tenant, from now on
//                        SetRates       likewise
//                        SetTrace       the scheduler's trace, from now on
//                        Calibrate      measure how fast the device is, before any session
//                        Shutdown       end all sessions and exit
//
// One message is one packet on a SOCK_SEQPACKET pair: MessageKind as uint64, then the struct as it
// is. Internal: both sides are of the same build, or of equal fingerprint.h. Plain values.
#ifndef CONSORT_HOST_CONTROL_MESSAGES_H_
#define CONSORT_HOST_CONTROL_MESSAGES_H_

#include <cstdint>

#include "device/driver/board_links.h"
#include "host/limits.h"
#include "vmsock/wire/frame.h"
#include "vmsock/wire/handshake.h"

namespace consort::host {

using wire::PeerUse;

enum class MessageKind : uint64_t {
  kStartFailed = 1,
  kReady = 2,
  kSessionEnded = 3,
  kRetired = 4,
  kUsageReport = 5,
  kUnsupportedCalls = 6,
  kMemoryReport = 7,
  kCalibrated = 8,
  kMoveEnded = 9,
  kTraceEnded = 10,
  kKeep = 11,
  kLetGo = 12,
  kWentOn = 13,
  kPeerWanted = 14,
  kPeerGone = 15,
  kOpenSession = 16,
  kShutdown = 17,
  kSetScheduler = 18,
  kSetWeight = 19,
  kCalibrate = 20,
  kSetRates = 21,
  kMoveOut = 22,
  kSetTrace = 23,
  kPeerLink = 24,
  kPeerRefused = 25,
  kMemoryWanted = 26,
  kMemoryFetch = 27,
  kMemoryFetched = 28,
  kGiveVmMemory = 29,
  kVmMemoryWanted = 30,
  kVmMemoryBack = 31,
  // Between two workers: host/session/move_link.h.
  kMoveReady = 32,
  kMoveState = 33,
  kMoveDescriptor = 34,
  kMovePiece = 35,
  kMovePieceTaken = 36,
  kMoveContentsEnd = 37,
  kMoveRestored = 38,
  kMoveCommit = 39,
  kMoveFailed = 40,
  kMovePrepare = 41,
  kMoveMemory = 42,
  kMoveMemoryEnd = 43,
  kMovePrepared = 44,
  kMoveDirect = 45,
  kMoveStays = 46,
  // From consortd to a session that goes on in another worker.
  kKeptEnd = 48,
  kSaveWanted = 49,
  kBindWanted = 50,
  kBound = 51,
  // Between two workers: host/session/peer_link.h.
  kPeerMemory = 64,
  kPeerMemoryGone = 65,
  kPeerMemoryTold = 66,
  kPeerTaken = 67,
  // From consortd.
  kVmMemoryLent = 80,
};

// Text fields are NUL-terminated within their array.
struct StartFailed {
  static constexpr MessageKind kKind = MessageKind::kStartFailed;
  char text[512] = {};
};

struct Ready {
  static constexpr MessageKind kKind = MessageKind::kReady;
  wire::DeviceSnapshot snapshot;
  uint32_t driver_version = 0;  // as cuDriverGetVersion reports it
  uint32_t device_count = 0;    // of the driver, for the worker of device 0 to tell
  char driver[64] = {};         // the library's name, for people
  char release[64] = {};        // the driver's, as its library is named; empty: it does not say
  // Bit N: sessions here can reach memory of device N; and atomics on that are atomic.
  uint64_t reaches = 0;
  uint64_t reaches_atomically = 0;
  // Of its board.
  device::PciSlot slot;
  device::BoardLinks links;
};

// Which part of a device's multiprocessors is a tenant's, of kPartitionWhole
// (host/session/partition.h). Empty: there is no such part, and its work goes anywhere.
struct PartitionRange {
  uint32_t begin = 0;
  uint32_t end = 0;

  bool empty() const { return begin == end; }
};
inline constexpr uint32_t kPartitionWhole = 10000;

// How fast a tenant may work on each device. 0: no bound.
struct TenantRates {
  uint64_t launches_per_second = 0;    // kernels and fills
  uint64_t copy_bytes_per_second = 0;  // between host and device, both ways together

  friend bool operator==(const TenantRates&, const TenantRates&) = default;
};

// The front door of virtual machines whose vsock device is consortd's.
inline constexpr char kVhostUserDoor[] = "vhost-user";

struct OpenSession {
  static constexpr MessageKind kKind = MessageKind::kOpenSession;
  uint64_t session = 0;
  char tenant[64] = {};      // who is at the other end: "local", a VM's name, "cid-3"
  char channel[32] = {};     // the front door: "unix", "vhost-user", "vsock"
  uint32_t weight = 1;       // of the tenant, for the scheduler
  uint32_t priority = 0;     // of the tenant, for memory
  uint64_t memory_soft = 0;  // quotas of the tenant on this device; 0: none
  uint64_t memory_hard = 0;
  uint64_t memory_wait_ms = 0;   // for memory; 0: refused at once
  uint32_t stream_priority = 1;  // of the tenant: a PriorityLevel (host/session/stream_priority.h)
  PartitionRange partition;
  TenantRates rates;  // of the tenant
  wire::Hello hello;
  uint64_t window_base = 0;
  uint64_t window_bytes = 0;       // shared-host part included
  uint64_t shared_host_bytes = 0;  // at the window's end; 0: the transport cannot share memory
  // Goes on: its worker has died and its memory is there; redone: that is gone, too, and it comes
  // from its checkpoint.
  enum Origin : uint64_t { kNew, kMoves, kGoesOn, kRedone };
  uint64_t origin = kNew;
  wire::ResumeToken resume_token;  // empty: it stays on its connection
  // Where its rings lie in the memory that its virtual machine shares with the host (GiveVmMemory);
  // 0: not there.
  uint64_t vm_rings_offset = 0;
  uint64_t deferred = 0;  // 1: it asks for its device by BindWanted; until then this is a guess
};

// The memory that the session's virtual machine shares with the host: as a file.
struct GiveVmMemory {
  static constexpr MessageKind kKind = MessageKind::kGiveVmMemory;
  uint64_t session = 0;
};

struct VmMemoryWanted {
  static constexpr MessageKind kKind = MessageKind::kVmMemoryWanted;
  uint64_t session = 0;
  uint64_t number = 0;  // chosen by the session
  uint64_t bytes = 0;
};

struct VmMemoryLent {
  static constexpr MessageKind kKind = MessageKind::kVmMemoryLent;
  uint64_t session = 0;
  uint64_t number = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;  // 0: there is none
};

struct VmMemoryBack {
  static constexpr MessageKind kKind = MessageKind::kVmMemoryBack;
  uint64_t session = 0;
  uint64_t offset = 0;
};

// What a descriptor is to its session. Of memory there is one for each key, of the rest one.
enum class KeptRole : uint64_t {
  kRecord,      // host/session/session_record.h
  kSocket,      // of the channel
  kRings,       // its memory
  kImages,      // host/session/image_store.h
  kSharedHost,  // by SharedHost::Share::number
  kMemory,      // of the device, by address
  kRedo,        // host/session/redo_log.h
};

struct Keep {
  static constexpr MessageKind kKind = MessageKind::kKeep;
  uint64_t session = 0;
  KeptRole role = KeptRole::kRecord;
  uint64_t key = 0;
};

struct LetGo {
  static constexpr MessageKind kKind = MessageKind::kLetGo;
  uint64_t session = 0;
  KeptRole role = KeptRole::kRecord;
  uint64_t key = 0;
};

struct KeptEnd {
  static constexpr MessageKind kKind = MessageKind::kKeptEnd;
  uint64_t reserved = 0;
};

struct SaveWanted {
  static constexpr MessageKind kKind = MessageKind::kSaveWanted;
  uint64_t session = 0;
};

struct WentOn {
  static constexpr MessageKind kKind = MessageKind::kWentOn;
  uint64_t session = 0;
};

// `session` is to have what `use` says of `peer`, whose token its program has shown.
struct PeerWanted {
  static constexpr MessageKind kKind = MessageKind::kPeerWanted;
  uint64_t session = 0;
  uint64_t peer = 0;
  uint64_t token_high = 0;
  uint64_t token_low = 0;
  PeerUse use = PeerUse::kCopies;
};

struct PeerGone {
  static constexpr MessageKind kKind = MessageKind::kPeerGone;
  uint64_t session = 0;
  uint64_t peer = 0;
  PeerUse use = PeerUse::kCopies;
};

// With one end of the link that was wanted (host/session/peer_link.h).
struct PeerLink {
  static constexpr MessageKind kKind = MessageKind::kPeerLink;
  uint64_t session = 0;  // to which this is told: wanted.session or wanted.peer
  PeerWanted wanted;
  uint64_t window_base = 0;  // of device memory of the peer
  uint64_t window_bytes = 0;
  uint64_t shared_host_bytes = 0;  // of host memory, from its end on
};

struct PeerRefused {
  static constexpr MessageKind kKind = MessageKind::kPeerRefused;
  uint64_t session = 0;
  uint64_t peer = 0;
  PeerUse use = PeerUse::kCopies;
  char text[128] = {};
};

// What `owner` has exported (host/session/exports.h) by this token.
struct MemoryWanted {
  static constexpr MessageKind kKind = MessageKind::kMemoryWanted;
  uint64_t session = 0;
  uint64_t number = 0;  // chosen by the session
  uint64_t owner = 0;
  uint64_t token_high = 0;
  uint64_t token_low = 0;
};

struct MemoryFetch {
  static constexpr MessageKind kKind = MessageKind::kMemoryFetch;
  MemoryWanted wanted;
  char tenant[64] = {};  // of the session that wants it
};

struct MemoryFetched {
  static constexpr MessageKind kKind = MessageKind::kMemoryFetched;
  uint64_t session = 0;
  uint64_t number = 0;
  uint64_t bytes = 0;  // of the memory; 0: there is none, or not for this session
  uint64_t offset = 0;
  uint64_t allocation_bytes = 0;
};

struct MoveOut {
  static constexpr MessageKind kKind = MessageKind::kMoveOut;
  uint64_t session = 0;
  uint64_t leaves = 0;  // 1: its connection too, so that another host can go on with it
  uint64_t stays = 0;   // 1: it is saved, and goes on where it is
};

// What a session that goes over was stopped for.
struct MoveTimes {
  uint64_t quiet_nanos = 0;     // until nothing went on
  uint64_t state_nanos = 0;     // telling its state
  uint64_t memory_nanos = 0;    // there: the memory that was not prepared
  uint64_t objects_nanos = 0;   // its objects
  uint64_t contents_nanos = 0;  // the rest of the contents, which come meanwhile
};

struct MoveEnded {
  static constexpr MessageKind kKind = MessageKind::kMoveEnded;
  uint64_t session = 0;
  uint64_t moved = 0;          // 1: the other worker has it; 0: it goes on here
  uint64_t stopped_nanos = 0;  // for so long it took no work
  uint64_t bytes = 0;          // of device memory that were copied
  uint64_t direct_bytes = 0;   // of them, those that did not go through host memory
  MoveTimes times;             // of stopped_nanos
  char text[256] = {};         // not moved: why, for people
};

// What a session used. Times: `started` in seconds since 1970, the others in nanoseconds.
struct SessionEnded {
  static constexpr MessageKind kKind = MessageKind::kSessionEnded;
  uint64_t session = 0;
  uint64_t started_unix_seconds = 0;
  uint64_t lasted_nanos = 0;
  uint64_t calls = 0;        // frames received
  uint64_t round_trips = 0;  // of them, those that wanted a reply
  uint64_t bytes_to_device = 0;
  uint64_t bytes_to_host = 0;
  uint64_t kernel_launches = 0;
  uint64_t kernel_nanos = 0;  // see host/session/device_time.h for what is counted
  // Device time that the scheduler measured, time shared with others split; while nobody else was
  // active it is that of the kernels, as in kernel_nanos.
  uint64_t device_nanos = 0;
  uint64_t queued_nanos = 0;         // in which device work waited for the scheduler
  uint64_t memory_peak_bytes = 0;    // of device memory that it held at one time
  uint64_t memory_byte_seconds = 0;  // device memory, times how long it was held
  uint32_t weight = 0;
  uint32_t stuck = 0;     // 1: until its worker ends the device may use what it had
  uint64_t lost = 0;      // 1: its worker is of no use any more, and another one can go on with it
  char channel[32] = {};  // as the session's channel names itself
  char reason[128] = {};  // why it ended, for people
};

// What a session has used since it began; but for memory, numbers never go back. And how it stands.
struct SessionUsage {
  uint64_t session = 0;
  uint64_t calls = 0;
  uint64_t round_trips = 0;
  uint64_t bytes_to_device = 0;
  uint64_t bytes_to_host = 0;
  uint64_t kernel_launches = 0;
  uint64_t kernel_nanos = 0;
  uint64_t memory_bytes = 0;           // of the device that it has now: this one does go back
  uint64_t device_nanos = 0;           // as in SessionEnded
  uint64_t to_device_nanos = 0;        // of them, of copies; none while nobody else was active
  uint64_t to_host_nanos = 0;          // likewise
  uint64_t timed_bytes_to_device = 0;  // that were copied in to_device_nanos
  uint64_t timed_bytes_to_host = 0;    // likewise
  uint64_t queued_nanos = 0;
  uint64_t rate_waited_nanos = 0;            // in which work waited for its tenant's rates
  uint64_t memory_byte_seconds = 0;          // as in SessionEnded
  uint64_t batches = 0;                      // that asked for a turn
  uint64_t delays[kQueueDelayBuckets] = {};  // batches, by kQueueDelayBounds

  // How it stands.
  uint32_t phase = 0;      // of its work of late: schedule::Phase
  uint32_t waiting = 0;    // batches that wait for a turn: 0 or 1
  uint32_t in_flight = 0;  // batches on the device
  uint32_t reserved = 0;

  friend bool operator==(const SessionUsage&, const SessionUsage&) = default;
};

struct BindWanted {
  static constexpr MessageKind kKind = MessageKind::kBindWanted;
  SessionUsage usage;    // so far: its memory is what it was promised
  char stays[128] = {};  // why it stays whatever is best, and waits for no answer; empty: it may go
};

struct Bound {
  static constexpr MessageKind kKind = MessageKind::kBound;
  uint64_t session = 0;
};

// Entries of one UsageReport: what fits a packet (control_socket.h). More sessions, more packets.
inline constexpr uint32_t kUsageEntriesMax = 16;

struct UsageReport {
  static constexpr MessageKind kKind = MessageKind::kUsageReport;
  uint64_t last = 0;   // 1: all sessions that have changed since the last time have been told
  uint64_t count = 0;  // of the entries that mean something; at most kUsageEntriesMax
  SessionUsage entries[kUsageEntriesMax];
};

// The memory of the worker's device, as it is now; totals since the worker began. host/memory has
// what each means.
struct MemoryReport {
  static constexpr MessageKind kKind = MessageKind::kMemoryReport;
  uint64_t limit = 0;
  uint64_t promised = 0;
  uint64_t on_device = 0;
  uint64_t swapped_pinned = 0;
  uint64_t swapped_pageable = 0;
  uint64_t swapped_file = 0;
  uint64_t swap_capacity = 0;
  uint64_t waiting = 0;
  uint64_t out_bytes = 0;
  uint64_t in_bytes = 0;
  uint64_t clean_bytes = 0;
  uint64_t out_nanos = 0;
  uint64_t in_nanos = 0;
  uint64_t refused = 0;

  friend bool operator==(const MemoryReport&, const MemoryReport&) = default;
};

// The guest's word, told when the number is a power of two.
struct UnsupportedCalls {
  static constexpr MessageKind kKind = MessageKind::kUnsupportedCalls;
  uint64_t session = 0;
  uint64_t calls = 0;  // of this function, more than were told before
  char name[96] = {};
};

struct Retired {
  static constexpr MessageKind kKind = MessageKind::kRetired;
  char reason[128] = {};
};

struct SetScheduler {
  static constexpr MessageKind kKind = MessageKind::kSetScheduler;
  char name[32] = {};
};

struct SetWeight {
  static constexpr MessageKind kKind = MessageKind::kSetWeight;
  char tenant[64] = {};
  uint64_t weight = 1;
};

struct SetRates {
  static constexpr MessageKind kKind = MessageKind::kSetRates;
  char tenant[64] = {};
  TenantRates rates;
};

// Where the scheduler's trace goes, which begins anew; an empty path: it ends. The policy begins
// anew with it, since a trace is of all that it knows.
struct SetTrace {
  static constexpr MessageKind kKind = MessageKind::kSetTrace;
  char policy[32] = {};
  char path[512] = {};
  uint64_t bytes_max = 0;  // of the file; 0: no bound
};

// Nothing more comes into that file.
struct TraceEnded {
  static constexpr MessageKind kKind = MessageKind::kTraceEnded;
  char path[512] = {};
  char reason[128] = {};  // empty: SetTrace said so
};

struct Calibrate {
  static constexpr MessageKind kKind = MessageKind::kCalibrate;
  uint64_t reserved = 0;
};

// All 0: it could not be measured.
struct Calibrated {
  static constexpr MessageKind kKind = MessageKind::kCalibrated;
  double to_device = 0;  // bytes a second, from pinned host memory
  double to_host = 0;
  double memory = 0;      // bytes a second that kernels read and write
  double arithmetic = 0;  // operations on 32-bit floating point numbers a second
};

struct Shutdown {
  static constexpr MessageKind kKind = MessageKind::kShutdown;
  uint64_t reserved = 0;
};

}  // namespace consort::host

#endif  // CONSORT_HOST_CONTROL_MESSAGES_H_
