// SPDX-License-Identifier: Apache-2.0
#include "guest/host_memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "guest/runtime.h"
#include "guest/shared_memory.h"
#include "guest/unsupported.h"

namespace consort::guest {
namespace {

constexpr char kName[] = "consort-host-memory";
// Nobody can take pages away that others have mapped.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

void* Pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

// Whether some reservation on the device is for the memory.
bool HasReservation(const Device* device, uint64_t memory_id) {
  for (const HostReservation& reservation : GetRuntime()->host_reservations) {
    if (reservation.device == device && reservation.memory_id == memory_id) return true;
  }
  return false;
}

}  // namespace

int MakeHostMemory(uint64_t bytes) {
  const int file = memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file < 0) return -1;
  if (ftruncate(file, static_cast<off_t>(bytes)) != 0 || fcntl(file, F_ADD_SEALS, kSeals) != 0) {
    close(file);
    return -1;
  }
  return file;
}

bool IsHostMemory(int file, uint64_t* bytes) {
  char link[32];
  char name[64] = {};
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  constexpr char kPrefix[] = "/memfd:";
  if (readlink(link, name, sizeof name - 1) < 0 ||
      strncmp(name, kPrefix, sizeof kPrefix - 1) != 0 ||
      strncmp(name + sizeof kPrefix - 1, kName, sizeof kName - 1) != 0 ||
      fcntl(file, F_GET_SEALS) != kSeals) {
    return false;
  }
  // fstat would need glibc 2.33.
  struct statx about;
  if (statx(file, "", AT_EMPTY_PATH, STATX_SIZE, &about) != 0 || about.stx_size == 0) return false;
  *bytes = about.stx_size;
  return true;
}

CUresult ReserveForHostMemory(Device* device, uint64_t bytes, uint64_t alignment,
                              uint64_t* address) {
  Runtime* runtime = GetRuntime();
  const PhysicalMemory* found = nullptr;
  runtime->physical_memory.ForEach([&](PhysicalMemory* memory, uint64_t) {
    if (found == nullptr && memory->file >= 0 && memory->bytes == bytes && memory->holds != 0 &&
        !HasReservation(device, memory->id)) {
      found = memory;
    }
  });
  *address = 0;
  if (found == nullptr) return CUDA_SUCCESS;
  CUresult result = CUDA_SUCCESS;
  Session* session = OpenDevice(device, &result);
  if (session == nullptr) return result;
  wire::HostAdoptRequest request;
  request.bytes = bytes;
  request.alignment = alignment;
  uint64_t start = 0;
  if (result = AdoptSharedMemory(session, found->file, request, &start); result != CUDA_SUCCESS)
    return result;
  runtime->host_reservations.push_back({device, start, bytes, found->id, false});
  *address = start;
  return CUDA_SUCCESS;
}

HostReservation* FindHostReservation(uint64_t address) {
  for (HostReservation& reservation : GetRuntime()->host_reservations) {
    if (address >= reservation.start && address - reservation.start < reservation.bytes)
      return &reservation;
  }
  return nullptr;
}

CUresult MapHostMemory(HostReservation* reservation, uint64_t address, uint64_t bytes,
                       const PhysicalMemory* memory) {
  if (reservation == nullptr || reservation->start != address || reservation->bytes != bytes ||
      memory->bytes != bytes) {
    NoteUnsupported("cuMemMap",
                    "memory of the host at addresses that were not reserved after it was made, in "
                    "its length,");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  if (reservation->mapped) return CUDA_ERROR_INVALID_VALUE;
  if (reservation->memory_id != memory->id) {
    wire::HostAdoptRequest request;
    request.bytes = bytes;
    request.replaces = address;
    uint64_t start = 0;
    if (CUresult result =
            AdoptSharedMemory(reservation->device->session, memory->file, request, &start);
        result != CUDA_SUCCESS) {
      return result;
    }
    reservation->memory_id = memory->id;
  }
  if (mmap(Pointer(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory->file,
           0) == MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  reservation->mapped = true;
  return CUDA_SUCCESS;
}

void UnmapHostMemory(HostReservation* reservation) {
  // The addresses stay reserved: the window is the device's.
  mmap(Pointer(reservation->start), reservation->bytes, PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  reservation->mapped = false;
}

CUresult FreeHostReservation(HostReservation* reservation, uint64_t address, uint64_t bytes) {
  if (reservation->mapped || reservation->start != address || reservation->bytes != bytes)
    return CUDA_ERROR_INVALID_VALUE;
  Session* session = reservation->device->session;
  std::vector<HostReservation>* all = &GetRuntime()->host_reservations;
  all->erase(all->begin() + (reservation - all->data()));
  return FreeSharedMemory(session, address, bytes);
}

}  // namespace consort::guest
