// SPDX-License-Identifier: Apache-2.0
// host/session/sharing.cc: memory and events of one session for others of its tenant: exports.h.
// Source: CUDA driver API, cuIpc..., cuMemExportToShareableHandle.
#include <functional>
#include <utility>

#include "base/log.h"
#include "host/control/control_socket.h"
#include "host/limits.h"
#include "host/session/session.h"
#include "vmsock/deadline.h"

namespace consort::host {

template <class Reply>
CUresult Session::Share(ShareKind kind, uint64_t id,
                        const std::function<CUresult(Export*)>& describe, Reply* reply) {
  auto it = shared_.find({kind, id});
  if (it == shared_.end()) {
    Export what;
    if (const CUresult result = describe(&what); result != CUDA_SUCCESS) return result;
    what.tenant = GetText(open_.tenant);
    what.session = open_.session;
    it = shared_.emplace(std::pair(kind, id), device_.exports().Add(std::move(what))).first;
  }
  reply->token_high = it->second.high;
  reply->token_low = it->second.low;
  if constexpr (requires { reply->session; }) reply->session = open_.session;
  return CUDA_SUCCESS;
}

void Session::Unshare(ShareKind kind, uint64_t id) {
  const auto it = shared_.find({kind, id});
  if (it == shared_.end()) return;
  device_.exports().Remove(it->second);
  shared_.erase(it);
}

void Session::UnshareAll() {
  for (const auto& [object, token] : shared_) device_.exports().Remove(token);
  shared_.clear();
}

bool Session::IsSharedEvent(uint64_t id) const {
  const auto it = user_events_.find(id);
  return it != user_events_.end() &&
         (it->second->shared != nullptr || shared_.contains({ShareKind::kEvent, id}));
}

CUresult Session::MemoryShare(const wire::FrameHeader&, const wire::MemoryShareRequest& request,
                              wire::MemoryShareReply* reply) {
  if (!allocations_.contains(request.address)) return CUDA_ERROR_INVALID_VALUE;
  // What comes back from swapping is other physical memory.
  if (residency_->swaps()) return CUDA_ERROR_NOT_SUPPORTED;
  const auto describe = [&](Export* what) {
    const auto allocation = window_->Find(request.address);
    const auto backing = window_->BackingOf(request.address);
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result =
        driver_.cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(backing->address));
    if (result != CUDA_SUCCESS) return result;
    what->memory = std::make_shared<PhysicalMemory>(driver_, handle, backing->bytes);
    what->offset = request.address - backing->address;
    what->allocation_bytes = allocation->bytes;
    return CUDA_SUCCESS;
  };
  return Share(ShareKind::kAllocation, request.address, describe, reply);
}

void Session::SharedMemoryOpen(const wire::FrameHeader& header,
                               const wire::SharedMemoryOpenRequest& request) {
  const ExportToken token = {request.token_high, request.token_low};
  const auto found = device_.exports().Find(token, GetText(open_.tenant));
  if (!found.has_value()) return Fetch({header, /*memory=*/0, 0}, request.session, token);
  // A process does not open its own memory.
  if (found->session == open_.session && found->allocation_bytes != 0)
    return ReplyNow(header, CUDA_ERROR_INVALID_CONTEXT);
  EndFetch({header, /*memory=*/0, 0}, *found);
}

void Session::Fetch(SharedFetch fetch, uint64_t owner, const ExportToken& token) {
  if (owner == 0 || owner == open_.session || peers_by_ == nullptr ||
      fetches_.size() >= kPendingPerSession) {
    return ReplyNow(fetch.header, CUDA_ERROR_INVALID_HANDLE);
  }
  MemoryWanted wanted;
  wanted.session = open_.session;
  wanted.number = ++last_fetch_;
  wanted.owner = owner;
  wanted.token_high = token.high;
  wanted.token_low = token.low;
  if (const absl::Status sent = peers_by_->Send(wanted); !sent.ok()) {
    LOG(ERROR) << "session " << open_.session << ": telling consortd: " << sent;
    return ReplyNow(fetch.header, CUDA_ERROR_INVALID_HANDLE);
  }
  fetch.deadline = MonotonicNow() + kPeerOpenMax;
  fetches_.emplace(wanted.number, fetch);
}

void Session::TakeFetched(const MemoryFetched& fetched, UniqueFd memory) {
  absl::MutexLock lock(&channel_mutex_);
  fetched_.push_back({fetched, std::move(memory)});
  any_peer_news_.store(true, std::memory_order_relaxed);
}

bool Session::TurnFetches(std::vector<FetchedMemory> all) {
  bool progress = !all.empty();
  for (FetchedMemory& one : all) {
    const auto it = fetches_.find(one.message.number);
    if (it == fetches_.end()) continue;
    const SharedFetch fetch = it->second;
    fetches_.erase(it);
    CUmemGenericAllocationHandle handle = 0;
    CUresult result = CUDA_ERROR_INVALID_HANDLE;
    if (one.message.bytes != 0) {
      result = driver_.cuMemImportFromShareableHandle(
          &handle, reinterpret_cast<void*>(static_cast<intptr_t>(one.memory.get())),
          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    }
    if (result != CUDA_SUCCESS) {
      ReplyNow(fetch.header, result);
      continue;
    }
    Export what;
    what.memory = std::make_shared<PhysicalMemory>(driver_, handle, one.message.bytes);
    what.offset = one.message.offset;
    what.allocation_bytes = one.message.allocation_bytes;
    EndFetch(fetch, std::move(what));
  }
  for (auto it = fetches_.begin(); it != fetches_.end();) {
    const auto fetch = it++;
    if (MonotonicNow() < fetch->second.deadline && device_result() == CUDA_SUCCESS) continue;
    const wire::FrameHeader header = fetch->second.header;
    fetches_.erase(fetch);
    ReplyNow(header, CUDA_ERROR_INVALID_HANDLE);
    progress = true;
  }
  return progress;
}

// Opens or imports what was found, and answers.
void Session::EndFetch(const SharedFetch& fetch, Export found) {
  const bool imports = fetch.memory != 0;
  if (found.memory == nullptr || (found.allocation_bytes == 0) != imports) {
    return ReplyNow(fetch.header, CUDA_ERROR_INVALID_HANDLE);
  }
  const auto reply_with = [&](const auto& reply) {
    wire::Encoder encoder(BeginReply(fetch.header, CUDA_SUCCESS, reply.BodyBytes()),
                          reply.BodyBytes());
    reply.Encode(encoder);
    EndReply();
  };
  if (imports) {
    wire::SharedMemoryImportReply reply;
    reply.bytes = found.memory->bytes;
    const CUresult result = virtual_memory_->Import(fetch.memory, std::move(found.memory));
    return result == CUDA_SUCCESS ? reply_with(reply) : ReplyNow(fetch.header, result);
  }
  uint64_t base = 0;
  const CUresult result = virtual_memory_->Open(found.memory, &base);
  if (result != CUDA_SUCCESS) return ReplyNow(fetch.header, result);
  wire::SharedMemoryOpenReply reply;
  reply.address = base + found.offset;
  reply.bytes = found.allocation_bytes;
  opened_.emplace(reply.address, base);
  reply_with(reply);
}

CUresult Session::SharedMemoryClose(const wire::FrameHeader&,
                                    const wire::SharedMemoryCloseRequest& request) {
  const auto it = opened_.find(request.address);
  if (it == opened_.end()) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = virtual_memory_->Close(it->second);
  if (result == CUDA_SUCCESS) opened_.erase(it);
  return result;
}

CUresult Session::EventShare(const wire::FrameHeader&, const wire::EventShareRequest& request,
                             wire::EventShareReply* reply) {
  const auto it = user_events_.find(request.event);
  if (it == user_events_.end()) return CUDA_ERROR_INVALID_HANDLE;
  const auto describe = [&](Export* what) {
    what->event = it->second;
    return CUDA_SUCCESS;
  };
  return Share(ShareKind::kEvent, request.event, describe, reply);
}

CUresult Session::SharedEventOpen(const wire::FrameHeader& header,
                                  const wire::SharedEventOpenRequest& request) {
  if (user_events_.contains(request.event)) return CUDA_ERROR_INVALID_HANDLE;
  if (user_events_.size() >= kHandlesPerKind) return CUDA_ERROR_OUT_OF_MEMORY;
  const auto found =
      device_.exports().Find({request.token_high, request.token_low}, GetText(open_.tenant));
  if (!found.has_value() || found->event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (found->session == open_.session) return CUDA_ERROR_INVALID_CONTEXT;
  user_events_.emplace(request.event, std::make_shared<UserEvent>(found->event, header.value));
  return CUDA_SUCCESS;
}

CUresult Session::PhysicalMemoryShare(const wire::FrameHeader&,
                                      const wire::PhysicalMemoryShareRequest& request,
                                      wire::PhysicalMemoryShareReply* reply) {
  std::shared_ptr<PhysicalMemory> memory = virtual_memory_->Find(request.memory);
  if (memory == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto describe = [&](Export* what) {
    what->memory = std::move(memory);
    return CUDA_SUCCESS;
  };
  return Share(ShareKind::kMemory, request.memory, describe, reply);
}

void Session::SharedMemoryImport(const wire::FrameHeader& header,
                                 const wire::SharedMemoryImportRequest& request) {
  if (request.memory == 0) return ReplyNow(header, CUDA_ERROR_INVALID_VALUE);
  const ExportToken token = {request.token_high, request.token_low};
  auto found = device_.exports().Find(token, GetText(open_.tenant));
  if (!found.has_value()) return Fetch({header, request.memory, 0}, request.session, token);
  EndFetch({header, request.memory, 0}, *std::move(found));
}

}  // namespace consort::host
