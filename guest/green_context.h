// SPDX-License-Identifier: Apache-2.0
// guest/green_context.h: green contexts, and what stands behind the resources that they are made
// of.
//
//   program          guest                                    host
//   CUdevResource    where it comes from: of which source,    cuts the source again, in the same
//                    cut how, which part (ResourceOrigin)     way, and takes the parts
//   CUgreenCtx       GreenContext                             GreenContext: streams that run there
//   CUcontext        a Context with green_id, for what is     the context of the device
//                    current; all else is the primary's
//
// Streams of a green context are streams of its device's primary context that name it; so are its
// default stream and two that the program does not see. Objects that are made while it is current
// are the primary context's. Source: CUDA Driver API, Green Contexts.
#ifndef CONSORT_GUEST_GREEN_CONTEXT_H_
#define CONSORT_GUEST_GREEN_CONTEXT_H_

#include <cuda.h>

#include <cstdint>
#include <vector>

#include "guest/objects.h"

namespace consort::guest {

struct StreamRef;

// How a source was cut; see request DeviceResourceSplit.
struct ResourceCut {
  uint32_t groups = 0;
  uint32_t flags = 0;
  uint32_t fewest = 0;
};

// In the part of a CUdevResource that is the driver's.
struct ResourceOrigin {
  uint64_t magic = 0;
  uint64_t source = 0;  // a green context; 0: the device
  uint64_t split = 0;   // the call that it is an outcome of; 0: none, it is all of the source
  int32_t device = 0;   // as the program counts
  uint32_t part = 0;    // of the cut: a group's number, or `groups` for what remains
  ResourceCut cut;
};
static_assert(sizeof(ResourceOrigin) <= sizeof(CUdevResource::_internal_padding));

// A descriptor. Immutable. CUDA has no call that ends one.
struct ResourceDescription {
  uint64_t id = 0;
  int device = 0;
  uint64_t source = 0;
  ResourceCut cut;
  std::vector<uint32_t> parts;  // none: all of the source
};

// Immutable but for the members marked otherwise.
struct GreenContext {
  uint64_t id = 0;
  Device* device = nullptr;
  uint64_t context_id = 0;      // what is current when it is
  uint64_t default_stream = 0;  // of the handle table, as are the others
  // Guarded by Runtime's green mutex; 0 until used. The first has waited for the work of streams
  // that were destroyed, the second for what later streams must wait for, too.
  uint64_t ended_work = 0;
  uint64_t gate = 0;
};

// The context whose objects are `context`'s: the primary one of a green one's device, else itself.
Context* HomeOf(Context* context);

// A new stream of a green context goes on after what all streams of it were told to wait for.
void PassGate(uint64_t green_id, uint64_t stream_id);

// A stream of a green context is about to be destroyed; its work is still the context's.
void KeepEndedWork(const StreamRef& stream);

// Waits for all streams of the green one behind `context`.
CUresult SynchroniseGreen(const Context* context);

// Ends green contexts of a primary context that is being emptied.
void ForgetGreenContexts(const Device* device);

}  // namespace consort::guest

#endif  // CONSORT_GUEST_GREEN_CONTEXT_H_
