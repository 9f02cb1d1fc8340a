// SPDX-License-Identifier: Apache-2.0
#include "guest/shared_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include "guest/runtime.h"
#include "guest/shared_pages.h"

namespace consort::guest {

CUresult AllocateSharedMemory(Session* session, uint64_t bytes, unsigned flags, uint64_t* address,
                              int* memory) {
  const uint64_t mapped = AlignUp(bytes, kPageBytes);
  MutexLock lock(&GetRuntime()->host_alloc_mutex);
  wire::HostAllocRequest request;
  wire::HostAllocReply reply;
  request.bytes = mapped;
  request.flags = flags;
  // Not tied to a context on the host: the program may hold it until it frees it.
  if (CUresult result = session->Ask(0, request, &reply); result != CUDA_SUCCESS) return result;
  const int fd = session->ReceiveDescriptor();
  void* at = reinterpret_cast<void*>(reply.address);
  const bool inside = reply.address >= session->welcome().shared_host_base &&
                      reply.address + mapped <= session->welcome().shared_host_base +
                                                    session->welcome().shared_host_bytes;
  const bool ok = fd >= 0 && inside &&
                  mmap(at, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == at;
  if (ok && memory != nullptr) {
    *memory = fd;
  } else if (fd >= 0) {
    close(fd);
  }
  if (!ok) {
    wire::HostFreeRequest undo;
    undo.address = reply.address;
    session->Post(0, undo);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *address = reply.address;
  return CUDA_SUCCESS;
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

CUresult FreeSharedMemory(Session* session, uint64_t address, uint64_t bytes) {
  // The addresses stay reserved: the window is the device's.
  mmap(reinterpret_cast<void*>(address), AlignUp(bytes, kPageBytes), PROT_NONE,
       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  wire::HostFreeRequest request;
  request.address = address;
  return session->Post(0, request);
}

}  // namespace consort::guest
