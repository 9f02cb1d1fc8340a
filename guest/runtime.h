// SPDX-License-Identifier: Apache-2.0
// guest/runtime.h: the process-wide state of the library: devices, handle tables, what cuInit
// found.
//
// One Runtime is made by the first cuInit that reaches a host and never destroyed: programs call in
// from their exit handlers, after this library's own would have run. Thread safe; each member says
// by what.
#ifndef CONSORT_GUEST_RUNTIME_H_
#define CONSORT_GUEST_RUNTIME_H_

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "guest/allocations.h"
#include "guest/graph.h"
#include "guest/green_context.h"
#include "guest/handle_table.h"
#include "guest/managed_advice.h"
#include "guest/objects.h"
#include "guest/session.h"
#include "guest/texture_objects.h"
#include "vmsock/vm_memory.h"

namespace consort::guest {

struct Capture;

// What cuDriverGetVersion says: the API level that this library was generated from.
inline constexpr int kDriverVersion = 13000;

// What this virtual machine shares with its host, for good; null: nothing. After cuInit.
const VmMemory* GetVmMemory();

// vGPUs of one process; a daemon offers no more.
inline constexpr int kDevicesMax = 64;

struct Runtime {
  int device_count = 0;  // immutable after cuInit
  Device devices[kDevicesMax];

  HandleTable<Context, HandleKind::kContext> contexts;
  HandleTable<Stream, HandleKind::kStream> streams;
  HandleTable<Event, HandleKind::kEvent> events;
  HandleTable<Library, HandleKind::kLibrary> libraries;
  HandleTable<Kernel, HandleKind::kKernel> kernels;
  HandleTable<Module, HandleKind::kModule> modules;
  HandleTable<Pool, HandleKind::kPool> pools;
  HandleTable<Graph, HandleKind::kGraph> graphs;
  HandleTable<GraphNode, HandleKind::kGraphNode> graph_nodes;
  HandleTable<GraphExec, HandleKind::kGraphExec> graph_execs;
  HandleTable<UserObject, HandleKind::kUserObject> user_objects;
  HandleTable<PhysicalMemory, HandleKind::kPhysicalMemory> physical_memory;
  HandleTable<Array, HandleKind::kArray> arrays;
  HandleTable<Link, HandleKind::kLink> links;
  HandleTable<GreenContext, HandleKind::kGreenContext> green_contexts;
  HandleTable<ResourceDescription, HandleKind::kResourceDescription> resource_descriptions;
  std::vector<OpenedMemory> opened_memory;          // guarded by memory_mutex
  std::vector<HostReservation> host_reservations;   // likewise
  std::vector<StreamAttributes> stream_attributes;  // guarded by stream_mutex
  std::vector<PeerLink> peer_links;                 // guarded by peer_mutex
  std::vector<PeerAccess> peer_access;              // likewise
  CoredumpSettings coredump;                        // guarded by coredump_mutex
  std::vector<CoredumpSettings> context_coredump;   // likewise
  // Guarded by graph_mutex.
  std::vector<Capture*> captures;  // that have begun and not ended; owned
  uint64_t last_capture_id = 0;
  std::vector<GraphMemory> graph_memory;
  uint64_t graph_used_high[kDevicesMax] = {};
  uint64_t graph_reserved_high[kDevicesMax] = {};

  // Of all pools; so that a synchronisation need not look when there are none.
  std::atomic<uint64_t> pool_blocks{0};

  Allocations allocations;       // thread safe
  ManagedAdvice managed_advice;  // likewise
  TextureObjects texture_objects;

  Mutex device_mutex;    // Device's mutable members, contexts' life
  Mutex library_mutex;   // Library, Kernel::devices, Module
  Mutex stream_mutex;    // StreamAttributes
  Mutex green_mutex;     // GreenContext
  Mutex coredump_mutex;  // CoredumpSettings
  Mutex pool_mutex;      // Pool, and the pools of a Device
  Mutex graph_mutex;     // graphs, what is in them, captures; taken before pool_mutex
  // PhysicalMemory, OpenedMemory, HostReservation, and mapping them; taken before peer_mutex.
  Mutex memory_mutex;
  Mutex peer_mutex;        // PeerLink, PeerAccess, and making them; taken before device_mutex
  Mutex host_reach_mutex;  // host memory that several devices reach; taken before peer_mutex
  Mutex host_alloc_mutex;  // one HostAlloc at a time: its descriptor follows
  Mutex register_mutex;    // registered memory that becomes shared or private
};

// The runtime, or null before a successful cuInit. Any thread.
Runtime* GetRuntime();

// cuInit: finds the host and its devices. Later calls return the first success; failures are tried
// again.
CUresult Initialise();

// The session with `device`, opened if need be. Null with `*result` set if it cannot be had.
Session* OpenDevice(Device* device, CUresult* result);

// The process's first session, which tells the host what concerns the process as a whole. Null
// before there is one, and in a forked child. Any thread.
Session* FirstSession();

// Makes a context object on `device`; 0 if there are too many.
uint64_t NewContext(Device* device, bool primary, uint32_t flags);

// Ends what runtimes and libraries keep in the context, by their destructors.
void EndLocals(Context* context);

// Destroys everything in `context` on both sides: streams, events, modules, allocations, locals
// (whose destructors run first). The context object itself stays; the caller ends or reuses it.
CUresult EmptyContext(Context* context);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_RUNTIME_H_
