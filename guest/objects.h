// SPDX-License-Identifier: Apache-2.0
// guest/objects.h: what stands behind the handles that a program holds. Plain state; who may change
// which member is said at the member. Objects live in HandleTable slots and are never freed.
#ifndef CONSORT_GUEST_OBJECTS_H_
#define CONSORT_GUEST_OBJECTS_H_

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "guest/handle_table.h"
#include "vmsock/wire/handshake.h"

namespace consort::guest {

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
};

// A storage entry of a runtime or library in a context; see guest/export_tables.cc.
struct ContextLocal {
  void* key;
  void* value;
  void (*destructor)(CUcontext, void* key, void* value);
};

// A context: a group of objects on one device. Ids on the wire are the low 32 bits' index + 1; see
// WireContext.
struct Context {
  uint64_t id = 0;
  uint32_t wire_id = 0;  // unique in this process, never reused
  Device* device = nullptr;
  bool primary = false;
  std::atomic<bool> active{false};  // primary: retained at least once since the last reset
  std::atomic<uint32_t> flags{0};
  std::atomic<int> cache_config{CU_FUNC_CACHE_PREFER_NONE};
  uint32_t attach_count = 1;         // cuCtxAttach, cuCtxDetach; guarded by Runtime's device mutex
  std::vector<ContextLocal> locals;  // guarded by Runtime's locals mutex

  Context() = default;
  Context& operator=(const Context&) {  // a fresh slot is assigned Context()
    id = 0, wire_id = 0, device = nullptr, primary = false, active = false, flags = 0;
    attach_count = 1;
    locals.clear();
    return *this;
  }
};

struct Stream {
  uint64_t id = 0;
  uint64_t context_id = 0;
  uint32_t flags = 0;
  int priority = 0;
};

struct Event {
  uint64_t id = 0;
  uint64_t context_id = 0;
  uint32_t flags = 0;
};

struct KernelParameter {
  uint32_t offset = 0;
  uint32_t bytes = 0;
};

// Attributes of CUfunction_attribute, from 0 up, that we keep.
inline constexpr uint32_t kFunctionAttributesMax = 32;

struct Library;

// A kernel, as CUkernel and as CUfunction: the runtime passes one for the other (from CUDA 13.0
// on).
struct Kernel {
  uint64_t id = 0;
  uint64_t library_id = 0;
  const char* name = nullptr;               // owned, lives as long as the process
  std::vector<KernelParameter> parameters;  // immutable after creation
  uint32_t parameter_bytes = 0;             // of the packed buffer
  // Written under the library mutex by attribute changes; read without it by launches.
  std::atomic<int> attributes[kFunctionAttributesMax];
  uint32_t devices = 0;  // bit i: device ordinal i knows it; library mutex

  Kernel& operator=(const Kernel&) {
    id = 0, library_id = 0, name = nullptr, parameter_bytes = 0, devices = 0;
    parameters.clear();
    for (auto& attribute : attributes) attribute = 0;
    return *this;
  }
  Kernel() {
    for (auto& attribute : attributes) attribute = 0;
  }
};

struct Global {
  const char* name;  // owned, lives as long as the process
  uint32_t device;
  CUdeviceptr address;
  uint64_t bytes;
};

// A library or the body of a module; guarded by Runtime's library mutex but for id.
struct Library {
  uint64_t id = 0;
  std::vector<std::byte> image;   // kept only where a second device may need it
  uint32_t devices = 0;           // bit i: loaded on device ordinal i
  uint64_t module_context = 0;    // of cuModuleLoad*: the context it belongs to; 0: a CUlibrary
  std::vector<uint64_t> kernels;  // handles already looked up
  std::vector<Global> globals;
  std::vector<uint64_t> modules;  // handles given by cuLibraryGetModule, one a context
};

struct Module {
  uint64_t id = 0;
  uint64_t library_id = 0;
  uint64_t context_id = 0;
};

}  // namespace consort::guest

#endif  // CONSORT_GUEST_OBJECTS_H_
