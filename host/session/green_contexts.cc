// SPDX-License-Identifier: Apache-2.0
// host/session/green_contexts.cc: handlers for what a program asks of the multiprocessors that its
// streams may use. What a frame says of a split is given to the driver with resources that come
// from it; nothing that the guest holds goes there.
#include <cstring>
#include <span>

#include "host/session/session.h"

namespace consort::host {
namespace {

void AppendResource(const CUdevResource& resource, std::vector<std::byte>* bytes) {
  const bool valid = resource.type == CU_DEV_RESOURCE_TYPE_SM;
  const CUdevSmResource sm = valid ? resource.sm : CUdevSmResource{};
  const uint32_t words[] = {static_cast<uint32_t>(resource.type), sm.smCount, sm.minSmPartitionSize,
                            sm.smCoscheduledAlignment};
  const auto packed = std::as_bytes(std::span(words));
  bytes->insert(bytes->end(), packed.begin(), packed.end());
}

}  // namespace

CUresult Session::SourceResource(uint64_t source, CUdevResource* resource) {
  if (!GreenContext::Available(driver_)) return CUDA_ERROR_NOT_SUPPORTED;
  std::shared_ptr<GreenContext> context = partition_;
  if (source != 0 && !streams_.FindGreen(source, &context)) return CUDA_ERROR_INVALID_CONTEXT;
  return context != nullptr
             ? context->Resource(resource)
             : driver_.cuDeviceGetDevResource(device_.device(), resource, CU_DEV_RESOURCE_TYPE_SM);
}

CUresult Session::DeviceResource(const wire::FrameHeader&,
                                 const wire::DeviceResourceRequest& request,
                                 wire::DeviceResourceReply* reply) {
  CUdevResource resource = {};
  const CUresult result = SourceResource(request.source, &resource);
  if (result != CUDA_SUCCESS) return result;
  resources_.clear();
  AppendResource(resource, &resources_);
  reply->resource = resources_;
  return CUDA_SUCCESS;
}

CUresult Session::DeviceResourceSplit(const wire::FrameHeader&,
                                      const wire::DeviceResourceSplitRequest& request,
                                      wire::DeviceResourceSplitReply* reply) {
  CUdevResource source = {};
  CUresult result = SourceResource(request.source, &source);
  if (result != CUDA_SUCCESS) return result;
  std::vector<CUdevResource> groups;
  CUdevResource remaining = {};
  result = SplitResource(driver_, source, {request.groups, request.flags, request.fewest}, &groups,
                         &remaining);
  if (result != CUDA_SUCCESS) return result;
  resources_.clear();
  for (const CUdevResource& group : groups) AppendResource(group, &resources_);
  AppendResource(remaining, &resources_);
  reply->groups = static_cast<uint32_t>(groups.size());
  reply->resources = resources_;
  return CUDA_SUCCESS;
}

CUresult Session::GreenContextCreate(const wire::FrameHeader& header,
                                     const wire::GreenContextCreateRequest& request) {
  CUdevResource source = {};
  CUresult result = SourceResource(request.source, &source);
  if (result != CUDA_SUCCESS) return result;
  std::vector<CUdevResource> parts = {source};
  if (!request.parts.empty()) {
    std::vector<CUdevResource> groups;
    CUdevResource remaining = {};
    result = SplitResource(driver_, source, {request.groups, request.flags, request.fewest},
                           &groups, &remaining);
    if (result != CUDA_SUCCESS) return result;
    const size_t count = request.parts.size() / sizeof(uint32_t);
    if (request.parts.size() % sizeof(uint32_t) != 0 || count > groups.size() + 1) {
      return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
    }
    parts.clear();
    for (size_t i = 0; i < count; ++i) {
      uint32_t part;
      std::memcpy(&part, request.parts.data() + i * sizeof(part), sizeof(part));
      const bool rest = part == request.groups;
      if (!rest && part >= groups.size()) return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
      parts.push_back(rest ? remaining : groups[part]);
    }
  }
  std::shared_ptr<GreenContext> context;
  result = GreenContext::Create(driver_, device_.device(), parts, &context);
  if (result == CUDA_SUCCESS) {
    result = streams_.CreateGreen(header.value, request.green, std::move(context),
                                  request.default_stream);
  }
  if (result == CUDA_SUCCESS) {
    journal_.Make({ObjectKind::kGreenContext, request.green}, header.value, request);
  }
  return result;
}

CUresult Session::GreenContextDestroy(const wire::FrameHeader&,
                                      const wire::GreenContextDestroyRequest& request) {
  for (const uint64_t stream : streams_.StreamsOfGreen(request.green)) {
    journal_.Drop({ObjectKind::kStream, stream});
  }
  journal_.Drop({ObjectKind::kGreenContext, request.green});
  return streams_.DestroyGreen(request.green);
}

}  // namespace consort::host
