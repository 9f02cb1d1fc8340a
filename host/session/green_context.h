// SPDX-License-Identifier: Apache-2.0
// host/session/green_context.h: some of the device's multiprocessors, for streams.
//
// Memory, modules and events are those of the worker's context as before; copies are not
// partitioned. What a program asks for is a recipe: cut a source (the device, or a green context)
// by the driver's rules, and take some of the groups. The driver cuts one source always in the same
// way, so that equal recipes give equal multiprocessors. Immutable; shared by the table of names
// and by the streams that run here, since it may go only after them. Source: CUDA driver API, Green
// Contexts.
#ifndef CONSORT_HOST_SESSION_GREEN_CONTEXT_H_
#define CONSORT_HOST_SESSION_GREEN_CONTEXT_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "gen/device/driver_table.h"

namespace consort::host {

struct ResourceSplit {
  uint32_t groups = 0;  // at most; 0: as many as there are
  uint32_t flags = 0;
  uint32_t fewest = 0;  // multiprocessors in a group
};

class GreenContext {
 public:
  // Whether the driver has all of what is called here and in the functions below.
  static bool Available(const device::DriverTable& driver);

  // Of `resources`, at least one, as cuDevResourceGenerateDesc takes them. `driver` is borrowed.
  // Results are the driver's.
  static CUresult Create(const device::DriverTable& driver, CUdevice device,
                         std::span<CUdevResource> resources,
                         std::shared_ptr<GreenContext>* context);
  ~GreenContext();
  GreenContext(const GreenContext&) = delete;
  GreenContext& operator=(const GreenContext&) = delete;

  // A non-blocking stream whose kernels run here.
  CUresult CreateStream(int priority, CUstream* stream) const {
    return driver_.cuGreenCtxStreamCreate(stream, context_, CU_STREAM_NON_BLOCKING, priority);
  }
  CUresult Resource(CUdevResource* resource) const {
    return driver_.cuGreenCtxGetDevResource(context_, resource, CU_DEV_RESOURCE_TYPE_SM);
  }
  uint32_t multiprocessors() const { return multiprocessors_; }

 private:
  GreenContext(const device::DriverTable& driver, CUgreenCtx context, uint32_t multiprocessors)
      : driver_(driver), context_(context), multiprocessors_(multiprocessors) {}

  const device::DriverTable& driver_;
  const CUgreenCtx context_;
  const uint32_t multiprocessors_;
};

// The groups of `source`, and what remains of it, of type CU_DEV_RESOURCE_TYPE_INVALID if nothing
// does. CUDA_ERROR_INVALID_VALUE: more groups are wanted than there are multiprocessors.
CUresult SplitResource(const device::DriverTable& driver, const CUdevResource& source,
                       const ResourceSplit& split, std::vector<CUdevResource>* groups,
                       CUdevResource* remaining);

}  // namespace consort::host

#endif  // CONSORT_HOST_SESSION_GREEN_CONTEXT_H_
