// SPDX-License-Identifier: Apache-2.0
#include "host/session/virtual_memory.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/log.h"
#include "host/limits.h"
#include "host/session/session.h"
#include "memmgr/limits.h"

namespace consort::host {
namespace {

bool Granular(uint64_t value) { return value % memmgr::kGranuleBytes == 0; }

}  // namespace

VirtualMemory::~VirtualMemory() {
  // Only a broken context makes these fail, and then everything goes with the process.
  for (const auto& [address, mapping] : mappings_) driver_.cuMemUnmap(address, mapping.bytes);
  for (const auto& [address, memory] : openings_) {
    driver_.cuMemUnmap(address, memory->bytes);
    window_->ReturnRange(address, memory->bytes);
  }
  for (const auto& [address, bytes] : reservations_) window_->ReturnRange(address, bytes);
}

CUresult VirtualMemory::Reserve(Bytes bytes, Bytes alignment, uint64_t* address) {
  if (bytes == 0 || !Granular(bytes) || (alignment & (alignment - 1)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (reservations_.size() >= kHandlesPerKind) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result =
      window_->TakeRange(bytes, address, std::max(alignment, memmgr::kGranuleBytes));
  if (result == CUDA_SUCCESS) reservations_.emplace(*address, bytes);
  return result;
}

CUresult VirtualMemory::Free(uint64_t address, Bytes bytes) {
  const auto it = reservations_.find(address);
  if (it == reservations_.end() || it->second != bytes || AnyMapping(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  reservations_.erase(it);
  window_->ReturnRange(address, bytes);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::Create(uint64_t name, Bytes bytes) {
  if (bytes == 0 || !Granular(bytes) || memory_.contains(name)) return CUDA_ERROR_INVALID_VALUE;
  if (memory_.size() >= kHandlesPerKind) return CUDA_ERROR_OUT_OF_MEMORY;
  Memory memory;
  CUresult result = Make(bytes, &memory);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && window_->cached_bytes() != 0) {
    window_->Trim();
    result = Make(bytes, &memory);
  }
  if (result != CUDA_SUCCESS) return result;
  memory_.emplace(name, std::move(memory));
  memory_bytes_ += bytes;
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::Make(Bytes bytes, Memory* memory) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_}};
  memory->share = memmgr::BudgetShare::Take(budget_, bytes);
  if (memory->share == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  CUmemGenericAllocationHandle handle = 0;
  if (exportable_) properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUresult result = driver_.cuMemCreate(&handle, bytes, &properties, 0);
  if (exportable_ && result != CUDA_SUCCESS && result != CUDA_ERROR_OUT_OF_MEMORY) {
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
    result = driver_.cuMemCreate(&handle, bytes, &properties, 0);
  }
  if (result == CUDA_SUCCESS) {
    memory->physical = std::make_shared<PhysicalMemory>(driver_, handle, bytes);
  } else {
    memory->share.reset();
  }
  return result;
}

CUresult VirtualMemory::Release(uint64_t name) {
  const auto it = memory_.find(name);
  if (it == memory_.end()) return CUDA_ERROR_INVALID_VALUE;
  if (it->second.share != nullptr) memory_bytes_ -= it->second.physical->bytes;
  memory_.erase(it);
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::Import(uint64_t name, std::shared_ptr<PhysicalMemory> memory) {
  if (memory_.contains(name)) return CUDA_ERROR_INVALID_VALUE;
  if (memory_.size() >= kHandlesPerKind) return CUDA_ERROR_OUT_OF_MEMORY;
  memory_.emplace(name, Memory{std::move(memory), nullptr});
  return CUDA_SUCCESS;
}

std::shared_ptr<PhysicalMemory> VirtualMemory::Find(uint64_t name) const {
  const auto it = memory_.find(name);
  return it == memory_.end() ? nullptr : it->second.physical;
}

CUresult VirtualMemory::Open(std::shared_ptr<PhysicalMemory> memory, uint64_t* address) {
  if (openings_.size() >= kHandlesPerKind) return CUDA_ERROR_OUT_OF_MEMORY;
  const Bytes bytes = memory->bytes;
  CUresult result = window_->TakeRange(bytes, address);
  if (result != CUDA_SUCCESS) return result;
  result = driver_.cuMemMap(*address, bytes, 0, memory->handle, 0);
  if (result == CUDA_SUCCESS) {
    const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, {device_}},
                                    CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    result = driver_.cuMemSetAccess(*address, bytes, &access, 1);
    if (result != CUDA_SUCCESS) driver_.cuMemUnmap(*address, bytes);
  }
  if (result != CUDA_SUCCESS) {
    window_->ReturnRange(*address, bytes);
    return result;
  }
  openings_.emplace(*address, std::move(memory));
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::Close(uint64_t address) {
  const auto it = openings_.find(address);
  if (it == openings_.end()) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = driver_.cuMemUnmap(address, it->second->bytes);
  if (result != CUDA_SUCCESS) return result;
  window_->ReturnRange(address, it->second->bytes);
  openings_.erase(it);
  return CUDA_SUCCESS;
}

bool VirtualMemory::AnyMapping(uint64_t address, Bytes bytes) const {
  auto it = mappings_.lower_bound(address);
  if (it != mappings_.end() && it->first - address < bytes) return true;
  if (it == mappings_.begin()) return false;
  --it;
  return address - it->first < it->second.bytes;
}

bool VirtualMemory::WholeMappings(uint64_t address, Bytes bytes) const {
  if (bytes == 0) return false;
  while (bytes != 0) {
    const auto it = mappings_.find(address);
    if (it == mappings_.end() || it->second.bytes > bytes) return false;
    address += it->second.bytes;
    bytes -= it->second.bytes;
  }
  return true;
}

bool VirtualMemory::Reserved(uint64_t address, Bytes bytes) const {
  if (const auto after = reservations_.upper_bound(address); after != reservations_.begin()) {
    const auto& [start, length] = *std::prev(after);
    const uint64_t offset = address - start;
    if (offset <= length && bytes <= length - offset) return true;
  }
  const auto after = peers_.upper_bound(address);
  return after != peers_.begin() && std::prev(after)->second->Contains(address, bytes);
}

void VirtualMemory::Join(std::shared_ptr<const PeerAddresses> addresses) {
  const uint64_t base = addresses->base();
  peers_.emplace(base, std::move(addresses));
}

void VirtualMemory::Leave(const PeerAddresses& addresses) {
  auto it = mappings_.lower_bound(addresses.base());
  while (it != mappings_.end() && addresses.Contains(it->first, it->second.bytes)) {
    // As in the destructor.
    driver_.cuMemUnmap(it->first, it->second.bytes);
    it = mappings_.erase(it);
  }
  peers_.erase(addresses.base());
}

bool VirtualMemory::AtPeers(uint64_t address, Bytes bytes) const {
  const auto peer = peers_.upper_bound(address);
  if (peer == peers_.begin() || !std::prev(peer)->second->Contains(address, bytes)) return false;
  auto it = mappings_.upper_bound(address);
  if (it == mappings_.begin()) return false;
  --it;
  uint64_t end = it->first;
  while (it != mappings_.end() && it->first == end) {
    end += it->second.bytes;
    if (end >= address + bytes) return end > address;
    ++it;
  }
  return false;
}

CUresult VirtualMemory::Map(uint64_t address, Bytes bytes, uint64_t name) {
  const auto memory = memory_.find(name);
  if (memory == memory_.end() || memory->second.physical->bytes != bytes || !Granular(address)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!Reserved(address, bytes) || AnyMapping(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = driver_.cuMemMap(address, bytes, 0, memory->second.physical->handle, 0);
  if (result == CUDA_SUCCESS) mappings_.emplace(address, Mapping{bytes, memory->second.share});
  return result;
}

CUresult VirtualMemory::Unmap(uint64_t address, Bytes bytes) {
  if (!WholeMappings(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  while (bytes != 0) {
    const auto it = mappings_.find(address);
    const Bytes mapped = it->second.bytes;
    const CUresult result = driver_.cuMemUnmap(address, mapped);
    if (result != CUDA_SUCCESS) return result;
    mappings_.erase(it);
    address += mapped;
    bytes -= mapped;
  }
  return CUDA_SUCCESS;
}

CUresult VirtualMemory::SetAccess(uint64_t address, Bytes bytes, uint32_t access) {
  if (!WholeMappings(address, bytes) ||
      (access != CU_MEM_ACCESS_FLAGS_PROT_NONE && access != CU_MEM_ACCESS_FLAGS_PROT_READ &&
       access != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUmemAccessDesc description = {{CU_MEM_LOCATION_TYPE_DEVICE, {device_}},
                                       static_cast<CUmemAccess_flags>(access)};
  return driver_.cuMemSetAccess(address, bytes, &description, 1);
}

CUresult Session::VirtualReserve(const wire::FrameHeader&,
                                 const wire::VirtualReserveRequest& request,
                                 wire::VirtualReserveReply* reply) {
  return virtual_memory_->Reserve(request.bytes, request.alignment, &reply->address);
}

CUresult Session::VirtualFree(const wire::FrameHeader&, const wire::VirtualFreeRequest& request) {
  return virtual_memory_->Free(request.address, request.bytes);
}

CUresult Session::MemoryRelease(const wire::FrameHeader&,
                                const wire::MemoryReleaseRequest& request) {
  Unshare(ShareKind::kMemory, request.memory);
  return virtual_memory_->Release(request.memory);
}

CUresult Session::VirtualMap(const wire::FrameHeader&, const wire::VirtualMapRequest& request) {
  return virtual_memory_->Map(request.address, request.bytes, request.memory);
}

CUresult Session::VirtualUnmap(const wire::FrameHeader&, const wire::VirtualUnmapRequest& request) {
  return virtual_memory_->Unmap(request.address, request.bytes);
}

CUresult Session::VirtualSetAccess(const wire::FrameHeader&,
                                   const wire::VirtualSetAccessRequest& request) {
  return virtual_memory_->SetAccess(request.address, request.bytes, request.access);
}

}  // namespace consort::host
