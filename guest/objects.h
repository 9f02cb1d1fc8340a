// SPDX-License-Identifier: Apache-2.0
// guest/objects.h: what stands behind the handles that a program holds. Plain state; who may change
// which member is said at the member. Objects live in HandleTable slots and are never freed.
#ifndef CONSORT_GUEST_OBJECTS_H_
#define CONSORT_GUEST_OBJECTS_H_

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "guest/context_locals.h"
#include "guest/freed_memory.h"
#include "guest/handle_table.h"
#include "guest/jit_options.h"
#include "vmsock/wire/handshake.h"

namespace consort::guest {

class BulkCopy;
class Completion;
class Session;

// A vGPU. Immutable after cuInit but for the members marked otherwise.
struct Device {
  int ordinal = 0;          // as the program counts, after CUDA_VISIBLE_DEVICES
  uint32_t host_index = 0;  // as the daemon counts
  wire::DeviceSnapshot snapshot;
  uint64_t primary_id = 0;  // handle of the primary context; exists from cuInit on
  // Guarded by Runtime's device mutex:
  Session* session = nullptr;  // opened at the first need, then for good
  uint32_t retain_count = 0;
  uint32_t primary_flags = CU_CTX_SCHED_AUTO;
  std::atomic<Completion*> completion{nullptr};  // made at its first use, for good
  std::atomic<bool> no_completion{false};        // likewise: there was no memory for it
  std::atomic<BulkCopy*> bulk_copy{nullptr};     // made by the session's first large copy, for good
  std::atomic<bool> in_use{false};               // it has a session and a context
  // It has, or had, other contexts than its primary one: that one of them is quiet says little.
  std::atomic<bool> several_contexts{false};
  FreedMemory freed_memory;
  // Devices, by ordinal, that reach this one's memory. Relaxed: who frees memory while another
  // thread begins to reach it is wrong with any driver.
  std::atomic<uint64_t> reached_by{0};
  // Guarded by Runtime's pool mutex; 0 until used or set.
  uint64_t default_pool = 0;
  uint64_t current_pool = 0;
};

// What a device has of another one's memory; see guest/peers.h. Guarded by Runtime's peer mutex.
struct PeerLink {
  Device* device = nullptr;
  Device* peer = nullptr;
  uint64_t session = 0;         // the host's name of the peer's
  bool enabled = false;         // for kernels, at its addresses
  bool copies = false;          // for copies alone
  bool copies_refused = false;  // it cannot be had, and is not asked for again
  bool host = false;            // the addresses of its host memory
  bool host_refused = false;    // likewise
  uint32_t mappings = 0;        // that the program has at addresses of its window; not 0: kept
};

// A context that has enabled access to memory of another; likewise. Or, without a context, a device
// that was given access to a pool.
struct PeerAccess {
  uint64_t context_id;
  uint64_t peer_id;  // of a context or a pool
  Device* device;
  Device* peer_device;
};

// A limit of a context as it was told last, so that it is asked for once.
struct KnownLimit {
  std::atomic<int> result{kUnknown};  // written last
  std::atomic<size_t> value{0};
  static constexpr int kUnknown = -1;
};

// A context: a group of objects on one device. Ids on the wire are the low 32 bits' index + 1; see
// WireContext.
struct Context {
  uint64_t id = 0;
  uint32_t wire_id = 0;  // unique in this process, never reused
  Device* device = nullptr;
  bool primary = false;
  uint64_t green_id = 0;  // of the green context that this stands for; see green_context.h
  std::atomic<bool> active{false};  // primary: retained at least once since the last reset
  std::atomic<uint32_t> flags{0};
  std::atomic<int> cache_config{CU_FUNC_CACHE_PREFER_NONE};
  KnownLimit limits[CU_LIMIT_MAX];
  // Launches of kernels that may print; and how many there were when the latest synchronisation of
  // the whole context began that has ended. See Completion::TellsAll.
  std::atomic<uint64_t> printing_launches{0};
  std::atomic<uint64_t> printing_shown{0};
  uint32_t attach_count = 1;  // cuCtxAttach, cuCtxDetach; guarded by Runtime's device mutex
  ContextLocals locals;

  Context() = default;
  Context& operator=(const Context&) {  // a fresh slot is assigned Context()
    id = 0, wire_id = 0, device = nullptr, primary = false, green_id = 0;
    active = false, flags = 0;
    printing_launches = 0, printing_shown = 0, attach_count = 1;
    locals.TakeAll();
    for (KnownLimit& limit : limits) limit.result = KnownLimit::kUnknown;
    return *this;
  }
};

struct Stream {
  uint64_t id = 0;
  uint64_t context_id = 0;
  uint64_t green_id = 0;  // of a green context: that one's context is the primary
  uint32_t flags = 0;
  int priority = 0;
};

// What was set of a stream, from the first time on that somebody asks. Guarded by Runtime's stream
// mutex. See calls/stream_extras.cc.
inline constexpr int kStreamAttributesKept = 4;
struct StreamAttributes {
  uint64_t context_id = 0;
  uint64_t stream_id = 0;  // on the wire
  CUstreamAttrValue values[kStreamAttributesKept] = {};
};

struct Event {
  uint64_t id = 0;
  uint64_t context_id = 0;
  uint32_t flags = 0;
  // Of another process and another device: the context that opened it, whose streams record it,
  // too.
  uint64_t opened_by = 0;
  uint64_t capture_id = 0;  // of the capture in which it was last recorded; atomic, relaxed
  // See guest/completion.h; atomic.
  bool polled = false;   // the program has asked for its state
  uint64_t signal = 0;   // what its word shows when the latest record is reached; 0: nothing does
  uint32_t queries = 0;  // that found it pending, since then
};

// See calls/coredump.cc. Guarded by Runtime's coredump mutex.
struct CoredumpSettings {
  uint64_t context_id = 0;  // 0: the process's
  uint32_t set = 0;         // of a context: its own, a bit a CUcoredumpSettings
  bool on_exception = false;
  bool trigger_host = true;
  bool lightweight = false;
  bool user_trigger = false;
  int flags = CU_COREDUMP_DEFAULT_FLAGS;
  char file[1024] = {};
  char pipe[1024] = {};
};

struct KernelParameter {
  uint32_t offset = 0;
  uint32_t bytes = 0;
};

// Attributes of CUfunction_attribute, from 0 up, that we keep.
inline constexpr uint32_t kFunctionAttributesMax = 32;

struct Library;

// The stand-in of a library, or of a kernel, in one context; see Library.
struct Instance {
  uint64_t context_id = 0;
  uint64_t id = 0;  // of a Library or Kernel
};

struct KernelSetting {
  CUfunction_attribute attribute;
  int value;
  int device;  // ordinal
};

// Atomics of scope .sys in the code of a kernel's library, as KernelGet's reply tells.
enum class SystemAtomics : uint8_t { kNone, kSome, kBesideManagedVariables };

// A kernel, as CUkernel and as CUfunction: the runtime passes one for the other (from CUDA 13.0
// on).
struct Kernel {
  uint64_t id = 0;
  uint64_t library_id = 0;
  const char* name = nullptr;               // owned, lives as long as the process
  std::vector<KernelParameter> parameters;  // immutable after creation
  uint32_t parameter_bytes = 0;             // of the packed buffer
  bool prints = false;                      // may do so
  SystemAtomics system_atomics = SystemAtomics::kNone;
  // Written under the library mutex by attribute changes; read without it by launches.
  std::atomic<int> attributes[kFunctionAttributesMax];
  // The context in which a launch means this object itself; 0: none yet. Written under the library
  // mutex.
  std::atomic<uint64_t> context_id{0};
  std::vector<Instance> instances;      // in the other contexts; library mutex
  std::vector<KernelSetting> settings;  // of attributes, for instances made later; library mutex

  Kernel& operator=(const Kernel&) {
    id = 0, library_id = 0, name = nullptr, parameter_bytes = 0, prints = false;
    system_atomics = SystemAtomics::kNone;
    context_id = 0;
    parameters.clear();
    instances.clear();
    settings.clear();
    for (auto& attribute : attributes) attribute = 0;
    return *this;
  }
  Kernel() {
    for (auto& attribute : attributes) attribute = 0;
  }
};

struct Global {
  const char* name;  // owned, lives as long as the process
  CUdeviceptr address;
  uint64_t bytes;
};

// Loaded code. A module's belongs to one context. A CUlibrary belongs to none and has its variables
// once a context: the first context that uses it has the object itself (its home), each other one
// an instance, which is loaded from the image like a module when first used there.
// Guarded by Runtime's library mutex but for id.
struct Library {
  uint64_t id = 0;
  Device* device = nullptr;         // that it is loaded on
  uint64_t module_context = 0;      // of a module or an instance: its context; 0: a CUlibrary
  uint64_t home_context = 0;        // of a CUlibrary: 0: none yet; kNoHome: it was destroyed
  const void* preserved = nullptr;  // the program's image, which stays until the unload
  std::vector<std::byte> image;     // else a copy, where it is not too large
  std::vector<std::byte> jit_options;
  std::vector<Instance> instances;
  std::vector<uint64_t> kernels;  // handles already looked up
  std::vector<Global> globals;
  std::vector<uint64_t> modules;  // handles given by cuLibraryGetModule, one a context
  // Memory of its managed variables, mapped here when the program first asks for one; else 0.
  uint64_t managed = 0;
  uint64_t managed_bytes = 0;
};
inline constexpr uint64_t kNoHome = UINT64_MAX;

struct Module {
  uint64_t id = 0;
  uint64_t library_id = 0;
  uint64_t context_id = 0;
};

// A run of the linker; used by one thread at a time, as CUDA asks of the program.
struct Link {
  uint64_t id = 0;
  Device* device = nullptr;
  uint64_t context_id = 0;
  JitOptions options;  // where the program wants logs and times, until the end
  bool complete = false;
  std::vector<std::byte> result;  // then: what the program gets, and refers to until the end
};

// Memory of cuMemCreate; guarded by Runtime's memory mutex.
struct PhysicalMemory {
  uint64_t id = 0;
  Device* device = nullptr;  // null: of the host
  uint64_t bytes = 0;
  uint64_t known_on = 0;  // other devices, by ordinal, whose sessions know it, by the same name
  uint32_t holds = 0;     // cuMemCreate and cuMemRetainAllocationHandle, less cuMemRelease
  uint32_t mappings = 0;
  CUmemAllocationProp properties = {};
  // Memory of the host (host_memory.h): its file, and no device. Else -1.
  int file = -1;
};

// Addresses that were given out for memory of the host; see host_memory.h. Guarded by Runtime's
// memory mutex.
struct HostReservation {
  Device* device = nullptr;
  uint64_t start = 0;
  uint64_t bytes = 0;
  uint64_t memory_id = 0;  // that the worker has there
  bool mapped = false;
};

// Memory of another process that this one has opened; guarded by Runtime's memory mutex.
struct OpenedMemory {
  uint64_t token_high = 0;
  uint64_t token_low = 0;
  const Device* device = nullptr;  // that reaches it here
  uint64_t address = 0;
  uint32_t count = 0;  // of cuIpcOpenMemHandle less cuIpcCloseMemHandle
};

// A CUDA array. Immutable.
struct Array {
  uint64_t id = 0;
  uint64_t context_id = 0;
  CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
};

// A memory pool; see guest/pool.h. Guarded by Runtime's pool mutex but for id and device.
struct Pool {
  // Freed memory that the pool holds.
  struct Block {
    uint64_t address;
    uint64_t bytes;
    uint64_t stream;   // in whose order it was freed; 0: any stream may have it
    uint64_t context;  // of that stream
  };
  uint64_t id = 0;
  Device* device = nullptr;
  uint64_t bytes_max = 0;  // in use at most; 0: no limit
  uint64_t threshold = 0;  // of bytes that are kept beyond a synchronisation
  CUmemAllocationHandleType handle_types = CU_MEM_HANDLE_TYPE_NONE;
  bool imported = false;  // another process's: a name for what is imported from it
  int reuse[3] = {1, 1, 1};
  uint64_t used = 0;
  uint64_t used_high = 0;
  uint64_t held = 0;  // sum of blocks
  uint64_t reserved_high = 0;
  std::vector<Block> blocks;  // the longest held first
};

}  // namespace consort::guest

#endif  // CONSORT_GUEST_OBJECTS_H_
