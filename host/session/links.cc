// SPDX-License-Identifier: Apache-2.0
#include "host/session/links.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "device/image/image.h"
#include "host/limits.h"
#include "vmsock/wire/frame.h"

namespace consort::host {
namespace {

// Whether a linker that follows the lengths in `data` stays inside it.
bool IsSound(CUjitInputType type, std::span<const std::byte> data) {
  const image::ImageKind kind = image::Classify(data);
  switch (type) {
    case CU_JIT_INPUT_PTX:
    case CU_JIT_INPUT_CUBIN:
    case CU_JIT_INPUT_FATBINARY:
      return kind != image::ImageKind::kUnknown && image::ImageBytes(data).ok();
    case CU_JIT_INPUT_OBJECT:
      return kind == image::ImageKind::kElf && image::ImageBytes(data).ok();
    case CU_JIT_INPUT_LIBRARY: {
      constexpr std::string_view kArchive = "!<arch>\n";
      return data.size() > kArchive.size() &&
             std::memcmp(data.data(), kArchive.data(), kArchive.size()) == 0;
    }
    default:
      return false;
  }
}

}  // namespace

Links::~Links() {
  for (const auto& [name, link] : links_) driver_.cuLinkDestroy(link->state);
}

Links::Link* Links::Find(uint64_t link) const {
  const auto found = links_.find(link);
  return found == links_.end() ? nullptr : found->second.get();
}

CUresult Links::Create(const wire::LinkCreateRequest& request) {
  if (links_.contains(request.link)) return CUDA_ERROR_INVALID_HANDLE;
  if (links_.size() >= kLinksPerSession) return CUDA_ERROR_OUT_OF_MEMORY;
  auto link = std::make_unique<Link>(request.jit_options);
  link->options.AddLogs(request.info_log_bytes, request.error_log_bytes);
  link->options.AddWallTime();
  const CUresult result = driver_.cuLinkCreate_v2(link->options.count(), link->options.options(),
                                                  link->options.values(), &link->state);
  if (result == CUDA_SUCCESS) links_.emplace(request.link, std::move(link));
  return result;
}

CUresult Links::Add(const wire::LinkAddRequest& request, std::vector<std::byte> data,
                    wire::LinkAddReply* reply) {
  Link* const link = Find(request.link);
  if (link == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const auto type = static_cast<CUjitInputType>(request.type);
  if (!IsSound(type, data)) return CUDA_ERROR_INVALID_IMAGE;
  if (request.name.size() > kNameBytesMax) return CUDA_ERROR_INVALID_VALUE;
  const std::string name(reinterpret_cast<const char*>(request.name.data()), request.name.size());
  JitOptions options(request.jit_options);
  const CUresult result = driver_.cuLinkAddData_v2(
      link->state, type, data.data(), data.size(), name.empty() ? nullptr : name.c_str(),
      options.count(), options.options(), options.values());
  reply->info_log = link->options.info_log();
  reply->error_log = link->options.error_log();
  return result;
}

CUresult Links::Complete(const wire::LinkCompleteRequest& request, wire::LinkCompleteReply* reply) {
  Link* const link = Find(request.link);
  if (link == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  void* linked = nullptr;
  size_t bytes = 0;
  const CUresult result = driver_.cuLinkComplete(link->state, &linked, &bytes);
  if (result == CUDA_SUCCESS) link->result = {static_cast<const std::byte*>(linked), bytes};
  reply->bytes = link->result.size();
  reply->wall_milliseconds = link->options.wall_time();
  reply->info_log = link->options.info_log();
  reply->error_log = link->options.error_log();
  return result;
}

CUresult Links::Read(const wire::LinkReadRequest& request, wire::LinkReadReply* reply) const {
  const Link* const link = Find(request.link);
  if (link == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (request.offset >= link->result.size()) return CUDA_ERROR_INVALID_VALUE;
  reply->data = link->result.subspan(
      request.offset,
      std::min<uint64_t>(link->result.size() - request.offset, wire::kBulkBytesMax));
  return CUDA_SUCCESS;
}

void Links::Destroy(uint64_t link) {
  const auto found = links_.find(link);
  if (found == links_.end()) return;
  driver_.cuLinkDestroy(found->second->state);
  links_.erase(found);
}

}  // namespace consort::host
