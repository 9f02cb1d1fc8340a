// SPDX-License-Identifier: Apache-2.0
// guest/calls/module.cc: modules, libraries, kernels and their attributes. Source: CUDA Driver API,
// Module Management, Library Management, Execution Control.
#include <limits.h>
#include <string.h>

#include "gen/guest/calls.h"
#include "guest/config.h"
#include "guest/image.h"
#include "guest/modules.h"
#include "guest/shared_memory.h"
#include "guest/unsupported.h"

namespace consort::guest::calls {
namespace {

Module* FindModule(CUmodule handle) {
  return GetRuntime()->modules.Find(reinterpret_cast<uint64_t>(handle));
}

Library* FindLibrary(CUlibrary handle) {
  Library* library = GetRuntime()->libraries.Find(reinterpret_cast<uint64_t>(handle));
  // What a module is made of has a library's id, but programs know it by the module's handle.
  return library != nullptr && library->module_context == 0 ? library : nullptr;
}

// The current context's device, or the first.
Device* CurrentDevice() {
  Context* context = nullptr;
  return FindContext(nullptr, &context) == CUDA_SUCCESS ? context->device
                                                        : &GetRuntime()->devices[0];
}

// Looks a variable up on the host: `context` is the one that `library` is loaded in, or null before
// there is one, and managed variables have an address already. Library mutex held.
CUresult AskGlobal(Library* library, Context* context, const char* name, Global* found) {
  Runtime* runtime = GetRuntime();
  Session* session = library->device->session;
  wire::GlobalGetRequest request;
  wire::GlobalGetReply reply;
  request.library = library->id;
  request.name = {reinterpret_cast<const std::byte*>(name), strlen(name)};
  const CUresult asked =
      context != nullptr ? Ask(context, request, &reply) : session->Ask(0, request, &reply);
  if (asked != CUDA_SUCCESS) return asked;
  Allocation range;
  range.start = reply.address;
  range.bytes = reply.bytes;
  range.kind = MemoryKind::kGlobal;
  range.context_id = context != nullptr ? context->id : 0;
  range.library_id = library->id;
  const uint64_t shared = session->welcome().shared_host_base;
  if (session->shares_memory() && reply.address >= shared &&
      reply.address - shared < session->welcome().shared_host_bytes) {
    range.kind = MemoryKind::kManagedGlobal;
    range.context_id = 0;
    if (library->managed == 0) {
      if (CUresult result =
              MapManagedVariables(session, library->id, &library->managed, &library->managed_bytes);
          result != CUDA_SUCCESS) {
        return result;
      }
    }
  } else if (context == nullptr) {
    return CUDA_ERROR_NOT_FOUND;
  }
  *found = {strdup(name), reply.address, reply.bytes};
  library->globals.push_back(*found);
  runtime->allocations.Add(range);
  return CUDA_SUCCESS;
}

CUresult FindOrAskGlobal(Library* library, Context* context, const char* name, Global* found) {
  for (const Global& global : library->globals) {
    if (strcmp(global.name, name) != 0) continue;
    *found = global;
    return CUDA_SUCCESS;
  }
  return AskGlobal(library, context, name, found);
}

CUresult GlobalOf(Library* library, Context* context, CUdeviceptr* dptr, size_t* bytes,
                  const char* name) {
  MutexLock lock(&GetRuntime()->library_mutex);
  Library* instance = nullptr;
  if (CUresult result = InstanceOf(library, context, &instance); result != CUDA_SUCCESS)
    return result;
  Global found;
  if (CUresult result = FindOrAskGlobal(instance, context, name, &found); result != CUDA_SUCCESS)
    return result;
  if (dptr != nullptr) *dptr = found.address;
  if (bytes != nullptr) *bytes = found.bytes;
  return CUDA_SUCCESS;
}

// Ends `library` and its instances on both sides.
void Unload(Library* library) {
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->library_mutex);
  std::vector<Library*> all{library};
  for (const Instance& instance : library->instances) {
    if (Library* found = runtime->libraries.Find(instance.id)) all.push_back(found);
  }
  for (Library* one : all) {
    const Context* owner = runtime->contexts.Find(one->module_context);
    wire::LibraryUnloadRequest request;
    request.library = one->id;
    one->device->session->Post(owner != nullptr ? owner->wire_id : 0, request);
    ForgetLibrary(one);
  }
}

CUresult KernelNames(Library* library, std::vector<std::byte>* names) {
  wire::KernelNamesRequest request;
  wire::KernelNamesReply reply;
  request.library = library->id;
  if (CUresult result = library->device->session->Ask(0, request, &reply); result != CUDA_SUCCESS)
    return result;
  names->assign(reply.names.begin(), reply.names.end());
  return CUDA_SUCCESS;
}

CUresult CountKernels(Library* library, unsigned* count) {
  std::vector<std::byte> names;
  if (CUresult result = KernelNames(library, &names); result != CUDA_SUCCESS) return result;
  *count = 0;
  for (std::byte b : names) *count += b == std::byte{0} ? 1 : 0;
  return CUDA_SUCCESS;
}

CUresult EnumerateKernels(Library* library, uint64_t* kernels, unsigned count) {
  std::vector<std::byte> names;
  if (CUresult result = KernelNames(library, &names); result != CUDA_SUCCESS) return result;
  unsigned found = 0;
  for (size_t at = 0; at < names.size() && found < count;) {
    const char* name = reinterpret_cast<const char*>(names.data() + at);
    if (CUresult result = GetKernel(library, name, &kernels[found]); result != CUDA_SUCCESS)
      return result;
    ++found;
    at += strlen(name) + 1;
  }
  while (found < count) kernels[found++] = 0;
  return CUDA_SUCCESS;
}

CUresult GetAttribute(int* pi, CUfunction_attribute attribute, Kernel* kernel, Device* device) {
  if (attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
  if (CUresult result = KernelOn(device, &kernel); result != CUDA_SUCCESS) return result;
  const int value = kernel->attributes[attribute].load(std::memory_order_relaxed);
  if (value == INT_MIN) return CUDA_ERROR_INVALID_VALUE;
  *pi = value;
  return CUDA_SUCCESS;
}

CUresult SetAttribute(CUfunction_attribute attribute, int value, Kernel* kernel, Device* device) {
  if (attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
  return SetKernelAttribute(kernel, device, attribute, value);
}

CUresult ParameterInfo(const Kernel* kernel, size_t index, size_t* offset, size_t* bytes) {
  if (offset == nullptr || index >= kernel->parameters.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = kernel->parameters[index].offset;
  if (bytes != nullptr) *bytes = kernel->parameters[index].bytes;
  return CUDA_SUCCESS;
}

CUresult CheckCacheConfig(CUfunc_cache config) {
  return config >= CU_FUNC_CACHE_PREFER_NONE && config <= CU_FUNC_CACHE_PREFER_EQUAL
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

Kernel* FindCuKernel(CUkernel handle) {
  return GetRuntime()->kernels.Find(reinterpret_cast<uint64_t>(handle));
}

Device* FindDevice(CUdevice dev) {
  Runtime* runtime = GetRuntime();
  return dev >= 0 && dev < runtime->device_count ? &runtime->devices[dev] : nullptr;
}

CUresult LoadCuLibrary(CUlibrary* library, std::vector<std::byte> image, const void* preserved,
                       const JitOptions& options) {
  uint64_t id = 0;
  if (CUresult result = LoadLibrary(std::move(image), preserved, options, nullptr, &id);
      result != CUDA_SUCCESS)
    return result;
  *library = reinterpret_cast<CUlibrary>(id);
  return CUDA_SUCCESS;
}

// CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE changes nothing here. Callers pass options with
// a null array of values, which then means yes.
CUresult CheckLibraryOptions(unsigned count, const CUlibraryOption* options, void** values,
                             bool* preserved) {
  if (count != 0 && options == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] >= CU_LIBRARY_NUM_OPTIONS) return CUDA_ERROR_INVALID_VALUE;
    *preserved |=
        options[i] == CU_LIBRARY_BINARY_IS_PRESERVED && (values == nullptr || values[i] != nullptr);
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuModuleLoad(CUmodule* module, const char* fname) {
  if (module == nullptr || fname == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  std::vector<std::byte> file;
  size_t file_bytes = 0;
  if (CUresult result = ReadImageFile(fname, &file, &file_bytes); result != CUDA_SUCCESS)
    return result;
  return LoadModule(file.data(), JitOptions(), module);
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return LoadModule(image, JitOptions(), module);
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int numOptions,
                            CUjit_option* options, void** optionValues) {
  if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  JitOptions sorted;
  if (CUresult result = ReadJitOptions(numOptions, options, optionValues, &sorted);
      result != CUDA_SUCCESS)
    return result;
  return LoadModule(image, sorted, module);
}

CUresult cuModuleLoadFatBinary(CUmodule* module, const void* fatCubin) {
  return calls::cuModuleLoadData(module, fatCubin);
}

CUresult cuModuleUnload(CUmodule hmod) {
  if (hmod == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Runtime* runtime = GetRuntime();
  const Module* module = FindModule(hmod);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const uint64_t library_id = module->library_id;
  Library* library = runtime->libraries.Find(library_id);
  // A module that cuLibraryGetModule gave goes with its library.
  if (library == nullptr || library->module_context == 0) return CUDA_ERROR_NOT_PERMITTED;
  runtime->modules.Destroy(module->id);
  Unload(library);
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* hfunc, CUmodule hmod, const char* name) {
  if (hfunc == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Module* module = FindModule(hmod);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Context* context = GetRuntime()->contexts.Find(module->context_id);
  Library* library = GetRuntime()->libraries.Find(module->library_id);
  if (context == nullptr || library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  uint64_t id = 0;
  if (CUresult result = GetKernel(library, name, &id); result != CUDA_SUCCESS) return result;
  *hfunc = reinterpret_cast<CUfunction>(id);
  return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* dptr, size_t* bytes, CUmodule hmod, const char* name) {
  if (name == nullptr || (dptr == nullptr && bytes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  const Module* module = FindModule(hmod);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Context* context = GetRuntime()->contexts.Find(module->context_id);
  Library* library = GetRuntime()->libraries.Find(module->library_id);
  if (context == nullptr || library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return GlobalOf(library, context, dptr, bytes, name);
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *mode = GetConfig().eager_loading ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunctionCount(unsigned int* count, CUmodule mod) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Module* module = FindModule(mod);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return CountKernels(GetRuntime()->libraries.Find(module->library_id), count);
}

CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned int numFunctions,
                                    CUmodule mod) {
  if (functions == nullptr || numFunctions == 0) return CUDA_ERROR_INVALID_VALUE;
  const Module* module = FindModule(mod);
  if (module == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return EnumerateKernels(GetRuntime()->libraries.Find(module->library_id),
                          reinterpret_cast<uint64_t*>(functions), numFunctions);
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jitOptions,
                           void** jitOptionsValues, unsigned int numJitOptions,
                           CUlibraryOption* libraryOptions, void** libraryOptionValues,
                           unsigned int numLibraryOptions) {
  if (library == nullptr || code == nullptr) return CUDA_ERROR_INVALID_VALUE;
  bool preserved = false;
  if (CUresult result =
          CheckLibraryOptions(numLibraryOptions, libraryOptions, libraryOptionValues, &preserved);
      result != CUDA_SUCCESS)
    return result;
  JitOptions sorted;
  if (CUresult result = ReadJitOptions(numJitOptions, jitOptions, jitOptionsValues, &sorted);
      result != CUDA_SUCCESS) {
    return result;
  }
  return LoadCuLibrary(library, FlattenImage(code), preserved ? code : nullptr, sorted);
}

CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* fileName, CUjit_option* jitOptions,
                               void** jitOptionsValues, unsigned int numJitOptions,
                               CUlibraryOption* libraryOptions, void** libraryOptionValues,
                               unsigned int numLibraryOptions) {
  if (library == nullptr || fileName == nullptr) return CUDA_ERROR_INVALID_VALUE;
  bool preserved = false;
  if (CUresult result =
          CheckLibraryOptions(numLibraryOptions, libraryOptions, libraryOptionValues, &preserved);
      result != CUDA_SUCCESS)
    return result;
  JitOptions sorted;
  if (CUresult result = ReadJitOptions(numJitOptions, jitOptions, jitOptionsValues, &sorted);
      result != CUDA_SUCCESS) {
    return result;
  }
  std::vector<std::byte> file;
  size_t file_bytes = 0;
  if (CUresult result = ReadImageFile(fileName, &file, &file_bytes); result != CUDA_SUCCESS)
    return result;
  return LoadCuLibrary(library, FlattenImage(file.data()), nullptr, sorted);
}

CUresult cuLibraryUnload(CUlibrary handle) {
  Library* library = FindLibrary(handle);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Unload(library);
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel* pKernel, CUlibrary handle, const char* name) {
  if (pKernel == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Library* library = FindLibrary(handle);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  uint64_t id = 0;
  if (CUresult result = GetKernel(library, name, &id); result != CUDA_SUCCESS) return result;
  *pKernel = reinterpret_cast<CUkernel>(id);
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary lib) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Library* library = FindLibrary(lib);
  return library != nullptr ? CountKernels(library, count) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int numKernels, CUlibrary lib) {
  if (kernels == nullptr || numKernels == 0) return CUDA_ERROR_INVALID_VALUE;
  Library* library = FindLibrary(lib);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return EnumerateKernels(library, reinterpret_cast<uint64_t*>(kernels), numKernels);
}

CUresult cuLibraryGetModule(CUmodule* pMod, CUlibrary handle) {
  if (pMod == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  Library* library = FindLibrary(handle);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Runtime* runtime = GetRuntime();
  MutexLock lock(&runtime->library_mutex);
  for (uint64_t id : library->modules) {
    const Module* module = runtime->modules.Find(id);
    if (module != nullptr && module->context_id == context->id) {
      *pMod = reinterpret_cast<CUmodule>(id);
      return CUDA_SUCCESS;
    }
  }
  const uint64_t id = runtime->modules.Create([&](Module* module, uint64_t new_id) {
    module->id = new_id;
    module->library_id = library->id;
    module->context_id = context->id;
  });
  if (id == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  library->modules.push_back(id);
  *pMod = reinterpret_cast<CUmodule>(id);
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetGlobal(CUdeviceptr* dptr, size_t* bytes, CUlibrary handle, const char* name) {
  if (name == nullptr || (dptr == nullptr && bytes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  Library* library = FindLibrary(handle);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return GlobalOf(library, context, dptr, bytes, name);
}

CUresult cuLibraryGetManaged(CUdeviceptr* dptr, size_t* bytes, CUlibrary handle, const char* name) {
  if (name == nullptr || (dptr == nullptr && bytes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  Library* library = FindLibrary(handle);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  MutexLock lock(&GetRuntime()->library_mutex);
  Global found;
  CUresult result = FindOrAskGlobal(library, nullptr, name, &found);
  if (result == CUDA_SUCCESS && found.address - library->managed >= library->managed_bytes)
    result = CUDA_ERROR_NOT_FOUND;
  if (result == CUDA_ERROR_NOT_FOUND && library->managed == 0)
    NoteUnsupported("cuLibraryGetManaged", "a __managed__ variable");
  if (result != CUDA_SUCCESS) return result;
  if (dptr != nullptr) *dptr = found.address;
  if (bytes != nullptr) *bytes = found.bytes;
  return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction* pFunc, CUkernel handle) {
  if (pFunc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = nullptr;
  if (CUresult result = CurrentContext(&context); result != CUDA_SUCCESS) return result;
  if (FindCuKernel(handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *pFunc = reinterpret_cast<CUfunction>(handle);
  return CUDA_SUCCESS;
}

CUresult cuKernelGetLibrary(CUlibrary* pLib, CUkernel handle) {
  if (pLib == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Kernel* kernel = FindCuKernel(handle);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *pLib = reinterpret_cast<CUlibrary>(kernel->library_id);
  return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char** name, CUkernel handle) {
  if (name == nullptr || handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Kernel* kernel = FindCuKernel(handle);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  *name = kernel->name;
  return CUDA_SUCCESS;
}

CUresult cuKernelGetParamInfo(CUkernel handle, size_t paramIndex, size_t* paramOffset,
                              size_t* paramSize) {
  const Kernel* kernel = FindCuKernel(handle);
  return kernel != nullptr ? ParameterInfo(kernel, paramIndex, paramOffset, paramSize)
                           : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuKernelGetAttribute(int* pi, CUfunction_attribute attrib, CUkernel handle, CUdevice dev) {
  if (pi == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Kernel* kernel = FindCuKernel(handle);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Device* device = FindDevice(dev);
  return device != nullptr ? GetAttribute(pi, attrib, kernel, device) : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel handle, CUdevice dev) {
  Kernel* kernel = FindCuKernel(handle);
  if (kernel == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Device* device = FindDevice(dev);
  return device != nullptr ? SetAttribute(attrib, val, kernel, device) : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuKernelSetCacheConfig(CUkernel handle, CUfunc_cache config, CUdevice dev) {
  if (FindCuKernel(handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return FindDevice(dev) != nullptr ? CheckCacheConfig(config) : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuFuncGetAttribute(int* pi, CUfunction_attribute attrib, CUfunction hfunc) {
  if (pi == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Kernel* kernel = nullptr;
  if (CUresult result = FindKernel(hfunc, &kernel); result != CUDA_SUCCESS) return result;
  return GetAttribute(pi, attrib, kernel, CurrentDevice());
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
  Kernel* kernel = nullptr;
  if (CUresult result = FindKernel(hfunc, &kernel); result != CUDA_SUCCESS) return result;
  return SetAttribute(attrib, value, kernel, CurrentDevice());
}

CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config) {
  Kernel* kernel = nullptr;
  if (CUresult result = FindKernel(hfunc, &kernel); result != CUDA_SUCCESS) return result;
  return CheckCacheConfig(config);
}

CUresult cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config) {
  Kernel* kernel = nullptr;
  if (CUresult result = FindKernel(hfunc, &kernel); result != CUDA_SUCCESS) return result;
  return config >= CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE &&
                 config <= CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuFuncGetModule(CUmodule* hmod, CUfunction hfunc) {
  if (hmod == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Kernel* kernel = nullptr;
  if (CUresult result = FindKernel(hfunc, &kernel); result != CUDA_SUCCESS) return result;
  Runtime* runtime = GetRuntime();
  const Library* library = runtime->libraries.Find(kernel->library_id);
  if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (library->module_context == 0)
    return calls::cuLibraryGetModule(hmod, reinterpret_cast<CUlibrary>(library->id));
  uint64_t found = 0;
  runtime->modules.ForEach([&](Module* module, uint64_t id) {
    if (module->library_id == library->id) found = id;
  });
  *hmod = reinterpret_cast<CUmodule>(found);
  return found != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuFuncGetName(const char** name, CUfunction hfunc) {
  return calls::cuKernelGetName(name, reinterpret_cast<CUkernel>(hfunc));
}

CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t* paramOffset,
                            size_t* paramSize) {
  return calls::cuKernelGetParamInfo(reinterpret_cast<CUkernel>(func), paramIndex, paramOffset,
                                     paramSize);
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction function) {
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Kernel* kernel = nullptr;
  if (CUresult result = FindKernel(function, &kernel); result != CUDA_SUCCESS) return result;
  *state =
      CU_FUNCTION_LOADING_STATE_LOADED;  // its attributes were read on the host, which loads it
  return CUDA_SUCCESS;
}

CUresult cuFuncLoad(CUfunction function) {
  Kernel* kernel = nullptr;
  return FindKernel(function, &kernel);
}

}  // namespace consort::guest::calls
