// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/state.h: everything that the driver knows, made by cuInit.
//
// There is one State in a process, never destroyed: programs call in from their exit handlers,
// after our own static destructors would have run. Members are thread safe each.
#ifndef CONSORT_DEVICE_CPU_DRIVER_STATE_H_
#define CONSORT_DEVICE_CPU_DRIVER_STATE_H_

#include <memory>
#include <new>
#include <system_error>
#include <utility>
#include <vector>

#include "device/cpu/driver/address_space.h"
#include "device/cpu/driver/array.h"
#include "device/cpu/driver/context.h"
#include "device/cpu/driver/cuda_api.h"
#include "device/cpu/driver/device.h"
#include "device/cpu/driver/event.h"
#include "device/cpu/driver/graph.h"
#include "device/cpu/driver/green_context.h"
#include "device/cpu/driver/handle_table.h"
#include "device/cpu/driver/link.h"
#include "device/cpu/driver/module.h"
#include "device/cpu/driver/physical_memory.h"
#include "device/cpu/driver/stream.h"
#include "device/cpu/program.h"

namespace consort::cpu {

struct State {
  std::vector<std::unique_ptr<Device>> devices;
  LoadOptions load_options;  // set by cuInit, then fixed
  AddressSpace address_space;
  PhysicalMemoryTable physical_memory;
  HandleTable<CUcontext, Context> contexts;
  HandleTable<CUstream, Stream> streams;
  HandleTable<CUevent, Event> events;
  HandleTable<CUmodule, Module> modules;
  HandleTable<CUlibrary, Library> libraries;
  HandleTable<CUgraph, Graph> graphs;
  HandleTable<CUgraphNode, GraphNode> graph_nodes;
  HandleTable<CUgraphExec, GraphExec> graph_execs;
  HandleTable<CUlinkState, Link> links;
  HandleTable<CUgreenCtx, GreenContext> green_contexts;
  HandleTable<CUarray, Array> arrays;
  HandleTable<uint64_t, TextureOwner> textures;  // and surfaces, by the handle that kernels use
  // CUfunction and CUkernel are one space of handles: cudart passes either to a launch.
  HandleTable<CUfunction, Function> functions;
};

// The state, or null before cuInit.
State* GetState();

// The calling thread's current context: null if there is none or it is gone.
// CUDA_ERROR_INVALID_CONTEXT: none; CUDA_ERROR_CONTEXT_IS_DESTROYED: gone, or a primary context
// that nobody has retained.
CUresult CurrentContext(State& state, std::shared_ptr<Context>* context);

// The stream that `handle` names: 0 and CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, or one of the
// table. The first three need a current context. CUDA_ERROR_INVALID_HANDLE: unknown.
CUresult ResolveStream(State& state, CUstream handle, std::shared_ptr<Stream>* stream);

// True while the calling thread runs a host function or stream callback, which may not call in.
bool InHostFunction();

// Runs `body`, an entry point's work, where exceptions of the standard library end.
template <typename Body>
CUresult Guarded(Body&& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (const std::system_error&) {  // no thread to be had
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
}

// Runs body(state) once cuInit has been called.
template <typename Body>
CUresult WithState(Body&& body) {
  State* state = GetState();
  if (state == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  if (InHostFunction()) return CUDA_ERROR_NOT_PERMITTED;
  return Guarded([&] { return body(*state); });
}

// Runs body(state, context) in the current context, unless that has failed: then its error is the
// result.
template <typename Body>
CUresult WithContext(Body&& body) {
  return WithState([&](State& state) {
    std::shared_ptr<Context> context;
    if (const CUresult result = CurrentContext(state, &context); result != CUDA_SUCCESS) {
      return result;
    }
    if (const CUresult error = context->error(); error != CUDA_SUCCESS) return error;
    return body(state, context);
  });
}

// Runs body(state, stream), unless the stream's context has failed.
template <typename Body>
CUresult WithStream(CUstream handle, Body&& body) {
  return WithState([&](State& state) {
    std::shared_ptr<Stream> stream;
    if (const CUresult result = ResolveStream(state, handle, &stream); result != CUDA_SUCCESS) {
      return result;
    }
    if (const CUresult error = stream->context()->error(); error != CUDA_SUCCESS) return error;
    return body(state, stream);
  });
}

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_DRIVER_STATE_H_
