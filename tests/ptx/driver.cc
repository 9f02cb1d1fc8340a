// SPDX-License-Identifier: Apache-2.0
#include "tests/ptx/driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace consort::ptx_suite {
namespace {

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::exit(2);
}

void Need(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS) Die(std::string(what) + " failed: error " + std::to_string(result));
}

}  // namespace

template <typename Function>
void Driver::Find(Function*& function, const char* name) {
  function = reinterpret_cast<Function*>(dlsym(library_, name));
  if (function == nullptr) Die(std::string("the driver has no ") + name);
}

Driver::Driver(const std::string& library) {
  library_ = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) Die(dlerror());
  Find(load_, "cuModuleLoadDataEx");
  Find(unload_, "cuModuleUnload");
  Find(get_function_, "cuModuleGetFunction");
  Find(allocate_, "cuMemAlloc_v2");
  Find(upload_, "cuMemcpyHtoD_v2");
  Find(download_, "cuMemcpyDtoH_v2");
  Find(create_array_, "cuArray3DCreate_v2");
  Find(copy_, "cuMemcpy3D_v2");
  Find(create_texture_, "cuTexObjectCreate");
  Find(create_surface_, "cuSurfObjectCreate");
  Find(launch_, "cuLaunchKernel");
  Find(synchronise_, "cuCtxSynchronize");
  decltype(::cuInit)* init = nullptr;
  decltype(::cuDriverGetVersion)* version = nullptr;
  decltype(::cuDeviceGetName)* name = nullptr;
  decltype(::cuDevicePrimaryCtxRetain)* retain = nullptr;
  decltype(::cuCtxSetCurrent)* set_current = nullptr;
  Find(init, "cuInit");
  Find(version, "cuDriverGetVersion");
  Find(name, "cuDeviceGetName");
  Find(retain, "cuDevicePrimaryCtxRetain");
  Find(set_current, "cuCtxSetCurrent");
  Need(init(0), "cuInit");
  char text[128] = {};
  int number = 0;
  Need(name(text, sizeof(text), 0), "cuDeviceGetName");
  Need(version(&number), "cuDriverGetVersion");
  description_ = std::string(text) + ", CUDA " + std::to_string(number);
  CUcontext context = nullptr;
  Need(retain(&context, 0), "cuDevicePrimaryCtxRetain");
  Need(set_current(context), "cuCtxSetCurrent");
}

CUmodule Driver::Load(const std::string& ptx, std::string* error) {
  char log[4096] = {};
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof(log))};
  CUmodule module = nullptr;
  const CUresult result = load_(&module, ptx.c_str(), 2, options, values);
  if (result == CUDA_SUCCESS) return module;
  *error = "error " + std::to_string(result) + ": " + log;
  return nullptr;
}

void Driver::Unload(CUmodule module) { Need(unload_(module), "cuModuleUnload"); }

CUdeviceptr Driver::Allocate(size_t bytes) {
  CUdeviceptr pointer = 0;
  Need(allocate_(&pointer, bytes), "cuMemAlloc");
  return pointer;
}

void Driver::Upload(CUdeviceptr to, std::span<const uint64_t> from) {
  Need(upload_(to, from.data(), from.size_bytes()), "cuMemcpyHtoD");
}

void Driver::Download(std::span<uint64_t> to, CUdeviceptr from) {
  Need(download_(to.data(), from, to.size_bytes()), "cuMemcpyDtoH");
}

uint64_t Driver::MakeObject(const Image& image) {
  // What devices ask of rows in linear memory at most.
  constexpr size_t kPitch = 256;
  const CUDA_ARRAY3D_DESCRIPTOR& shape = image.shape;
  CUDA_MEMCPY3D copy = {};
  copy.WidthInBytes = shape.Width * image.texel_bytes;
  copy.Height = std::max<size_t>(shape.Height, 1);
  copy.Depth = std::max<size_t>(shape.Depth, 1);
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = image.texels.data();
  copy.srcPitch = copy.WidthInBytes;
  copy.srcHeight = copy.Height;
  CUDA_RESOURCE_DESC resource = {};
  if (image.memory == Image::Memory::kArray) {
    CUarray array = nullptr;
    Need(create_array_(&array, &shape), "cuArray3DCreate");
    copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    copy.dstArray = array;
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = array;
  } else {
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstPitch = kPitch;
    copy.dstHeight = copy.Height;
    copy.dstDevice = Allocate(kPitch * copy.Height);
  }
  Need(copy_(&copy), "cuMemcpy3D");
  if (image.memory == Image::Memory::kLine) {
    resource.resType = CU_RESOURCE_TYPE_LINEAR;
    resource.res.linear = {copy.dstDevice, shape.Format, shape.NumChannels, copy.WidthInBytes};
  } else if (image.memory == Image::Memory::kPitch) {
    resource.resType = CU_RESOURCE_TYPE_PITCH2D;
    resource.res.pitch2D = {copy.dstDevice, shape.Format, shape.NumChannels,
                            shape.Width,    shape.Height, kPitch};
  }
  unsigned long long object = 0;
  if (image.is_surface) {
    Need(create_surface_(&object, &resource), "cuSurfObjectCreate");
  } else {
    Need(create_texture_(&object, &resource, &image.sampling, nullptr), "cuTexObjectCreate");
  }
  return object;
}

CUresult Driver::Run(CUmodule module, unsigned blocks, unsigned threads,
                     std::vector<CUdeviceptr> arguments) {
  CUfunction function = nullptr;
  Need(get_function_(&function, module, "run"), "cuModuleGetFunction");
  std::vector<void*> pointers;
  for (CUdeviceptr& argument : arguments) pointers.push_back(&argument);
  const CUresult result =
      launch_(function, blocks, 1, 1, threads, 1, 1, 0, nullptr, pointers.data(), nullptr);
  return result == CUDA_SUCCESS ? synchronise_() : result;
}

}  // namespace consort::ptx_suite
