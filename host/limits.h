// SPDX-License-Identifier: Apache-2.0
// host/limits.h: every bound of the host side, with its reason. Reaching one is normal and tested.
// Constants only.
#ifndef CONSORT_HOST_LIMITS_H_
#define CONSORT_HOST_LIMITS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/units.h"
#include "vmsock/wire/frame.h"

namespace consort::host {

// Address windows. A session's device addresses lie in a window that no other session of the pool
// has, at the same addresses in the guest process and in the worker, so that no pointer is ever
// translated.
//
// The base is far above what malloc, mmap and the driver's own reservations use in a process
// without address-space limits, below 2^47, and was honoured by every driver tried (580,
// CUDA 13.0).
//
// A window is one slot or several, the last kWindowSharedHostBytes of it for host memory that both
// sides map. One slot holds the memory of any present GPU. Programs reserve more addresses than a
// device has memory: PyTorch's expandable segments take 9/8 of it each, and there is one for large
// and one for small blocks of every stream. kWindowMemoryMultiple times a device's memory is room
// for six of them.
#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer keeps most of the address space for its shadow; programs have the lowest 1 TiB.
inline constexpr uint64_t kWindowBase = 0x1000000000;
inline constexpr Bytes kWindowSlotBytes = 4 * kGiB;
inline constexpr Bytes kWindowSharedHostBytes = 1 * kGiB;
inline constexpr uint32_t kWindowSlots = 64;
#else
inline constexpr uint64_t kWindowBase = 0x200000000000;
inline constexpr Bytes kWindowSlotBytes = 256 * kGiB;
inline constexpr Bytes kWindowSharedHostBytes = 64 * kGiB;
inline constexpr uint32_t kWindowSlots = 208;
// Linux puts position-independent programs from two thirds of the address space on.
// Source: Linux, arch/x86/include/asm/elf.h, ELF_ET_DYN_BASE.
static_assert(kWindowBase + kWindowSlots * kWindowSlotBytes <= 0x555555554000);
#endif
inline constexpr uint64_t kWindowMemoryMultiple = 7;

// What a virtual machine may share with its host: a base address register of PCI has such sizes,
// the smallest is a session's rings and as much for pinned memory, and the largest is what one
// session can map (kWindowSharedHostBytes).
inline constexpr Bytes kVmMemoryBytesMin = 16 * kMiB;
inline constexpr Bytes kVmMemoryBytesMax = 64 * kGiB;
inline constexpr char kVmMemorySizes[] = "a power of two from 16MiB to 64GiB";
constexpr bool IsVmMemorySize(Bytes bytes) {
  return bytes >= kVmMemoryBytesMin && bytes <= kVmMemoryBytesMax && (bytes & (bytes - 1)) == 0;
}
// A session's own thread waits so long for consortd to lend it a part, which takes some 50 us.
inline constexpr Nanos kVmMemoryAnswerMax = 2 * kSecond;

// Sessions of one worker: one thread, one window and some MiB of pinned memory each.
inline constexpr uint32_t kSessionsPerWorker = 64;

// Devices of one node: as many as the guest library takes. One board has eight, and a chassis of
// several boards some more.
inline constexpr uint32_t kDevicesMax = 64;

// VMs of one node, each with a socket and a few threads.
inline constexpr uint32_t kVmsMax = 64;

// Connections that have not said Hello yet. More wait in the kernel's listen queue.
inline constexpr uint32_t kGreetingsMax = 256;

// A client that says nothing for so long is let go. An honest one sends its Hello at once.
inline constexpr Nanos kGreetingTimeout = 10 * kSecond;

// How long a connection waits for a worker that is starting. CUDA's start takes 0.3 s on an idle
// host.
inline constexpr Nanos kWorkerStartTimeout = 60 * kSecond;

// Back-off between starts of a worker that dies before it is ready: doubles from the first to the
// last.
inline constexpr Nanos kWorkerRestartFirst = 5 * kMillisecond;
inline constexpr Nanos kWorkerRestartLast = 30 * kSecond;

// From a worker's readiness to the start of the one that stands by for it (--standby-workers),
// which would keep programs that have just lost their worker from going on; and until the next
// attempt where that one does not start, or ends.
inline constexpr Nanos kStandbyAfter = 500 * kMillisecond;
inline constexpr Nanos kStandbyAgainAfter = 5 * kSecond;

// A worker that has closed its control socket exits within this time or is killed. Releasing a
// device that no work is on takes some 50 ms.
inline constexpr Nanos kWorkerExitTimeout = 2 * kSecond;

// How often a worker tells what its open sessions have used. Metrics are read every few seconds; a
// report is one packet.
inline constexpr Nanos kUsageReportEvery = 500 * kMillisecond;

// Names that metrics and the account of usage keep apart; what comes beyond is "other". Application
// names are the guest's choice, and a series costs the operator's Prometheus memory.
inline constexpr uint32_t kUsageTenantsMax = 256;
inline constexpr uint32_t kUsageApplicationsPerTenant = 32;

// Names of functions that the guest library lacks, as counted a session and a host. The driver
// exports 707 names.
inline constexpr uint32_t kUnsupportedNamesMax = 1024;

// Connections to one of consortd's HTTP doors (metrics, administration). A Prometheus keeps one.
inline constexpr uint32_t kHttpConnectionsMax = 32;
// Of a request's body; what is asked for is a few words.
inline constexpr size_t kHttpBodyBytesMax = 64 * 1024;
// One that says nothing for so long is closed.
inline constexpr Nanos kHttpTimeout = 30 * kSecond;

// Devices that one program sees, on all nodes: as many as the guest library takes.
inline constexpr uint32_t kVgpusMax = 64;
// Applications of this host whose devices on the pool are remembered, open ones included: some
// kilobytes each.
inline constexpr uint32_t kAssembliesMax = 4096;
// An application without a session holds its places on the pool for so long: a program asks which
// devices there are and takes one soon, or never.
inline constexpr Nanos kAssemblyIdle = 30 * kSecond;
// Sessions of this host's applications on other nodes: a thread each.
inline constexpr uint32_t kRemoteSessionsMax = 1024;

// History for plots: ten minutes by the second, a day by the minute. A sample of eight devices and
// as many tenants takes half a KiB.
inline constexpr Nanos kHistoryStep = 1 * kSecond;
// How often consortd looks for applications that should go to a device that is idle: as often as
// what it knows of them is new. Who was asked in vain is asked again after twice the time, so
// often.
inline constexpr Nanos kBalanceEvery = 1 * kSecond;
inline constexpr uint32_t kBalanceDoublings = 6;
inline constexpr uint32_t kHistoryFine = 600;
inline constexpr uint32_t kHistoryCoarseSteps = 60;
inline constexpr uint32_t kHistoryCoarse = 1440;

// Events that the page shows, and for how long the same one is counted and not shown again. The log
// has all of them.
inline constexpr uint32_t kEventsMax = 200;
inline constexpr Nanos kEventRepeat = 60 * kSecond;

// Sessions that the page lists, the busiest first: more than a person reads.
inline constexpr uint32_t kPageSessionsMax = 200;

// A session that is open writes a line of the account so often: as much is lost when consortd is
// killed. A thousand sessions write 50 MB a day.
inline constexpr Nanos kAccountEvery = 600 * kSecond;

// What consortd hands over to its next binary: some hundred bytes a session and event, names, and
// what VMs have sent and nobody has read yet, which four at their bound fill.
inline constexpr Bytes kDaemonStateBytesMax = kGiB;
// That binary has so long to say that it can go on.
inline constexpr Nanos kRehearsalMax = 30 * kSecond;
// Doors are closed so long at most, until those who wait for a worker have gone on; one look each.
inline constexpr Nanos kWaitingEndMax = 2 * kSecond;
inline constexpr Nanos kWaitingLook = 5 * kMillisecond;

// What sessions and workers get to end by themselves when consortd stops; then they are killed.
inline constexpr Nanos kShutdownTimeout = 10 * kSecond;

// A session that ends waits so long for its kernels. Longer means that a kernel may never end, and
// nothing but the end of its process stops one: the worker is then retired, so that new sessions
// get another, and ends with the last session that it has.
inline constexpr Nanos kDrainTimeout = 10 * kSecond;

// Handles of one kind in one session. PyTorch with Triton holds some ten thousand kernels.
inline constexpr uint32_t kHandlesPerKind = 1 << 20;

// Contexts of one session that are in use at once; each has a default stream. Programs have one or
// two.
inline constexpr uint32_t kContextsPerSession = 256;

// Green contexts of one session. An H200 can be cut into sixteen disjoint parts; each has hardware
// queues of its own, of which other sessions want some.
inline constexpr uint32_t kGreenContextsPerSession = 64;

// A device image (cubin, PTX or fat binary) in pieces: cuBLASLt's largest is 0.6 GiB.
inline constexpr Bytes kImageBytesMax = 2 * kGiB;
// All images that a session has sent and not yet released.
inline constexpr Bytes kImageBytesPerSession = 4 * kGiB;

// Images of loaded libraries, kept on the host so that the session can move. PyTorch with cuBLAS
// and cuDNN loads some 2 GiB.
inline constexpr Bytes kKeptImageBytesPerSession = 8 * kGiB;

// What kernels of one session have printed and its program was not told: sixteen times the buffer
// that CUDA has for a context by default (cudaLimitPrintfFifoSize).
inline constexpr Bytes kDeviceOutputBytesMax = 16 * kMiB;

// Moving a session to another device (host/session/move_out.cc). Contents go through so many pieces
// of pinned memory that both workers have: enough that both buses stay busy.
inline constexpr uint32_t kMoveSlots = 8;
inline constexpr Bytes kMoveSlotBytes = 16 * kMiB;
// Before it stops, a session passes so many pieces of its memory between two of its requests.
inline constexpr size_t kMoveOffersPerTurn = 16;
// What a session's objects are told by, variables' contents included.
inline constexpr Bytes kMoveStateBytesMax = 4 * kGiB;
// Once all is prepared a session may stop by itself for so long: then nothing of it is in flight.
inline constexpr Nanos kMovePatience = 500 * kMillisecond;
// A session that asks which device it is to have stays on the one that it is on after so long
// without an answer: consortd's loop is stuck then. A choice looks at each device and session once.
inline constexpr Nanos kBindAnswerMax = 5 * kSecond;
// For so long after an application was bound its memory is what it was then, if reports say less:
// they are older.
inline constexpr Nanos kBoundFor = 2 * kUsageReportEvery;
// A session that is to move takes no new work for at most so long, until what it has is done; and a
// worker that says nothing for so long has failed.
inline constexpr Nanos kMoveStopMax = 10 * kSecond;
inline constexpr Nanos kMoveSilenceMax = 30 * kSecond;
// How long a program that is to leave its connection may take to answer, and to take what it was
// told last. A guest library looks several times a second, whatever its program does.
inline constexpr Nanos kLeavePatience = 10 * kSecond;
// How long a session that was taken from a folder waits for its program. Its machine has to be
// loaded and its device plugged in meanwhile.
inline constexpr Nanos kAwaitedMax = 600 * kSecond;
// Checkpoints (host/checkpoint): what is read, checked and unpacked at once, and of the list of
// these parts as much as 1 TiB of device memory needs in the smallest extents.
inline constexpr Bytes kCheckpointChunkBytesMax = kMoveSlotBytes;
inline constexpr Bytes kCheckpointManifestBytesMax = 64 * kMiB;
// At once, each with a thread of consortd's.
inline constexpr size_t kCheckpointsAtOnce = 4;
// Written to disk at a time, so that the last of it does not keep a stopped application waiting.
inline constexpr Bytes kCheckpointSyncBytes = 64 * kMiB;
// Moves that consortd remembers for who asks how they went.
inline constexpr size_t kMovesRemembered = 64;

// Contents of a session's module variables that are written into its record each time its work has
// ended: some 100 us of copying.
inline constexpr Bytes kKeptVariableBytesMax = 1 * kMiB;
// Descriptors that consortd keeps of one session, and of all: one a piece of memory that a program
// has allocated by itself, where the host allows so many (LimitNOFILE).
inline constexpr uint32_t kKeptDescriptorsPerSession = 16384;
// Workers that may die while they make one session go on before it is given up.
inline constexpr uint32_t kGoOnAttempts = 3;

// Checkpoints that sessions get by themselves (host/daemon/daemon_saves.cc). Requests of a session
// that are kept to be carried out again: of 100 000 launches, more than a program makes between two
// checkpoints whose kernels are long. Answers that are made again and not given yet: less than a
// reply ring has.
inline constexpr Bytes kRedoBytesMax = 16 * kMiB;
inline constexpr Bytes kRedoAnswerBytesMax = 1 * kMiB;
inline constexpr uint32_t kSaveAfterSecondsMax = 86400;
// The part of the time in which a node writes them: one of so many.
inline constexpr int64_t kSavesShare = 10;
// A session whose turn it is and that cannot be saved now is looked at again.
inline constexpr Nanos kSaveAgain = 1 * kSecond;

// Memory of other devices (host/session/peer_link.h). How long a session waits for the link after
// it was asked for its token, one for its own request, and one that lends for an answer: less than
// its program's other threads would mind.
inline constexpr Nanos kPeerOfferMax = 10 * kSecond;
inline constexpr Nanos kPeerOpenMax = 30 * kSecond;
inline constexpr Nanos kPeerAnswerMax = 20 * kSecond;
// Peers of one session, for kernels and for copies.
inline constexpr size_t kPeersPerSession = 2 * kDevicesMax;

// Images of code that stays loaded when the last session that had it has ended, together. Chosen,
// not measured.
inline constexpr Bytes kSharedCodeKeptBytes = 64 * kMiB;
// Images that have begun to arrive and are not loaded yet.
inline constexpr uint32_t kImagesPerSession = 64;
// Links under way (cuLinkCreate); a program has one a thread that compiles.
inline constexpr uint32_t kLinksPerSession = 256;
// Compiler logs that fit one reply beside each other.
inline constexpr uint32_t kJitLogBytesMax = 128 * 1024;
// Of a kernel's or variable's name; mangled names of templates reach some KiB.
inline constexpr uint32_t kNameBytesMax = 64 * 1024;

// Host memory that one session and its guest share; pinned, so missed by everybody else on the
// host.
inline constexpr Bytes kSharedHostBytesPerSession = 16 * kGiB;

// Of shared host memory whose place the guest wants aligned: what device memory comes in.
inline constexpr Bytes kSharedHostAlignMax = 2 * kMiB;

// Pinned host memory through which copies of one session go: enough pieces that the bus stays busy
// while one is being filled and one drained.
inline constexpr uint32_t kStagingPieces = 16;
inline constexpr Bytes kStagingPieceBytes = wire::kBulkBytesMax;
// Small copies take small pieces, so that many of them can be in flight.
inline constexpr uint32_t kStagingSmallPieces = 512;
inline constexpr Bytes kStagingSmallPieceBytes = 4 * kKiB;

// Requests that wait for host functions of one session, and their bytes. A program that runs ahead
// of its host functions by a million launches is at the guest library's own bound too.
inline constexpr uint32_t kHeldRequestsPerSession = 1 << 20;
inline constexpr Bytes kHeldBytesPerSession = 1 * kGiB;

// Replies that wait for the device in one session. A guest has at most one a thread.
inline constexpr uint32_t kPendingPerSession = 4096;

// Graphs for chains of launches in one session (host/session/launch_chain.h): with the longest ones
// 2048 launches in flight, or fewer and several sequences of kernels. Beyond that launches go one
// by one, which costs no time while the device is that far behind.
inline constexpr size_t kChainsPerSession = 32;
// Launches of one session that have a graph of their own (host/session/repeated_launches.h), each
// of which takes some 100 KiB of device memory (driver 580); and those whose repetitions are
// counted.
inline constexpr size_t kRepeatedGraphsPerSession = 128;
inline constexpr size_t kRepeatedKnownPerSession = 1024;
// Launches with more arguments go without a graph.
inline constexpr size_t kNodeArgumentBytesMax = 512;

// Requests that are handled before completions are looked at again.
inline constexpr uint32_t kRequestsPerTurn = 64;

// While the device is busy: spin so long for a completion, then sleep a part of the time that it
// has taken already, which is what a sleep may add to it, between the least and the most. 20 us is
// two launch-and-synchronise times on an H200.
inline constexpr Nanos kPollSpin = 50 * kMicrosecond;
inline constexpr Nanos kPollSleepPart = 100;
// The same for tenants of high priority, and for their next request: someone who acts some fifty
// times a second finds the session awake.
inline constexpr Nanos kPollSpinUrgent = 20 * kMillisecond;
inline constexpr Nanos kPollSleepLeast = 20 * kMicrosecond;
inline constexpr Nanos kPollSleepMost = 500 * kMicrosecond;
// A session stays awake so long for a word that the device writes to its guest, as long as guests
// spin for it, in looks of so long; one of a process at a time for each of so many processors.
inline constexpr Nanos kVigilMost = 10 * kMillisecond;
inline constexpr Nanos kVigilLook = 20 * kMicrosecond;
inline constexpr uint32_t kProcessorsPerVigil = 16;
// How late the kernel may end such a sleep, to end several together.
inline constexpr Nanos kTimerSlack = 1 * kMicrosecond;

// A tenant's weight. Beyond, the smallest share is less than any batch.
inline constexpr uint32_t kTenantWeightMax = 10000;

// Tenants of which a weight, say, was set at run time, over those of the file. A state file of some
// ten KiB.
inline constexpr uint32_t kSetTenantsMax = 256;

// Scheduling (host/scheduler, host/session/work_gate). A batch is what is submitted in one turn:
// closed when it has so many requests or so much time by estimate, so that an event and a turn are
// small beside it, and no tenant gets far before it is measured.
inline constexpr uint32_t kBatchRequestsMax = 64;
inline constexpr Nanos kBatchTime = 1 * kMillisecond;
// Where batches take longer than this beside others' work they get smaller, down to one request:
// only at its end is it known what one has to pay.
inline constexpr Nanos kBatchTookMax = 4 * kMillisecond;
// Parts of a batch beyond which a stream's kernels and copies are not measured apart any more.
inline constexpr size_t kBatchPhasePartsMax = 8;
// An open batch to which nothing was added for so long is closed.
inline constexpr Nanos kBatchAgeMax = 200 * kMicrosecond;
// Batches of one session in flight: two at any rate, so that the device goes from one to the next
// without us; more while all of them are short, since a busy host may let the session's thread wait
// for some milliseconds.
inline constexpr uint32_t kBatchesInFlightLeast = 2;
inline constexpr uint32_t kBatchesInFlightMost = 16;
inline constexpr Nanos kBatchesShort = 12 * kMillisecond;
// Streams whose kernels take less than this alone come before those whose kernels take more, where
// both have work; and over how much work their mean is taken (Streams::NoteKernel).
inline constexpr Nanos kShortKernel = 200 * kMicrosecond;
inline constexpr Nanos kKernelsOfLate = 10 * kMillisecond;
// A device on which nothing began or ended for so long: what is in flight may wait for work that
// comes after it, so bounds give way.
inline constexpr Nanos kSchedulerStall = 50 * kMillisecond;
// Sessions look at it every kGatePoll. Time in which none has looked for so long does not count as
// such.
inline constexpr Nanos kSchedulerUnseen = 10 * kMillisecond;
// Of the histogram of how long batches wait for their turns, each bound included; what waits longer
// than the last is counted beyond it. From what nobody notices to what a person does.
inline constexpr std::array<Nanos, 11> kQueueDelayBounds = {
    10 * kMicrosecond,  30 * kMicrosecond,  100 * kMicrosecond, 300 * kMicrosecond,
    1 * kMillisecond,   3 * kMillisecond,   10 * kMillisecond,  30 * kMillisecond,
    100 * kMillisecond, 300 * kMillisecond, 1 * kSecond};
inline constexpr size_t kQueueDelayBuckets = kQueueDelayBounds.size() + 1;
// Over how long shares of devices are told: two reports of usage.
inline constexpr Nanos kShareWindow = 1 * kSecond;
// Of a scheduler's trace that has not been written to its file yet: some seconds of a busy device.
inline constexpr size_t kTraceBytesMax = 64 << 20;
// Of a trace's file that consortctl asks for: what an operator may mean, on a disk that others use.
inline constexpr Bytes kTraceFileLeast = 4 * kKiB;
inline constexpr Bytes kTraceFileMost = 64 * kGiB;
// Files of one recording: workers that start while it goes on have one each.
inline constexpr uint32_t kTraceFilesMax = 256;
// Device time is settled at latest so much later, even if a session has not told what it knows.
inline constexpr Nanos kSchedulerLag = 100 * kMillisecond;
// Device time is settled so much later, that it is known how fast the work went on meanwhile.
inline constexpr Nanos kChargePatience = 8 * kMillisecond;
// A session that had no device work for so long is not active.
inline constexpr Nanos kActiveFor = 50 * kMillisecond;
// A session whose last batch has ended still has the device as far as the policy knows: a program
// that looks at a result and goes on does not lose its turn to one that waits because it is ahead.
// More than a guest takes to go on, and what the device may be idle for it.
inline constexpr Nanos kAnticipation = 100 * kMicrosecond;
// While batches are in flight or wait, a session looks at least so often.
inline constexpr Nanos kGatePoll = 200 * kMicrosecond;

// A question for free memory waits so long for the driver to say what a word has told already.
inline constexpr Nanos kEndSeenAfter = 100 * kMillisecond;

// Rate limits of tenants (host/session/rate_limit.h). What a tenant did not use of its rates for so
// long it may use at once: short enough that others do not notice.
inline constexpr Nanos kRateBurst = 100 * kMillisecond;
// One huge copy under a small limit keeps its tenant's next ones waiting no longer than this.
inline constexpr Nanos kRateDebtMax = 3600 * kSecond;
// A session that waits for its rate looks this often whether the limit was lifted.
inline constexpr Nanos kRatePoll = 5 * kMillisecond;
// The least that a limit may be: below, it would be a way to stop a tenant.
inline constexpr uint64_t kLaunchRateLeast = 1;
inline constexpr Bytes kCopyRateLeast = 64 * kKiB;
// Names of GPUs that a tenant may use: more than a pool has models, or a host GPUs.
inline constexpr uint32_t kTenantGpusMax = 64;
// Of such a name: a model's, as drivers give it, or a UUID.
inline constexpr uint32_t kGpuNameBytesMax = 255;

// All that have memory of a device wait for more of it (host/memory), for so long: one is refused.
// Another thread of theirs may still free some.
inline constexpr Nanos kAllWaitLeast = 1 * kSecond;
// How often that is looked for: all who wait ask many times a second.
inline constexpr Nanos kStuckInterval = 100 * kMillisecond;

// Swapping (host/memory). A pause of device work shorter than this is no CPU phase: who comes back
// at once would be moved for nothing.
inline constexpr Nanos kSwapIdleLeast = 10 * kMillisecond;
// A session without device work gives its memory free to be moved after this.
inline constexpr Nanos kRestAfter = 2 * kMillisecond;
// Who finds nobody idle waits so long, and longer by its size (at 5 GB/s, ten times slower than
// moving is), before one that is at work must make way.
inline constexpr Nanos kSwapPatienceLeast = 500 * kMillisecond;
inline constexpr uint64_t kSwapPatienceBytesPerNano = 5;
// One that was asked to make way and has not by then may wait for work that is kept back.
inline constexpr Nanos kLeaveTimeout = 2 * kSecond;
// A set of memory that does not come to the device in this time, or in its tenant's own, is
// refused: the work that needs it fails with CUDA_ERROR_OUT_OF_MEMORY.
inline constexpr Nanos kBringWaitLeast = 60 * kSecond;
// While somebody waits the broker looks at least so often.
inline constexpr Nanos kSwapLook = 2 * kMillisecond;
// Module images that are looked at for what their kernels can reach: a program's own. Libraries'
// are larger, and take long to read.
inline constexpr Bytes kReachImageBytesMax = 16 * kMiB;
// A tenant's priority, for people who count from 1 to 10.
inline constexpr uint32_t kTenantPriorityMax = 1000;
// A tenant's wait for memory.
inline constexpr Nanos kMemoryWaitMax = 24 * 3600 * kSecond;

}  // namespace consort::host

#endif  // CONSORT_HOST_LIMITS_H_
