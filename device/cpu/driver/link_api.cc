// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/link_api.cc: the just-in-time linker.
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "device/cpu/driver/link.h"
#include "device/cpu/driver/state.h"

namespace consort::cpu {
namespace {

// Runs body(link).
template <typename Body>
CUresult WithLink(CUlinkState handle, Body&& body) {
  return WithContext([&](State& state, const std::shared_ptr<Context>&) {
    const std::shared_ptr<Link> link = state.links.Find(handle);
    if (link == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    return body(*link);
  });
}

// Options of one input concern machine code and its logs, which there are not: checked and dropped.
CUresult CheckOptions(unsigned int count, CUjit_option* options, void** values) {
  return JitLog(count, options, values).Check();
}

}  // namespace
}  // namespace consort::cpu

using namespace consort::cpu;  // the entry points are global: their prototypes are cuda.h's

extern "C" {

CUresult CUDAAPI cuLinkCreate_v2(unsigned int numOptions, CUjit_option* options,
                                 void** optionValues, CUlinkState* stateOut) {
  return WithContext([&](State& state, const std::shared_ptr<Context>&) {
    if (stateOut == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUresult checked = CheckOptions(numOptions, options, optionValues);
    if (checked != CUDA_SUCCESS) return checked;
    *stateOut =
        state.links.Insert(std::make_shared<Link>(std::span(options, numOptions), optionValues));
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuLinkAddData_v2(CUlinkState handle, CUjitInputType type, void* data, size_t size,
                                  const char* name, unsigned int numOptions, CUjit_option* options,
                                  void** optionValues) {
  return WithLink(handle, [&](Link& link) {
    if (data == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
    const CUresult checked = CheckOptions(numOptions, options, optionValues);
    if (checked != CUDA_SUCCESS) return checked;
    return link.Add(type, {static_cast<const std::byte*>(data), size}, name);
  });
}

CUresult CUDAAPI cuLinkAddFile_v2(CUlinkState handle, CUjitInputType type, const char* path,
                                  unsigned int numOptions, CUjit_option* options,
                                  void** optionValues) {
  return WithLink(handle, [&](Link& link) {
    if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUresult checked = CheckOptions(numOptions, options, optionValues);
    if (checked != CUDA_SUCCESS) return checked;
    std::ifstream file(path, std::ios::binary);
    if (!file.good()) return CUDA_ERROR_FILE_NOT_FOUND;
    const std::string bytes((std::istreambuf_iterator<char>(file)),
                            std::istreambuf_iterator<char>());
    return link.Add(type, std::as_bytes(std::span(bytes)), path);
  });
}

CUresult CUDAAPI cuLinkComplete(CUlinkState handle, void** cubinOut, size_t* sizeOut) {
  return WithLink(handle, [&](Link& link) {
    if (cubinOut == nullptr || sizeOut == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::span<char> linked;
    if (const CUresult result = link.Complete(&linked); result != CUDA_SUCCESS) return result;
    *cubinOut = linked.data();
    *sizeOut = linked.size();
    return CUDA_SUCCESS;
  });
}

CUresult CUDAAPI cuLinkDestroy(CUlinkState handle) {
  return WithState([&](State& state) {
    return state.links.Remove(handle) == nullptr ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
  });
}

}  // extern "C"
