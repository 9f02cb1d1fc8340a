// SPDX-License-Identifier: Apache-2.0
#include "host/session/green_context.h"

namespace consort::host {

bool GreenContext::Available(const device::DriverTable& driver) {
  return driver.cuDeviceGetDevResource != nullptr &&
         driver.cuDevSmResourceSplitByCount != nullptr &&
         driver.cuDevResourceGenerateDesc != nullptr && driver.cuGreenCtxCreate != nullptr &&
         driver.cuGreenCtxDestroy != nullptr && driver.cuGreenCtxStreamCreate != nullptr &&
         driver.cuGreenCtxGetDevResource != nullptr;
}

CUresult GreenContext::Create(const device::DriverTable& driver, CUdevice device,
                              std::span<CUdevResource> resources,
                              std::shared_ptr<GreenContext>* context) {
  CUdevResourceDesc description = nullptr;
  CUresult result = driver.cuDevResourceGenerateDesc(&description, resources.data(),
                                                     static_cast<unsigned>(resources.size()));
  if (result != CUDA_SUCCESS) return result;
  CUgreenCtx made = nullptr;
  result = driver.cuGreenCtxCreate(&made, description, device, CU_GREEN_CTX_DEFAULT_STREAM);
  if (result != CUDA_SUCCESS) return result;
  uint32_t multiprocessors = 0;
  for (const CUdevResource& resource : resources) multiprocessors += resource.sm.smCount;
  context->reset(new GreenContext(driver, made, multiprocessors));
  return CUDA_SUCCESS;
}

GreenContext::~GreenContext() { driver_.cuGreenCtxDestroy(context_); }

CUresult SplitResource(const device::DriverTable& driver, const CUdevResource& source,
                       const ResourceSplit& split, std::vector<CUdevResource>* groups,
                       CUdevResource* remaining) {
  if (split.groups > source.sm.smCount) return CUDA_ERROR_INVALID_VALUE;
  unsigned count = split.groups;
  if (count == 0) {
    const CUresult result = driver.cuDevSmResourceSplitByCount(nullptr, &count, &source, nullptr,
                                                               split.flags, split.fewest);
    if (result != CUDA_SUCCESS) return result;
  }
  groups->resize(count);
  *remaining = {};
  const CUresult result = driver.cuDevSmResourceSplitByCount(groups->data(), &count, &source,
                                                             remaining, split.flags, split.fewest);
  if (result != CUDA_SUCCESS) return result;
  groups->resize(count);
  return CUDA_SUCCESS;
}

}  // namespace consort::host
