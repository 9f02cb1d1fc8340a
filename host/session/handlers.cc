// SPDX-License-Identifier: Apache-2.0
// Requests of one session, all but copies, and what follows when the device gets there.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "host/limits.h"
#include "host/session/managed_variables.h"
#include "host/session/session.h"

namespace consort::host {
namespace {

// One launch attribute as a guest packs it.
constexpr size_t kAttributeValueBytes = sizeof(CUlaunchAttributeValue);
constexpr size_t kAttributeBytes = 8 + kAttributeValueBytes;
static_assert(kAttributeValueBytes == 64);
// CUDA has sixteen kinds; one may appear once.
constexpr size_t kAttributesMax = 16;

// Requests at whose replies a program may learn of the failure of earlier ones.
// Source: CUDA driver API, "may also return error codes from previous, asynchronous launches".
bool IsSynchronising(uint16_t opcode) {
  switch (static_cast<wire::Opcode>(opcode)) {
    case wire::Opcode::kStreamSynchronize:
    case wire::Opcode::kEventSynchronize:
    case wire::Opcode::kContextSynchronize:
    case wire::Opcode::kcuStreamQuery:
    case wire::Opcode::kcuEventQuery:
      return true;
    default:
      return false;
  }
}

// Requests at whose replies CUDA shows what kernels have printed; blocking copies end in one.
// Source: CUDA C++ Programming Guide, "Formatted Output".
bool ShowsOutput(uint16_t opcode) {
  switch (static_cast<wire::Opcode>(opcode)) {
    case wire::Opcode::kStreamSynchronize:
    case wire::Opcode::kEventSynchronize:
    case wire::Opcode::kContextSynchronize:
    case wire::Opcode::kContextDestroy:
    case wire::Opcode::kLibraryLoad:
      return true;
    default:
      return false;
  }
}

// Attributes that are numbers, sizes or device addresses, and so mean the same here as in the
// guest. The others hold handles.
bool IsPlainAttribute(uint64_t id) {
  switch (id) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      return true;
    default:
      return false;
  }
}

// Unpacks into `attributes`, which holds kAttributesMax.
CUresult ReadAttributes(std::span<const std::byte> packed, CUlaunchAttribute* attributes,
                        unsigned int* count) {
  *count = 0;
  if (packed.size() % kAttributeBytes != 0 || packed.size() / kAttributeBytes > kAttributesMax) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (size_t at = 0; at < packed.size(); at += kAttributeBytes) {
    uint64_t id;
    std::memcpy(&id, packed.data() + at, sizeof(id));
    if (id == CU_LAUNCH_ATTRIBUTE_IGNORE) continue;
    if (!IsPlainAttribute(id)) return CUDA_ERROR_NOT_SUPPORTED;
    CUlaunchAttribute& attribute = attributes[(*count)++];
    attribute = {};
    attribute.id = static_cast<CUlaunchAttributeID>(id);
    std::memcpy(&attribute.value, packed.data() + at + sizeof(id), kAttributeValueBytes);
  }
  return CUDA_SUCCESS;
}

// Grid, block and dynamic shared memory of a request about a launch.
template <class Request>
void SetShape(const Request& request, CUlaunchConfig* config) {
  config->gridDimX = request.grid_x;
  config->gridDimY = request.grid_y;
  config->gridDimZ = request.grid_z;
  config->blockDimX = request.block_x;
  config->blockDimY = request.block_y;
  config->blockDimZ = request.block_z;
  config->sharedMemBytes = request.shared_bytes;
}

uint64_t ThreadsOf(const CUlaunchConfig& config) {
  return uint64_t{config.gridDimX} * config.gridDimY * config.gridDimZ * config.blockDimX *
         config.blockDimY * config.blockDimZ;
}

}  // namespace

// --- Replies and failures

std::byte* Session::BeginReply(const wire::FrameHeader& request, CUresult result,
                               uint32_t body_bytes) {
  NoteResult(result, wire::OpcodeName(request.opcode));
  // Whatever this reply tells to have finished, its data goes first.
  pending_.PollCopiesOut();
  if (ShowsOutput(request.opcode)) SendOutput();
  if (device_result() != CUDA_SUCCESS) {
    AnnounceFailure();
    result = device_result();
  } else if (deferred_error_ != CUDA_SUCCESS && IsSynchronising(request.opcode) &&
             (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY)) {
    result = std::exchange(deferred_error_, CUDA_SUCCESS);
  }
  wire::FrameHeader header;
  header.opcode = request.opcode;
  header.flags = wire::kFrameReply;
  header.call = request.call;
  header.value = static_cast<uint32_t>(result);
  if (redo_ == nullptr) return outbox_->Begin(header, body_bytes);
  answer_.opcode = header.opcode;
  answer_.call = header.call;
  answer_.result = header.value;
  answer_.next = outbox_->empty();
  std::byte* const body = outbox_->Begin(header, body_bytes);
  answer_.body = {body, body_bytes};
  return body;
}

void Session::EndReply() {
  if (redo_ != nullptr) return EndAnswer();
  outbox_->End();
}

void Session::SendOutput() {
  print_turn_.Collect();
  for (const DeviceOutput::Text& text : output_.Take()) {
    const auto bytes = std::as_bytes(std::span(text.bytes.data(), text.bytes.size()));
    for (size_t at = 0; at < bytes.size(); at += wire::kBulkBytesMax) {
      wire::DeviceOutputEvent event;
      event.descriptor = static_cast<uint32_t>(text.descriptor);
      event.text = bytes.subspan(at, std::min<size_t>(bytes.size() - at, wire::kBulkBytesMax));
      SendEvent(event);
    }
  }
}

void Session::AnnounceFailure() {
  if (std::exchange(failure_announced_, true)) return;
  print_turn_.CollectFailure();
  SendOutput();  // what an assert has said
  wire::DeviceFailedEvent event;
  event.result = device_result();
  SendEvent(event);
}

void Session::Failed(const wire::FrameHeader& request, CUresult result) {
  NoteResult(result, wire::OpcodeName(request.opcode));
  VLOG(1) << "session " << open_.session << ": " << wire::OpcodeName(request.opcode) << ": "
          << device::ResultName(driver_, result);
  if (deferred_error_ == CUDA_SUCCESS) deferred_error_ = result;
  if (redo_ != nullptr && redo_channel_ == nullptr) redo_->Spoil("a request of it has failed");
}

void Session::ReplyNow(const wire::FrameHeader& request, CUresult result) {
  BeginReply(request, result, 0);
  EndReply();
}

void Session::ReplyLater(const wire::FrameHeader& request, PendingItem::Kind kind,
                         std::shared_ptr<Fence> fence) {
  if (pending_.size() >= kPendingPerSession) {
    // A guest has one such request for each of its threads.
    Fail(absl::StrCat("more than ", kPendingPerSession, " requests wait for the device"));
    return;
  }
  PendingItem item;
  item.kind = kind;
  item.fence = std::move(fence);
  item.request = request;
  pending_.Add(std::move(item));
}

CUresult Session::AfterAllWork(PendingItem::Kind kind, uint64_t value) {
  PendingItem item;
  item.kind = kind;
  item.value = value;
  const CUresult fenced = streams_.FenceAll(&item.fence);
  if (fenced != CUDA_SUCCESS) return fenced;
  if (item.fence->Reached()) {
    OnReached(item, item.fence->result());
  } else {
    pending_.Add(std::move(item));
  }
  return CUDA_SUCCESS;
}

void Session::OnReached(PendingItem& item, CUresult result) {
  NoteResult(result, "work on the device");
  switch (item.kind) {
    case PendingItem::Kind::kReply:
      ReplyNow(item.request, result);
      return;
    case PendingItem::Kind::kContextDestroyed:
      DestroyContext(item.request.value);
      ReplyNow(item.request, result);
      return;
    case PendingItem::Kind::kCopyOut:
      if (result == CUDA_SUCCESS) {
        account_.bytes_to_host += item.bytes;
        if (redo_ != nullptr) NoteData(item);
        outbox_->SendTransferData(item.value, item.offset, item.bytes, item.piece);
      } else {
        staging_.Return(item.piece);
      }
      return;
    case PendingItem::Kind::kReleaseFrame:
      channel_->Release(item.frame);
      return;
    case PendingItem::Kind::kReturnPiece:
      staging_.Return(item.piece);
      return;
    case PendingItem::Kind::kRunHostFunction: {
      if (result != CUDA_SUCCESS) return;
      held_.Announce(item.value);
      SendOutput();
      wire::RunHostFunctionEvent event;
      event.callback = item.value;
      wire::FrameHeader header;
      header.opcode = static_cast<uint16_t>(wire::RunHostFunctionEvent::kOpcode);
      wire::Encoder encoder(outbox_->Begin(header, event.BodyBytes()), event.BodyBytes());
      event.Encode(encoder);
      outbox_->End();
      return;
    }
    case PendingItem::Kind::kMemFree:
      --frees_pending_;
      NoteResult(window_->Free(item.value), "MemFree");
      return;
    case PendingItem::Kind::kHostFree:
      NoteResult(shared_host_->Free(item.value), "HostFree");
      return;
    case PendingItem::Kind::kLibraryUnload:
      modules_.Unload(item.value);
      return;
    case PendingItem::Kind::kArrayDestroy:
      --frees_pending_;
      NoteResult(driver_.cuArrayDestroy(reinterpret_cast<CUarray>(item.value)), "ArrayDestroy");
      return;
    case PendingItem::Kind::kTextureDestroy:
      NoteResult(driver_.cuTexObjectDestroy(item.value), "TextureDestroy");
      return;
    case PendingItem::Kind::kSurfaceDestroy:
      NoteResult(driver_.cuSurfObjectDestroy(item.value), "TextureDestroy");
      return;
    case PendingItem::Kind::kPeerClose:
      EndReach({item.value, static_cast<PeerUse>(item.offset)});
      ReplyNow(item.request, result);
      return;
    case PendingItem::Kind::kHostLeave:
      ReplyNow(item.request, result != CUDA_SUCCESS ? result : LeaveHost(item.value, item.offset));
      return;
  }
}

// --- Streams and events

CUresult Session::FindStream(uint32_t context, uint64_t id, CUstream* stream, bool* idle) {
  Stream* found = nullptr;
  const CUresult result = streams_.Observe(context, id, &found);
  if (result == CUDA_SUCCESS) {
    *stream = found->driver;
    // After a synchronisation the scheduler's events may still be on their way; and so may be the
    // driver's notice of the work that wrote a word which the guest has waited for.
    *idle = !found->busy() || HasSignalledLast(*found);
  }
  return result;
}

CUresult Session::UseStream(uint32_t context, uint64_t id, CUstream* stream) {
  Stream* used = nullptr;
  const CUresult result = streams_.Use(context, id, &used);
  if (result == CUDA_SUCCESS) *stream = used->driver;
  return result;
}

CUresult Session::FindEvent(uint64_t id, CUevent* event) {
  const auto it = user_events_.find(id);
  if (it == user_events_.end()) return CUDA_ERROR_INVALID_HANDLE;
  *event = it->second->handle;
  return CUDA_SUCCESS;
}

CUresult Session::CheckRange(uint64_t address, uint64_t bytes) {
  if (bytes != 0 && !Reachable(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  NoteWrite(address, bytes);
  return CUDA_SUCCESS;
}

bool Session::HasSignalledLast(const Stream& stream) const {
  return stream.signal.work == stream.work &&
         HasSignalled(stream.signal.address, stream.signal.number);
}

bool Session::HasSignalled(uint64_t address, uint64_t number) const {
  if (shared_host_ == nullptr || !shared_host_->Keeps(address, sizeof(uint64_t))) return false;
  const auto* word = reinterpret_cast<const uint64_t*>(address);
  return (__atomic_load_n(word, __ATOMIC_ACQUIRE) & ~wire::kSignalError) >= number;
}

bool Session::KeptVigil(uint32_t events) {
  Nanos now = MonotonicNow();
  VigilRoom* const room = device_.vigils();
  if (!vigil_.Lasts(now) || !room->Enter()) return false;
  bool keeps = true;
  for (const Nanos until = now + kVigilLook; now < until; now = MonotonicNow()) {
    if (HasSignalled(vigil_.address(), vigil_.number())) {
      // What comes next comes soon.
      vigil_.End();
      last_progress_ = now;
      keeps = false;
      break;
    }
    if (channel_->Wait(events, 0, 0) != ChannelStatus::kAgain) break;
    __builtin_ia32_pause();
  }
  room->Leave();
  return keeps;
}

CUresult Session::StreamCreate(const wire::FrameHeader& header,
                               const wire::StreamCreateRequest& request) {
  const CUresult result = streams_.Create(header.value, request.stream,
                                          {request.flags, request.priority, request.green});
  if (result == CUDA_SUCCESS) {
    journal_.Make({ObjectKind::kStream, request.stream}, header.value, request);
  }
  return result;
}

CUresult Session::StreamDestroy(const wire::FrameHeader&,
                                const wire::StreamDestroyRequest& request) {
  journal_.Drop({ObjectKind::kStream, request.stream});
  return streams_.Destroy(request.stream);
}

void Session::StreamSynchronize(const wire::FrameHeader& header,
                                const wire::StreamSynchronizeRequest& request) {
  Stream* stream = nullptr;
  std::shared_ptr<Fence> fence;
  CUresult result = streams_.Use(header.value, request.stream, &stream);
  if (result == CUDA_SUCCESS) result = streams_.FenceOn(stream, &fence);
  if (result != CUDA_SUCCESS) return ReplyNow(header, result);
  ReplyLater(header, PendingItem::Kind::kReply, std::move(fence));
}

CUresult Session::StreamSignal(const wire::FrameHeader& header,
                               const wire::StreamSignalRequest& request) {
  if (!MaySignal(request.address, request.number)) return CUDA_ERROR_INVALID_VALUE;
  Stream* stream = nullptr;
  const CUresult result = streams_.Use(header.value, request.stream, &stream);
  if (result != CUDA_SUCCESS) return result;
  return Signal(stream, request.address, request.number, /*alone=*/request.of_event == 0);
}

CUresult Session::ContextSignal(const wire::FrameHeader& header,
                                const wire::ContextSignalRequest& request) {
  if (!MaySignal(request.address, request.number)) return CUDA_ERROR_INVALID_VALUE;
  Stream* stream = nullptr;
  std::span<Stream* const> before;
  CUresult result = streams_.UseAfterAll(header.value, &stream, &before);
  if (result == CUDA_SUCCESS) {
    result = Signal(stream, request.address, request.number, /*alone=*/true);
  }
  if (result != CUDA_SUCCESS) return result;
  for (Stream* each : before) each->signal = {each->work, request.address, request.number};
  return CUDA_SUCCESS;
}

bool Session::MaySignal(uint64_t address, uint64_t number) const {
  return shared_host_ != nullptr && address % sizeof(uint64_t) == 0 &&
         (number & wire::kSignalError) == 0 && shared_host_->Covers(address, sizeof(uint64_t));
}

CUresult Session::Signal(Stream* stream, uint64_t address, uint64_t number, bool alone) {
  signalled_ = true;
  // What the program has seen must not go back.
  if (redo_channel_ != nullptr && HasSignalled(address, number)) return CUDA_SUCCESS;
  const uint64_t error = deferred_error_ != CUDA_SUCCESS ? wire::kSignalError : 0;
  const CUresult result =
      driver_.cuStreamWriteValue64_v2(stream->driver, address, number | error, 0);
  if (result != CUDA_SUCCESS) return result;
  if (alone) stream->signal = {stream->work, address, number};
  vigil_.Await(address, number);
  return CUDA_SUCCESS;
}

CUresult Session::EventCreate(const wire::FrameHeader& header,
                              const wire::EventCreateRequest& request) {
  if (user_events_.contains(request.event)) return CUDA_ERROR_INVALID_HANDLE;
  if (user_events_.size() >= kHandlesPerKind) return CUDA_ERROR_OUT_OF_MEMORY;
  // Sessions share the driver's event in this process; it need not leave it.
  CUevent event = nullptr;
  const CUresult result = driver_.cuEventCreate(&event, request.flags & ~CU_EVENT_INTERPROCESS);
  if (result != CUDA_SUCCESS) return result;
  user_events_.emplace(request.event,
                       std::make_shared<UserEvent>(driver_, event, header.value,
                                                   (request.flags & CU_EVENT_DISABLE_TIMING) == 0));
  journal_.Make({ObjectKind::kEvent, request.event}, header.value, request);
  return CUDA_SUCCESS;
}

CUresult Session::EventDestroy(const wire::FrameHeader&, const wire::EventDestroyRequest& request) {
  Unshare(ShareKind::kEvent, request.event);
  journal_.Drop({ObjectKind::kEvent, request.event});
  return user_events_.erase(request.event) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void Session::EventSynchronize(const wire::FrameHeader& header,
                               const wire::EventSynchronizeRequest& request) {
  const auto it = user_events_.find(request.event);
  if (it == user_events_.end()) return ReplyNow(header, CUDA_ERROR_INVALID_HANDLE);
  const CUresult state = driver_.cuEventQuery(it->second->handle);
  if (state != CUDA_ERROR_NOT_READY) return ReplyNow(header, state);
  if (pending_.size() >= kPendingPerSession) {
    return Fail(absl::StrCat("more than ", kPendingPerSession, " requests wait for the device"));
  }
  PendingItem item;
  item.kind = PendingItem::Kind::kReply;
  item.event = it->second;
  item.request = header;
  pending_.Add(std::move(item));
}

// --- Contexts

void Session::ContextSynchronize(const wire::FrameHeader& header,
                                 const wire::ContextSynchronizeRequest&) {
  std::shared_ptr<Fence> fence;
  const CUresult result = streams_.FenceContext(header.value, &fence);
  if (result != CUDA_SUCCESS) return ReplyNow(header, result);
  ReplyLater(header, PendingItem::Kind::kReply, std::move(fence));
}

void Session::ContextDestroy(const wire::FrameHeader& header, const wire::ContextDestroyRequest&) {
  std::shared_ptr<Fence> fence;
  const CUresult result = streams_.FenceContext(header.value, &fence);
  if (result != CUDA_SUCCESS) return ReplyNow(header, result);
  ReplyLater(header, PendingItem::Kind::kContextDestroyed, std::move(fence));
}

void Session::DestroyContext(uint32_t context) {
  journal_.DropContext(context);
  for (auto it = user_events_.begin(); it != user_events_.end();) {
    if (it->second->context == context) {
      Unshare(ShareKind::kEvent, it->first);
      user_events_.erase(it++);
    } else {
      ++it;
    }
  }
  streams_.DestroyContext(context);
  ForgetLaunchGraphs();
  modules_.RemoveContext(context);
  for (const uint64_t copy :
       copies_.Remove([this](uint64_t library) { return !modules_.HasLibrary(library); })) {
    NoteResult(window_->Free(copy), "ContextDestroy");
  }
  textures_.DestroyContext(context);
  for (auto it = allocations_.begin(); it != allocations_.end();) {
    if (it->second == context) {
      Unshare(ShareKind::kAllocation, it->first);
      NoteResult(window_->Free(it->first), "ContextDestroy");
      allocations_.erase(it++);
    } else {
      ++it;
    }
  }
  for (auto it = host_allocations_.begin(); it != host_allocations_.end();) {
    if (it->second == context) {
      NoteResult(shared_host_->Free(it->first), "ContextDestroy");
      own_host_.erase(it->first);
      host_allocations_.erase(it++);
    } else {
      ++it;
    }
  }
}

CUresult Session::ContextGetLimit(const wire::FrameHeader&,
                                  const wire::ContextGetLimitRequest& request,
                                  wire::ContextGetLimitReply* reply) {
  size_t value = 0;
  const CUresult result = driver_.cuCtxGetLimit(&value, static_cast<CUlimit>(request.limit));
  reply->value = value;
  return result;
}

CUresult Session::ContextSetLimit(const wire::FrameHeader& header,
                                  const wire::ContextSetLimitRequest& request,
                                  wire::ContextSetLimitReply* reply) {
  const auto limit = static_cast<CUlimit>(request.limit);
  size_t value = 0;
  CUresult result = driver_.cuCtxGetLimit(&value, limit);
  // The context is shared: other tenants rely on what they asked for.
  if (result == CUDA_SUCCESS && request.value > value) {
    result = driver_.cuCtxSetLimit(limit, request.value);
    // Refused once any kernel has printed, another tenant's among them: what there is must do.
    if (result == CUDA_ERROR_INVALID_VALUE && limit == CU_LIMIT_PRINTF_FIFO_SIZE) {
      result = CUDA_SUCCESS;
    }
    if (result == CUDA_SUCCESS) result = driver_.cuCtxGetLimit(&value, limit);
  }
  if (result == CUDA_SUCCESS) {
    ForgetLaunchGraphs();
    journal_.Change({ObjectKind::kLimit, request.limit}, 0, header.value, request);
  }
  reply->value = value;
  return result;
}

// --- Launches

CUresult Session::Launch(const wire::FrameHeader& header, const wire::LaunchRequest& request) {
  const Kernel* kernel = modules_.FindKernel(request.kernel);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  // The driver reads this much from the buffer.
  if (request.params.size() < kernel->parameter_bytes) return CUDA_ERROR_INVALID_VALUE;
  if (request.shared_bytes > kernel->dynamic_shared_max) return CUDA_ERROR_INVALID_VALUE;
  CUlaunchAttribute attributes[kAttributesMax];
  CUlaunchConfig config = {};
  CUresult result = ReadAttributes(request.attributes, attributes, &config.numAttrs);
  if (result != CUDA_SUCCESS) return result;
  Stream* stream = nullptr;
  result = streams_.Use(header.value, request.stream, &stream);
  if (result != CUDA_SUCCESS) return result;
  SetShape(request, &config);
  config.hStream = stream->driver;
  config.attrs = attributes;
  size_t parameter_bytes = request.params.size();
  // The driver copies the parameters before it returns. The kernel's own view of them is in the
  // guest's hands either way.
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<std::byte*>(request.params.data()),
                   CU_LAUNCH_PARAM_BUFFER_SIZE, &parameter_bytes, CU_LAUNCH_PARAM_END};
  void** const packed = parameter_bytes != 0 ? extra : nullptr;
  if (stream->recording) {
    if (kernel->prints) graphs_.NotePrinting();
    return driver_.cuLaunchKernelEx(&config, kernel->function(), nullptr, packed);
  }
  if (residency_->swaps()) NoteLaunch(*kernel, request.params);
  const uint64_t threads = ThreadsOf(config);
  device_time_.BeginLaunch(kernel->time, stream->driver, threads,
                           /*may_sample=*/config.numAttrs == 0,
                           !gate_.alone() || !DeviceTime::SamplesNext(*kernel->time, threads)
                               ? 0
                               : streams_.CountAtWork(stream->driver));
  result = LaunchRepeated(*stream, *kernel, request)
               ? CUDA_SUCCESS
               : driver_.cuLaunchKernelEx(&config, kernel->function(), nullptr, packed);
  if (result == CUDA_SUCCESS) {
    const DeviceTime::Launched launched = device_time_.EndLaunch(stream->driver);
    streams_.NoteKernel(stream, launched.alone_nanos, gate_.holds_back());
  }
  if (kernel->prints) print_turn_.Launched();
  return result;
}

// --- Graphs

CUresult Session::GraphHandleCreate(const wire::FrameHeader&,
                                    const wire::GraphHandleCreateRequest& request,
                                    wire::GraphHandleCreateReply* reply) {
  // Nodes of a graph run where its driver's context does: anywhere on the device.
  if (partition_ != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  return graphs_.CreateHandle(request, &reply->handle);
}

CUresult Session::GraphRecord(const wire::FrameHeader& header,
                              const wire::GraphRecordRequest& request) {
  Stream* stream = nullptr;
  CUresult result = streams_.MarkPreceding();
  if (result == CUDA_SUCCESS) result = streams_.Observe(header.value, request.stream, &stream);
  return result == CUDA_SUCCESS ? graphs_.Record(request, stream) : result;
}

CUresult Session::GraphCondition(const wire::FrameHeader& header,
                                 const wire::GraphConditionRequest& request) {
  Stream* stream = nullptr;
  const CUresult result = streams_.Observe(header.value, request.stream, &stream);
  return result == CUDA_SUCCESS ? graphs_.AddCondition(request, *stream) : result;
}

CUresult Session::GraphInstantiate(const wire::FrameHeader& header,
                                   const wire::GraphInstantiateRequest& request) {
  Stream* stream = nullptr;
  const CUresult result = streams_.Observe(header.value, request.stream, &stream);
  return result == CUDA_SUCCESS ? graphs_.Instantiate(request, stream) : result;
}

CUresult Session::GraphLaunch(const wire::FrameHeader& header,
                              const wire::GraphLaunchRequest& request) {
  CUstream stream = nullptr;
  CUresult result = UseStream(header.value, request.stream, &stream);
  if (result != CUDA_SUCCESS) return result;
  if (residency_->swaps()) window_->NoteWriteAnywhere();
  result = graphs_.Launch(request.exec, stream);
  if (graphs_.Prints(request.exec)) print_turn_.Launched();
  return result;
}

CUresult Session::GraphExecDestroy(const wire::FrameHeader&,
                                   const wire::GraphExecDestroyRequest& request) {
  return graphs_.DestroyExec(request.exec);
}

CUresult Session::GraphDestroy(const wire::FrameHeader&, const wire::GraphDestroyRequest& request) {
  return graphs_.Destroy(request.graph);
}

CUresult Session::HostFunction(const wire::FrameHeader& header,
                               const wire::HostFunctionRequest& request) {
  Stream* stream = nullptr;
  PendingItem reached;
  reached.kind = PendingItem::Kind::kRunHostFunction;
  reached.value = request.callback;
  CUresult result = streams_.Use(header.value, request.stream, &stream);
  if (result == CUDA_SUCCESS) result = streams_.FenceOn(stream, &reached.fence);
  if (result != CUDA_SUCCESS) return result;
  if (!held_.Hold(request.callback,
                  {stream->context, stream->id, stream->blocking || stream->id == 0})) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  pending_.Add(std::move(reached));
  return CUDA_SUCCESS;
}

CUresult Session::HostFunctionDone(const wire::FrameHeader&,
                                   const wire::HostFunctionDoneRequest& request) {
  if (device_result() == CUDA_SUCCESS && !held_.Done(request.callback)) {
    Fail(absl::StrCat("host function ", request.callback, " done, which was not running"));
  }
  return CUDA_SUCCESS;
}

CUresult Session::UnsupportedCalls(const wire::FrameHeader&,
                                   const wire::UnsupportedCallsRequest& request) {
  const std::string name(reinterpret_cast<const char*>(request.name.data()), request.name.size());
  // Names of the driver's functions, which operators read.
  const bool good = name.starts_with("cu") && name.size() < sizeof(host::UnsupportedCalls::name) &&
                    std::all_of(name.begin(), name.end(),
                                [](unsigned char c) { return absl::ascii_isalnum(c) || c == '_'; });
  absl::MutexLock lock(&unsupported_mutex_);
  if (!good || (!unsupported_.contains(name) && unsupported_.size() >= kUnsupportedNamesMax)) {
    Fail("a name of an unsupported function that is none");
    return CUDA_SUCCESS;
  }
  UnsupportedCount& count = unsupported_[name];
  count.calls = std::max(count.calls, request.calls);
  return CUDA_SUCCESS;
}

CUresult Session::Occupancy(const wire::FrameHeader&, const wire::OccupancyRequest& request,
                            wire::OccupancyReply* reply) {
  const Kernel* kernel = modules_.FindKernel(request.kernel);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return driver_.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
      &reply->blocks, kernel->function(), request.block_size, request.dynamic_shared_bytes,
      request.flags);
}

CUresult Session::OccupancyDynamicShared(const wire::FrameHeader&,
                                         const wire::OccupancyDynamicSharedRequest& request,
                                         wire::OccupancyDynamicSharedReply* reply) {
  const Kernel* kernel = modules_.FindKernel(request.kernel);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  size_t bytes = 0;
  const CUresult result = driver_.cuOccupancyAvailableDynamicSMemPerBlock(
      &bytes, kernel->function(), request.blocks, request.block_size);
  reply->bytes = bytes;
  return result;
}

CUresult Session::OccupancyClusters(const wire::FrameHeader&,
                                    const wire::OccupancyClustersRequest& request,
                                    wire::OccupancyClustersReply* reply) {
  const auto query = request.which == 0 ? driver_.cuOccupancyMaxActiveClusters
                                        : driver_.cuOccupancyMaxPotentialClusterSize;
  if (query == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const Kernel* kernel = modules_.FindKernel(request.kernel);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  CUlaunchAttribute attributes[kAttributesMax];
  CUlaunchConfig config = {};
  const CUresult read = ReadAttributes(request.attributes, attributes, &config.numAttrs);
  if (read != CUDA_SUCCESS) return read;
  SetShape(request, &config);
  config.attrs = attributes;
  return query(&reply->count, kernel->function(), &config);
}

// --- Memory

CUresult Session::HostAlloc(const wire::FrameHeader& header, const wire::HostAllocRequest& request,
                            wire::HostAllocReply* reply) {
  // Write-combined memory is a hint that shared pages cannot follow; the other flags always hold.
  constexpr uint32_t kFlags =
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if ((request.flags & ~kFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (shared_host_ == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const CUresult result = shared_host_->Allocate(request.bytes, &reply->address);
  if (result != CUDA_SUCCESS) return result;
  if (!ShowShare(*shared_host_->Find(reply->address), &reply->offset)) {
    NoteResult(shared_host_->Free(reply->address), "HostAlloc");
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  host_allocations_.emplace(reply->address, header.value);
  if (request.own != 0) own_host_.insert(reply->address);
  return CUDA_SUCCESS;
}

bool Session::ShowShare(const SharedHost::Share& share, uint64_t* offset) {
  *offset = share.offset;
  return channel_->passes_descriptors() ? channel_->SendDescriptor(share.memory) : share.lent;
}

CUresult Session::HostAdopt(const wire::FrameHeader& header, const wire::HostAdoptRequest& request,
                            wire::HostAdoptReply* reply) {
  if (shared_host_ == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  // It was sent before the request: there now, or never.
  const UniqueFd file(channel_->ReceiveDescriptor(0));
  if (!file.valid()) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = request.replaces != 0 && !host_allocations_.contains(request.replaces)
                              ? CUDA_ERROR_INVALID_VALUE
                              : shared_host_->Adopt(file.get(), request, &reply->address);
  if (result != CUDA_SUCCESS && !shared_host_->IsAllocation(request.replaces)) {
    host_allocations_.erase(request.replaces);
  }
  if (result == CUDA_SUCCESS) host_allocations_.emplace(reply->address, header.value);
  return result;
}

CUresult Session::HostFree(const wire::FrameHeader&, const wire::HostFreeRequest& request) {
  if (host_allocations_.erase(request.address) == 0) return CUDA_ERROR_INVALID_VALUE;
  own_host_.erase(request.address);
  return AfterAllWork(PendingItem::Kind::kHostFree, request.address);
}

// --- Modules

CUresult Session::ImageData(const wire::FrameHeader&, const wire::ImageDataRequest& request) {
  if (!modules_.AddImageData(request)) {
    Fail(absl::StrCat("image ", request.image, ": piece at ", request.offset, " of ",
                      request.data.size(), " bytes of ", request.total, " does not fit"));
  }
  return CUDA_SUCCESS;
}

CUresult Session::LibraryLoad(const wire::FrameHeader& header,
                              const wire::LibraryLoadRequest& request,
                              wire::LibraryLoadReply* reply) {
  ManagedVariables managed(device_.set_managed_memory(), shared_host_.get(), request.managed);
  const CUresult result = modules_.Load(header.value, residency_->swaps() || redo_ != nullptr,
                                        request, &managed, reply);
  if (result != CUDA_SUCCESS) return result;
  wire::LibraryLoadRequest loaded = request;
  loaded.managed = managed.Keep();
  if (loaded.managed != 0) {
    modules_.SetManaged(request.library, loaded.managed, managed.bytes());
    if (redo_ != nullptr) redo_->Spoil("it has loaded managed variables");
    host_allocations_.emplace(loaded.managed, header.value);
  }
  journal_.Make({ObjectKind::kLibrary, request.library}, header.value, loaded);
  return CUDA_SUCCESS;
}

CUresult Session::LibraryUnload(const wire::FrameHeader&,
                                const wire::LibraryUnloadRequest& request) {
  const uint64_t managed = modules_.ManagedOf(request.library);
  uint64_t removed = 0;
  CUresult result = modules_.Remove(request.library, &removed);
  if (result != CUDA_SUCCESS) return result;
  journal_.Drop({ObjectKind::kLibrary, request.library});
  ForgetLaunchGraphs();
  result = AfterAllWork(PendingItem::Kind::kLibraryUnload, removed);
  for (const uint64_t copy :
       copies_.Remove([&](uint64_t gone) { return gone == request.library; })) {
    if (result != CUDA_SUCCESS) return result;
    ++frees_pending_;
    result = AfterAllWork(PendingItem::Kind::kMemFree, copy);
  }
  // After the library, whose it is.
  if (result != CUDA_SUCCESS || host_allocations_.erase(managed) == 0) return result;
  return AfterAllWork(PendingItem::Kind::kHostFree, managed);
}

CUresult Session::KernelGet(const wire::FrameHeader& header, const wire::KernelGetRequest& request,
                            wire::KernelGetReply* reply) {
  const CUresult result = modules_.GetKernel(request, reply);
  // Nobody would send what it prints.
  if (device_.set_stream_output() == nullptr && !print_turn_.needed()) reply->prints = 0;
  if (result == CUDA_SUCCESS) {
    journal_.Make({ObjectKind::kKernel, request.kernel}, header.value, request,
                  ObjectName{ObjectKind::kLibrary, request.library});
  }
  return result;
}

CUresult Session::KernelNames(const wire::FrameHeader&, const wire::KernelNamesRequest& request,
                              wire::KernelNamesReply* reply) {
  return modules_.GetKernelNames(request, reply);
}

CUresult Session::GlobalGet(const wire::FrameHeader&, const wire::GlobalGetRequest& request,
                            wire::GlobalGetReply* reply) {
  Modules::Variable variable;
  const CUresult result = modules_.GetGlobal(request, &variable);
  if (result != CUDA_SUCCESS) return result;
  reply->bytes = variable.bytes;
  reply->address = CopyOf(variable);
  if (reply->address == 0) {
    reply->address = variable.address;
    modules_.NoteTold(variable);
  }
  return CUDA_SUCCESS;
}

uint64_t Session::CopyOf(const Modules::Variable& variable) {
  uint64_t address = copies_.Find(variable.library, variable.name);
  if (address != 0 || variable.told || !modules_.MayBeCopied(variable)) return address;
  if (window_->Allocate(variable.bytes, &address) != CUDA_SUCCESS) return 0;
  std::vector<uint64_t> extents;
  window_->FindExtents({address, variable.bytes}, &extents);
  NoteWrite(address, variable.bytes);
  bool copied = false;
  if (window_->AwayBytesOf(extents) == 0) {
    copied = CopyVariable([&](CUstream stream) {
               return driver_.cuMemcpyAsync(address, variable.address, variable.bytes, stream);
             }).ok();
  } else if (const memmgr::AddressWindow::Range range = {address, variable.bytes};
             window_->IsAway(range) && window_->MakeSlots(range, memory_client_->store())) {
    std::vector<std::byte> contents(variable.bytes);
    copied = CopyVariable([&](CUstream stream) {
               return driver_.cuMemcpyDtoHAsync_v2(contents.data(), variable.address,
                                                   variable.bytes, stream);
             }).ok();
    if (copied) window_->WriteAway(address, contents);
  }
  if (copied) {
    copies_.Add(address, {variable.library, variable.name, variable.address, variable.bytes});
    return address;
  }
  NoteResult(window_->Free(address), "GlobalGet");
  return 0;
}

CUresult Session::ManagedShare(const wire::FrameHeader&, const wire::ManagedShareRequest& request,
                               wire::ManagedShareReply* reply) {
  if (shared_host_ == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  const std::optional<SharedHost::Share> share =
      shared_host_->Find(modules_.ManagedOf(request.library));
  if (!share.has_value()) return CUDA_ERROR_NOT_FOUND;
  if (!ShowShare(*share, &reply->offset)) return CUDA_ERROR_OUT_OF_MEMORY;
  reply->address = share->address;
  reply->bytes = share->bytes;
  return CUDA_SUCCESS;
}

CUresult Session::FunctionSetAttribute(const wire::FrameHeader& header,
                                       const wire::FunctionSetAttributeRequest& request,
                                       wire::FunctionSetAttributeReply* reply) {
  const CUresult result = modules_.SetAttribute(request, reply);
  if (result == CUDA_SUCCESS) {
    ForgetLaunchGraphs(modules_.FindKernel(request.kernel));
    journal_.Change({ObjectKind::kKernel, request.kernel}, request.attribute, header.value,
                    request);
  }
  return result;
}

// --- Links

CUresult Session::LinkCreate(const wire::FrameHeader&, const wire::LinkCreateRequest& request) {
  return links_.Create(request);
}

CUresult Session::LinkAdd(const wire::FrameHeader&, const wire::LinkAddRequest& request,
                          wire::LinkAddReply* reply) {
  std::vector<std::byte> data;
  const CUresult taken = modules_.TakeImage(request.image, &data);
  return taken != CUDA_SUCCESS ? taken : links_.Add(request, std::move(data), reply);
}

CUresult Session::LinkComplete(const wire::FrameHeader&, const wire::LinkCompleteRequest& request,
                               wire::LinkCompleteReply* reply) {
  return links_.Complete(request, reply);
}

CUresult Session::LinkRead(const wire::FrameHeader&, const wire::LinkReadRequest& request,
                           wire::LinkReadReply* reply) {
  return links_.Read(request, reply);
}

CUresult Session::LinkDestroy(const wire::FrameHeader&, const wire::LinkDestroyRequest& request) {
  links_.Destroy(request.link);
  return CUDA_SUCCESS;
}

}  // namespace consort::host
