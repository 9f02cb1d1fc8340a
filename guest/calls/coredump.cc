// SPDX-License-Identifier: Apache-2.0
// guest/calls/coredump.cc: settings of GPU core dumps, as on a machine where nobody asks for one:
// kept, once for the process and where a context has its own, and given back. No dump is written.
// Source: CUDA Driver API, Coredump Attributes Control API.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gen/guest/calls.h"
#include "guest/call.h"
#include "guest/runtime.h"

namespace consort::guest {
namespace {

// Where a setting lies, of CUcoredumpSettings; null: there is no such setting.
struct Place {
  void* at = nullptr;
  size_t bytes = 0;
  bool is_text = false;
};

Place PlaceOf(CUcoredumpSettings attrib, CoredumpSettings* settings) {
  switch (attrib) {
    case CU_COREDUMP_ENABLE_ON_EXCEPTION:
      return {&settings->on_exception, sizeof settings->on_exception, false};
    case CU_COREDUMP_TRIGGER_HOST:
      return {&settings->trigger_host, sizeof settings->trigger_host, false};
    case CU_COREDUMP_LIGHTWEIGHT:
      return {&settings->lightweight, sizeof settings->lightweight, false};
    case CU_COREDUMP_ENABLE_USER_TRIGGER:
      return {&settings->user_trigger, sizeof settings->user_trigger, false};
    case CU_COREDUMP_FILE:
      return {settings->file, sizeof settings->file, true};
    case CU_COREDUMP_PIPE:
      return {settings->pipe, sizeof settings->pipe, true};
    case CU_COREDUMP_GENERATION_FLAGS:
      return {&settings->flags, sizeof settings->flags, false};
    default:
      return {};
  }
}

// The process's own; their names are made when first asked for. coredump_mutex held.
CoredumpSettings* OfProcess() {
  CoredumpSettings* settings = &GetRuntime()->coredump;
  if (settings->file[0] == '\0') {
    char host[256];
    if (gethostname(host, sizeof host) != 0) host[0] = '\0';
    host[sizeof host - 1] = '\0';
    snprintf(settings->file, sizeof settings->file, "core.cuda.%s.%d", host, getpid());
    snprintf(settings->pipe, sizeof settings->pipe, "corepipe.cuda.%s.%d", host, getpid());
  }
  return settings;
}

CUresult Get(CUcoredumpSettings attrib, CoredumpSettings* settings, void* value, size_t* size) {
  const Place place = PlaceOf(attrib, settings);
  if (place.at == nullptr || size == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (value != nullptr) {
    if (*size < place.bytes) return CUDA_ERROR_INVALID_VALUE;
    memcpy(value, place.at, place.bytes);
  }
  *size = place.bytes;
  return CUDA_SUCCESS;
}

CUresult Set(CUcoredumpSettings attrib, CoredumpSettings* settings, const void* value,
             size_t* size) {
  const Place place = PlaceOf(attrib, settings);
  if (place.at == nullptr || size == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (value == nullptr) {
    *size = place.bytes;
    return CUDA_SUCCESS;
  }
  if (!place.is_text) {
    if (*size < place.bytes) return CUDA_ERROR_INVALID_VALUE;
    memcpy(place.at, value, place.bytes);
    return CUDA_SUCCESS;
  }
  const size_t length = strnlen(static_cast<const char*>(value), *size);
  if (length >= place.bytes) return CUDA_ERROR_INVALID_VALUE;
  memset(place.at, 0, place.bytes);
  memcpy(place.at, value, length);
  return CUDA_SUCCESS;
}

uint32_t Bit(CUcoredumpSettings attrib) { return 1u << attrib; }

// The current context's entry, made when first used; null `*own`: it has none and shall not get
// one. coredump_mutex held.
CUresult OfContext(bool make, uint32_t* flags, CoredumpSettings** own) {
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  *flags = context->flags.load(std::memory_order_relaxed);
  *own = nullptr;
  std::vector<CoredumpSettings>& all = GetRuntime()->context_coredump;
  for (CoredumpSettings& settings : all) {
    if (settings.context_id == context->id) *own = &settings;
  }
  if (*own == nullptr && make) {
    // Those of contexts that are gone make room.
    std::erase_if(all, [](const CoredumpSettings& settings) {
      return GetRuntime()->contexts.Find(settings.context_id) == nullptr;
    });
    all.emplace_back();
    all.back().context_id = context->id;
    *own = &all.back();
  }
  return CUDA_SUCCESS;
}

}  // namespace

namespace calls {

CUresult cuCoredumpGetAttribute(CUcoredumpSettings attrib, void* value, size_t* size) {
  MutexLock lock(&GetRuntime()->coredump_mutex);
  uint32_t flags = 0;
  CoredumpSettings* own = nullptr;
  if (CUresult result = OfContext(false, &flags, &own); result != CUDA_SUCCESS) return result;
  if (own != nullptr && PlaceOf(attrib, own).at != nullptr && (own->set & Bit(attrib)) != 0)
    return Get(attrib, own, value, size);
  if (attrib == CU_COREDUMP_ENABLE_ON_EXCEPTION &&
      (flags & (CU_CTX_COREDUMP_ENABLE | CU_CTX_USER_COREDUMP_ENABLE)) != 0) {
    CoredumpSettings enabled;
    enabled.on_exception = true;
    return Get(attrib, &enabled, value, size);
  }
  return Get(attrib, OfProcess(), value, size);
}

CUresult cuCoredumpGetAttributeGlobal(CUcoredumpSettings attrib, void* value, size_t* size) {
  MutexLock lock(&GetRuntime()->coredump_mutex);
  return Get(attrib, OfProcess(), value, size);
}

CUresult cuCoredumpSetAttribute(CUcoredumpSettings attrib, void* value, size_t* size) {
  MutexLock lock(&GetRuntime()->coredump_mutex);
  uint32_t flags = 0;
  CoredumpSettings* own = nullptr;
  if (CUresult result = OfContext(true, &flags, &own); result != CUDA_SUCCESS) return result;
  // "Cannot be set on a per-context basis."
  if (value != nullptr &&
      (attrib == CU_COREDUMP_ENABLE_USER_TRIGGER || attrib == CU_COREDUMP_PIPE)) {
    return CUDA_ERROR_NOT_PERMITTED;
  }
  const CUresult result = Set(attrib, own, value, size);
  if (result == CUDA_SUCCESS && value != nullptr) own->set |= Bit(attrib);
  return result;
}

CUresult cuCoredumpSetAttributeGlobal(CUcoredumpSettings attrib, void* value, size_t* size) {
  MutexLock lock(&GetRuntime()->coredump_mutex);
  return Set(attrib, OfProcess(), value, size);
}

}  // namespace calls
}  // namespace consort::guest
