// SPDX-License-Identifier: Apache-2.0
#include "host/session/peer_memory.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "device/driver/driver_loader.h"
#include "memmgr/limits.h"

namespace consort::host {

absl::Status PeerMemory::Add(uint64_t address, Bytes bytes, const UniqueFd& memory) {
  if (mappings_.contains(address) ||
      (addresses_ != nullptr && !addresses_->Contains(address, bytes))) {
    return absl::InvalidArgumentError("the other device's memory lies at no address of its own");
  }
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = driver_.cuMemImportFromShareableHandle(
      &handle, reinterpret_cast<void*>(static_cast<intptr_t>(memory.get())),
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  Mapping mapping;
  if (result == CUDA_SUCCESS) {
    result = Map(handle, bytes, addresses_ != nullptr ? address : 0, &mapping);
  }
  if (result != CUDA_SUCCESS) {
    return absl::UnavailableError(
        absl::StrCat("mapping the other device's memory: ", device::ResultName(driver_, result)));
  }
  mappings_[address] = mapping;
  return absl::OkStatus();
}

CUresult PeerMemory::Scratch(uint64_t* address) {
  CUresult result = CUDA_SUCCESS;
  if (scratch_.bytes == 0) {
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_}};
    CUmemGenericAllocationHandle handle = 0;
    result = driver_.cuMemCreate(&handle, memmgr::kGranuleBytes, &properties, 0);
    if (result == CUDA_SUCCESS) result = Map(handle, memmgr::kGranuleBytes, 0, &scratch_);
  }
  *address = scratch_.here;
  return result;
}

CUresult PeerMemory::Map(CUmemGenericAllocationHandle handle, Bytes bytes, uint64_t at,
                         Mapping* mapping) {
  CUdeviceptr here = at;
  CUresult result = at != 0
                        ? CUDA_SUCCESS
                        : driver_.cuMemAddressReserve(&here, bytes, memmgr::kGranuleBytes, 0, 0);
  if (result == CUDA_SUCCESS) {
    result = driver_.cuMemMap(here, bytes, 0, handle, 0);
    if (result == CUDA_SUCCESS) {
      const CUmemAccessDesc access = {{CU_MEM_LOCATION_TYPE_DEVICE, {device_}},
                                      CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
      result = driver_.cuMemSetAccess(here, bytes, &access, 1);
      if (result != CUDA_SUCCESS) driver_.cuMemUnmap(here, bytes);
    }
    if (result != CUDA_SUCCESS && at == 0) driver_.cuMemAddressFree(here, bytes);
  }
  // What is mapped stays.
  driver_.cuMemRelease(handle);
  if (result == CUDA_SUCCESS) *mapping = {here, bytes};
  return result;
}

void PeerMemory::Unmap(const Mapping& mapping) {
  driver_.cuMemUnmap(mapping.here, mapping.bytes);
  if (addresses_ == nullptr || !addresses_->Contains(mapping.here, mapping.bytes)) {
    driver_.cuMemAddressFree(mapping.here, mapping.bytes);
  }
}

void PeerMemory::Remove(uint64_t address) {
  const auto it = mappings_.find(address);
  if (it == mappings_.end()) return;
  Unmap(it->second);
  mappings_.erase(it);
}

void PeerMemory::Clear() {
  for (const auto& [address, mapping] : mappings_) Unmap(mapping);
  mappings_.clear();
  if (scratch_.bytes != 0) Unmap(std::exchange(scratch_, {}));
}

std::optional<uint64_t> PeerMemory::Find(const Mappings& mappings, uint64_t address, Bytes bytes) {
  auto it = mappings.upper_bound(address);
  if (it == mappings.begin()) return std::nullopt;
  it = std::prev(it);
  const Bytes offset = address - it->first;
  if (offset > it->second.bytes || bytes > it->second.bytes - offset) return std::nullopt;
  return it->second.here + offset;
}

}  // namespace consort::host
