// SPDX-License-Identifier: Apache-2.0
// tests/ptx/driver.h: the part of the driver API that the suite needs, from the library that it
// names.
//
// Owns the library and the device's primary context, both for the life of the process. One thread.
// Functions end the program with a message where the driver gives an error that no instruction
// causes.
#ifndef CONSORT_TESTS_PTX_DRIVER_H_
#define CONSORT_TESTS_PTX_DRIVER_H_

#include <cuda.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/ptx/images.h"

namespace consort::ptx_suite {

class Driver {
 public:
  // `library` is a path or a name for dlopen.
  explicit Driver(const std::string& library);
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // "NVIDIA H200, driver 13000".
  const std::string& description() const { return description_; }

  // The module, or null with the driver's message in `error`.
  CUmodule Load(const std::string& ptx, std::string* error);
  void Unload(CUmodule module);

  CUdeviceptr Allocate(size_t bytes);
  void Upload(CUdeviceptr to, std::span<const uint64_t> from);
  void Download(std::span<uint64_t> to, CUdeviceptr from);

  // A texture or surface object, for the life of the process.
  uint64_t MakeObject(const Image& image);

  // Runs the module's kernel `run` with these arguments and waits for its end.
  CUresult Run(CUmodule module, unsigned blocks, unsigned threads,
               std::vector<CUdeviceptr> arguments);

 private:
  template <typename Function>
  void Find(Function*& function, const char* name);

  void* library_ = nullptr;
  std::string description_;
  decltype(::cuModuleLoadDataEx)* load_ = nullptr;
  decltype(::cuModuleUnload)* unload_ = nullptr;
  decltype(::cuModuleGetFunction)* get_function_ = nullptr;
  decltype(::cuMemAlloc_v2)* allocate_ = nullptr;
  decltype(::cuMemcpyHtoD_v2)* upload_ = nullptr;
  decltype(::cuMemcpyDtoH_v2)* download_ = nullptr;
  decltype(::cuArray3DCreate_v2)* create_array_ = nullptr;
  decltype(::cuMemcpy3D_v2)* copy_ = nullptr;
  decltype(::cuTexObjectCreate)* create_texture_ = nullptr;
  decltype(::cuSurfObjectCreate)* create_surface_ = nullptr;
  decltype(::cuLaunchKernel)* launch_ = nullptr;
  decltype(::cuCtxSynchronize)* synchronise_ = nullptr;
};

}  // namespace consort::ptx_suite

#endif  // CONSORT_TESTS_PTX_DRIVER_H_
