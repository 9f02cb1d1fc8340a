// SPDX-License-Identifier: Apache-2.0
// host/session/sharing.cc: memory and events of one session for others of its tenant: exports.h.
// Source: CUDA driver API, cuIpc..., cuMemExportToShareableHandle.
#include <functional>
#include <utility>

#include "base/log.h"
#include "host/control/control_socket.h"
#include "host/limits.h"
#include "host/session/session.h"

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

CUresult Session::SharedMemoryOpen(const wire::FrameHeader&,
                                   const wire::SharedMemoryOpenRequest& request,
                                   wire::SharedMemoryOpenReply* reply) {
  const auto found =
      device_.exports().Find({request.token_high, request.token_low}, GetText(open_.tenant));
  if (!found.has_value() || found->allocation_bytes == 0) return CUDA_ERROR_INVALID_HANDLE;
  // A process does not open its own memory.
  if (found->session == open_.session) return CUDA_ERROR_INVALID_CONTEXT;
  uint64_t base = 0;
  const CUresult result = virtual_memory_->Open(found->memory, &base);
  if (result != CUDA_SUCCESS) return result;
  reply->address = base + found->offset;
  reply->bytes = found->allocation_bytes;
  opened_.emplace(reply->address, base);
  return CUDA_SUCCESS;
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

CUresult Session::SharedMemoryImport(const wire::FrameHeader&,
                                     const wire::SharedMemoryImportRequest& request,
                                     wire::SharedMemoryImportReply* reply) {
  auto found =
      device_.exports().Find({request.token_high, request.token_low}, GetText(open_.tenant));
  if (!found.has_value() || found->memory == nullptr || found->allocation_bytes != 0) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  reply->bytes = found->memory->bytes;
  return virtual_memory_->Import(request.memory, std::move(found->memory));
}

}  // namespace consort::host
