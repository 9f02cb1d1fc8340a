// SPDX-License-Identifier: Apache-2.0
#include "guest/jit_options.h"

#include <string.h>

namespace consort::guest {
namespace {

template <class T>
void AppendValue(T value, std::vector<std::byte>* to) {
  const auto* at = reinterpret_cast<const std::byte*>(&value);
  to->insert(to->end(), at, at + sizeof value);
}

// Sizes are an unsigned int in the place of a pointer.
void SetSize(void** value, JitLog* log) {
  log->bytes = value;
  log->capacity = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(*value));
}

}  // namespace

uint32_t JitLog::reply_bytes() const {
  constexpr uint32_t kLogBytesMax = 64 * 1024;  // fits a reply; compilers write far less
  if (!wanted()) return 0;
  return capacity < kLogBytesMax ? capacity : kLogBytesMax;
}

void JitLog::Deliver(std::span<const std::byte> text) const {
  if (!wanted()) return;
  const size_t count = text.size() < capacity - 1 ? text.size() : capacity - 1;
  memcpy(buffer, text.data(), count);
  buffer[count] = '\0';
  *bytes = reinterpret_cast<void*>(count);
}

void JitOptions::DeliverWallTime(float milliseconds) const {
  if (wall_time != nullptr) memcpy(wall_time, &milliseconds, sizeof milliseconds);
}

CUresult ReadJitOptions(unsigned count, const CUjit_option* options, void** values,
                        JitOptions* sorted) {
  if (count != 0 && (options == nullptr || values == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    switch (options[i]) {
      case CU_JIT_INFO_LOG_BUFFER:
        sorted->info_log.buffer = static_cast<char*>(values[i]);
        break;
      case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
        SetSize(&values[i], &sorted->info_log);
        break;
      case CU_JIT_ERROR_LOG_BUFFER:
        sorted->error_log.buffer = static_cast<char*>(values[i]);
        break;
      case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
        SetSize(&values[i], &sorted->error_log);
        break;
      case CU_JIT_WALL_TIME:
        sorted->wall_time = &values[i];
        break;
      case CU_JIT_GLOBAL_SYMBOL_NAMES:  // pointers of this process
      case CU_JIT_GLOBAL_SYMBOL_ADDRESSES:
      case CU_JIT_REFERENCED_KERNEL_NAMES:
      case CU_JIT_REFERENCED_VARIABLE_NAMES:
        break;
      default:
        AppendValue(static_cast<uint32_t>(options[i]), &sorted->forwarded);
        AppendValue(reinterpret_cast<uint64_t>(values[i]), &sorted->forwarded);
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace consort::guest
