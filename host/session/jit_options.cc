// SPDX-License-Identifier: Apache-2.0
#include "host/session/jit_options.h"

#include <algorithm>
#include <cstring>

#include "host/limits.h"

namespace consort::host {
namespace {

// An option as a guest sends it: number and value, packed.
constexpr size_t kPackedBytes = 12;

// Options whose value is a number. The others are pointers, which mean nothing here, or ask for
// what the replies bring back anyway.
bool IsPlain(uint32_t option) {
  switch (option) {
    case CU_JIT_MAX_REGISTERS:
    case CU_JIT_THREADS_PER_BLOCK:
    case CU_JIT_OPTIMIZATION_LEVEL:
    case CU_JIT_TARGET_FROM_CUCONTEXT:
    case CU_JIT_TARGET:
    case CU_JIT_FALLBACK_STRATEGY:
    case CU_JIT_GENERATE_DEBUG_INFO:
    case CU_JIT_LOG_VERBOSE:
    case CU_JIT_GENERATE_LINE_INFO:
    case CU_JIT_CACHE_MODE:
    case CU_JIT_FAST_COMPILE:
    case CU_JIT_POSITION_INDEPENDENT_CODE:
    case CU_JIT_MIN_CTA_PER_SM:
    case CU_JIT_MAX_THREADS_PER_BLOCK:
    case CU_JIT_OVERRIDE_DIRECTIVE_VALUES:
    case CU_JIT_SPLIT_COMPILE:
      return true;
    default:
      return false;
  }
}

}  // namespace

JitOptions::JitOptions(std::span<const std::byte> packed) {
  for (size_t at = 0; at + kPackedBytes <= packed.size(); at += kPackedBytes) {
    uint32_t option;
    uint64_t value;
    std::memcpy(&option, packed.data() + at, sizeof(option));
    std::memcpy(&value, packed.data() + at + sizeof(option), sizeof(value));
    if (IsPlain(option)) Add(static_cast<CUjit_option>(option), reinterpret_cast<void*>(value));
  }
}

void JitOptions::AddLogs(uint32_t info_bytes, uint32_t error_bytes) {
  AddLog(info_log_, info_bytes, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES);
  AddLog(error_log_, error_bytes, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
}

void JitOptions::AddWallTime() { Add(CU_JIT_WALL_TIME, nullptr); }

float JitOptions::wall_time() const {
  const auto found = std::find(options_.begin(), options_.end(), CU_JIT_WALL_TIME);
  float milliseconds = 0;
  if (found != options_.end()) {
    std::memcpy(&milliseconds, &values_[static_cast<size_t>(found - options_.begin())],
                sizeof(milliseconds));
  }
  return milliseconds;
}

std::span<const std::byte> JitOptions::TextOf(const std::string& log) {
  return std::as_bytes(std::span(log.data(), strnlen(log.data(), log.size())));
}

void JitOptions::Add(CUjit_option option, void* value) {
  options_.push_back(option);
  values_.push_back(value);
}

void JitOptions::AddLog(std::string& log, uint32_t bytes, CUjit_option buffer, CUjit_option size) {
  if (bytes == 0) return;
  log.assign(std::min(bytes, kJitLogBytesMax), '\0');
  Add(buffer, log.data());
  Add(size, reinterpret_cast<void*>(log.size()));
}

}  // namespace consort::host
