// SPDX-License-Identifier: Apache-2.0
// Device memory of one session: allocations, which may have to wait for room, and what requests
// need to be on the device.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/saturating.h"
#include "gen/wire/opcodes.h"
#include "host/limits.h"
#include "host/session/session.h"
#include "memmgr/limits.h"
#include "vmsock/deadline.h"

namespace consort::host {
namespace {

using Range = memmgr::AddressWindow::Range;

template <class Request>
bool DecodeBody(const Frame& frame, Request* request) {
  wire::Decoder decoder(frame.body);
  return request->Decode(decoder);
}

Range Rows(uint64_t address, uint64_t pitch, uint64_t width, uint64_t rows) {
  if (rows == 0) return {address, 0};
  return {address, (Saturating(pitch) * (Saturating(rows) - 1) + Saturating(width)).value()};
}

// The ranges of a fill, by its request's field names.
template <class Request>
bool AddFill(const Frame& frame, uint64_t element, MemoryNeed* need) {
  Request request;
  if (!DecodeBody(frame, &request)) return false;
  need->ranges.push_back({request.dstDevice, (Saturating(request.N) * element).value()});
  return true;
}
template <class Request>
bool AddFill2D(const Frame& frame, uint64_t element, MemoryNeed* need) {
  Request request;
  if (!DecodeBody(frame, &request)) return false;
  need->ranges.push_back(Rows(request.dstDevice, request.dstPitch,
                              (Saturating(request.Width) * element).value(), request.Height));
  return true;
}
template <class Request>
bool AddWord(const Frame& frame, MemoryNeed* need) {
  Request request;
  if (!DecodeBody(frame, &request)) return false;
  need->ranges.push_back({request.addr, 8});
  return true;
}

}  // namespace

// What the frame needs; nothing: it touches no device memory. A frame that does not decode is
// Dispatch's business.
Session::Touches Session::TouchesOf(const Frame& frame, MemoryNeed* need) {
  using wire::Opcode;
  bool decoded = true;
  switch (static_cast<Opcode>(frame.header.opcode)) {
    case Opcode::kMemAlloc:
    case Opcode::kMemFree:
    case Opcode::kMemoryCreate:
    case Opcode::kMemoryRelease:
    case Opcode::kVirtualReserve:
    case Opcode::kVirtualFree:
    case Opcode::kVirtualMap:
    case Opcode::kVirtualUnmap:
    case Opcode::kVirtualSetAccess:
    case Opcode::kMemoryShare:
    case Opcode::kPhysicalMemoryShare:
    case Opcode::kSharedMemoryImport:
    case Opcode::kSharedMemoryOpen:
    case Opcode::kSharedMemoryClose:
    case Opcode::kMemoryReserve:
    case Opcode::kGlobalGet:
    case Opcode::kContextDestroy:
      return Touches::kTable;
    case Opcode::kLaunch: {
      wire::LaunchRequest request;
      decoded = DecodeBody(frame, &request);
      const Kernel* kernel = modules_.FindKernel(request.kernel);
      need->everything = kernel == nullptr || !kernel->direct;
      if (!need->everything) AddArguments(request.params, need);
      break;
    }
    case Opcode::kCopyToDevice: {
      wire::CopyToDeviceRequest request;
      decoded = DecodeBody(frame, &request);
      need->ranges.push_back(Rows(request.dst, request.dst_pitch, request.width, request.rows));
      break;
    }
    case Opcode::kCopyToHost: {
      wire::CopyToHostRequest request;
      decoded = DecodeBody(frame, &request);
      need->ranges.push_back(Rows(request.src, request.src_pitch, request.width, request.rows));
      break;
    }
    case Opcode::kCopyRows: {
      wire::CopyRowsRequest request;
      decoded = DecodeBody(frame, &request);
      need->ranges.push_back(Rows(request.src, request.src_pitch, request.width, request.rows));
      need->ranges.push_back(Rows(request.dst, request.dst_pitch, request.width, request.rows));
      break;
    }
    case Opcode::kTextureCreate:
    case Opcode::kTensorMapEncode:
    case Opcode::kTensorMapReplaceAddress:
      // A driver may look whether something is at the address.
      need->everything = true;
      return Touches::kContents;
    case Opcode::kcuMemsetD8Async:
      decoded = AddFill<wire::cuMemsetD8AsyncRequest>(frame, 1, need);
      break;
    case Opcode::kcuMemsetD16Async:
      decoded = AddFill<wire::cuMemsetD16AsyncRequest>(frame, 2, need);
      break;
    case Opcode::kcuMemsetD32Async:
      decoded = AddFill<wire::cuMemsetD32AsyncRequest>(frame, 4, need);
      break;
    case Opcode::kcuMemsetD2D8Async:
      decoded = AddFill2D<wire::cuMemsetD2D8AsyncRequest>(frame, 1, need);
      break;
    case Opcode::kcuMemsetD2D16Async:
      decoded = AddFill2D<wire::cuMemsetD2D16AsyncRequest>(frame, 2, need);
      break;
    case Opcode::kcuMemsetD2D32Async:
      decoded = AddFill2D<wire::cuMemsetD2D32AsyncRequest>(frame, 4, need);
      break;
    case Opcode::kcuStreamWaitValue32_v2:
      decoded = AddWord<wire::cuStreamWaitValue32_v2Request>(frame, need);
      break;
    case Opcode::kcuStreamWaitValue64_v2:
      decoded = AddWord<wire::cuStreamWaitValue64_v2Request>(frame, need);
      break;
    case Opcode::kcuStreamWriteValue32_v2:
      decoded = AddWord<wire::cuStreamWriteValue32_v2Request>(frame, need);
      break;
    case Opcode::kcuStreamWriteValue64_v2:
      decoded = AddWord<wire::cuStreamWriteValue64_v2Request>(frame, need);
      break;
    default:
      // Whatever else is work on the device may touch anything.
      need->everything = true;
      return CostOf(frame.header.opcode) == RequestCost::kNone ? Touches::kNothing
                                                               : Touches::kContents;
  }
  return decoded ? Touches::kContents : Touches::kNothing;
}

void Session::AddArguments(std::span<const std::byte> params, MemoryNeed* need) const {
  // At any byte: arguments may be packed. What only looks like an address costs a look.
  for (size_t at = 0; at + sizeof(uint64_t) <= params.size(); ++at) {
    uint64_t word;
    std::memcpy(&word, params.data() + at, sizeof(word));
    if (window_->Contains(word, 1)) need->pointers.push_back(word);
  }
}

void Session::NoteLaunch(const Kernel& kernel, std::span<const std::byte> params) {
  if (!kernel.direct) return window_->NoteWriteAnywhere();
  MemoryNeed need;
  AddArguments(params, &need);
  std::vector<uint64_t> extents;
  for (const uint64_t pointer : need.pointers) window_->FindAround(pointer, &extents);
  for (const uint64_t extent : extents) window_->NoteWrite({extent, 1});
}

bool Session::BringMemory(const Frame& frame) {
  if (residency_->deferred()) return DeferMemory(frame);
  MemoryNeed need;
  const Touches touches = TouchesOf(frame, &need);
  if (touches == Touches::kNothing) return true;
  const Residency::Verdict verdict = touches == Touches::kTable
                                         ? residency_->CheckTable(MonotonicNow())
                                         : residency_->Check(need, MonotonicNow());
  if (residency_->failure() != CUDA_SUCCESS) {
    // Nothing that this session computes from here on can be trusted.
    NoteResult(residency_->failure(), "swapping");
    Fail(absl::StrCat("contents of swapped memory are lost: ",
                      device::ResultName(driver_, residency_->failure())));
    return false;
  }
  cpu_phase_ = false;
  memory_waiting_ = verdict == Residency::Verdict::kWait;
  if (verdict == Residency::Verdict::kRefuse) fate_ = Fate::kRefused;
  return !memory_waiting_;
}

void Session::TendMemory() {
  memory_waiting_ = false;
  const Nanos now = MonotonicNow();
  if (!residency_->swaps()) {
    // Somebody waits for room that this cache takes.
    if (memory_client_->leave_asked() && window_->cached_bytes() != 0) window_->Trim();
  }
  RetryAllocations(now);
  if (!residency_->swaps() || !residency_->in_use() || device_result() != CUDA_SUCCESS) return;
  const bool wants_rest = residency_->wants_rest() || cpu_phase_;
  // What waits for its turn only is at work.
  if (!wants_rest && (gate_.waiting() || now - last_progress_ < kRestAfter)) return;
  if (!pending_.empty() || copy_to_host_.active || in_work_ != RequestCost::kNone) return;
  std::shared_ptr<Fence> fence;
  if (streams_.FenceAll(&fence) != CUDA_SUCCESS || !fence->Reached()) return;
  if (fence->result() != CUDA_SUCCESS) return NoteResult(fence->result(), "work on the device");
  // By its own word it is idle for long.
  residency_->Rest(std::exchange(cpu_phase_, false) ? now - kSwapIdleLeast : now);
}

Nanos Session::MemorySleepMax() const {
  if (!waiting_allocations_.empty()) return kGatePoll;
  return residency_->swaps() && residency_->in_use() ? kRestAfter : INT64_MAX;
}

// --- Allocations

CUresult Session::TryAllocate(const WaitingAllocation& wanted, uint64_t* address) {
  if (wanted.reserve) {
    return memory_client_->Reserve(wanted.bytes) == MemoryClient::Answer::kYes
               ? CUDA_SUCCESS
               : CUDA_ERROR_OUT_OF_MEMORY;
  }
  // What could never be on the device in one piece is of no use to any work.
  if (residency_->swaps() && wanted.bytes > memory_client_->device_bytes_max()) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (wanted.memory != 0) return virtual_memory_->Create(wanted.memory, wanted.bytes);
  std::optional<uint64_t> before;
  if (redo_channel_ != nullptr) before = redo_channel_->GivenTo(wanted.header.call);
  if (before.has_value()) *address = *before;
  const CUresult result = before.has_value() ? window_->AllocateAt({*address, wanted.bytes})
                                             : window_->Allocate(wanted.bytes, address);
  if (result == CUDA_SUCCESS) allocations_.emplace(*address, wanted.header.value);
  return result;
}

// Allocates or waits; replies in any case, perhaps later.
void Session::BeginAllocation(WaitingAllocation wanted) {
  uint64_t address = 0;
  CUresult result = TryAllocate(wanted, &address);
  // cuMemFree waits for the device; here it does not, so the wait comes when the memory is missed.
  while (result == CUDA_ERROR_OUT_OF_MEMORY && frees_pending_ + frees_held_ != 0 && !failed() &&
         device_result() == CUDA_SUCCESS) {
    TurnWhileStalled();
    result = TryAllocate(wanted, &address);
  }
  if (result == CUDA_ERROR_OUT_OF_MEMORY && QueueAllocation(&wanted)) return;
  EndAllocation(wanted, result, address);
}

// False: it is not to wait.
bool Session::QueueAllocation(WaitingAllocation* wanted) {
  const MemoryClient::Refusal why = memory_client_->refusal();
  const Bytes bytes = wanted->reserve ? memory_client_->ReserveNeeds(wanted->bytes)
                                      : AlignUp(wanted->bytes, memmgr::kGranuleBytes);
  if (wanted->deadline == 0) {
    Nanos wait = static_cast<Nanos>(open_.memory_wait_ms) * kMillisecond;
    // The broker moves others' memory away for it; there is nothing to decide for the tenant.
    if (why == MemoryClient::Refusal::kDevice) wait = std::max(wait, kBringWaitLeast);
    wanted->deadline = MonotonicNow() + wait;
  }
  const Nanos now = MonotonicNow();
  if ((why != MemoryClient::Refusal::kShort && why != MemoryClient::Refusal::kDevice) ||
      wanted->deadline <= now || !memory_client_->CouldHave(bytes) ||
      waiting_allocations_.size() >= kPendingPerSession) {
    return false;
  }
  wanted->number = memory_client_->Queue(bytes, why, now, wanted->deadline - now);
  waiting_allocations_.push_back(*wanted);
  return true;
}

void Session::RetryAllocations(Nanos now) {
  for (auto it = waiting_allocations_.begin(); it != waiting_allocations_.end();) {
    MemoryClient::Answer answer =
        it->granted ? MemoryClient::Answer::kYes : memory_client_->Ask(it->number, now);
    if (device_result() != CUDA_SUCCESS) answer = MemoryClient::Answer::kNo;
    if (answer == MemoryClient::Answer::kYes) {
      it->granted = true;
      if (residency_->CheckTable(now) != Residency::Verdict::kGo)
        answer = MemoryClient::Answer::kWaiting;
    }
    if (answer == MemoryClient::Answer::kWaiting) {
      ++it;
      continue;
    }
    WaitingAllocation wanted = *it;
    it = waiting_allocations_.erase(it);
    if (answer == MemoryClient::Answer::kNo) {
      EndAllocation(wanted, CUDA_ERROR_OUT_OF_MEMORY, 0);
      continue;
    }
    wanted.granted = false;
    uint64_t address = 0;
    const CUresult result = TryAllocate(wanted, &address);
    memory_client_->Redeemed();
    // The rest of the time that it may wait, for what is short now.
    if (result == CUDA_ERROR_OUT_OF_MEMORY && QueueAllocation(&wanted)) return;
    EndAllocation(wanted, result, address);
  }
}

// Whether nothing that the guest has sent so far is unfinished, and nothing of it failed that the
// guest has not heard of, as far as is known without asking the driver. Words are in the guest's
// hands, so this is for the guest to know only.
bool Session::IsIdle() const {
  bool idle = deferred_error_ == CUDA_SUCCESS;
  streams_.ForEachBusy([&](const auto& stream) { idle = idle && HasSignalledLast(*stream); });
  return idle && !held_.active() && !held_.walking() && !held_next_.has_value() &&
         !copy_to_host_.active && backlog_.empty();
}

void Session::EndAllocation(const WaitingAllocation& wanted, CUresult result, uint64_t address) {
  if (result != CUDA_SUCCESS && redo_ != nullptr && redo_channel_ == nullptr) {
    redo_->Spoil("there was no memory for it");
  }
  if (wanted.memory != 0 || wanted.reserve || result != CUDA_SUCCESS)
    return ReplyNow(wanted.header, result);
  wire::MemAllocReply reply;
  reply.address = address;
  // What a guest keeps a driver that checks for uses of what was freed does not take for that; and
  // where memory is rationed each byte counts.
  if (wanted.bytes <= memmgr::kSharedAllocationBytesMax && !memory_client_->rationed() &&
      !device_.allocation_notes().wanted()) {
    reply.flags |= wire::kAllocationMayKeep;
  }
  if (IsIdle()) reply.flags |= wire::kAllocationIdle;
  wire::Encoder encoder(BeginReply(wanted.header, result, reply.BodyBytes()), reply.BodyBytes());
  reply.Encode(encoder);
  EndReply();
}

void Session::MemAlloc(const wire::FrameHeader& header, const wire::MemAllocRequest& request) {
  WaitingAllocation wanted;
  wanted.header = header;
  wanted.bytes = request.bytes;
  BeginAllocation(wanted);
}

void Session::MemoryCreate(const wire::FrameHeader& header,
                           const wire::MemoryCreateRequest& request) {
  if (request.memory == 0) return ReplyNow(header, CUDA_ERROR_INVALID_VALUE);
  WaitingAllocation wanted;
  wanted.header = header;
  wanted.bytes = request.bytes;
  wanted.memory = request.memory;
  BeginAllocation(wanted);
}

void Session::MemoryReserve(const wire::FrameHeader& header,
                            const wire::MemoryReserveRequest& request) {
  const auto wait_ms =
      static_cast<Nanos>(std::min<uint64_t>(request.wait_ms, kMemoryWaitMax / kMillisecond));
  WaitingAllocation wanted;
  wanted.header = header;
  wanted.bytes = request.bytes;
  wanted.reserve = true;
  wanted.deadline = MonotonicNow() + wait_ms * kMillisecond;
  BeginAllocation(wanted);
}

CUresult Session::MemoryHint(const wire::FrameHeader&, const wire::MemoryHintRequest& request) {
  if (request.hint != wire::kHintCpuPhase) return CUDA_ERROR_INVALID_VALUE;
  cpu_phase_ = true;
  return CUDA_SUCCESS;
}

CUresult Session::MemGetInfo(const wire::FrameHeader&, const wire::MemGetInfoRequest&,
                             wire::MemGetInfoReply* reply) {
  // Frees whose work has finished count, of which the driver may not say yet what words have told.
  if (frees_pending_ != 0) pending_.Poll();
  for (const Nanos until = MonotonicNow() + kEndSeenAfter;
       frees_pending_ != 0 && IsIdle() && MonotonicNow() < until;) {
    pending_.Poll();
  }
  size_t free = 0;
  size_t total = 0;
  const CUresult result = driver_.cuMemGetInfo_v2(&free, &total);
  const MemoryClient::Info info = memory_client_->Tell(free, total, window_->cached_bytes());
  reply->free = info.free;
  reply->total = info.total;
  return result;
}

CUresult Session::MemFree(const wire::FrameHeader&, const wire::MemFreeRequest& request) {
  if (allocations_.erase(request.address) == 0) return CUDA_ERROR_INVALID_VALUE;
  Unshare(ShareKind::kAllocation, request.address);
  ++frees_pending_;
  return AfterAllWork(PendingItem::Kind::kMemFree, request.address);
}

}  // namespace consort::host
