// SPDX-License-Identifier: Apache-2.0
#include "guest/modules.h"

#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include <atomic>

#include "guest/image.h"
#include "guest/shared_memory.h"
#include "guest/unsupported.h"

namespace consort::guest {
namespace {

std::atomic<uint64_t> next_image{1};

// Of a library's image that is kept for further contexts of the only device, and of all of them.
// Programs with several contexts on a device are few; for a second device any image is kept.
constexpr uint64_t kKeptImageBytesMax = 64 << 20;
constexpr uint64_t kKeptImagesBytesMax = 256 << 20;
uint64_t kept_image_bytes = 0;  // library mutex

CUresult SendLibrary(Session* session, uint32_t context, uint64_t library_id,
                     std::span<const std::byte> image, const JitOptions& options) {
  wire::LibraryLoadRequest load;
  if (CUresult result = SendImage(session, context, image, &load.image); result != CUDA_SUCCESS)
    return result;
  wire::LibraryLoadReply reply;
  load.library = library_id;
  load.jit_options = options.forwarded;
  load.info_log_bytes = options.info_log.reply_bytes();
  load.error_log_bytes = options.error_log.reply_bytes();
  load.at_once = context != 0;  // a module
  const CUresult result = session->Ask(context, load, &reply);
  options.info_log.Deliver(reply.info_log);
  options.error_log.Deliver(reply.error_log);
  options.DeliverWallTime(reply.wall_milliseconds);
  return result;
}

uint32_t WireContext(const Library* library) {
  if (library->module_context == 0) return 0;
  const Context* context = GetRuntime()->contexts.Find(library->module_context);
  return context != nullptr ? context->wire_id : 0;
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
  kernel->prints = reply.prints != 0;
  kernel->system_atomics = reply.system_atomics > 1    ? SystemAtomics::kBesideManagedVariables
                           : reply.system_atomics == 1 ? SystemAtomics::kSome
                                                       : SystemAtomics::kNone;
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

CUresult SendImage(Session* session, uint32_t context, std::span<const std::byte> image,
                   uint64_t* image_id) {
  wire::ImageDataRequest piece;
  piece.image = next_image.fetch_add(1, std::memory_order_relaxed);
  piece.total = image.size();
  for (piece.offset = 0; piece.offset < image.size(); piece.offset += piece.data.size()) {
    const uint64_t left = image.size() - piece.offset;
    piece.data =
        image.subspan(piece.offset, left < wire::kBulkBytesMax ? left : wire::kBulkBytesMax);
    if (CUresult result = session->Post(context, piece); result != CUDA_SUCCESS) return result;
  }
  *image_id = piece.image;
  return CUDA_SUCCESS;
}

CUresult ReadImageFile(const char* path, std::vector<std::byte>* bytes, size_t* file_bytes) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_FILE_NOT_FOUND;
  constexpr size_t kStep = 1 << 20;
  size_t used = 0;
  while (true) {
    bytes->resize(used + kStep);
    const ssize_t got = read(fd, bytes->data() + used, kStep);
    if (got <= 0) break;
    used += got;
  }
  close(fd);
  bytes->resize(used + 8);
  memset(bytes->data() + used, 0, 8);
  *file_bytes = used;
  return used < 4 ? CUDA_ERROR_INVALID_IMAGE : CUDA_SUCCESS;
}

CUresult LoadLibrary(std::vector<std::byte> image, const void* preserved, const JitOptions& options,
                     Context* context, uint64_t* library_id) {
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
    library->device = device;
    library->module_context = context != nullptr ? context->id : 0;
  });
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  result = SendLibrary(session, context != nullptr ? context->wire_id : 0, id, image, options);
  if (result != CUDA_SUCCESS) {
    runtime->libraries.Destroy(id);
    return result;
  }
  *library_id = id;
  if (context != nullptr) return CUDA_SUCCESS;
  MutexLock lock(&runtime->library_mutex);
  Library* library = runtime->libraries.Find(id);
  library->jit_options = options.forwarded;
  library->preserved = preserved;
  const bool small =
      image.size() <= kKeptImageBytesMax && kept_image_bytes + image.size() <= kKeptImagesBytesMax;
  if (preserved == nullptr && (small || runtime->device_count > 1)) {
    kept_image_bytes += image.size();
    library->image = std::move(image);
  }
  return CUDA_SUCCESS;
}

CUresult LoadModule(const void* code, const JitOptions& options, CUmodule* module) {
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  uint64_t library_id = 0;
  if (CUresult result = LoadLibrary(FlattenImage(code), nullptr, options, context, &library_id);
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

namespace {

// library_mutex held. Looks `name` up as a new kernel of `library`.
CUresult NewKernel(Library* library, const char* name, uint64_t* kernel_id) {
  Runtime* runtime = GetRuntime();
  const uint64_t id = runtime->kernels.Create([&](Kernel* kernel, uint64_t new_id) {
    kernel->id = new_id;
    kernel->library_id = library->id;
    kernel->name = strdup(name);
    kernel->context_id = library->module_context;
  });
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  Kernel* kernel = runtime->kernels.Find(id);
  if (CUresult result = AskKernel(library->device->session, library, kernel, id, name);
      result != CUDA_SUCCESS) {
    runtime->kernels.Destroy(id);
    return result;
  }
  library->kernels.push_back(id);
  *kernel_id = id;
  return CUDA_SUCCESS;
}

bool MaySet(CUfunction_attribute attribute) {
  return attribute >= CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES &&
         attribute <= CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE;
}

// What is set already is not asked for again: cuBLAS sets an attribute before each launch.
CUresult SendSetting(Session* session, Kernel* kernel, CUfunction_attribute attribute, int value) {
  if (MaySet(attribute) && kernel->attributes[attribute].load(std::memory_order_relaxed) == value) {
    return CUDA_SUCCESS;
  }
  wire::FunctionSetAttributeRequest request;
  wire::FunctionSetAttributeReply reply;
  request.kernel = kernel->id;
  request.attribute = attribute;
  request.value = value;
  const CUresult result = session->Ask(0, request, &reply);
  if (result == CUDA_SUCCESS) StoreAttributes(reply.attributes, kernel);
  return result;
}

}  // namespace

CUresult InstanceOf(Library* library, Context* context, Library** instance) {
  Runtime* runtime = GetRuntime();
  *instance = library;
  if (library->module_context != 0 || library->home_context == context->id) return CUDA_SUCCESS;
  if (library->home_context == 0 && library->device == context->device) {
    library->home_context = context->id;
    return CUDA_SUCCESS;
  }
  for (const Instance& known : library->instances) {
    if (known.context_id != context->id) continue;
    *instance = runtime->libraries.Find(known.id);
    return *instance != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  }
  if (library->managed != 0) {
    NoteUnsupported("cuLibraryGetManaged", "a library with managed variables in a second context");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  std::vector<std::byte> flat;
  if (library->preserved != nullptr) flat = FlattenImage(library->preserved);
  const std::vector<std::byte>& image = library->preserved != nullptr ? flat : library->image;
  if (image.empty()) {
    NoteUnsupported("cuLibraryLoadData",
                    "a large library without CU_LIBRARY_BINARY_IS_PRESERVED in a second context");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  CUresult result = CUDA_SUCCESS;
  Session* session = OpenDevice(context->device, &result);
  if (session == nullptr) return result;
  const uint64_t id = runtime->libraries.Create([&](Library* made, uint64_t new_id) {
    made->id = new_id;
    made->device = context->device;
    made->module_context = context->id;
  });
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  JitOptions options;
  options.forwarded = library->jit_options;
  result = SendLibrary(session, context->wire_id, id, image, options);
  if (result != CUDA_SUCCESS) {
    runtime->libraries.Destroy(id);
    return result;
  }
  library->instances.push_back({context->id, id});
  *instance = runtime->libraries.Find(id);
  return CUDA_SUCCESS;
}

CUresult GetKernel(Library* library, const char* name, uint64_t* kernel_id) {
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->library_mutex);
  for (uint64_t id : library->kernels) {
    const Kernel* kernel = runtime->kernels.Find(id);
    if (kernel != nullptr && strcmp(kernel->name, name) == 0) {
      *kernel_id = id;
      return CUDA_SUCCESS;
    }
  }
  return NewKernel(library, name, kernel_id);
}

CUresult KernelIn(Context* context, Kernel** kernel) {
  // The common case without a lock: one context.
  Kernel* base = *kernel;
  if (base->context_id.load(std::memory_order_relaxed) == context->id) return CUDA_SUCCESS;
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->library_mutex);
  Library* library = runtime->libraries.Find(base->library_id);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Library* instance = nullptr;
  if (CUresult result = InstanceOf(library, context, &instance); result != CUDA_SUCCESS)
    return result;
  if (instance == library) {
    if (library->module_context == 0) base->context_id = context->id;
    return CUDA_SUCCESS;
  }
  for (const Instance& known : base->instances) {
    if (known.context_id != context->id) continue;
    *kernel = runtime->kernels.Find(known.id);
    return *kernel != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
  }
  uint64_t id = 0;
  if (CUresult result = NewKernel(instance, base->name, &id); result != CUDA_SUCCESS) return result;
  base->instances.push_back({context->id, id});
  *kernel = runtime->kernels.Find(id);
  for (const KernelSetting& setting : base->settings) {
    if (setting.device != context->device->ordinal) continue;
    if (CUresult result =
            SendSetting(context->device->session, *kernel, setting.attribute, setting.value);
        result != CUDA_SUCCESS)
      return result;
  }
  return CUDA_SUCCESS;
}

CUresult KernelOn(Device* device, Kernel** kernel) {
  Runtime* runtime = GetRuntime();
  {
    MutexLock lock(&runtime->library_mutex);
    const Library* library = runtime->libraries.Find((*kernel)->library_id);
    if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (library->device == device) return CUDA_SUCCESS;
    if (library->module_context != 0) return CUDA_ERROR_INVALID_HANDLE;  // of one device only
  }
  return KernelIn(runtime->contexts.Find(device->primary_id), kernel);
}

CUresult SetKernelAttribute(Kernel* kernel, Device* device, CUfunction_attribute attribute,
                            int value) {
  Kernel* on_device = kernel;
  if (CUresult result = KernelOn(device, &on_device); result != CUDA_SUCCESS) return result;
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->library_mutex);
  if (CUresult result = SendSetting(device->session, on_device, attribute, value);
      result != CUDA_SUCCESS)
    return result;
  bool known = false;
  for (KernelSetting& setting : kernel->settings) {
    if (setting.attribute != attribute || setting.device != device->ordinal) continue;
    setting.value = value;
    known = true;
  }
  if (!known) kernel->settings.push_back({attribute, value, device->ordinal});
  for (const Instance& instance : kernel->instances) {
    Kernel* other = runtime->kernels.Find(instance.id);
    const Context* context = runtime->contexts.Find(instance.context_id);
    if (other == nullptr || other == on_device || context == nullptr || context->device != device)
      continue;
    if (CUresult result = SendSetting(device->session, other, attribute, value);
        result != CUDA_SUCCESS)
      return result;
  }
  return CUDA_SUCCESS;
}

void ForgetLibrary(Library* library) {
  Runtime* runtime = GetRuntime();
  for (uint64_t kernel : library->kernels) runtime->kernels.Destroy(kernel);
  for (uint64_t module : library->modules) runtime->modules.Destroy(module);
  kept_image_bytes -= library->image.size();
  const uint64_t id = library->id;
  Allocation removed;
  while (runtime->allocations.RemoveIf(
      [&](const Allocation& range) { return range.library_id == id; }, &removed)) {
  }
  if (library->managed != 0) {
    runtime->managed_advice.Forget(library->managed, library->managed_bytes);
    UnmapSharedMemory(library->managed, library->managed_bytes);
  }
  runtime->libraries.Destroy(id);
}

void ForgetContext(uint64_t context_id) {
  Runtime* runtime = GetRuntime();
  const auto forget = [&](std::vector<Instance>* instances) {
    for (size_t i = 0; i < instances->size(); ++i) {
      if ((*instances)[i].context_id != context_id) continue;
      (*instances)[i] = instances->back();
      instances->pop_back();
      return;
    }
  };
  std::vector<uint64_t> gone;
  runtime->libraries.ForEach([&](Library* library, uint64_t id) {
    if (library->module_context == context_id) gone.push_back(id);
    forget(&library->instances);
    const bool was_home = library->home_context == context_id;
    if (was_home) {
      // Its variables are as that context left them; another one, or this one made anew, begins
      // with an instance. Without an image there is only the object itself.
      // And managed variables belong to no context.
      const bool has_image = library->preserved != nullptr || !library->image.empty();
      library->home_context = has_image && library->managed == 0 ? kNoHome : 0;
      library->globals.clear();
    }
    for (uint64_t kernel_id : library->kernels) {
      Kernel* kernel = runtime->kernels.Find(kernel_id);
      if (kernel == nullptr) continue;
      if (was_home) kernel->context_id = 0;
      forget(&kernel->instances);
    }
  });
  for (uint64_t id : gone) ForgetLibrary(runtime->libraries.Find(id));
}

}  // namespace consort::guest
