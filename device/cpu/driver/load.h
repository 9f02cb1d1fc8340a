// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/load.h: from an image to a Program, with the log that the caller asked for.
//
// Stateless; thread safe.
#ifndef CONSORT_DEVICE_CPU_DRIVER_LOAD_H_
#define CONSORT_DEVICE_CPU_DRIVER_LOAD_H_

#include <memory>
#include <string>
#include <string_view>

#include "device/cpu/driver/cuda_api.h"
#include "device/cpu/program.h"

namespace consort::cpu {

// The caller's JIT options, of which the two logs are honoured; the rest is about machine code.
// Borrows the caller's arrays for the call.
class JitLog {
 public:
  JitLog(unsigned int option_count, CUjit_option* options, void** values)
      : option_count_(option_count), options_(options), values_(values) {}

  // CUDA_ERROR_INVALID_VALUE: the arrays are missing, or an option's number is unknown.
  CUresult Check() const;
  // Puts `error` into the caller's error log and empties the information log; sets the sizes.
  void Write(std::string_view error) const;

 private:
  void WriteBuffer(CUjit_option buffer, CUjit_option bytes, std::string_view text) const;
  void** Value(CUjit_option option) const;

  const unsigned int option_count_;
  CUjit_option* const options_;
  void** const values_;
};

struct LoadedProgram {
  std::string ptx;
  std::unique_ptr<Program> program;
};

// Loads what `image` points to: a fat binary, with or without its wrapper, or PTX text that ends in
// NUL. Like the vendor's driver it is given no length and believes the image's own.
// CUDA_ERROR_NO_BINARY_FOR_GPU: no PTX for this device. CUDA_ERROR_INVALID_IMAGE: damaged, or
// nothing known. CUDA_ERROR_INVALID_PTX: does not compile. CUDA_ERROR_UNSUPPORTED_PTX_VERSION: too
// new. Each failure is logged once and explained in `log`.
CUresult LoadProgram(const void* image, const JitLog& log, LoadedProgram* loaded);

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_DRIVER_LOAD_H_
