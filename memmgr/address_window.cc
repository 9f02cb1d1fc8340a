// SPDX-License-Identifier: Apache-2.0
#include "memmgr/address_window.h"

#include <iterator>

#include "base/log.h"
#include "memmgr/limits.h"

namespace consort::memmgr {
namespace {

constexpr uint64_t kUnitsPerGranule = kGranuleBytes / kAllocationAlignment;

// Releasing what this class has made can only fail on a broken context, which the session learns of
// from its own calls; nothing more can be done here.
void LogIfFailed(CUresult result, const char* what) {
  VLOG_IF(1, result != CUDA_SUCCESS) << what << " failed: " << static_cast<int>(result);
}

}  // namespace

CUresult AddressWindow::Create(const device::DriverTable& driver, CUdevice device, uint64_t base,
                               Bytes bytes, std::unique_ptr<AddressWindow>* window) {
  CHECK(base % kGranuleBytes == 0 && bytes % kGranuleBytes == 0);
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device}};
  size_t granularity = 0;
  CUresult result = driver.cuMemGetAllocationGranularity(&granularity, &properties,
                                                         CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (result != CUDA_SUCCESS) return result;
  if (granularity == 0 || kGranuleBytes % granularity != 0) {
    LOG(ERROR) << "memory granularity " << granularity << " does not divide " << kGranuleBytes;
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  CUdeviceptr given = 0;
  result = driver.cuMemAddressReserve(&given, bytes, kGranuleBytes, base, 0);
  if (result != CUDA_SUCCESS) return result;
  // The address is a wish to the driver: it gives another where this one is taken.
  if (given != base) {
    LOG(ERROR) << "addresses at " << reinterpret_cast<void*>(base) << " are taken in this process";
    LogIfFailed(driver.cuMemAddressFree(given, bytes), "cuMemAddressFree");
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  window->reset(new AddressWindow(driver, device, base, bytes));
  return CUDA_SUCCESS;
}

AddressWindow::AddressWindow(const device::DriverTable& driver, CUdevice device, uint64_t base,
                             Bytes bytes)
    : driver_(driver),
      device_(device),
      base_(base),
      bytes_(bytes),
      granules_(bytes / kGranuleBytes) {}

AddressWindow::~AddressWindow() {
  while (!extents_.empty()) DestroyExtent(extents_.begin()->first);
  LogIfFailed(driver_.cuMemAddressFree(base_, bytes_), "cuMemAddressFree");
}

CUresult AddressWindow::Allocate(Bytes bytes, uint64_t* address) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > bytes_ || allocations_.size() >= kAllocationsMax) return CUDA_ERROR_OUT_OF_MEMORY;
  if (bytes <= kSharedAllocationBytesMax) return AllocateShared(bytes, address);
  uint64_t first;
  const CUresult result = TakeExtent((bytes + kGranuleBytes - 1) / kGranuleBytes, &first);
  if (result != CUDA_SUCCESS) return result;
  *address = base_ + first * kGranuleBytes;
  allocations_.emplace(*address, Placed{bytes, first});
  return CUDA_SUCCESS;
}

CUresult AddressWindow::AllocateShared(Bytes bytes, uint64_t* address) {
  const uint64_t units = AlignUp(bytes, kAllocationAlignment) / kAllocationAlignment;
  uint64_t first;
  const auto fit = shared_free_.lower_bound({units, 0});
  if (fit != shared_free_.end()) {
    first = fit->second;
    shared_free_.erase(fit);
  } else {
    const CUresult result = TakeExtent(1, &first);
    if (result != CUDA_SUCCESS) return result;
    extents_.at(first).units = std::make_unique<RangeAllocator>(kUnitsPerGranule);
  }
  Extent& extent = extents_.at(first);
  const std::optional<uint64_t> unit = extent.units->Take(units);
  CHECK(unit.has_value());
  if (extent.units->largest_free() != 0) shared_free_.emplace(extent.units->largest_free(), first);
  *address = base_ + first * kGranuleBytes + *unit * kAllocationAlignment;
  allocations_.emplace(*address, Placed{bytes, first});
  return CUDA_SUCCESS;
}

CUresult AddressWindow::Free(uint64_t address) {
  const auto it = allocations_.find(address);
  if (it == allocations_.end()) return CUDA_ERROR_INVALID_VALUE;
  const Placed placed = it->second;
  allocations_.erase(it);
  Extent& extent = extents_.at(placed.extent);
  if (extent.units != nullptr) {
    const uint64_t unit = (address - base_ - placed.extent * kGranuleBytes) / kAllocationAlignment;
    shared_free_.erase({extent.units->largest_free(), placed.extent});
    extent.units->Return(unit, AlignUp(placed.bytes, kAllocationAlignment) / kAllocationAlignment);
    if (extent.units->free_total() != kUnitsPerGranule) {
      shared_free_.emplace(extent.units->largest_free(), placed.extent);
      return CUDA_SUCCESS;
    }
    extent.units.reset();
  }
  CacheExtent(placed.extent, &extent);
  while (cached_bytes_ > kCachedBytesMax) DestroyExtent(cache_ages_.front());
  return CUDA_SUCCESS;
}

CUresult AddressWindow::TakeRange(Bytes bytes, uint64_t* address) {
  CHECK(bytes != 0 && bytes % kGranuleBytes == 0);
  if (bytes > bytes_) return CUDA_ERROR_OUT_OF_MEMORY;
  std::optional<uint64_t> first = granules_.Take(bytes / kGranuleBytes);
  if (!first.has_value() && !cached_.empty()) {
    Trim();
    first = granules_.Take(bytes / kGranuleBytes);
  }
  if (!first.has_value()) return CUDA_ERROR_OUT_OF_MEMORY;
  *address = base_ + *first * kGranuleBytes;
  return CUDA_SUCCESS;
}

void AddressWindow::ReturnRange(uint64_t address, Bytes bytes) {
  granules_.Return((address - base_) / kGranuleBytes, bytes / kGranuleBytes);
}

std::optional<Allocation> AddressWindow::Find(uint64_t address) const {
  auto it = allocations_.upper_bound(address);
  if (it == allocations_.begin()) return std::nullopt;
  --it;
  if (address - it->first >= it->second.bytes) return std::nullopt;
  return Allocation{it->first, it->second.bytes};
}

// An extent for `granules`, from the cache if one is about as large.
CUresult AddressWindow::TakeExtent(uint64_t granules, uint64_t* first) {
  const auto fit = cached_.lower_bound({granules, 0});
  if (fit != cached_.end() && fit->first - granules <= fit->first / kCacheWasteDivisor) {
    *first = fit->second;
    UncacheExtent(*first, &extents_.at(*first));
    return CUDA_SUCCESS;
  }
  const CUresult result = MakeExtent(granules, first);
  if (result != CUDA_ERROR_OUT_OF_MEMORY || cached_.empty()) return result;
  Trim();
  return MakeExtent(granules, first);
}

CUresult AddressWindow::MakeExtent(uint64_t granules, uint64_t* first) {
  const std::optional<uint64_t> place = granules_.Take(granules);
  if (!place.has_value()) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t address = base_ + *place * kGranuleBytes;
  const Bytes bytes = granules * kGranuleBytes;

  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_}};
  CUmemGenericAllocationHandle memory = 0;
  CUresult result = driver_.cuMemCreate(&memory, bytes, &properties, 0);
  if (result == CUDA_SUCCESS) {
    result = driver_.cuMemMap(address, bytes, 0, memory, 0);
    if (result == CUDA_SUCCESS) {
      const CUmemAccessDesc access = {properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
      result = driver_.cuMemSetAccess(address, bytes, &access, 1);
      if (result != CUDA_SUCCESS) LogIfFailed(driver_.cuMemUnmap(address, bytes), "cuMemUnmap");
    }
    if (result != CUDA_SUCCESS) LogIfFailed(driver_.cuMemRelease(memory), "cuMemRelease");
  }
  if (result != CUDA_SUCCESS) {
    granules_.Return(*place, granules);
    return result;
  }
  Extent extent;
  extent.granules = granules;
  extent.memory = memory;
  extents_.emplace(*place, std::move(extent));
  mapped_bytes_ += bytes;
  *first = *place;
  return CUDA_SUCCESS;
}

void AddressWindow::CacheExtent(uint64_t first, Extent* extent) {
  extent->cached = true;
  extent->age = cache_ages_.insert(cache_ages_.end(), first);
  cached_.emplace(extent->granules, first);
  cached_bytes_ += extent->granules * kGranuleBytes;
}

void AddressWindow::UncacheExtent(uint64_t first, Extent* extent) {
  extent->cached = false;
  cache_ages_.erase(extent->age);
  cached_.erase({extent->granules, first});
  cached_bytes_ -= extent->granules * kGranuleBytes;
}

void AddressWindow::DestroyExtent(uint64_t first) {
  const auto it = extents_.find(first);
  CHECK(it != extents_.end());
  Extent& extent = it->second;
  if (extent.cached) UncacheExtent(first, &extent);
  const uint64_t address = base_ + first * kGranuleBytes;
  const Bytes bytes = extent.granules * kGranuleBytes;
  LogIfFailed(driver_.cuMemUnmap(address, bytes), "cuMemUnmap");
  LogIfFailed(driver_.cuMemRelease(extent.memory), "cuMemRelease");
  mapped_bytes_ -= bytes;
  granules_.Return(first, extent.granules);
  extents_.erase(it);
}

void AddressWindow::Trim() {
  while (!cache_ages_.empty()) DestroyExtent(cache_ages_.front());
}

}  // namespace consort::memmgr
