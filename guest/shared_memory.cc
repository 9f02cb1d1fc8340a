// SPDX-License-Identifier: Apache-2.0
#include "guest/shared_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include "guest/runtime.h"
#include "guest/shared_pages.h"

namespace consort::guest {
namespace {

// Maps `bytes`, whole pages, of what `fd` is to where the host says that the device has it.
bool MapAt(const Session& session, uint64_t address, uint64_t bytes, int fd, uint64_t offset) {
  const wire::Welcome& welcome = session.welcome();
  void* at = reinterpret_cast<void*>(address);
  return fd >= 0 && address >= welcome.shared_host_base &&
         address + bytes <= welcome.shared_host_base + welcome.shared_host_bytes &&
         mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
              static_cast<off_t>(offset)) == at;
}

// Likewise of what the host has just told of, in a reply that has `offset`. `memory`, if not null,
// gets the descriptor where one came.
bool MapTold(Session* session, uint64_t address, uint64_t bytes, uint64_t offset, int* memory) {
  if (session->in_vm_memory()) {
    const VmMemory* vm_memory = GetVmMemory();
    return vm_memory != nullptr && offset <= vm_memory->bytes &&
           bytes <= vm_memory->bytes - offset &&
           MapAt(*session, address, bytes, vm_memory->file.get(), offset);
  }
  const int fd = session->ReceiveDescriptor();
  const bool ok = MapAt(*session, address, bytes, fd, 0);
  if (ok && memory != nullptr) {
    *memory = fd;
  } else if (fd >= 0) {
    close(fd);
  }
  return ok;
}

CUresult Allocate(Session* session, wire::HostAllocRequest request, uint64_t* address,
                  int* memory) {
  const uint64_t mapped = AlignUp(request.bytes, kPageBytes);
  MutexLock lock(&GetRuntime()->host_alloc_mutex);
  wire::HostAllocReply reply;
  request.bytes = mapped;
  // Not tied to a context on the host: the program may hold it until it frees it.
  if (CUresult result = session->Ask(0, request, &reply); result != CUDA_SUCCESS) return result;
  if (!MapTold(session, reply.address, mapped, reply.offset, memory)) {
    wire::HostFreeRequest undo;
    undo.address = reply.address;
    session->Post(0, undo);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *address = reply.address;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult AllocateSharedMemory(Session* session, uint64_t bytes, unsigned flags, uint64_t* address,
                              int* memory) {
  wire::HostAllocRequest request;
  request.bytes = bytes;
  request.flags = flags;
  return Allocate(session, request, address, memory);
}

CUresult AllocateOwnMemory(Session* session, uint64_t bytes, uint64_t* address) {
  wire::HostAllocRequest request;
  request.bytes = bytes;
  request.own = 1;
  return Allocate(session, request, address, nullptr);
}

CUresult AdoptSharedMemory(Session* session, int file, const wire::HostAdoptRequest& request,
                           uint64_t* address) {
  MutexLock lock(&GetRuntime()->host_alloc_mutex);
  wire::HostAdoptReply reply;
  if (!session->SendDescriptor(file)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (CUresult result = session->Ask(0, request, &reply); result != CUDA_SUCCESS) return result;
  *address = reply.address;
  return CUDA_SUCCESS;
}

CUresult PassSharedMemory(Session* from, uint64_t address, Session* to,
                          wire::HostReachRequest* request) {
  MutexLock lock(&GetRuntime()->host_alloc_mutex);
  wire::HostShowRequest show;
  wire::HostShowReply shown;
  show.address = address;
  if (CUresult result = from->Ask(0, show, &shown); result != CUDA_SUCCESS) return result;
  request->address = shown.address;
  request->offset = shown.offset;
  request->bytes = shown.bytes;
  if (!from->in_vm_memory()) {
    const int file = from->ReceiveDescriptor();
    if (file < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    const bool sent = to->SendDescriptor(file);
    close(file);
    if (!sent) return CUDA_ERROR_OPERATING_SYSTEM;
  }
  wire::EmptyReply reply;
  return to->Ask(0, *request, &reply);
}

CUresult MapManagedVariables(Session* session, uint64_t library_id, uint64_t* address,
                             uint64_t* bytes) {
  MutexLock lock(&GetRuntime()->host_alloc_mutex);
  wire::ManagedShareRequest request;
  wire::ManagedShareReply reply;
  request.library = library_id;
  if (CUresult result = session->Ask(0, request, &reply); result != CUDA_SUCCESS) return result;
  if (!MapTold(session, reply.address, reply.bytes, reply.offset, nullptr)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *address = reply.address;
  *bytes = reply.bytes;
  return CUDA_SUCCESS;
}

void UnmapSharedMemory(uint64_t address, uint64_t bytes) {
  // The addresses stay reserved: the window is the device's.
  mmap(reinterpret_cast<void*>(address), AlignUp(bytes, kPageBytes), PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

CUresult FreeSharedMemory(Session* session, uint64_t address, uint64_t bytes) {
  UnmapSharedMemory(address, bytes);
  wire::HostFreeRequest request;
  request.address = address;
  return session->Post(0, request);
}

}  // namespace consort::guest
