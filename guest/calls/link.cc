// SPDX-License-Identifier: Apache-2.0
// guest/calls/link.cc: the just-in-time linker, which is the worker's driver's. Source: CUDA Driver
// API, Module Management.
#include <string.h>

#include "gen/guest/calls.h"
#include "guest/image.h"
#include "guest/modules.h"
#include "guest/unsupported.h"

namespace consort::guest::calls {
namespace {

// The link, and its context, which is gone if somebody destroyed it meanwhile.
CUresult FindLink(CUlinkState handle, Link** link, Context** context) {
  *link = GetRuntime()->links.Find(reinterpret_cast<uint64_t>(handle));
  if (*link == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *context = GetRuntime()->contexts.Find((*link)->context_id);
  return *context != nullptr ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

void DeliverLogs(const Link& link, std::span<const std::byte> info,
                 std::span<const std::byte> error) {
  link.options.info_log.Deliver(info);
  link.options.error_log.Deliver(error);
}

// What the program points at, in the form and to the extent that the host expects.
std::vector<std::byte> InputOf(CUjitInputType type, const void* data, size_t size) {
  const auto* bytes = static_cast<const std::byte*>(data);
  if (type == CU_JIT_INPUT_PTX) {
    std::vector<std::byte> text(bytes, bytes + strnlen(static_cast<const char*>(data), size));
    text.push_back(std::byte{0});
    return text;
  }
  constexpr uint32_t kWrapperMagic = 0x466243B1;
  uint32_t magic = 0;
  if (type == CU_JIT_INPUT_FATBINARY && size >= sizeof magic) memcpy(&magic, data, sizeof magic);
  if (magic == kWrapperMagic) return FlattenImage(data);
  return std::vector<std::byte>(bytes, bytes + size);
}

CUresult AddInput(Link* link, Context* context, CUjitInputType type, const void* data, size_t size,
                  const char* name, const JitOptions& options) {
  if (type < 0 || type >= CU_JIT_NUM_INPUT_TYPES || link->complete) return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_JIT_INPUT_NVVM) {
    NoteUnsupported("cuLinkAddData", "an input of type CU_JIT_INPUT_NVVM");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const std::vector<std::byte> input = InputOf(type, data, size);
  if (input.empty()) return CUDA_ERROR_INVALID_IMAGE;
  wire::LinkAddRequest request;
  wire::LinkAddReply reply;
  if (CUresult result =
          SendImage(context->device->session, context->wire_id, input, &request.image);
      result != CUDA_SUCCESS) {
    return result;
  }
  request.link = link->id;
  request.type = static_cast<uint32_t>(type);
  if (name != nullptr) request.name = {reinterpret_cast<const std::byte*>(name), strlen(name)};
  request.jit_options = options.forwarded;
  const CUresult result = context->device->session->Ask(context->wire_id, request, &reply);
  DeliverLogs(*link, reply.info_log, reply.error_log);
  return result;
}

// The linker's result, which the host keeps until it is told to end the link.
CUresult ReadResult(Link* link, Context* context, uint64_t bytes) {
  std::vector<std::byte> result_bytes;
  while (result_bytes.size() < bytes) {
    wire::LinkReadRequest request;
    wire::LinkReadReply reply;
    request.link = link->id;
    request.offset = result_bytes.size();
    if (CUresult result = context->device->session->Ask(context->wire_id, request, &reply);
        result != CUDA_SUCCESS) {
      return result;
    }
    result_bytes.insert(result_bytes.end(), reply.data.begin(), reply.data.end());
  }
  link->result = std::move(result_bytes);
  return CUDA_SUCCESS;
}

// Tells the host that nothing of the link is needed any more.
void EndOnHost(const Link& link) {
  wire::LinkDestroyRequest request;
  request.link = link.id;
  const Context* context = GetRuntime()->contexts.Find(link.context_id);
  link.device->session->Post(context != nullptr ? context->wire_id : 0, request);
}

}  // namespace

CUresult cuLinkCreate_v2(unsigned int numOptions, CUjit_option* options, void** optionValues,
                         CUlinkState* stateOut) {
  if (stateOut == nullptr) return CUDA_ERROR_INVALID_VALUE;
  JitOptions sorted;
  if (CUresult result = ReadJitOptions(numOptions, options, optionValues, &sorted);
      result != CUDA_SUCCESS) {
    return result;
  }
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  Runtime* runtime = GetRuntime();
  const uint64_t id = runtime->links.Create([&](Link* link, uint64_t new_id) {
    link->id = new_id;
    link->device = context->device;
    link->context_id = context->id;
    link->options = sorted;
  });
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  wire::LinkCreateRequest request;
  wire::LinkCreateRequest::Reply reply;
  request.link = id;
  request.jit_options = sorted.forwarded;
  request.info_log_bytes = sorted.info_log.reply_bytes();
  request.error_log_bytes = sorted.error_log.reply_bytes();
  if (CUresult result = context->device->session->Ask(context->wire_id, request, &reply);
      result != CUDA_SUCCESS) {
    runtime->links.Destroy(id);
    return result;
  }
  *stateOut = reinterpret_cast<CUlinkState>(id);
  return CUDA_SUCCESS;
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, size_t size,
                          const char* name, unsigned int numOptions, CUjit_option* options,
                          void** optionValues) {
  Link* link = nullptr;
  Context* context = nullptr;
  if (CUresult result = FindLink(state, &link, &context); result != CUDA_SUCCESS) return result;
  if (data == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
  JitOptions sorted;
  if (CUresult result = ReadJitOptions(numOptions, options, optionValues, &sorted);
      result != CUDA_SUCCESS) {
    return result;
  }
  return AddInput(link, context, type, data, size, name, sorted);
}

CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char* path,
                          unsigned int numOptions, CUjit_option* options, void** optionValues) {
  Link* link = nullptr;
  Context* context = nullptr;
  if (CUresult result = FindLink(state, &link, &context); result != CUDA_SUCCESS) return result;
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  JitOptions sorted;
  if (CUresult result = ReadJitOptions(numOptions, options, optionValues, &sorted);
      result != CUDA_SUCCESS) {
    return result;
  }
  std::vector<std::byte> file;
  size_t bytes = 0;
  if (CUresult result = ReadImageFile(path, &file, &bytes); result != CUDA_SUCCESS) return result;
  return AddInput(link, context, type, file.data(), bytes, path, sorted);
}

CUresult cuLinkComplete(CUlinkState state, void** cubinOut, size_t* sizeOut) {
  Link* link = nullptr;
  Context* context = nullptr;
  if (CUresult result = FindLink(state, &link, &context); result != CUDA_SUCCESS) return result;
  if (cubinOut == nullptr || sizeOut == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!link->complete) {
    wire::LinkCompleteRequest request;
    wire::LinkCompleteReply reply;
    request.link = link->id;
    CUresult result = context->device->session->Ask(context->wire_id, request, &reply);
    DeliverLogs(*link, reply.info_log, reply.error_log);
    link->options.DeliverWallTime(reply.wall_milliseconds);
    if (result != CUDA_SUCCESS) return result;
    result = ReadResult(link, context, reply.bytes);
    if (result != CUDA_SUCCESS) return result;
    link->complete = true;
    EndOnHost(*link);
  }
  *cubinOut = link->result.data();
  *sizeOut = link->result.size();
  return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState state) {
  Runtime* runtime = GetRuntime();
  Link* link = runtime->links.Find(reinterpret_cast<uint64_t>(state));
  if (link == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (!link->complete) EndOnHost(*link);
  link->result = {};
  runtime->links.Destroy(link->id);
  return CUDA_SUCCESS;
}

}  // namespace consort::guest::calls
