// SPDX-License-Identifier: Apache-2.0
#include "memmgr/address_window.h"

#include <algorithm>
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

uint64_t LastOf(const AddressWindow::Range& range) {
  return range.bytes - 1 > UINT64_MAX - range.address ? UINT64_MAX
                                                      : range.address + (range.bytes - 1);
}

CUmemAllocationProp DeviceMemory(CUdevice device) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

}  // namespace

CUresult AddressWindow::Create(const device::DriverTable& driver, const WindowOptions& options,
                               std::unique_ptr<AddressWindow>* window) {
  CHECK(options.base % kGranuleBytes == 0 && options.bytes % kGranuleBytes == 0);
  const CUmemAllocationProp properties = DeviceMemory(options.device);
  size_t granularity = 0;
  CUresult result = driver.cuMemGetAllocationGranularity(&granularity, &properties,
                                                         CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  if (result != CUDA_SUCCESS) return result;
  if (granularity == 0 || kGranuleBytes % granularity != 0) {
    LOG(ERROR) << "memory granularity " << granularity << " does not divide " << kGranuleBytes;
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  CUdeviceptr given = 0;
  result = driver.cuMemAddressReserve(&given, options.bytes, kGranuleBytes, options.base, 0);
  if (result != CUDA_SUCCESS) return result;
  // The address is a wish to the driver: it gives another where this one is taken.
  if (given != options.base) {
    LOG(ERROR) << "addresses at " << reinterpret_cast<void*>(options.base)
               << " are taken in this process";
    LogIfFailed(driver.cuMemAddressFree(given, options.bytes), "cuMemAddressFree");
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  window->reset(new AddressWindow(driver, options));
  return CUDA_SUCCESS;
}

AddressWindow::AddressWindow(const device::DriverTable& driver, const WindowOptions& options)
    : driver_(driver),
      options_(options),
      base_(options.base),
      bytes_(options.bytes),
      granules_(options.bytes / kGranuleBytes) {}

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
  options_.notes.Placed(*address, bytes);
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
  options_.notes.Placed(*address, bytes);
  return CUDA_SUCCESS;
}

CUresult AddressWindow::AllocateAt(const Allocation& wanted) {
  if (wanted.bytes == 0 || !Contains(wanted.address, wanted.bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (allocations_.size() >= kAllocationsMax) return CUDA_ERROR_OUT_OF_MEMORY;
  const bool shared = wanted.bytes <= kSharedAllocationBytesMax;
  const uint64_t first = (wanted.address - base_) / kGranuleBytes;
  const uint64_t granules = (wanted.bytes + kGranuleBytes - 1) / kGranuleBytes;
  const auto there = extents_.find(first);
  const bool made = there == extents_.end() || there->second.cached;
  if (made) {
    // Cached ones that lie otherwise are in its way.
    for (auto age = cache_ages_.begin(); age != cache_ages_.end();) {
      const uint64_t cached = *age++;
      const uint64_t length = extents_.at(cached).granules;
      if (cached == first && length == granules) continue;
      if (cached < first + granules && first < cached + length) DestroyExtent(cached);
    }
    const CUresult result =
        RestoreExtent({base_ + first * kGranuleBytes, granules * kGranuleBytes, shared});
    if (result != CUDA_SUCCESS) return result;
  }
  Extent& extent = extents_.at(first);
  if (extent.units != nullptr) shared_free_.erase({extent.units->largest_free(), first});
  const CUresult result = RestoreAllocation(wanted);
  if (result != CUDA_SUCCESS && made) {
    extent.units.reset();
    CacheExtent(first, &extent);
    return result;
  }
  if (extent.units != nullptr && extent.units->largest_free() != 0) {
    shared_free_.emplace(extent.units->largest_free(), first);
  }
  return result;
}

CUresult AddressWindow::Free(uint64_t address) {
  const auto it = allocations_.find(address);
  if (it == allocations_.end()) return CUDA_ERROR_INVALID_VALUE;
  const Placed placed = it->second;
  allocations_.erase(it);
  options_.notes.Gone(address);
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
  if (!std::all_of(extent.chunks.begin(), extent.chunks.end(),
                   [](const Chunk& chunk) { return chunk.here; })) {
    DestroyExtent(placed.extent);
    return CUDA_SUCCESS;
  }
  CacheExtent(placed.extent, &extent);
  while (cached_bytes_ > kCachedBytesMax) DestroyExtent(cache_ages_.front());
  return CUDA_SUCCESS;
}

CUresult AddressWindow::TakeRange(Bytes bytes, uint64_t* address, Bytes alignment) {
  CHECK(bytes != 0 && bytes % kGranuleBytes == 0 && alignment % kGranuleBytes == 0);
  const Bytes surplus = alignment - kGranuleBytes;
  if (surplus >= bytes_ || bytes > bytes_ - surplus) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t granules = (bytes + surplus) / kGranuleBytes;
  std::optional<uint64_t> first = granules_.Take(granules);
  if (!first.has_value() && !cached_.empty()) {
    Trim();
    first = granules_.Take(granules);
  }
  if (!first.has_value()) return CUDA_ERROR_OUT_OF_MEMORY;
  // What lies before the next multiple, and behind the range, goes back.
  *address = AlignUp(base_ + *first * kGranuleBytes, alignment);
  const uint64_t before = (*address - base_) / kGranuleBytes - *first;
  const uint64_t behind = surplus / kGranuleBytes - before;
  if (before != 0) granules_.Return(*first, before);
  if (behind != 0) granules_.Return(*first + granules - behind, behind);
  options_.notes.Placed(*address, bytes);
  return CUDA_SUCCESS;
}

void AddressWindow::ReturnRange(uint64_t address, Bytes bytes) {
  options_.notes.Gone(address);
  granules_.Return((address - base_) / kGranuleBytes, bytes / kGranuleBytes);
}

std::optional<Allocation> AddressWindow::Find(uint64_t address) const {
  auto it = allocations_.upper_bound(address);
  if (it == allocations_.begin()) return std::nullopt;
  --it;
  if (address - it->first >= it->second.bytes) return std::nullopt;
  return Allocation{it->first, it->second.bytes};
}

std::optional<Allocation> AddressWindow::BackingOf(uint64_t address) const {
  const auto it = allocations_.find(address);
  if (it == allocations_.end()) return std::nullopt;
  const uint64_t first = it->second.extent;
  return Allocation{base_ + first * kGranuleBytes, extents_.at(first).granules * kGranuleBytes};
}

// An extent for `granules`, from the cache if one is about as large.
CUresult AddressWindow::TakeExtent(uint64_t granules, uint64_t* first) {
  const auto fit = cached_.lower_bound({granules, 0});
  if (fit != cached_.end() && fit->first - granules <= fit->first / kCacheWasteDivisor) {
    if (!options_.budget->Allot(fit->first * kGranuleBytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    *first = fit->second;
    used_bytes_ += fit->first * kGranuleBytes;
    UncacheExtent(*first, &extents_.at(*first));
    return CUDA_SUCCESS;
  }
  if (!options_.budget->Allot(granules * kGranuleBytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = MakeExtent(granules, first);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && !cached_.empty()) {
    Trim();
    result = MakeExtent(granules, first);
  }
  if (result == CUDA_SUCCESS) {
    used_bytes_ += granules * kGranuleBytes;
  } else {
    options_.budget->Unallot(granules * kGranuleBytes);
  }
  return result;
}

Bytes AddressWindow::ChunkBytes(const Extent& extent, size_t chunk) const {
  if (options_.chunk_granules == 0) return extent.granules * kGranuleBytes;
  return std::min(options_.chunk_granules, extent.granules - chunk * options_.chunk_granules) *
         kGranuleBytes;
}

uint64_t AddressWindow::AddressOf(uint64_t first, size_t chunk) const {
  return base_ + (first + chunk * options_.chunk_granules) * kGranuleBytes;
}

CUresult AddressWindow::MakeMemory(uint64_t address, Bytes bytes,
                                   CUmemGenericAllocationHandle* memory) {
  CUmemAllocationProp properties = DeviceMemory(options_.device);
  if (options_.maker != nullptr) return options_.maker->Make(address, bytes, properties, memory);
  if (options_.exportable) {
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    const CUresult result = driver_.cuMemCreate(memory, bytes, &properties, 0);
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY) return result;
    LogIfFailed(result, "cuMemCreate of memory that can be exported");
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
  }
  return driver_.cuMemCreate(memory, bytes, &properties, 0);
}

CUresult AddressWindow::MakeChunk(uint64_t address, Bytes bytes, Chunk* chunk) {
  if (!options_.budget->TakeDevice(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult result = MakeMemory(address, bytes, &chunk->memory);
  if (result == CUDA_SUCCESS) {
    result = driver_.cuMemMap(address, bytes, 0, chunk->memory, 0);
    if (result == CUDA_SUCCESS) {
      chunk->here = true;
      chunk->made = ++clock_;
      mapped_bytes_ += bytes;
      return CUDA_SUCCESS;
    }
    ReleaseChunk(address, chunk);
  }
  options_.budget->ReturnDevice(bytes);
  return result;
}

CUresult AddressWindow::DropChunk(uint64_t address, Bytes bytes, Chunk* chunk) {
  for (ChunkWatcher* watcher : watchers_) watcher->Going(address);
  const CUresult unmapped = driver_.cuMemUnmap(address, bytes);
  LogIfFailed(unmapped, "cuMemUnmap");
  const CUresult released = ReleaseChunk(address, chunk);
  chunk->here = false;
  mapped_bytes_ -= bytes;
  options_.budget->ReturnDevice(bytes);
  return unmapped != CUDA_SUCCESS ? unmapped : released;
}

CUresult AddressWindow::ReleaseChunk(uint64_t address, Chunk* chunk) {
  const CUresult released = driver_.cuMemRelease(chunk->memory);
  LogIfFailed(released, "cuMemRelease");
  chunk->memory = 0;
  if (options_.maker != nullptr) options_.maker->Gone(address);
  return released;
}

CUresult AddressWindow::AllowAccess(uint64_t address, Bytes bytes) {
  const CUmemAccessDesc access = {DeviceMemory(options_.device).location,
                                  CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return driver_.cuMemSetAccess(address, bytes, &access, 1);
}

CUresult AddressWindow::MakeExtent(uint64_t granules, uint64_t* first) {
  const std::optional<uint64_t> place = granules_.Take(granules);
  if (!place.has_value()) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = MakeExtentAt(*place, granules);
  if (result == CUDA_SUCCESS) {
    *first = *place;
  } else {
    granules_.Return(*place, granules);
  }
  return result;
}

CUresult AddressWindow::MakeExtentAt(uint64_t first, uint64_t granules) {
  Extent extent;
  extent.granules = granules;
  extent.clean_at = extent.used_at = ++clock_;
  const uint64_t chunk_granules = options_.chunk_granules == 0 ? granules : options_.chunk_granules;
  extent.chunks.resize((granules + chunk_granules - 1) / chunk_granules);
  // As if the device had no room.
  CUresult result = makes_away_ ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
  for (size_t i = 0; i < extent.chunks.size() && result == CUDA_SUCCESS; ++i) {
    result = MakeChunk(AddressOf(first, i), ChunkBytes(extent, i), &extent.chunks[i]);
  }
  if (result == CUDA_SUCCESS) {
    result = AllowAccess(base_ + first * kGranuleBytes, granules * kGranuleBytes);
  }
  if (result != CUDA_SUCCESS) {
    for (size_t i = 0; i < extent.chunks.size(); ++i) {
      if (!extent.chunks[i].here) continue;
      DropChunk(AddressOf(first, i), ChunkBytes(extent, i), &extent.chunks[i]);
    }
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !options_.may_be_away) return result;
    away_bytes_ += granules * kGranuleBytes;
  }
  const auto made = extents_.emplace(first, std::move(extent)).first;
  for (ChunkWatcher* watcher : watchers_) TellOf(first, made->second, watcher);
  return CUDA_SUCCESS;
}

void AddressWindow::TellOf(uint64_t first, const Extent& extent, ChunkWatcher* watcher) const {
  for (size_t i = 0; i < extent.chunks.size(); ++i) {
    watcher->Made(AddressOf(first, i), ChunkBytes(extent, i), extent.chunks[i].memory);
  }
}

void AddressWindow::Watch(ChunkWatcher* watcher) {
  CHECK(!options_.may_be_away);
  watchers_.push_back(watcher);
  for (const auto& [first, extent] : extents_) TellOf(first, extent, watcher);
}

void AddressWindow::Unwatch(ChunkWatcher* watcher) { std::erase(watchers_, watcher); }

void AddressWindow::CacheExtent(uint64_t first, Extent* extent) {
  used_bytes_ -= extent->granules * kGranuleBytes;
  options_.budget->Unallot(extent->granules * kGranuleBytes);
  // Whatever the next owner reads before it writes is nobody's business to keep.
  for (Chunk& chunk : extent->chunks) {
    chunk.slot.reset();
    chunk.changed = false;
  }
  extent->written = false;
  extent->clean_at = ++clock_;
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
  if (extent.cached) {
    UncacheExtent(first, &extent);
  } else {
    used_bytes_ -= extent.granules * kGranuleBytes;
    options_.budget->Unallot(extent.granules * kGranuleBytes);
  }
  for (size_t i = 0; i < extent.chunks.size(); ++i) {
    if (extent.chunks[i].here) {
      DropChunk(AddressOf(first, i), ChunkBytes(extent, i), &extent.chunks[i]);
    } else {
      away_bytes_ -= ChunkBytes(extent, i);
    }
  }
  granules_.Return(first, extent.granules);
  extents_.erase(it);
}

void AddressWindow::Trim() {
  while (!cache_ages_.empty()) DestroyExtent(cache_ages_.front());
}

// --- Moving to another device

AddressWindow::Layout AddressWindow::Describe() const {
  Layout layout;
  for (const auto& [first, extent] : extents_) {
    if (extent.cached) continue;
    layout.extents.push_back(
        {base_ + first * kGranuleBytes, extent.granules * kGranuleBytes, extent.units != nullptr});
  }
  for (const auto& [address, placed] : allocations_) {
    layout.allocations.push_back({address, placed.bytes});
  }
  return layout;
}

bool AddressWindow::MayPlace(const PlacedExtent& placed) const {
  return placed.bytes != 0 && placed.bytes % kGranuleBytes == 0 &&
         placed.address % kGranuleBytes == 0 && Contains(placed.address, placed.bytes) &&
         (!placed.shared || placed.bytes == kGranuleBytes);
}

void AddressWindow::Prepare(const std::vector<PlacedExtent>& extents) {
  CHECK(extents_.empty() && !options_.may_be_away);
  for (const PlacedExtent& placed : extents) {
    if (!MayPlace(placed)) continue;
    const uint64_t first = (placed.address - base_) / kGranuleBytes;
    const uint64_t granules = placed.bytes / kGranuleBytes;
    if (!granules_.TakeAt(first, granules)) continue;
    if (!options_.budget->Allot(placed.bytes)) {
      granules_.Return(first, granules);
      continue;
    }
    if (MakeExtentAt(first, granules) == CUDA_SUCCESS) {
      used_bytes_ += placed.bytes;
      CacheExtent(first, &extents_.at(first));
    } else {
      granules_.Return(first, granules);
      options_.budget->Unallot(placed.bytes);
    }
  }
}

bool AddressWindow::IsPrepared(const PlacedExtent& placed) const {
  const auto found = Named(placed.address);
  return found != extents_.end() && found->second.cached &&
         found->second.granules * kGranuleBytes == placed.bytes;
}

CUresult AddressWindow::Restore(const Layout& layout) {
  CHECK(allocations_.empty() && extents_.size() == cached_.size());
  std::set<uint64_t> prepared;
  for (const PlacedExtent& extent : layout.extents) {
    if (MayPlace(extent) && IsPrepared(extent)) {
      prepared.insert((extent.address - base_) / kGranuleBytes);
    }
  }
  // The layout may have changed since it was told of.
  for (auto age = cache_ages_.begin(); age != cache_ages_.end();) {
    const uint64_t first = *age++;
    if (!prepared.contains(first)) DestroyExtent(first);
  }
  for (const PlacedExtent& extent : layout.extents) {
    const CUresult result = RestoreExtent(extent);
    if (result != CUDA_SUCCESS) return result;
  }
  for (const Allocation& allocation : layout.allocations) {
    const CUresult result = RestoreAllocation(allocation);
    if (result != CUDA_SUCCESS) return result;
  }
  for (const auto& [first, extent] : extents_) {
    // Nobody would ever free it.
    if (extent.units != nullptr && extent.units->free_total() == kUnitsPerGranule) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (extent.units != nullptr && extent.units->largest_free() != 0) {
      shared_free_.emplace(extent.units->largest_free(), first);
    }
  }
  return CUDA_SUCCESS;
}

CUresult AddressWindow::RestoreExtent(const PlacedExtent& placed) {
  if (!MayPlace(placed)) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t first = (placed.address - base_) / kGranuleBytes;
  const uint64_t granules = placed.bytes / kGranuleBytes;
  if (IsPrepared(placed)) {
    if (!options_.budget->Allot(placed.bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    UncacheExtent(first, &extents_.at(first));
  } else {
    if (!granules_.TakeAt(first, granules)) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (options_.budget->Allot(placed.bytes)) {
      result = MakeExtentAt(first, granules);
      if (result != CUDA_SUCCESS) options_.budget->Unallot(placed.bytes);
    }
    if (result != CUDA_SUCCESS) {
      granules_.Return(first, granules);
      return result;
    }
  }
  used_bytes_ += placed.bytes;
  if (placed.shared) {
    extents_.at(first).units = std::make_unique<RangeAllocator>(kUnitsPerGranule);
  }
  return CUDA_SUCCESS;
}

CUresult AddressWindow::RestoreAllocation(const Allocation& allocation) {
  if (allocation.bytes == 0 || allocation.address % kAllocationAlignment != 0 ||
      !Contains(allocation.address, allocation.bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto found = FirstOverlapping(allocation.address);
  if (found == extents_.end()) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t begin = base_ + found->first * kGranuleBytes;
  const Extent& extent = found->second;
  if (allocation.address < begin ||
      allocation.address - begin + allocation.bytes > extent.granules * kGranuleBytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const uint64_t units = AlignUp(allocation.bytes, kAllocationAlignment) / kAllocationAlignment;
  const bool free =
      extent.units != nullptr
          ? extent.units->TakeAt((allocation.address - begin) / kAllocationAlignment, units)
          : allocation.address == begin && !allocations_.contains(begin);
  if (!free) return CUDA_ERROR_INVALID_VALUE;
  allocations_.emplace(allocation.address, Placed{allocation.bytes, found->first});
  options_.notes.Placed(allocation.address, allocation.bytes);
  return CUDA_SUCCESS;
}

std::vector<AddressWindow::Piece> AddressWindow::Pieces() const {
  std::vector<Piece> pieces;
  for (const auto& [first, extent] : extents_) {
    if (extent.cached) continue;
    for (size_t i = 0; i < extent.chunks.size(); ++i) {
      const Chunk& chunk = extent.chunks[i];
      pieces.push_back({AddressOf(first, i), ChunkBytes(extent, i), chunk.here,
                        chunk.here ? nullptr : chunk.slot.get(), chunk.made});
    }
  }
  return pieces;
}

CUresult AddressWindow::Export(const Piece& piece, UniqueFd* memory) const {
  const auto found = FirstOverlapping(piece.address);
  if (found == extents_.end()) return CUDA_ERROR_INVALID_VALUE;
  const std::vector<Chunk>& chunks = found->second.chunks;
  const auto chunk = std::find_if(chunks.begin(), chunks.end(), [&](const Chunk& one) {
    return one.here && one.made == piece.made;
  });
  if (chunk == chunks.end()) return CUDA_ERROR_INVALID_VALUE;
  int descriptor = -1;
  const CUresult result = driver_.cuMemExportToShareableHandle(
      &descriptor, chunk->memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (result == CUDA_SUCCESS) memory->Reset(descriptor);
  return result;
}

// --- Being away

AddressWindow::Extents::const_iterator AddressWindow::Named(uint64_t address) const {
  return extents_.find((address - base_) / kGranuleBytes);
}

AddressWindow::Extents::const_iterator AddressWindow::FirstOverlapping(uint64_t address) const {
  const uint64_t granule = address <= base_ ? 0 : (address - base_) / kGranuleBytes;
  auto it = extents_.upper_bound(granule);
  if (it == extents_.begin()) return it;
  const auto before = std::prev(it);
  return before->first + before->second.granules > granule ? before : it;
}

void AddressWindow::FindExtents(const Range& range, std::vector<uint64_t>* extents) const {
  if (range.bytes == 0 || range.address >= base_ + bytes_) return;
  const uint64_t last = LastOf(range);
  if (last < base_) return;
  for (auto it = FirstOverlapping(range.address); it != extents_.end(); ++it) {
    const uint64_t address = base_ + it->first * kGranuleBytes;
    if (address > last) break;
    if (it->second.cached) continue;
    const auto place = std::lower_bound(extents->begin(), extents->end(), address);
    if (place == extents->end() || *place != address) extents->insert(place, address);
  }
}

void AddressWindow::FindAround(uint64_t address, std::vector<uint64_t>* extents) const {
  std::vector<uint64_t> found;
  FindExtents({address, 1}, &found);
  // One past the end, or before the beginning: the kernel comes back into it.
  if (found.empty()) {
    const uint64_t below = std::min<uint64_t>(address, kGranuleBytes);
    FindExtents({address - below, below + kGranuleBytes}, &found);
  }
  for (const uint64_t extent : found) FindExtents({extent, 1}, extents);
}

std::vector<uint64_t> AddressWindow::AllExtents() const {
  std::vector<uint64_t> all;
  for (const auto& [first, extent] : extents_) {
    if (!extent.cached) all.push_back(base_ + first * kGranuleBytes);
  }
  return all;
}

Bytes AddressWindow::BytesOf(const std::vector<uint64_t>& extents) const {
  Bytes bytes = 0;
  for (const uint64_t address : extents) bytes += Named(address)->second.granules * kGranuleBytes;
  return bytes;
}

Bytes AddressWindow::AwayBytesOf(const std::vector<uint64_t>& extents) const {
  if (all_here()) return 0;
  Bytes bytes = 0;
  for (const uint64_t address : extents) {
    const Extent& extent = Named(address)->second;
    for (size_t i = 0; i < extent.chunks.size(); ++i) {
      if (!extent.chunks[i].here) bytes += ChunkBytes(extent, i);
    }
  }
  return bytes;
}

void AddressWindow::NoteWrite(const Range& range) {
  if (range.bytes == 0) return;
  const uint64_t last = LastOf(range);
  const auto begin = FirstOverlapping(range.address);
  for (auto it = extents_.erase(begin, begin);  // the same, not const
       it != extents_.end() && base_ + it->first * kGranuleBytes <= last; ++it) {
    it->second.written = true;
  }
}

void AddressWindow::NoteUse(const std::vector<uint64_t>& extents) {
  ++clock_;
  for (const uint64_t address : extents) {
    extents_.find((address - base_) / kGranuleBytes)->second.used_at = clock_;
  }
}

void AddressWindow::SettleWrites(Extent* extent) {
  if (extent->written || written_anywhere_ > extent->clean_at) {
    for (Chunk& chunk : extent->chunks) {
      if (chunk.here) chunk.changed = true;
    }
  }
  extent->written = false;
  extent->clean_at = ++clock_;
}

CUresult AddressWindow::BringIn(const std::vector<uint64_t>& extents, KeepSlots keep, Mover* mover,
                                Moved* moved) {
  const auto stays = [keep](const SwapStore::Slot& slot) {
    return keep == KeepSlots::kAll ||
           (keep == KeepSlots::kNotPinned && slot.tier() != SwapTier::kPinned);
  };
  struct Came {
    Chunk* chunk;
    uint64_t address;
    Bytes bytes;
  };
  std::vector<Came> came;
  CUresult result = CUDA_SUCCESS;
  bool no_room = false;
  for (const uint64_t address : extents) {
    const auto it = extents_.find((address - base_) / kGranuleBytes);
    CHECK(it != extents_.end());
    Extent& extent = it->second;
    // What is here already stays as true as it was.
    SettleWrites(&extent);
    for (size_t i = 0; i < extent.chunks.size() && result == CUDA_SUCCESS && !no_room; ++i) {
      Chunk& chunk = extent.chunks[i];
      if (chunk.here) continue;
      const uint64_t at = AddressOf(it->first, i);
      const Bytes bytes = ChunkBytes(extent, i);
      result = MakeChunk(at, bytes, &chunk);
      if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        result = CUDA_SUCCESS;
        no_room = true;
        break;
      }
      if (result != CUDA_SUCCESS) break;
      away_bytes_ -= bytes;
      came.push_back({&chunk, at, bytes});
      result = AllowAccess(at, bytes);
      if (result != CUDA_SUCCESS) break;
      moved->moved += bytes;
      if (chunk.slot == nullptr) {
        result = mover->Clear(at, bytes);
      } else {
        moved->copied += bytes;
        result = mover->In({at, chunk.slot.get()});
      }
    }
    if (result != CUDA_SUCCESS || no_room) break;
  }
  const CUresult finished = mover->Finish();
  if (result == CUDA_SUCCESS) result = finished;
  for (const Came& one : came) {
    if (result != CUDA_SUCCESS) {
      DropChunk(one.address, one.bytes, one.chunk);
      away_bytes_ += one.bytes;
    } else if (one.chunk->slot != nullptr && !stays(*one.chunk->slot)) {
      one.chunk->slot.reset();
      one.chunk->changed = true;
    }
  }
  return result == CUDA_SUCCESS && no_room ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

CUresult AddressWindow::SendExtent(uint64_t first, Extent* extent, SwapStore* store,
                                   SwapStore::Within within, Mover* mover, Moved* moved) {
  SettleWrites(extent);
  CUresult result = CUDA_SUCCESS;
  for (size_t i = 0; i < extent->chunks.size() && result == CUDA_SUCCESS; ++i) {
    Chunk& chunk = extent->chunks[i];
    if (!chunk.here) continue;
    const uint64_t at = AddressOf(first, i);
    const Bytes bytes = ChunkBytes(*extent, i);
    const auto leave = [this, at, bytes, moved, chunk = &chunk] {
      chunk->changed = false;
      away_bytes_ += bytes;
      moved->moved += bytes;
      return DropChunk(at, bytes, chunk);
    };
    if (!chunk.changed) {
      result = leave();
      continue;
    }
    if (chunk.slot == nullptr) {
      chunk.slot = store->Make(bytes, within);
      if (chunk.slot == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    } else if (chunk.slot->tier() != SwapTier::kPinned) {
      // What it has is of no use any more.
      auto pinned = store->Make(bytes, SwapStore::Within::kPinned);
      if (pinned != nullptr) {
        chunk.slot = std::move(pinned);
      } else if (within == SwapStore::Within::kPinned) {
        return CUDA_ERROR_OUT_OF_MEMORY;
      }
    }
    moved->copied += bytes;
    result = mover->Out({at, chunk.slot.get()}, leave);
  }
  return result;
}

CUresult AddressWindow::SendOut(Bytes bytes, const std::vector<uint64_t>& keep, SwapStore* store,
                                SwapStore::Within within, Mover* mover, Moved* moved) {
  const Bytes before = mapped_bytes_;
  Trim();
  Bytes going = before - mapped_bytes_;
  std::vector<std::pair<uint64_t, uint64_t>> by_age;  // used at, first granule
  for (const auto& [first, extent] : extents_) {
    if (!std::binary_search(keep.begin(), keep.end(), base_ + first * kGranuleBytes)) {
      by_age.emplace_back(extent.used_at, first);
    }
  }
  std::sort(by_age.begin(), by_age.end());
  CUresult result = CUDA_SUCCESS;
  for (const auto& [used_at, first] : by_age) {
    if (going >= bytes) break;
    Extent& extent = extents_.at(first);
    for (size_t i = 0; i < extent.chunks.size(); ++i) {
      if (extent.chunks[i].here) going += ChunkBytes(extent, i);
    }
    result = SendExtent(first, &extent, store, within, mover, moved);
    if (result != CUDA_SUCCESS) break;
  }
  const CUresult finished = mover->Finish();
  return finished != CUDA_SUCCESS ? finished : result;
}

void AddressWindow::DropSpareSlots() {
  for (auto& [first, extent] : extents_) {
    for (Chunk& chunk : extent.chunks) {
      if (!chunk.here || chunk.slot == nullptr) continue;
      chunk.slot.reset();
      chunk.changed = true;
    }
  }
}

// --- Contents of what is away

template <class Each>
bool AddressWindow::EachChunk(const Range& range, const Each& each) {
  if (range.bytes == 0) return true;
  const uint64_t last = LastOf(range);
  const auto begin = FirstOverlapping(range.address);
  for (auto it = extents_.erase(begin, begin);  // the same, not const
       it != extents_.end() && base_ + it->first * kGranuleBytes <= last; ++it) {
    for (size_t i = 0; i < it->second.chunks.size(); ++i) {
      const uint64_t at = AddressOf(it->first, i);
      const Bytes bytes = ChunkBytes(it->second, i);
      if (at > last || at + bytes <= range.address) continue;
      if (!each(it->second.chunks[i], at, bytes)) return false;
    }
  }
  return true;
}

bool AddressWindow::IsAway(const Range& range) {
  if (!Contains(range.address, range.bytes)) return false;
  uint64_t reached = range.address;
  const bool away = EachChunk(range, [&](const Chunk& chunk, uint64_t at, Bytes bytes) {
    if (chunk.here || at > reached) return false;
    reached = at + bytes;
    return true;
  });
  return away && reached >= range.address + range.bytes;
}

bool AddressWindow::MakeSlots(const Range& range, SwapStore* store) {
  return EachChunk(range, [store](Chunk& chunk, uint64_t, Bytes bytes) {
    if (chunk.slot == nullptr) {
      chunk.slot = store->Make(bytes, SwapStore::Within::kMemory);
      if (chunk.slot != nullptr) chunk.slot->Clear();
    }
    return chunk.slot != nullptr && chunk.slot->tier() != SwapTier::kFile;
  });
}

void AddressWindow::WriteAway(uint64_t address, std::span<const std::byte> from) {
  EachChunk({address, from.size()}, [&](Chunk& chunk, uint64_t at, Bytes bytes) {
    const uint64_t to = std::max(at, address);
    const Bytes length = std::min(at + bytes, address + from.size()) - to;
    chunk.slot->CopyFrom(from.data() + (to - address), to - at, length);
    return true;
  });
}

void AddressWindow::ClearAway(const Range& range) {
  const std::vector<std::byte> zeros(std::min(range.bytes, kGranuleBytes));
  EachChunk(range, [&](Chunk& chunk, uint64_t at, Bytes bytes) {
    if (chunk.slot == nullptr) return true;
    const uint64_t end = std::min(at + bytes, range.address + range.bytes);
    for (uint64_t from = std::max(at, range.address); from < end; from += zeros.size()) {
      chunk.slot->CopyFrom(zeros.data(), from - at, std::min<Bytes>(zeros.size(), end - from));
    }
    return true;
  });
}

void AddressWindow::ReadAway(uint64_t address, std::span<std::byte> to) {
  EachChunk({address, to.size()}, [&](const Chunk& chunk, uint64_t at, Bytes bytes) {
    const uint64_t from = std::max(at, address);
    const Bytes length = std::min(at + bytes, address + to.size()) - from;
    std::byte* const place = to.data() + (from - address);
    if (chunk.slot == nullptr) {
      std::fill_n(place, length, std::byte{0});
    } else {
      chunk.slot->CopyTo(place, from - at, length);
    }
    return true;
  });
}

}  // namespace consort::memmgr
