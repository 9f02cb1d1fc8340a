// SPDX-License-Identifier: Apache-2.0
#include "host/session/shared_host.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "host/limits.h"

namespace consort::host {
namespace {

constexpr Bytes kPageBytes = 4 * kKiB;

void* Pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

// Whether these are whole pages of a regular file.
bool HasPages(int file, Bytes offset, Bytes bytes) {
  struct stat about;
  if (bytes == 0 || bytes % kPageBytes != 0 || offset % kPageBytes != 0 ||
      fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) {
    return false;
  }
  const Bytes length = AlignUp(static_cast<Bytes>(about.st_size), kPageBytes);
  return offset <= length && bytes <= length - offset;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SharedHost>> SharedHost::Create(const WorkerDevice& device,
                                                               uint64_t base, Bytes bytes) {
  CHECK(base % kPageBytes == 0 && bytes % kPageBytes == 0);
  const void* mapped =
      mmap(Pointer(base), bytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  if (mapped != Pointer(base)) {
    return absl::UnavailableError(absl::StrCat("reserving ", bytes, " bytes of addresses at ", "0x",
                                               absl::Hex(base), ": ", strerror(errno)));
  }
  return std::unique_ptr<SharedHost>(new SharedHost(device, base, bytes));
}

SharedHost::SharedHost(const WorkerDevice& device, uint64_t base, Bytes bytes)
    : device_(device),
      driver_(device.driver()),
      base_(base),
      bytes_(bytes),
      pages_(bytes / kPageBytes) {}

SharedHost::~SharedHost() {
  for (const auto& [address, allocation] : allocations_) {
    driver_.cuMemHostUnregister(Pointer(address));
  }
  munmap(Pointer(base_), bytes_);
}

CUresult SharedHost::Allocate(Bytes bytes, uint64_t* address) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > kSharedHostBytesPerSession) return CUDA_ERROR_OUT_OF_MEMORY;
  const Bytes rounded = AlignUp(bytes, kPageBytes);
  if (lender_ != nullptr) {
    const std::optional<Bytes> offset = lender_->Lend(rounded);
    if (!offset.has_value()) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = Place({lender_->file(), *offset, rounded, true}, kPageBytes, address);
    if (result != CUDA_SUCCESS) lender_->TakeBack(*offset, rounded);
    return result;
  }
  UniqueFd made(memfd_create("consort-pinned", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  // Sealed, so that the guest cannot shrink what this process and the device have mapped.
  if (!made.valid() || ftruncate(made.get(), static_cast<off_t>(rounded)) != 0 ||
      fcntl(made.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    LOG(WARNING) << "shared host memory of " << rounded << " bytes: " << strerror(errno);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return Place({made.get(), 0, rounded, false}, kPageBytes, address);
}

CUresult SharedHost::Adopt(int file, const wire::HostAdoptRequest& request, uint64_t* address) {
  const Piece piece = {file, request.offset, request.bytes, false};
  const Bytes alignment = std::max<Bytes>(request.alignment, kPageBytes);
  if ((alignment & (alignment - 1)) != 0 || alignment > kSharedHostAlignMax ||
      !HasPages(file, piece.offset, piece.bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (request.replaces == 0) return Place(piece, alignment, address);
  const auto replaced = allocations_.find(request.replaces);
  if (replaced == allocations_.end() || replaced->second.bytes != piece.bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *address = request.replaces;
  return Replace(request.replaces, piece);
}

CUresult SharedHost::Place(const Piece& piece, Bytes alignment, uint64_t* address) {
  if (piece.bytes > kSharedHostBytesPerSession - used_bytes_) return CUDA_ERROR_OUT_OF_MEMORY;
  UniqueFd kept(fcntl(piece.memory, F_DUPFD_CLOEXEC, 0));
  if (!kept.valid()) return CUDA_ERROR_OUT_OF_MEMORY;
  // More than is needed, of which the ends go back.
  const uint64_t wanted = piece.bytes / kPageBytes;
  const uint64_t taken = wanted + alignment / kPageBytes - 1;
  const std::optional<uint64_t> first = pages_.Take(taken);
  if (!first.has_value()) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t place = AlignUp(base_ + *first * kPageBytes, alignment);
  const uint64_t before = (place - base_) / kPageBytes - *first;
  if (before != 0) pages_.Return(*first, before);
  if (const uint64_t after = taken - before - wanted; after != 0) {
    pages_.Return(*first + before + wanted, after);
  }
  const CUresult result =
      Fill(place, {piece.bytes, piece.offset, std::move(kept), next_number_++, piece.lent});
  if (result == CUDA_SUCCESS) *address = place;
  return result;
}

CUresult SharedHost::Replace(uint64_t address, const Piece& piece) {
  UniqueFd kept(fcntl(piece.memory, F_DUPFD_CLOEXEC, 0));
  if (!kept.valid()) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = driver_.cuMemHostUnregister(Pointer(address));
  if (result != CUDA_SUCCESS) return result;
  allocations_.erase(address);
  used_bytes_ -= piece.bytes;
  return Fill(address, {piece.bytes, piece.offset, std::move(kept), next_number_++, piece.lent});
}

CUresult SharedHost::Fill(uint64_t place, Allocation allocation) {
  const CUresult result =
      MapAndRegister(place, allocation.bytes, allocation.memory.get(), allocation.offset);
  if (result != CUDA_SUCCESS) {
    Unmap(place, allocation.bytes);
    return result;
  }
  used_bytes_ += allocation.bytes;
  allocations_.emplace(place, std::move(allocation));
  return CUDA_SUCCESS;
}

std::vector<SharedHost::Share> SharedHost::Shares() const {
  std::vector<Share> shares;
  for (const auto& [address, allocation] : allocations_) shares.push_back(*Find(address));
  return shares;
}

std::optional<SharedHost::Share> SharedHost::Find(uint64_t address) const {
  const auto found = allocations_.find(address);
  if (found == allocations_.end()) return std::nullopt;
  const Allocation& allocation = found->second;
  return Share{address,         allocation.bytes, allocation.offset, allocation.memory.get(),
               allocation.lent, allocation.number};
}

std::optional<SharedHost::Share> SharedHost::FindAround(uint64_t address) const {
  const auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin() || !Covers(address, 1)) return std::nullopt;
  return Find(std::prev(after)->first);
}

CUresult SharedHost::TakeUp(const Share& share, UniqueFd memory) {
  const bool fits = share.address % kPageBytes == 0 && Contains(share.address, share.bytes) &&
                    share.bytes <= kSharedHostBytesPerSession - used_bytes_ &&
                    HasPages(memory.get(), share.offset, share.bytes);
  if (!fits || !pages_.TakeAt((share.address - base_) / kPageBytes, share.bytes / kPageBytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  next_number_ = std::max(next_number_, share.number + 1);
  return Fill(share.address,
              {share.bytes, share.offset, std::move(memory), share.number, share.lent});
}

CUresult SharedHost::MapAndRegister(uint64_t address, Bytes bytes, int memory, Bytes offset) {
  if (mmap(Pointer(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory,
           static_cast<off_t>(offset)) == MAP_FAILED) {
    LOG(WARNING) << "mapping shared host memory: " << strerror(errno);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  CUresult result = device_.Register({reinterpret_cast<std::byte*>(address), bytes},
                                     CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  if (result != CUDA_SUCCESS) return result;
  CUdeviceptr device_address = 0;
  result = driver_.cuMemHostGetDevicePointer_v2(&device_address, Pointer(address), 0);
  if (result == CUDA_SUCCESS && device_address != address) {
    LOG(WARNING) << "the device maps host memory at other addresses; pinned memory is not shared";
    result = CUDA_ERROR_NOT_SUPPORTED;
  }
  if (result != CUDA_SUCCESS) driver_.cuMemHostUnregister(Pointer(address));
  return result;
}

void SharedHost::Unmap(uint64_t address, Bytes bytes) {
  // The addresses stay reserved: another mapping must not come to lie in the window.
  PCHECK(mmap(Pointer(address), bytes, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED);
  pages_.Return((address - base_) / kPageBytes, bytes / kPageBytes);
}

const SharedHost::Allocation* SharedHost::Holder(uint64_t address, Bytes bytes) const {
  auto it = allocations_.upper_bound(address);
  if (it == allocations_.begin()) return nullptr;
  --it;
  const Bytes offset = address - it->first;
  const bool holds = offset < it->second.bytes && bytes <= it->second.bytes - offset;
  return holds ? &it->second : nullptr;
}

bool SharedHost::Covers(uint64_t address, Bytes bytes) const {
  return Holder(address, bytes) != nullptr;
}

bool SharedHost::Keeps(uint64_t address, Bytes bytes) const {
  const Allocation* const holder = Holder(address, bytes);
  if (holder == nullptr) return false;
  if (holder->lent) return true;
  // What the guest gave is a file of its own.
  const int seals = fcntl(holder->memory.get(), F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

CUresult SharedHost::Free(uint64_t address) {
  const auto it = allocations_.find(address);
  if (it == allocations_.end()) return CUDA_ERROR_INVALID_VALUE;
  const Allocation freed = std::move(it->second);
  const Bytes bytes = freed.bytes;
  allocations_.erase(it);
  used_bytes_ -= bytes;
  const CUresult result = driver_.cuMemHostUnregister(Pointer(address));
  if (result == CUDA_SUCCESS) {
    Unmap(address, bytes);
    if (freed.lent && lender_ != nullptr) lender_->TakeBack(freed.offset, bytes);
  } else {
    LOG(WARNING) << "unregistering shared host memory failed: " << static_cast<int>(result);
  }
  return result;
}

}  // namespace consort::host
