// SPDX-License-Identifier: Apache-2.0
// device/cpu/driver/load.h: from an image, or several, to a Program, with the log that the caller
// asked for.
//
// Stateless; thread safe.
#ifndef CONSORT_DEVICE_CPU_DRIVER_LOAD_H_
#define CONSORT_DEVICE_CPU_DRIVER_LOAD_H_

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/cpu/driver/cuda_api.h"
#include "device/cpu/program.h"
#include "device/cpu/ptx/linker.h"

namespace consort::cpu {

// The caller's JIT options, of which the two logs and the time are honoured; the rest is about
// machine code. Borrows the caller's arrays for the call.
class JitLog {
 public:
  JitLog(unsigned int option_count, CUjit_option* options, void** values)
      : option_count_(option_count), options_(options), values_(values) {}

  // CUDA_ERROR_INVALID_VALUE: the arrays are missing, or an option's number is unknown.
  CUresult Check() const;
  // Puts `error` into the caller's error log and empties the information log; sets the sizes.
  void Write(std::string_view error) const;
  // Puts down how long it took.
  void WriteWallTime(float milliseconds) const;

 private:
  void WriteBuffer(CUjit_option buffer, CUjit_option bytes, std::string_view text) const;
  void** Value(CUjit_option option) const;

  const unsigned int option_count_;
  CUjit_option* const options_;
  void** const values_;
};

// Adds the time of its life to `milliseconds`.
class Stopwatch {
 public:
  explicit Stopwatch(float* milliseconds) : milliseconds_(*milliseconds) {}
  ~Stopwatch() {
    const std::chrono::duration<float, std::milli> passed = Clock::now() - began_;
    milliseconds_ += passed.count();
  }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  float& milliseconds_;
  const Clock::time_point began_ = Clock::now();
};

struct LoadedProgram {
  std::string ptx;
  std::unique_ptr<Program> program;
};

// Loads what `image` points to: a fat binary, with or without its wrapper, or PTX text that ends in
// NUL; the units of relocatable device code are linked. Like the vendor's driver it is given no
// length and believes the image's own. CUDA_ERROR_NO_BINARY_FOR_GPU: no PTX for this device.
// CUDA_ERROR_INVALID_IMAGE: damaged, or nothing known. CUDA_ERROR_INVALID_PTX: does not compile.
// CUDA_ERROR_UNSUPPORTED_PTX_VERSION: too new. Each failure is logged once and explained in `log`.
CUresult LoadProgram(const void* image, const JitLog& log, LoadedProgram* loaded);

// The parts of LoadProgram, for who has more than one image. Each explains a failure in `message`,
// and logs nothing; errors as above.
//
// The PTX texts that this device would take of an image whose extent is known.
CUresult SelectTexts(std::span<const std::byte> image, std::vector<std::string>* texts,
                     std::string* message);
// Joins and compiles. CUDA_ERROR_INVALID_SOURCE: a name that is defined twice, or nowhere.
CUresult LinkProgram(std::span<const ptx::LinkInput> inputs, LoadedProgram* loaded,
                     std::string* message);

}  // namespace consort::cpu

#endif  // CONSORT_DEVICE_CPU_DRIVER_LOAD_H_
