// SPDX-License-Identifier: Apache-2.0
#include "guest/modules.h"

#include <limits.h>
#include <string.h>

#include <atomic>

#include "guest/image.h"

namespace consort::guest {
namespace {

std::atomic<uint64_t> next_image{1};

// Options whose value is a pointer or an output, in this process's memory: not for the host.
bool StaysHere(CUjit_option option) {
  switch (option) {
    case CU_JIT_WALL_TIME:
    case CU_JIT_INFO_LOG_BUFFER:
    case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
    case CU_JIT_ERROR_LOG_BUFFER:
    case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
    case CU_JIT_GLOBAL_SYMBOL_NAMES:
    case CU_JIT_GLOBAL_SYMBOL_ADDRESSES:
    case CU_JIT_REFERENCED_KERNEL_NAMES:
    case CU_JIT_REFERENCED_VARIABLE_NAMES:
      return true;
    default:
      return false;
  }
}

template <class T>
void AppendValue(T value, std::vector<std::byte>* to) {
  const auto* at = reinterpret_cast<const std::byte*>(&value);
  to->insert(to->end(), at, at + sizeof value);
}

void DeliverLog(std::span<const std::byte> log, char* buffer, void** bytes) {
  if (buffer == nullptr || bytes == nullptr) return;
  const uint64_t capacity = reinterpret_cast<uint64_t>(*bytes);
  if (capacity == 0) return;
  const uint64_t count = log.size() < capacity - 1 ? log.size() : capacity - 1;
  memcpy(buffer, log.data(), count);
  buffer[count] = '\0';
  *bytes = reinterpret_cast<void*>(count);
}

uint32_t LogCapacity(const char* buffer, void** bytes) {
  if (buffer == nullptr || bytes == nullptr) return 0;
  constexpr uint64_t kLogBytesMax = 64 * 1024;  // fits a reply; compilers write far less
  const uint64_t capacity = reinterpret_cast<uint64_t>(*bytes);
  return static_cast<uint32_t>(capacity < kLogBytesMax ? capacity : kLogBytesMax);
}

CUresult SendLibrary(Session* session, uint32_t context, uint64_t library_id,
                     std::span<const std::byte> image, const JitOptions& options) {
  wire::ImageDataRequest piece;
  piece.image = next_image.fetch_add(1, std::memory_order_relaxed);
  piece.total = image.size();
  for (piece.offset = 0; piece.offset < image.size(); piece.offset += piece.data.size()) {
    const uint64_t left = image.size() - piece.offset;
    piece.data =
        image.subspan(piece.offset, left < wire::kBulkBytesMax ? left : wire::kBulkBytesMax);
    if (CUresult result = session->Post(context, piece); result != CUDA_SUCCESS) return result;
  }
  wire::LibraryLoadRequest load;
  wire::LibraryLoadReply reply;
  load.library = library_id;
  load.image = piece.image;
  load.jit_options = options.forwarded;
  load.info_log_bytes = LogCapacity(options.info_log, options.info_log_bytes);
  load.error_log_bytes = LogCapacity(options.error_log, options.error_log_bytes);
  load.at_once = context != 0;  // a module
  const CUresult result = session->Ask(context, load, &reply);
  DeliverLog(reply.info_log, options.info_log, options.info_log_bytes);
  DeliverLog(reply.error_log, options.error_log, options.error_log_bytes);
  return result;
}

uint32_t WireContext(const Library* library) {
  if (library->module_context == 0) return 0;
  const Context* context = GetRuntime()->contexts.Find(library->module_context);
  return context != nullptr ? context->wire_id : 0;
}

// library_mutex held. The session with `device`, on which `library` is loaded afterwards.
CUresult EnsureLibrary(Library* library, Device* device, Session** session) {
  CUresult result = CUDA_SUCCESS;
  *session = OpenDevice(device, &result);
  if (*session == nullptr) return result;
  const uint32_t bit = 1u << device->ordinal;
  if ((library->devices & bit) != 0) return CUDA_SUCCESS;
  if (library->module_context != 0)
    return CUDA_ERROR_INVALID_HANDLE;  // a module lives on one device only
  result = SendLibrary(*session, 0, library->id, library->image, JitOptions());
  if (result == CUDA_SUCCESS) library->devices |= bit;
  return result;
}

void StoreAttributes(std::span<const std::byte> values, Kernel* kernel) {
  for (uint32_t i = 0; i < kFunctionAttributesMax; ++i) {
    int32_t value = INT_MIN;  // not known to the host's driver
    if ((i + 1) * 4 <= values.size()) memcpy(&value, values.data() + i * 4, 4);
    kernel->attributes[i].store(value, std::memory_order_relaxed);
  }
}

// library_mutex held.
CUresult AskKernel(Session* session, Library* library, Kernel* kernel, uint64_t id,
                   const char* name) {
  wire::KernelGetRequest request;
  wire::KernelGetReply reply;
  request.library = library->id;
  request.kernel = id;
  request.name = {reinterpret_cast<const std::byte*>(name), strlen(name)};
  if (CUresult result = session->Ask(WireContext(library), request, &reply); result != CUDA_SUCCESS)
    return result;
  StoreAttributes(reply.attributes, kernel);
  kernel->parameters.clear();
  kernel->parameter_bytes = 0;
  for (uint64_t at = 0; at + 8 <= reply.layout.size(); at += 8) {
    KernelParameter parameter;
    memcpy(&parameter.offset, reply.layout.data() + at, 4);
    memcpy(&parameter.bytes, reply.layout.data() + at + 4, 4);
    kernel->parameters.push_back(parameter);
    const uint32_t end = parameter.offset + parameter.bytes;
    if (end > kernel->parameter_bytes) kernel->parameter_bytes = end;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult ReadJitOptions(unsigned count, const CUjit_option* options, void** values,
                        JitOptions* sorted) {
  if (count != 0 && (options == nullptr || values == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    switch (options[i]) {
      case CU_JIT_INFO_LOG_BUFFER:
        sorted->info_log = static_cast<char*>(values[i]);
        break;
      case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
        sorted->info_log_bytes = &values[i];
        break;
      case CU_JIT_ERROR_LOG_BUFFER:
        sorted->error_log = static_cast<char*>(values[i]);
        break;
      case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
        sorted->error_log_bytes = &values[i];
        break;
      default:
        if (StaysHere(options[i])) break;
        AppendValue(static_cast<uint32_t>(options[i]), &sorted->forwarded);
        AppendValue(reinterpret_cast<uint64_t>(values[i]), &sorted->forwarded);
    }
  }
  return CUDA_SUCCESS;
}

CUresult LoadLibrary(std::vector<std::byte> image, const JitOptions& options, Context* context,
                     uint64_t* library_id) {
  if (image.empty()) return CUDA_ERROR_INVALID_IMAGE;
  Runtime* runtime = GetRuntime();
  Device* device = context != nullptr ? context->device : &runtime->devices[0];
  if (Context* current = nullptr;
      context == nullptr && FindContext(nullptr, &current) == CUDA_SUCCESS) {
    device = current->device;
  }
  CUresult result = CUDA_SUCCESS;
  Session* session = OpenDevice(device, &result);
  if (session == nullptr) return result;
  const uint64_t id = runtime->libraries.Create([&](Library* library, uint64_t new_id) {
    library->id = new_id;
    library->module_context = context != nullptr ? context->id : 0;
  });
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  result = SendLibrary(session, context != nullptr ? context->wire_id : 0, id, image, options);
  if (result != CUDA_SUCCESS) {
    runtime->libraries.Destroy(id);
    return result;
  }
  MutexLock lock(&runtime->library_mutex);
  Library* library = runtime->libraries.Find(id);
  library->devices = 1u << device->ordinal;
  if (runtime->device_count > 1 && context == nullptr) library->image = std::move(image);
  *library_id = id;
  return CUDA_SUCCESS;
}

CUresult LoadModule(const void* code, const JitOptions& options, CUmodule* module) {
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  uint64_t library_id = 0;
  if (CUresult result = LoadLibrary(FlattenImage(code), options, context, &library_id);
      result != CUDA_SUCCESS) {
    return result;
  }
  const uint64_t id = GetRuntime()->modules.Create([&](Module* made, uint64_t new_id) {
    made->id = new_id;
    made->library_id = library_id;
    made->context_id = context->id;
  });
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *module = reinterpret_cast<CUmodule>(id);
  return CUDA_SUCCESS;
}

CUresult GetKernel(Library* library, const char* name, Device* device, uint64_t* kernel_id) {
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->library_mutex);
  for (uint64_t id : library->kernels) {
    const Kernel* kernel = runtime->kernels.Find(id);
    if (kernel != nullptr && strcmp(kernel->name, name) == 0) {
      *kernel_id = id;
      return CUDA_SUCCESS;
    }
  }
  Session* session = nullptr;
  if (CUresult result = EnsureLibrary(library, device, &session); result != CUDA_SUCCESS)
    return result;
  const uint64_t id = runtime->kernels.Create([&](Kernel* kernel, uint64_t new_id) {
    kernel->id = new_id;
    kernel->library_id = library->id;
    kernel->name = strdup(name);
  });
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  Kernel* kernel = runtime->kernels.Find(id);
  if (CUresult result = AskKernel(session, library, kernel, id, name); result != CUDA_SUCCESS) {
    runtime->kernels.Destroy(id);
    return result;
  }
  kernel->devices = 1u << device->ordinal;
  library->kernels.push_back(id);
  *kernel_id = id;
  return CUDA_SUCCESS;
}

CUresult EnsureKernel(Kernel* kernel, Device* device) {
  // The common case without a lock: one device, known since the kernel was looked up.
  if (GetRuntime()->device_count == 1) return CUDA_SUCCESS;
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->library_mutex);
  const uint32_t bit = 1u << device->ordinal;
  if ((kernel->devices & bit) != 0) return CUDA_SUCCESS;
  Library* library = runtime->libraries.Find(kernel->library_id);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Session* session = nullptr;
  if (CUresult result = EnsureLibrary(library, device, &session); result != CUDA_SUCCESS)
    return result;
  if (CUresult result = AskKernel(session, library, kernel, kernel->id, kernel->name);
      result != CUDA_SUCCESS)
    return result;
  kernel->devices |= bit;
  return CUDA_SUCCESS;
}

}  // namespace consort::guest
